"""Whole rows of a table, optimizer state behind them, out and in: Numba, nogil. Ids come by message: nothing outside an array is touched."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from htrain.errors import DataError
from htrain.ops.sparse_checks import Ids, Rows, fits, ids_out_of_range


def read_rows(parts: Sequence[Rows], ids: Ids, first_row: int) -> Rows:
    """values[n, D + S] of ids[n]: the row of a shard that starts at `first_row`, and behind it that of each state.

    `parts` are the table[R,D] and its states, [R,D] or [R]. Raises DataError for an id outside the shard.
    """
    flat = _as_matrices(parts)
    values = np.empty((ids.size, sum(part.shape[1] for part in flat)), np.float32)
    column = 0
    for part in flat:
        if not fits(_read, part, ids, first_row, values, column):
            raise ids_out_of_range(ids, values[:, : part.shape[1]], part, first_row)
        column += part.shape[1]
    return values


def write_rows(parts: Sequence[Rows], ids: Ids, values: Rows, first_row: int) -> None:
    """The reverse of `read_rows`. Raises DataError for an id outside the shard and for values of another form."""
    flat, column = _as_matrices(parts), 0
    width = sum(part.shape[1] for part in flat)
    if values.ndim != 2 or len(values) < ids.size or values.shape[1] != width:
        raise DataError(f"rows to write back are {values.dtype}{list(values.shape)}, want float32[{ids.size}, {width}]")
    for part in flat:
        if not fits(_write, part, ids, first_row, values, column):
            raise ids_out_of_range(ids, values[:, column : column + part.shape[1]], part, first_row)
        column += part.shape[1]


def _as_matrices(parts: Sequence[Rows]) -> list[Rows]:
    return [part.reshape(len(part), -1) for part in parts]


@njit(nogil=True, cache=True)
def _read(part, ids, first_row, values, column):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= part.shape[0]:
            return False
        for d in range(part.shape[1]):
            values[i, column + d] = part[row, d]
    return True


@njit(nogil=True, cache=True)
def _write(part, ids, first_row, values, column):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= part.shape[0]:
            return False
    for i in range(ids.size):
        row = ids[i] - first_row
        for d in range(part.shape[1]):
            part[row, d] = values[i, column + d]
    return True
