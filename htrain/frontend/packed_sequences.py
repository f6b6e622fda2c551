"""Recurrent layers over packed sequences while a model is captured: the same numbers from padded ones, whatever the lengths of a batch are.

A layer that runs on behind the end of a sequence has given what is asked for before it gets there. So outputs are those of the padded sequence with the padding
value behind each end, and the last state is the output at the last place. The backward direction reads each sequence turned around within its length.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.utils import rnn

from htrain.errors import ModelError

_LAYERS: tuple[type[nn.RNNBase], ...] = (nn.GRU, nn.LSTM, nn.RNN)
_CELLS: dict[str, Any] = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu, "LSTM": torch.lstm}


class _Unknown:
    """What is not there while a model is captured."""

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def _refuse(self, *args: Any, **given: Any) -> NoReturn:
        raise ModelError(
            f"forward() reads {object.__getattribute__(self, '_what')}, whose shape or steps depend on the lengths of a batch"
        )

    __getattr__ = __getitem__ = __iter__ = __add__ = __mul__ = __matmul__ = __bool__ = __int__ = __len__ = _refuse

    def __torch_function__(self, *args: Any, **given: Any) -> NoReturn:
        self._refuse()


class _Padded(rnn.PackedSequence):
    """A packed sequence as padded[B,L,...] and lengths[B]; what PyTorch keeps in it is unknown."""

    padded: torch.Tensor
    lengths: torch.Tensor


def _padded(padded: torch.Tensor, lengths: torch.Tensor) -> _Padded:
    made = tuple.__new__(_Padded, (_Unknown("the data of a packed sequence"),) * 4)
    made.padded, made.lengths = padded, lengths
    return made


def _pack(input: torch.Tensor, lengths: Any, batch_first: bool, enforce_sorted: bool) -> _Padded:
    """Raises ModelError for sequences that must be sorted by their lengths, as those of no batch are."""
    if enforce_sorted:
        raise ModelError(
            "forward() packs sequences that must be sorted by length: give pack_padded_sequence enforce_sorted=False"
        )
    padded = input if batch_first else input.transpose(0, 1)
    return _padded(padded, torch.as_tensor(lengths).to(torch.int64))


def _pad(
    sequence: Any, batch_first: bool, padding_value: float, total_length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raises ModelError for an output that is as long as the longest sequence of a batch."""
    if not isinstance(sequence, _Padded):
        raise ModelError(
            "forward() pads a packed sequence that it has made of something else than pack_padded_sequence"
        )
    length = sequence.padded.shape[1]
    if total_length != length:
        raise ModelError(
            f"forward() pads sequences to the longest of a batch: give pad_packed_sequence total_length={length}"
        )
    inside = _inside(sequence.padded, sequence.lengths)
    behind = inside.view(*inside.shape, *(1 for _ in sequence.padded.shape[2:]))
    padded = torch.where(behind, sequence.padded, padding_value)
    return padded if batch_first else padded.transpose(0, 1), sequence.lengths


def _inside(padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """bool[B,L]: before the end of each sequence. As in PyTorch, a length of 0, or above L, is an error when a batch has it."""
    places = torch.arange(padded.shape[1])
    reached = (places >= 0).expand(padded.shape[0], -1).gather(1, lengths[:, None] - 1)
    return (places < lengths[:, None]) & reached


def _run(layer: nn.RNNBase, sequence: _Padded, given: Any) -> tuple[_Padded, Any]:
    """Every layer and direction on the padded sequences. Raises ModelError for what the layer does beside."""
    if layer.proj_size or (layer.dropout and layer.training and layer.num_layers > 1):
        raise ModelError(
            "a recurrent layer over packed sequences has projections, or dropout between its layers: make a module of each layer"
        )
    x, directions, last = sequence.padded, 2 if layer.bidirectional else 1, []
    begins = given if isinstance(given, tuple) else (given, given)
    for number in range(layer.num_layers):
        parts = []
        for place in range(number * directions, (number + 1) * directions):
            state = tuple(_begin(layer, x, each, place) for each in begins)
            output, end = _directed(layer, x, sequence.lengths, state, place, backward=place % directions == 1)
            parts.append(output)
            last.append(end)
        x = torch.cat(parts, 2)
    states = torch.stack(last)
    cells = _Unknown("the cell state of an LSTM over packed sequences")
    return _padded(x, sequence.lengths), (states, cells) if layer.mode == "LSTM" else states


def _begin(layer: nn.RNNBase, x: torch.Tensor, given: torch.Tensor | None, place: int) -> torch.Tensor:
    """The state[1,B,H] that a layer and direction begins with."""
    return x.new_zeros(1, x.shape[0], layer.hidden_size) if given is None else given[place : place + 1]


def _directed(
    layer: nn.RNNBase,
    x: torch.Tensor,
    lengths: torch.Tensor,
    begins: tuple[torch.Tensor, ...],
    place: int,
    *,
    backward: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """output[B,L,H] and the state[B,H] at the end of each sequence, or at its begin in the backward direction."""
    order = torch.remainder(lengths[:, None] - 1 - torch.arange(x.shape[1]), x.shape[1])
    if backward:
        x = _at(x, order)
    state: Any = begins if layer.mode == "LSTM" else begins[0]
    weights = [getattr(layer, name) for name in layer._all_weights[place]]
    output = _CELLS[layer.mode](x, state, weights, layer.bias, 1, 0.0, layer.training, False, True)[0]
    end = _at(output, lengths[:, None] - 1)[:, 0]
    return _at(output, order) if backward else output, end


def _at(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """x[B,L,K] at places[B,N]."""
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))


def _forward_of(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        return _run(self, input, hx) if isinstance(input, _Padded) else original(self, input, hx)

    return forward


def _pack_entry(input, lengths, batch_first=False, enforce_sorted=True):  # type: ignore[no-untyped-def]
    return _htrain_pack(input, lengths, batch_first, enforce_sorted)  # type: ignore[name-defined]  # noqa: F821


def _pad_entry(sequence, batch_first=False, padding_value=0.0, total_length=None):  # type: ignore[no-untyped-def]
    return _htrain_pad(sequence, batch_first, padding_value, total_length)  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def padded_sequences() -> Iterator[None]:
    """Within, sequences are packed by keeping them padded, and nn.GRU, nn.LSTM and nn.RNN take them.

    The functions of torch have other code for that time, as a model's file has imported them by name.
    """
    functions: tuple[Any, ...] = (rnn.pack_padded_sequence, rnn.pad_packed_sequence)
    codes, forwards = [function.__code__ for function in functions], [layer.forward for layer in _LAYERS]
    names: Any = rnn
    names._htrain_pack, names._htrain_pad = _pack, _pad
    try:
        for function, entry in zip(functions, (_pack_entry, _pad_entry), strict=True):
            function.__code__ = entry.__code__
        for layer, forward in zip(_LAYERS, forwards, strict=True):
            layer.forward = _forward_of(forward)
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        for layer, forward in zip(_LAYERS, forwards, strict=True):
            layer.forward = forward
        del names._htrain_pack, names._htrain_pad
