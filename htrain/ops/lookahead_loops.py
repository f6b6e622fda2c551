"""Whole rows of a table, optimizer state behind them, out and in: Numba, nogil. Ids come by message: nothing outside an array is touched."""

from collections.abc import Callable, Sequence

import numpy as np

from htrain.errors import DataError
from htrain.jit import njit
from htrain.ops.pointers import array_at, prefetch_row
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


def read_tables(tables: Sequence[Sequence[Rows]], wanted: Sequence[Ids], first_rows: Sequence[int]) -> list[Rows]:
    """As `read_rows` of each of several tables, by ids `wanted`[t][n_t]: a thread reads its share of all of them in one go, and does not ask for Python's lock
    between tables. Raises DataError for an id outside its shard."""
    flat = [_as_matrices(parts) for parts in tables]
    found = [np.empty((ids.size, sum(p.shape[1] for p in parts)), np.float32) for ids, parts in zip(wanted, flat, strict=True)]  # fmt: skip
    if not _moved(flat, wanted, first_rows, found, is_read=True):
        return [read_rows(*each) for each in zip(tables, wanted, first_rows, strict=True)]
    return found


def write_tables(
    tables: Sequence[Sequence[Rows]], keys: Sequence[Ids], values: Sequence[Rows], first_rows: Sequence[int]
) -> None:
    """The reverse of `read_tables`. Raises DataError for an id outside its shard, when rows of others may have been written, and for values of another form."""
    flat = [_as_matrices(parts) for parts in tables]
    if not _moved(flat, keys, first_rows, values, is_read=False):
        for each in zip(tables, keys, values, first_rows, strict=True):
            write_rows(*each)


def copy_into(out: Rows, sources: Sequence[Rows]) -> None:
    """Put all rows[n_k,W], one behind another, into out[n,W]; several threads share many."""
    whole = [np.ascontiguousarray(rows) for rows in sources]  # kept until all are copied
    pieces, first = [], _address(out)
    for rows in whole:
        row_bytes = 4 * out.shape[1]
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, len(rows) - begin)
            pieces.append((_address(rows) + begin * row_bytes, first + begin * row_bytes, count * out.shape[1]))
        first += len(rows) * row_bytes
    moves = np.array(pieces, np.int64).reshape(-1, 3)
    side_by_side(lambda first, last: _copy_pieces(moves[first:last]), moves[:, 2].tolist(), small=_MANY)


def _moved(
    tables: Sequence[Sequence[Rows]], ids: Sequence[Ids], first_rows: Sequence[int], values: Sequence[Rows], *, is_read: bool
) -> bool:  # fmt: skip
    """Whether all rows have been moved: they are as they should be, and where they should be."""
    moves = []
    for parts, own, first_row, rows in zip(tables, ids, first_rows, values, strict=True):
        if not _is_plain(parts, own, rows):
            return False
        column = 0
        for part in parts:
            for begin in range(0, own.size, _ROWS_AT_ONCE):
                end = min(own.size, begin + _ROWS_AT_ONCE)
                moves.append(
                    (_address(part), *part.shape, first_row, _address(own), _address(rows), rows.shape[1], column, begin, end)
                )  # fmt: skip
            column += part.shape[1]
    listed, fitted = np.array(moves, np.int64).reshape(-1, 10), []

    def some(first: int, last: int) -> None:
        fitted.append(_move_pieces(listed[first:last], is_read))

    side_by_side(some, ((listed[:, 9] - listed[:, 8]) * listed[:, 2]).tolist(), small=_MANY)
    return all(fitted)


def _is_plain(parts: Sequence[Rows], ids: Ids, rows: Rows) -> bool:
    """Whether loops may follow addresses of these."""
    arrays = (*parts, rows)
    return (
        ids.ndim == 1
        and ids.dtype == np.int64
        and ids.flags.c_contiguous
        and all(each.dtype == np.float32 and each.flags.c_contiguous for each in arrays)
        and rows.shape == (ids.size, sum(part.shape[1] for part in parts))
    )


def _address(array: Rows | Ids) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def take_into(out: Rows, rows: Rows) -> None:
    """Put rows[n,W] into out[n,W]; several threads share many."""

    def some(first: int, last: int) -> None:
        own = slice(first * _ROWS_AT_ONCE, min(last * _ROWS_AT_ONCE, len(out)))
        np.copyto(out[own], rows[own])

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


@njit(nogil=True, cache=True)
def _move_pieces(moves, is_read):  # type: ignore[no-untyped-def]
    """Each of moves[m,10]: the address, rows and columns of a part of a table and its first row, the address of ids, the address, columns and first column of
    values, and which of the ids, from begin to end."""
    for m in range(len(moves)):
        part = array_at(moves[m, 0], (moves[m, 1], moves[m, 2]), np.float32(0))
        begin, end = moves[m, 8], moves[m, 9]
        ids = array_at(moves[m, 4], (end,), np.int64(0))[begin:]
        values = array_at(moves[m, 5], (end, moves[m, 6]), np.float32(0))[begin:]
        if is_read:
            fitted = _read(part, ids, moves[m, 3], values, moves[m, 7])
        else:
            fitted = _write(part, ids, moves[m, 3], values, moves[m, 7])
        if not fitted:
            return False
    return True


@njit(nogil=True, cache=True)
def _copy_pieces(moves):  # type: ignore[no-untyped-def]
    """Each of moves[m,3]: from an address, to an address, so many numbers."""
    for m in range(len(moves)):
        source = array_at(moves[m, 0], (moves[m, 2],), np.float32(0))
        out = array_at(moves[m, 1], (moves[m, 2],), np.float32(0))
        for i in range(source.size):
            out[i] = source[i]
