"""Why a sparse loop gave up, in words. Off the hot path: loops find out that something does not fit, these functions say what."""

from collections.abc import Callable

import numpy as np
from numba.core.errors import TypingError
from numpy.typing import NDArray

from htrain.errors import DataError

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
_INT64 = np.dtype(np.int64)


def fits(loop: Callable[..., bool], *arguments: object) -> bool:
    """Run `loop`; False when it gave up, or when it cannot be compiled for arrays of such dtypes and dimensions."""
    try:
        return loop(*arguments)
    except TypingError:
        return False


def is_list(ids: Ids) -> bool:
    """Whether `ids` is int64[n]. Numba would refuse to index by floats, but take them, rounded, for the ends of a
    range.
    """
    return ids.ndim == 1 and ids.dtype == _INT64


def ids_out_of_range(ids: Ids, rows: Rows, table: Rows, first_row: int) -> DataError:
    """The error for ids[u] that are outside a shard table[R,D] that starts at `first_row`, or rows[u,D] of another
    shape.
    """
    if not is_list(ids):
        return _other_form("ids", ids, "int64[u]")
    if rows.ndim != 2 or len(rows) < ids.size or rows.shape[1] != table.shape[1]:
        return _other_form("rows", rows, f"float32[{ids.size},{table.shape[1]}]")
    low, high = first_row, first_row + table.shape[0]
    bad = np.flatnonzero((ids < low) | (ids >= high))
    return outside(ids[bad[0]], ids, low, high) if bad.size else _other_form("rows", rows, f"{table.dtype}[u,D]")


def outside(row: int, ids: Ids, low: int, high: int) -> DataError:
    """The error for `row`, one of ids[n], which is outside [low, high)."""
    position = int(np.flatnonzero(ids == row)[0])
    return DataError(f"id {row} at position {position} is outside the table's rows [{low}, {high})")


def inverse_out_of_range(inverse: Ids, rows: Rows, taken: Rows) -> DataError:
    """The error for inverse[n] that are outside rows[u,D], or taken[n,D] of another shape."""
    if inverse.ndim == 1 and rows.ndim == 2 and taken.shape != (inverse.size, rows.shape[1]):
        return _other_form("gradients", taken, f"float32[{inverse.size},{rows.shape[1]}]")
    return _inverse_outside(inverse, rows)


def bags_out_of_range(inverse: Ids, offsets: Ids, weights: Rows, rows: Rows, bags: Rows) -> DataError:
    """The error for offsets[B] that do not cut inverse[n] into bags, for weights other than [n] or [0], for bags[B,D]
    of another shape, or for inverse indices outside rows[u,D].
    """
    if not is_list(offsets):
        return _other_form("offsets", offsets, "int64[B]")
    if weights.shape not in (inverse.shape, (0,)):
        return _other_form("weights", weights, f"float32[{inverse.size}]")
    if rows.ndim == 2 and bags.shape != (offsets.size, rows.shape[1]):
        return _other_form("gradients", bags, f"float32[{offsets.size},{rows.shape[1]}]")
    before = np.concatenate([np.zeros(1, np.int64), offsets[:-1]])
    most = np.full(offsets.size, inverse.size)
    most[:1] = 0
    bad = np.flatnonzero((offsets < before) | (offsets > most))
    if not bad.size:
        return _inverse_outside(inverse, rows)
    want = f"offsets ascend from 0 to at most {inverse.size}, the number of ids"
    return DataError(f"offset {offsets[bad[0]]} at position {bad[0]} does not fit: {want}")


def _inverse_outside(inverse: Ids, rows: Rows) -> DataError:
    if not is_list(inverse):
        return _other_form("places", inverse, "int64[n]")
    bad = np.flatnonzero((inverse < -1) | (inverse >= len(rows)))
    if not bad.size or rows.ndim != 2:
        return _other_form("rows", rows, "float32[u,D]")
    return DataError(
        f"place {inverse[bad[0]]} at position {bad[0]} is outside the {len(rows)} rows that were looked up"
    )


def _other_form(what: str, array: NDArray, wanted: str) -> DataError:
    return DataError(f"{what} are {array.dtype}[{','.join(map(str, array.shape))}], want {wanted}")
