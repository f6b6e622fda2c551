"""Recurrent layers over packed sequences while a model is captured: the same numbers from padded ones, whatever the lengths of a batch are.

A layer that runs on behind the end of a sequence has given what is asked for before it gets there. So outputs are those of the padded sequence with the padding
value behind each end, and the last state is the output at the last place. The backward direction reads each sequence turned around within its length.

So does code that takes a packed sequence apart, as cells of its own do that run step by step: to it all sequences are of one length, in the order of
the batch, and what it makes behind an end is dropped when they are padded again. Where it adds up all steps, or pads to the longest sequence of a batch and
asks how long that is, the net is another: a capture tells of the lines (`noted_lengths`), for the self-check to look at batches of short sequences.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.utils import rnn

from htrain.errors import ModelError
from htrain.frontend.blame import users_line

_LAYERS: tuple[type[nn.RNNBase], ...] = (nn.GRU, nn.LSTM, nn.RNN)
_CELLS: dict[str, Any] = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu, "LSTM": torch.lstm}


class _Unknown:
    """What is not there while a model is captured."""

    def __init__(self, what: str, cure: str) -> None:
        object.__setattr__(self, "_told", f"forward() reads {what}: {cure}")

    def _refuse(self, *args: Any, **given: Any) -> NoReturn:
        raise ModelError(object.__getattribute__(self, "_told") + users_line(sys._getframe(1)))

    __getattr__ = __getitem__ = __iter__ = __add__ = __mul__ = __matmul__ = __bool__ = __int__ = __len__ = _refuse

    def __torch_function__(self, *args: Any, **given: Any) -> NoReturn:
        self._refuse()


class Listed(_Unknown):
    """The numbers of a batch as a list or an array, of which pack_padded_sequence alone may be given one."""

    tensor: torch.Tensor

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        super().__init__(
            f"what .{name}() gives of a tensor of the batch",
            "a net has ops of tensors alone, and knows no values of a batch; pack_padded_sequence may be given it as lengths",
        )
        object.__setattr__(self, "tensor", tensor)


class _Steps(tuple[Any, ...]):
    """How many sequences each step has: all of a batch. They keep its lengths[B]."""

    lengths: torch.Tensor
    device = torch.device("cpu")

    def tolist(self) -> list[Any]:
        return list(self)

    def cpu(self) -> "_Steps":
        return self

    def size(self, dim: int | None = None) -> Any:
        return torch.Size([len(self)]) if dim is None else len(self)


class _Padded(rnn.PackedSequence):
    """A packed sequence as padded[B,L,...] and lengths[B]. Its data are those of all steps of all sequences, as if each had L."""

    padded: torch.Tensor
    lengths: torch.Tensor

    @property
    def data(self) -> torch.Tensor:
        return _noted(self)[0]

    @property
    def batch_sizes(self) -> Any:
        return _noted(self)[1]

    def __iter__(self) -> Iterator[Any]:
        return iter(_noted(self))

    def __getitem__(self, place: Any) -> Any:
        return _noted(self)[place]

    def _replace(self, **given: Any) -> "_Padded":
        data, steps, *_ = _noted(self)
        return _again(given.get("data", data), steps)


_noting: list[dict[str, None]] = []  # of the captures that run: what packs sequences is called by torch's own names


@contextmanager
def noted_lengths() -> Iterator[dict[str, None]]:
    """Within, the lines are noted, `model.py:31`, whose code may ask for the longest sequence of a batch, or for all steps."""
    _noting.append({})
    try:
        yield _noting[-1]
    finally:
        _noting.pop()


def _note() -> None:
    if _noting and (line := users_line(sys._getframe(1)).strip(" ()")):
        _noting[-1][line] = None


def _noted(sequence: _Padded) -> tuple[Any, ...]:
    _note()
    return tuple(tuple.__iter__(sequence))


def _padded(padded: torch.Tensor, lengths: torch.Tensor) -> _Padded:
    """The order of the sequences is that of the batch, in and out."""
    steps = _Steps([padded.shape[0]] * padded.shape[1])
    steps.lengths = lengths
    order = torch.arange(padded.shape[0])
    made = tuple.__new__(_Padded, (padded.transpose(0, 1).flatten(0, 1), steps, order, order))
    made.padded, made.lengths = padded, lengths
    return made


def _again(data: torch.Tensor, steps: _Steps) -> _Padded:
    """The packed sequence of what code has made of the data of another one."""
    return _padded(data.unflatten(0, (len(steps), -1)).transpose(0, 1), steps.lengths)


def _of_known_steps(sequence: Any) -> _Padded | None:
    """A packed sequence as it is here, also where code has made it of the steps of another one; None for what is none."""
    if isinstance(sequence, _Padded) or not isinstance(sequence, rnn.PackedSequence):
        return sequence if isinstance(sequence, _Padded) else None
    return _again(sequence.data, sequence.batch_sizes) if isinstance(sequence.batch_sizes, _Steps) else None


def _pack(input: torch.Tensor, lengths: Any, batch_first: bool, enforce_sorted: bool) -> _Padded:
    """Raises ModelError for sequences that must be sorted by their lengths, as those of no batch are."""
    if enforce_sorted:
        raise ModelError(
            "forward() packs sequences that must be sorted by length: give pack_padded_sequence enforce_sorted=False"
        )
    padded = input if batch_first else input.transpose(0, 1)
    lengths = lengths.tensor if isinstance(lengths, Listed) else torch.as_tensor(lengths)
    return _padded(padded, lengths.to(torch.int64))


def _pad(
    sequence: Any, batch_first: bool, padding_value: float, total_length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Without a total length to that of the sequences that were packed. Raises ModelError for another one."""
    found = _of_known_steps(sequence)
    if found is None:
        raise ModelError(
            "forward() pads a packed sequence that it has made of something else than pack_padded_sequence"
        )
    sequence, length = found, found.padded.shape[1]
    if total_length is None:
        _note()
    elif total_length != length:
        raise ModelError(
            f"forward() pads sequences of {length} to {total_length}: give pad_packed_sequence total_length={length}"
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
    """Every layer and direction on the padded sequences. Raises ModelError for projections."""
    if layer.proj_size:
        raise ModelError(
            "a recurrent layer over packed sequences has projections: build it without, and put nn.Linear behind"
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
        x = F.dropout(torch.cat(parts, 2), layer.dropout, layer.training and number < layer.num_layers - 1)
    states = torch.stack(last)
    cells = _Unknown(
        "the cell state of an LSTM over packed sequences", "take the state, or the output at the last place"
    )
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
        sequence = _of_known_steps(input)
        return original(self, input, hx) if sequence is None else _run(self, sequence, hx)

    return forward


def _listing(original: Callable[..., Any]) -> Callable[..., Any]:
    def tolist(self: torch.Tensor) -> Any:
        of_batch = self.dim() and isinstance(self.shape[0], torch.SymInt)
        return Listed(self, "tolist") if of_batch else original(self)

    return tolist


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
    fakes: Any = FakeTensor
    names._htrain_pack, names._htrain_pad, listed, fakes.tolist = _pack, _pad, fakes.tolist, _listing(fakes.tolist)
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
        fakes.tolist = listed
        del names._htrain_pack, names._htrain_pad
