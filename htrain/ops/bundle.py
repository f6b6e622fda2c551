"""The tensors of one message, laid out as they travel: small ones in one piece of memory, each large one in its own (docs/decisions/bundles.md).

Whoever wants a tensor has it by name, made when it is asked for. A loop over all of them has their addresses and shapes at once, and fills a bundle in
place: what a server is asked for and what it answers never become tensors there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.ops.pointers import array_at

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
}
LARGE_BYTES = 64 * 1024  # a tensor of so many has a piece of memory of its own: a copy costs more than another frame
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_IN_NUMPY = {name: np.dtype({"bfloat16": "int16", "bool": "uint8"}.get(name, name)) for name in DTYPES}
_ALIGNED = 16  # bytes: where a small tensor may begin
_HEADER_BYTES = 40  # ZeroMQ keeps so much beside the bytes of a message that it has received
_MOST_KINDS = 4096  # objects that are remembered


@dataclass(frozen=True, eq=False)
class Kinds:
    """What tensors of one message have in common from step to step: names, dtypes (of DTYPES) and numbers of dimensions, in their order."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, names: tuple[str, ...], dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> "Kinds":
        """The one object for these. Raises KeyError for a dtype that is not in DTYPES."""
        key = names, dtypes, ranks
        found = _KINDS.get(key)
        if found is None:
            if len(_KINDS) >= _MOST_KINDS:  # peers that nobody knows may send anything
                _KINDS.clear()
            _ = [_IN_NUMPY[dtype] for dtype in dtypes]
            found = _KINDS.setdefault(key, cls(*key))
        return found

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The position of each tensor, by its name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def ends(self) -> Numbers:
        """Where the dimensions of each tensor end among those of all."""
        return np.cumsum(self.ranks, dtype=np.int64) if self.ranks else np.empty(0, np.int64)

    @cached_property
    def item_bytes(self) -> Numbers:
        """Bytes of one element of each tensor: int64[n]."""
        return np.array([_IN_NUMPY[dtype].itemsize for dtype in self.dtypes], np.int64)

    @cached_property
    def num_dims(self) -> int:
        """Dimensions of all tensors together."""
        return sum(self.ranks)

    @cached_property
    def picks(self) -> "dict[tuple[str, ...], _Pick]":
        """What has been picked out of such tensors before."""
        return {}


_KINDS: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]], Kinds] = {}


@dataclass(frozen=True)
class _Pick:
    """Some of the tensors of a bundle: their kinds, and where they and their dimensions are among all."""

    kinds: Kinds
    places: Numbers
    dims: Numbers


