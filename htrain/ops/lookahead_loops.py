"""Whole rows of a table, optimizer state behind them, out and in: Numba, nogil. Ids come by message: nothing outside an array is touched."""

from collections.abc import Callable, Sequence

import numpy as np

from htrain.errors import DataError
from htrain.jit import njit
from htrain.ops.pointers import prefetch_row
from htrain.ops.side_by_side import side_by_side
from htrain.ops.sparse_checks import Ids, Rows, fits, ids_out_of_range

_AHEAD = 6  # rows that are on their way to the processor before they are moved
_ROWS_AT_ONCE = 1 << 12
_MANY = 1 << 19  # numbers: fewer are moved by one thread


def read_rows(parts: Sequence[Rows], ids: Ids, first_row: int) -> Rows:
    """values[n, D + S] of ids[n]: the row of a shard that starts at `first_row`, and behind it that of each state.

    `parts` are the table[R,D] and its states, [R,D] or [R]. Raises DataError for an id outside the shard.
    """
    flat = _as_matrices(parts)
    values = np.empty((ids.size, sum(part.shape[1] for part in flat)), np.float32)
    column = 0
    for part in flat:
        if not _fit(_read, part, ids, first_row=first_row, values=values, column=column):
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
        if not _fit(_write, part, ids, first_row=first_row, values=values, column=column):
            raise ids_out_of_range(ids, values[:, column : column + part.shape[1]], part, first_row)
        column += part.shape[1]


def take_into(out: Rows, rows: Rows, places: Ids | None = None) -> None:
    """Put rows[m,W], or those at `places`[n] of them, which must be among them, into out[n,W]; several threads share many."""

    def some(first: int, last: int) -> None:
        for begin in range(first * _ROWS_AT_ONCE, min(last * _ROWS_AT_ONCE, len(out)), _ROWS_AT_ONCE):
            part = slice(begin, begin + _ROWS_AT_ONCE)
            if places is None:
                np.copyto(out[part], rows[part])
            else:
                _take(rows, places[part], out[part])

    side_by_side(some, _sizes(len(out), out.shape[1]), small=_MANY)


def _fit(loop: Callable[..., bool], part: Rows, ids: Ids, *, first_row: int, values: Rows, column: int) -> bool:
    """Whether a loop over rows fits; several threads share many."""
    fitted: list[bool] = []

    def some(first: int, last: int) -> None:
        own = slice(first * _ROWS_AT_ONCE, last * _ROWS_AT_ONCE)
        fitted.append(fits(loop, part, ids[own], first_row, values[own], column))

    side_by_side(some, _sizes(ids.size, part.shape[1]), small=_MANY)
    return all(fitted)


def _sizes(rows: int, width: int) -> list[int]:
    """The numbers in each piece of some rows."""
    return [min(_ROWS_AT_ONCE, rows - first) * width for first in range(0, rows, _ROWS_AT_ONCE)]


def _as_matrices(parts: Sequence[Rows]) -> list[Rows]:
    return [part.reshape(len(part), -1) for part in parts]


@njit(nogil=True, cache=True)
def _read(part, ids, first_row, values, column):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        if i + _AHEAD < ids.size:
            prefetch_row(part.ctypes.data, ids[i + _AHEAD] - first_row, part.shape[1] * 4)
        row = ids[i] - first_row
        if row < 0 or row >= part.shape[0]:
            return False
        for d in range(part.shape[1]):
            values[i, column + d] = part[row, d]
    return True


@njit(nogil=True, cache=True)
def _take(rows, places, out):  # type: ignore[no-untyped-def]
    for i in range(places.size):
        for d in range(rows.shape[1]):
            out[i, d] = rows[places[i], d]


@njit(nogil=True, cache=True)
def _write(part, ids, first_row, values, column):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= part.shape[0]:
            return False
    for i in range(ids.size):
        if i + _AHEAD < ids.size:
            prefetch_row(part.ctypes.data, ids[i + _AHEAD] - first_row, part.shape[1] * 4)
        row = ids[i] - first_row
        for d in range(part.shape[1]):
            part[row, d] = values[i, column + d]
    return True
