"""Tables of one device that are looked up together, each by its own column of ids, as loops over their addresses see them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.jit import njit
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.sparse_checks import ids_out_of_range

Ids = NDArray[np.int64]


class Tables:
    """Tables[R,D] of a device, each of them looked up by its own column of ids[B,C]: what loops over them want to know, found once."""

    def __init__(self, tensors: Sequence[torch.Tensor], columns: Sequence[int]) -> None:
        """Raises DataError where loops over addresses would leave the tables."""
        self.tensors = tensors
        self.width = tensors[0].shape[1]
        if not all(t.shape[1:] == (self.width,) and t.dtype == torch.float32 and t.is_contiguous() for t in tensors):
            raise DataError(f"tables that are read together differ in form: want float32 rows, {self.width} wide")
        self.pointers, self.sizes, self.columns = pointers_of(tensors), sizes_of(tensors), np.array(columns, np.int64)
        self._last, self._first = max(columns), min(columns)

    def ids(self, ids: torch.Tensor) -> Ids:
        """ids[B,C] as int64 on the host, as loops want them. Raises DataError where there are fewer columns than the
        tables have.
        """
        if ids.dim() != 2 or not -ids.shape[1] <= self._first <= self._last < ids.shape[1]:
            raise DataError(f"ids are {list(ids.shape)}, want columns {self._first} to {self._last} of them")
        return ids.contiguous().numpy()

    def out_of_range(self, bad: int, ids: Ids) -> DataError:
        """The error for table number `bad`, which has no row for some of its ids[B,C]."""
        return ids_out_of_range(
            np.ascontiguousarray(ids[:, self.columns[bad]]),
            np.empty((len(ids), self.width), np.float32),
            self.tensors[bad].numpy(),
            0,
        )


def pointers_of(tensors: Sequence[torch.Tensor]) -> Ids:
    """The addresses of tensors, which must be contiguous, and kept by the caller."""
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


def sizes_of(tensors: Sequence[torch.Tensor]) -> Ids:
    """The number of rows of each tensor."""
    return np.array([tensor.shape[0] for tensor in tensors], np.int64)


@njit(nogil=True, cache=True)
def find_out_of_range(sizes, ids, columns):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1; table t has sizes[t] rows and the ids[b, columns[t]]."""
    for b in range(ids.shape[0]):
        for t in range(sizes.size):
            row = ids[b, columns[t]]
            if row < 0 or row >= sizes[t]:
                return t
    return -1


@njit(nogil=True, cache=True, fastmath={"contract"})
def step_rows(tables, sizes, ids, columns, b, rate, dy, first):  # type: ignore[no-untyped-def]
    """SGD on the rows of example b: row ids[b, columns[t]] of table t takes the step -rate * dy[first + t, D].

    The rows of the next example are asked for meanwhile.
    """
    width = dy.shape[1]
    for t in range(tables.size):
        if b + 1 < ids.shape[0]:
            prefetch_row(tables[t], ids[b + 1, columns[t]], 4 * width)
        table = array_at(tables[t], (sizes[t], width), np.float32(0))
        row = ids[b, columns[t]]
        for d in range(width):
            table[row, d] -= rate * dy[first + t, d]