class Bundle(Mapping[str, torch.Tensor]):
    """Tensors of `kinds`. `dims` are the dimensions of all, one behind the other; `pointers[n]` the addresses of their first numbers, valid as long as the
    bundle is; `sizes[n]` their bytes."""

    __slots__ = ("_begins", "_made", "_pieces", "dims", "kinds", "pointers", "sizes")

    def __init__(self, kinds: Kinds, dims: Numbers, sizes: Numbers, begins: Numbers, pieces: Sequence[Bytes]) -> None:
        """`begins` as `laid_out` gives them, over `pieces`."""
        self.kinds, self.dims, self.sizes = kinds, dims, sizes
        self._begins, self._pieces = begins, pieces
        self._made: dict[str, torch.Tensor] = {}
        self.pointers = _addresses(
            begins, np.array([piece.__array_interface__["data"][0] for piece in pieces], np.int64)
        )

    @classmethod
    def of(cls, names: tuple[str, ...], tensors: Sequence[torch.Tensor]) -> "Bundle":
        """These tensors, where they are. They must not change while the bundle is in use. Raises KeyError for a dtype that is not in DTYPES."""
        tensors = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
        kinds = Kinds.of(names, tuple([_NAMES[t.dtype] for t in tensors]), tuple([t.dim() for t in tensors]))
        made = cls.__new__(cls)
        made.kinds = kinds
        made.dims = np.array([size for tensor in tensors for size in tensor.shape], np.int64)
        made.sizes = np.array([tensor.nbytes for tensor in tensors], np.int64)
        made.pointers = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
        made._made = dict(zip(names, tensors, strict=True))
        made._begins, made._pieces = np.empty(0, np.int64), ()
        return made

    @classmethod
    def room(cls, kinds: Kinds, dims: Numbers) -> "Bundle":
        """Memory for such tensors, not filled.

        Large ones have as much as the gradients of them take that come in afterwards: where one was, the other has room. With pieces that differ by some
        bytes, the heap of a busy sparse PS grows further (tools/bench/sparse_ps.py --open 4 prints its memory).
        """
        sizes, begins, small = laid_out(kinds, dims)
        large = [np.empty(size + _HEADER_BYTES, np.uint8)[:size] for size in sizes[begins < 0].tolist()]
        return cls(kinds, dims, sizes, begins, [np.empty(small, np.uint8), *large])

    def packed(self) -> "Bundle":
        """The same tensors as they travel: small ones are copied into one piece of memory, a large one stays where it
        was.
        """
        if self._pieces:
            return self
        sizes, begins, small = laid_out(self.kinds, self.dims)
        together = np.empty(small, np.uint8)
        _gather(together, begins, sizes, self.pointers)
        large = [_bytes_of(self._made[self.kinds.names[k]]) for k in np.flatnonzero(begins < 0)]
        return Bundle(self.kinds, self.dims, sizes, begins, [together, *large])

    @property
    def pieces(self) -> Sequence[Bytes]:
        """The memory that travels: that of all small tensors, then that of each large one."""
        return self._pieces

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(self.sizes.sum())

    def pick(self, names: tuple[str, ...]) -> "Bundle":
        """Some of the tensors, in this order. Raises KeyError for a name that is not among them."""
        if names == self.kinds.names:
            return self
        pick = self.kinds.picks.get(names)
        if pick is None:
            pick = self.kinds.picks[names] = _pick(self.kinds, names)
        part = Bundle.__new__(Bundle)
        part.kinds, part.dims = pick.kinds, self.dims[pick.dims]
        part.sizes, part.pointers = self.sizes[pick.places], self.pointers[pick.places]
        part._made = {name: self[name] for name in names} if not self._pieces else {}
        part._begins = self._begins[pick.places] if self._pieces else self._begins
        part._pieces = self._pieces
        return part

    def __getitem__(self, name: str) -> torch.Tensor:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._tensor(self.kinds.index[name])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds.names)

    def __len__(self) -> int:
        return len(self.kinds.names)

    def __contains__(self, name: object) -> bool:
        return name in self.kinds.index

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of the tensor at a place."""
        end = int(self.kinds.ends[place])
        return tuple(self.dims[end - self.kinds.ranks[place] : end].tolist())

    def _tensor(self, place: int) -> torch.Tensor:
        begin, dtype = int(self._begins[place]), self.kinds.dtypes[place]
        piece, begin = (self._pieces[0], begin) if begin >= 0 else (self._pieces[-begin], 0)
        array = np.ndarray(self.shape(place), _IN_NUMPY[dtype], piece, begin)
        tensor = torch.from_numpy(array)
        if dtype == "bool":
            return tensor != 0  # a byte that is neither 0 nor 1 must not become a C++ bool
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def laid_out(kinds: Kinds, dims: Numbers) -> tuple[Numbers, Numbers, int]:
    """Where tensors of these dimensions lie: bytes[n] of each, where[n] it begins among the small ones or -k for the
    k-th large one, and the bytes of all small ones.

    Raises ValueError for dimensions that no tensor has; its argument is the tensor's position.
    """
    sizes, begins = np.empty((2, len(kinds.names)), np.int64)
    small = _lay_out(kinds.ends, kinds.item_bytes, dims, sizes, begins)
    if small < 0:
        raise ValueError(-small - 1)
    return sizes, begins, small


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[::1], i8[::1], i8[::1])")
def _lay_out(ends, item_bytes, dims, sizes, begins):  # type: ignore[no-untyped-def]
    """The bytes of the small ones; -1 - k where tensor k has a negative dimension, or more bytes than there are."""
    at, large, first = 0, 0, 0
    for k in range(ends.size):
        size, whole = item_bytes[k], float(item_bytes[k])
        for place in range(first, ends[k]):
            if dims[place] < 0:
                return -1 - k
            size *= dims[place]
            whole *= max(1, dims[place])
        if whole > 2.0**62:
            return -1 - k
        first = ends[k]
        sizes[k] = size
        if size >= LARGE_BYTES:
            large += 1
            begins[k] = -large
        else:
            begins[k] = at
            at += -(-size // _ALIGNED) * _ALIGNED
    return at


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1])")
def _addresses(begins, pieces):  # type: ignore[no-untyped-def]
    found = np.empty_like(begins)
    for k in range(begins.size):
        found[k] = pieces[0] + begins[k] if begins[k] >= 0 else pieces[-begins[k]]
    return found


@njit(nogil=True, cache=True, usual="(u1[::1], i8[::1], i8[::1], i8[::1])")
def _gather(together, begins, sizes, pointers):  # type: ignore[no-untyped-def]
    """Copy the small tensors to where they begin; what lies between them is zero."""
    for k in range(begins.size):
        if begins[k] >= 0:
            source, at = array_at(pointers[k], (sizes[k],), np.uint8(0)), begins[k]
            for i in range(sizes[k]):
                together[at + i] = source[i]
            for i in range(at + sizes[k], at + -(-sizes[k] // _ALIGNED) * _ALIGNED):
                together[i] = 0


def _bytes_of(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1).view(np.uint8)


def _pick(kinds: Kinds, names: tuple[str, ...]) -> _Pick:
    places = [kinds.index[name] for name in names]
    dims = [place for k in places for place in range(int(kinds.ends[k]) - kinds.ranks[k], int(kinds.ends[k]))]
    picked = Kinds.of(names, tuple(kinds.dtypes[k] for k in places), tuple(kinds.ranks[k] for k in places))
    return _Pick(picked, np.array(places, np.int64), np.array(dims, np.int64))


def dtype_name(dtype: torch.dtype) -> str | None:
    """The name under which tensors of a dtype travel; None where none do."""
    return _NAMES.get(dtype)


LOOPS = _lay_out, _addresses, _gather  # that every message needs
