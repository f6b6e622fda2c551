"""Blobs: named tensors, with shapes whose only symbolic dimension is the batch.

Dimensions are ints, or `BatchDim`: a multiple of the batch size B, exact ("10B") or an upper bound that only the data
decides ("<=26B", the length of a list of deduplicated ids).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class BatchDim:
    """`per_example * B`, or at most that when `bound`."""

    per_example: int = 1
    bound: bool = False

    def __str__(self) -> str:
        return ("<=" if self.bound else "") + ("" if self.per_example == 1 else str(self.per_example)) + "B"

    def at(self, batch_size: int) -> int:
        """The dimension's size, or its upper bound, at a batch size."""
        return self.per_example * batch_size


Dim = int | BatchDim
Shape = tuple[Dim, ...]
B = BatchDim()


def numel(shape: Shape, batch_size: int) -> int:
    """Elements of a tensor of `shape` at `batch_size`; for a bound, the upper bound."""
    total = 1
    for dim in shape:
        total *= dim if isinstance(dim, int) else dim.at(batch_size)
    return total


DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Blob:
    """A named tensor of a net: its shape and dtype."""

    name: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"

    def num_bytes(self, batch_size: int) -> int:
        """Bytes of the blob at a batch size; for a bound, the most that they can be."""
        return numel(self.shape, batch_size) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Tensor:
    """A small constant tensor held in an attribute: dtype, shape and its bytes in C order (little-endian)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        return f"<{self.dtype}[{','.join(map(str, self.shape))}]>"


BATCH_KEY = Blob(
    "batch_key", (1,), "int64"
)  # a number of the reader's that tells a batch from all others, for ops that draw random numbers
