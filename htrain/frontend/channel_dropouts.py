"""Dropouts of whole channels while a model is captured: dropouts of one number for each, which are drawn again by a hash as all are."""

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# The dimensions of the inputs that each wants; 0 where it takes any.
_OF_CHANNELS = {F.dropout1d: 3, F.dropout2d: 4, F.dropout3d: 5, torch.feature_dropout: 0}
_UNBATCHED = (F.dropout1d, F.dropout3d)  # take one dimension less for a single example


class ChannelDropouts(TorchFunctionMode):
    """Within, F.dropout1d, 2d and 3d drop numbers of a tensor of ones, by which their input is multiplied; torch would draw them otherwise."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _OF_CHANNELS:
            return _dropped(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropped(
    func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: Any
) -> torch.Tensor:
    """Of an input without a batch the channels are the first dimension."""
    training = named.get("train", training)
    ahead = 1 if func in _UNBATCHED and input.dim() == _OF_CHANNELS[func] - 1 else 2
    kept = F.dropout(input.new_ones(*input.shape[:ahead], *[1] * (input.dim() - ahead)), p, training)
    return input.copy_(input * kept) if inplace else input * kept
