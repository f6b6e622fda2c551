"""A safetensors file of tensors that lie in memory, written from where they lie and summed up on the way (docs/decisions/checkpoints.md).

8 bytes: the length of the header; the header, JSON: dtype, shape and place of each tensor; their values, one after another, row-major, little-endian.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

DTYPES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
CHANGED = ":changed"  # ends the name of the numbers of those rows of a tensor that a file has
_WRITE_BYTES = 1 << 22


@dataclass(frozen=True)
class Streamed:
    """So many bytes that are made piece by piece when they are written; a piece is good until the next."""

    num_bytes: int
    pieces: Callable[[], Iterable[memoryview]]

    def __len__(self) -> int:
        return self.num_bytes


Part = memoryview | Streamed


@dataclass(frozen=True)
class Values:
    """Those of one tensor: its dtype, one of `DTYPES`, its shape, and its bytes in `parts`, one behind the other."""

    dtype: str
    shape: tuple[int, ...]
    parts: Sequence[Part]

    @property
    def num_bytes(self) -> int:
        """Of all parts."""
        return sum(map(len, self.parts))

    @property
    def element_bytes(self) -> int:
        """Of one element."""
        return getattr(torch, self.dtype).itemsize


@dataclass(frozen=True)
class TensorFile:
    """What is to be written: `parts` one behind the other, the header first, `num_bytes` in all. Writing it needs no more than system calls, where none is
    streamed."""

    parts: Sequence[Part]
    num_bytes: int

    def write(self, descriptor: int) -> int:
        """Write it to an open file; the CRC-32 of all of it. Raises OSError, and what a stream raises."""
        digest = 0
        for part in self.parts:
            for piece in _pieces(part):
                digest = zlib.crc32(piece, digest)
                left = piece
                while left:
                    left = left[os.write(descriptor, left) :]
        return digest


def _pieces(part: Part) -> Iterable[memoryview]:
    """Its bytes, so many at a time as a core has at hand while they are summed up and written."""
    if isinstance(part, Streamed):
        return part.pieces()
    return (part[first : first + _WRITE_BYTES] for first in range(0, len(part), _WRITE_BYTES))


def tensor_file(tensors: Mapping[str, torch.Tensor]) -> TensorFile:
    """The file of these tensors, which are contiguous and share no memory: those of the host as they are when they are written, others as they are now."""
    return file_of(values_of(tensors))


def values_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Values]:
    """The values of these tensors, where they lie; those of an accelerator, copied."""
    return {
        name: Values(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), [_bytes_of(tensor)])
        for name, tensor in tensors.items()
    }


def file_of(values: Mapping[str, Values]) -> TensorFile:
    """The file of these values."""
    # The widest first: whoever maps the file finds each at a multiple of its elements' size.
    order = sorted(values, key=lambda name: (-values[name].element_bytes, name))
    entries: dict[str, object] = {}
    parts: list[Part] = []
    end = 0
    for name in order:
        each = values[name]
        begin, end = end, end + each.num_bytes
        entries[name] = {"dtype": DTYPES[each.dtype], "shape": list(each.shape), "data_offsets": [begin, end]}
        parts += each.parts
    header = header_of(entries)
    return TensorFile([memoryview(header), *parts], len(header) + end)


def header_of(entries: Mapping[str, object]) -> bytes:
    """What a file begins with; values then begin at a multiple of 8."""
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def places_in(descriptor: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """The dtype, shape, and place of the first byte, of each tensor of an open file that we have written. Raises OSError, ValueError for another file."""
    num_bytes = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if num_bytes > os.fstat(descriptor).st_size:
        raise ValueError("the header is longer than its file")
    entries = json.loads(os.pread(descriptor, num_bytes, 8))
    names = {short: name for name, short in DTYPES.items()}
    return {
        name: (names[entry["dtype"]], tuple(entry["shape"]), 8 + num_bytes + entry["data_offsets"][0])
        for name, entry in entries.items()
    }


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
