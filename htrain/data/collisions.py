"""What hashing does to a column of ids: how many of its values share a row of the table with another, and how many rows it would take that few do.

Up to a number of values all are held, and the report is exact. Beyond it, those are held whose rows are in a sample of the rows, half as large each time that
there are too many: of a row in the sample all values are known, so that the shares are not biased.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from htrain.data.arrow_rows import ids_of
from htrain.data.countable import Countable
from htrain.data.counting import Counting, Counts, Keep, chosen, columns_of_ids
from htrain.data.hashing import mixed_each
from htrain.data.malformed import Malformed
from htrain.data.rows import Rows
from htrain.data.schema import Input
from htrain.errors import DataError

FEW = 0.01  # the share of values that share a row which `enough_rows` is about
_MOST_ROWS = 2**62
_STEPS = 12  # halvings of the ratio between a number of rows that is too small and one that is enough


class Collisions(msgspec.Struct, frozen=True):
    """A column of ids. Of its `distinct` values the share `sharing` has a row of its table, which has `rows`, together with another value, and of all that come
    `examples_sharing` are such. With `enough_rows` rows less than a hundredth of the values would share one.

    Where only the share `sampled` of the rows was looked at, all of it is estimated.
    """

    column: str
    rows: int
    distinct: int
    sharing: float
    examples_sharing: float
    enough_rows: int
    sampled: float


class CollisionReport(msgspec.Struct, frozen=True):
    """What was counted, and how many rows of the data were. Columns that have a vocabulary are `listed`: their values share no row but that of the unknown."""

    examples: int
    malformed: int
    columns: tuple[Collisions, ...]
    listed: tuple[str, ...]


class _Sampled(Counting):
    """Counts of columns of which no more than `most` values are held."""

    def __init__(self, columns: dict[str, Input], rows: dict[str, int], most: int) -> None:
        super().__init__(columns, {column: self._keep_of(column) for column in columns})
        self.halvings = dict.fromkeys(columns, 0)
        self._rows, self._most = rows, most

    def __call__(self, table: pa.Table, rows: Rows) -> None:
        super().__call__(table, rows)
        for column, counts in self.items():
            while counts.held > self._most and counts.table.num_rows > self._most:
                self.halvings[column] += 1
                counts.narrow(self._keep_of(column))

    def _keep_of(self, column: str) -> Keep:
        def keep(counts: pa.Table) -> pa.Table:
            halvings = self.halvings[column]
            if not halvings:
                return counts
            ids = ids_of(counts["value"].combine_chunks(), self._rows[column])
            return counts.filter(pa.array(mixed_each(ids.view(np.uint64)) >> np.uint64(64 - halvings) == 0))

        return keep


def collisions_of(
    data: Countable, *, columns: Sequence[str], most_values: int, malformed: Malformed
) -> CollisionReport:
    """Count the values of the columns of ids of `data` that are hashed, or of `columns`, and how many of them share rows. Up to `most_values` values of each
    are held. Raises DataError for data that cannot be read, and columns that are none of ids or have a vocabulary.
    """
    counting = Counting({})
    layout, source = data.open(None, lambda table, rows: counting(table, rows))
    known = columns_of_ids(layout)
    listed = {column for _, column in layout.vocabularies}
    for column in columns:
        if column in listed:
            raise DataError(
                f"{data.name}: column '{column}' has a vocabulary: its values share no row but that of the unknown"
            )
    names = chosen(layout, columns, [column for column in known if column not in listed], data.name)
    rows = {column: known[column].rows[known[column].columns.index(column)] for column in names}
    counting = sampled = _Sampled({column: known[column] for column in names}, rows, most_values)
    for _ in source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
        pass
    if not counting.num_examples:
        raise DataError(f"{source.name}: holds no rows that can be read")
    each = tuple(_report(column, counts, rows[column], sampled.halvings[column]) for column, counts in sampled.items())
    return CollisionReport(sampled.num_examples, malformed.count, each, tuple(sorted(listed)))


def _report(column: str, counts: Counts, rows: int, halvings: int) -> Collisions:
    table = counts.table
    text = table["value"].combine_chunks()
    times = table["count"].to_numpy()
    shares = _sharing(ids_of(text, rows))
    distinct = len(text) << halvings
    enough = _enough_estimated(text, distinct) if halvings else _enough(text)
    return Collisions(
        column=column,
        rows=rows,
        distinct=distinct,
        sharing=float(shares.mean()) if shares.size else 0.0,
        examples_sharing=float(times[shares].sum() / times.sum()) if shares.size else 0.0,
        enough_rows=enough,
        sampled=0.5**halvings,
    )


def _sharing(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of different values, by their rows, share one with another."""
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)


def _enough(text: pa.Array) -> int:
    """A number of rows with which few values share one, tried out; between it and the next smaller one that was tried is a factor of less than 1.01."""

    def is_enough(rows: int) -> bool:
        shares = _sharing(ids_of(text, rows))
        return not shares.size or float(shares.mean()) < FEW

    low, high = 0, max(1, len(text))
    while not is_enough(high) and high < _MOST_ROWS // 2:
        low, high = high, high * 2
    for _ in range(_STEPS if low else 0):
        middle = (low + high) // 2
        if high - low <= high // 100 or middle in (low, high):
            break
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _enough_estimated(text: pa.Array, distinct: int) -> int:
    """As many rows as values that a hash spreads evenly want: a value is alone in its row with a probability of (1 - 1 / rows) ** (distinct - 1). Whole numbers
    share none where there are more rows than the largest of them; few of the numbers that are not in a sample are larger than all that are.
    """
    of_hash = math.ceil((distinct - 1) / -math.log1p(-FEW)) + 1
    if len(text) and pc.all(pc.match_substring_regex(text, "^[0-9]{1,18}$")).as_py():
        return min(of_hash, pc.max(text.cast(pa.int64())).as_py() + 1)
    return of_hash
