"""Dropouts of whole channels, those that keep mean and variance, and those between recurrent layers, while a model is captured: dropouts of one number for
each, which are drawn again by a hash as all are."""

import math
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# The dimensions of the inputs that each wants; 0 where it takes any.
_OF_CHANNELS = {F.dropout1d: 3, F.dropout2d: 4, F.dropout3d: 5, torch.feature_dropout: 0}
_UNBATCHED = (F.dropout1d, F.dropout3d)  # take one dimension less for a single example
_ALPHA = -1.7580993408473766  # what SELU tends to
_OF_ALPHA = {
    F.alpha_dropout: False,
    F.feature_alpha_dropout: True,
    torch.alpha_dropout: False,
    torch.feature_alpha_dropout: True,
}
RECURRENT = frozenset({torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu})


class Dropouts(TorchFunctionMode):
    """Within, these drop numbers of a tensor of ones, which say what becomes of their input; torch would draw them otherwise.

    Recurrent layers with dropout between them run one by one.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _OF_CHANNELS:
            return _dropped(func, *args, **(kwargs or {}))
        if func in _OF_ALPHA:
            return _to_alpha(_OF_ALPHA[func], *args, **(kwargs or {}))
        if func in RECURRENT and isinstance(args[3], bool) and args[4] > 1 and args[5] and args[6]:
            return _layers(func, *args)
        return func(*args, **(kwargs or {}))


def _dropped(
    func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: Any
) -> torch.Tensor:
    """Of an input without a batch the channels are the first dimension."""
    training = named.get("train", training)
    ahead = 1 if func in _UNBATCHED and input.dim() == _OF_CHANNELS[func] - 1 else 2
    kept = F.dropout(input.new_ones(*input.shape[:ahead], *[1] * (input.dim() - ahead)), p, training)
    return input.copy_(input * kept) if inplace else input * kept


def _to_alpha(
    of_channels: bool, input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, **named: Any
) -> torch.Tensor:
    """What is dropped is what SELU tends to, and all is scaled and shifted so that mean and variance stay. A number that is kept is 1 / (1 - p), and 1 where
    nothing is dropped, as in evaluation."""
    training = named.get("train", training)
    if not training or not p:
        return input
    scale = 1 / math.sqrt((1 - p) * (1 + p * _ALPHA**2)) if p < 1 else 0.0
    shift = -scale * p * _ALPHA
    kept = F.dropout(
        input.new_ones(*input.shape[:2], *[1] * (input.dim() - 2)) if of_channels else torch.ones_like(input), p
    )
    drawn = torch.where(kept > 0, input * scale + shift, scale * _ALPHA + shift)
    made = torch.where(kept == 1, input, drawn)
    return input.copy_(made) if inplace else made


def _layers(func: Any, x: torch.Tensor, begin: Any, weights: Any, biases: bool, number: int, *rest: Any) -> Any:
    """The layers of a recurrent module, with dropout of what each gives the next; the states of all behind it."""
    share, training, two_ways, batch_first = rest
    of_layer, directions = len(weights) // number, 2 if two_ways else 1
    begins, ends = (list(begin) if isinstance(begin, tuple | list) else [begin]), []
    for layer in range(number):
        states = [each[layer * directions : (layer + 1) * directions] for each in begins]
        own = weights[layer * of_layer : (layer + 1) * of_layer]
        first = tuple(states) if func is torch.lstm else states[0]
        x, *end = func(x, first, own, biases, 1, 0.0, training, two_ways, batch_first)
        ends.append(end)
        x = F.dropout(x, share, layer < number - 1)
    return (x, *(torch.cat(states) for states in zip(*ends, strict=True)))
