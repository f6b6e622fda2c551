"""A safetensors file of tensors that lie in memory, written from where they lie and summed up on the way (docs/decisions/checkpoints.md).

8 bytes: the length of the header; the header, JSON: dtype, shape and place of each tensor; their values, one after another, row-major, little-endian.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

DTYPES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
_WRITE_BYTES = 1 << 22  # at a time: they are summed up and written while a core has them at hand


@dataclass(frozen=True)
class TensorFile:
    """What is to be written: `parts` one behind the other, the header first, `num_bytes` in all. Writing it needs no more than system calls."""

    parts: Sequence[memoryview]
    num_bytes: int

    def write(self, descriptor: int) -> int:
        """Write it to an open file; the CRC-32 of all of it. Raises OSError."""
        digest = 0
        for part in self.parts:
            for first in range(0, len(part), _WRITE_BYTES):
                piece = part[first : first + _WRITE_BYTES]
                digest = zlib.crc32(piece, digest)
                while piece:
                    piece = piece[os.write(descriptor, piece) :]
        return digest


def tensor_file(tensors: Mapping[str, torch.Tensor]) -> TensorFile:
    """The file of these tensors, which are contiguous and share no memory: those of the host as they are when they are written, others as they are now."""
    # The widest first: whoever maps the file finds each at a multiple of its elements' size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    parts = [_bytes_of(tensors[name]) for name in order]
    entries: dict[str, object] = {}
    end = 0
    for name, part in zip(order, parts, strict=True):
        begin, end = end, end + len(part)
        tensor = tensors[name]
        entries[name] = {
            "dtype": DTYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    header = header_of(entries)
    return TensorFile([memoryview(header), *parts], len(header) + end)


def header_of(entries: Mapping[str, object]) -> bytes:
    """What a file begins with; values then begin at a multiple of 8."""
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
