"""What the sparse loops refuse, in words: ids, places, offsets and rows come from data or by message.

The loops find out that something is wrong; these functions, off the hot path, say what.
"""

import numpy as np
from numpy.typing import NDArray

from htrain.errors import DataError

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


def want_ids(what: str, ids: Ids) -> None:
    """Raises DataError unless `ids` is int64[n]."""
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise DataError(f"{what} are {_form(ids)}, want int64[n]")


def want_rows(what: str, rows: Rows, count: int, width: int) -> None:
    """Raises DataError unless `rows` is [count,width]."""
    if rows.shape != (count, width):
        raise DataError(f"{what} are {_form(rows)}, want a row of {width} for each of {count}")


def want_table(rows: Rows) -> None:
    """Raises DataError unless `rows` is [u,D]."""
    if rows.ndim != 2:
        raise DataError(f"rows are {_form(rows)}, want float32[u,D]")


def want_bags(places: Ids, offsets: Ids, weights: Rows) -> None:
    """Raises DataError unless places and offsets are lists, and weights as many as places, or none."""
    want_ids("places", places)
    want_ids("offsets", offsets)
    if weights.shape not in (places.shape, (0,)):
        raise DataError(f"weights are {_form(weights)}, want one for each of {places.size} ids")


def outside(row: int, ids: Ids, low: int, high: int) -> DataError:
    """`row`, which is one of `ids`, is outside [low, high)."""
    position = int(np.flatnonzero(ids == row)[0])
    return DataError(f"id {row} at position {position} is outside the table's rows [{low}, {high})")


def misplaced(places: Ids, num_rows: int) -> DataError:
    """One of `places` is neither -1 nor below `num_rows`."""
    position = int(np.flatnonzero((places < -1) | (places >= num_rows))[0])
    return DataError(f"place {places[position]} at position {position} is outside the {num_rows} rows that were looked up")


def misplaced_bags(places: Ids, offsets: Ids, num_rows: int) -> DataError:
    """The offsets do not ascend from 0 to at most the number of places, or a place has no row."""
    before = np.concatenate([np.zeros(1, np.int64), offsets[:-1]])
    bad = (offsets < before) | (offsets > places.size)
    bad[:1] |= offsets[:1] != 0
    if not bad.any():
        return misplaced(places, num_rows)
    bag = int(np.flatnonzero(bad)[0])
    return DataError(f"offset {offsets[bag]} of bag {bag} does not fit: offsets ascend from 0 to at most {places.size}, the number of ids")


def _form(array: NDArray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
