"""How often each value of columns of ids comes, in one pass over data that a schema file describes: for vocabularies and reports of collisions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from htrain.data.arrow_rows import column_of
from htrain.data.layout import Layout
from htrain.data.rows import Rows
from htrain.data.schema import Input
from htrain.data.values import lists_of, texts
from htrain.errors import DataError

_KINDS = pa.schema([("value", pa.large_string()), ("count", pa.int64())])
_MOST_PENDING = 1 << 20  # counts of chunks that wait to be added up
Keep = Callable[[pa.Table], pa.Table]


@dataclass
class Counts:
    """The values of one column with their counts. `missing` values are not among them.

    Chunks are counted one by one, and added up when they have become as many as what they are added to, so that each value is moved a few times at most.
    """

    missing: int = 0
    _added: pa.Table = field(default_factory=_KINDS.empty_table)
    _pending: list[pa.Table] = field(default_factory=list)
    _num_pending: int = 0

    def add(self, values: pa.Array, keep: Keep = lambda table: table) -> None:
        """Count some values; `keep` says which of the counted ones are held."""
        text = texts(values)
        self.missing += text.null_count
        found = pc.value_counts(text.drop_null())
        counts = pa.table([found.field("values").cast(pa.large_string()), found.field("counts")], schema=_KINDS)
        self._pending.append(keep(counts))
        self._num_pending += self._pending[-1].num_rows
        if self._num_pending > max(_MOST_PENDING, self._added.num_rows):
            self._add_up()

    def narrow(self, keep: Keep) -> None:
        """Hold no more than what `keep` says."""
        self._add_up()
        self._added = keep(self._added)

    @property
    def held(self) -> int:
        """Rows that are held in memory, those with the same value more than once."""
        return int(self._added.num_rows) + self._num_pending

    @property
    def table(self) -> pa.Table:
        """`value`, text, and `count`, int64: each value once, in no order."""
        self._add_up()
        return self._added

    def _add_up(self) -> None:
        if self._pending:
            every = pa.concat_tables([self._added, *self._pending])
            sums = every.group_by("value", use_threads=False).aggregate([("count", "sum")])
            self._added = pa.table([sums["value"], sums["count_sum"]], schema=_KINDS)
            self._pending, self._num_pending = [], 0


def columns_of_ids(layout: Layout) -> dict[str, Input]:
    """The columns of ids that a layout reads, and the first input of each. Of a time, ids are none that could be counted."""
    of_ids = (item for item in layout.schema.inputs if item.kind != "dense" and item.name not in layout.moments)
    found: dict[str, Input] = {}
    for item in of_ids:
        for column in item.columns:
            found.setdefault(column, item)
    return found


def chosen(layout: Layout, asked: Sequence[str], default: Sequence[str], name: str) -> tuple[str, ...]:
    """The columns that were asked for, or `default` where none were. Raises DataError for one that is none of ids."""
    known = columns_of_ids(layout)
    if not known:
        raise DataError(f"{name}: its schema file has no column of ids")
    for column in asked:
        if column not in known:
            raise DataError(f"{name}: '{column}' is no column of ids of its schema file, which are {', '.join(known)}")
    return tuple(dict.fromkeys(asked)) or tuple(default)


def seen_values(table: pa.Table, column: str, item: Input) -> pa.Array:
    """What a model sees of a column: the values of lists one after the other, without those that are cut off as a padded list is longer than its input."""
    array = column_of(table, column)
    if item.kind == "ids":
        return array
    flat, lengths = lists_of(array)
    if item.kind == "padded" and lengths.size and lengths.max() > item.width:
        starts = np.cumsum(lengths) - lengths
        flat = flat.filter(pa.array(np.arange(len(flat)) - np.repeat(starts, lengths) < item.width))
    return flat


class Counting:
    """Counts of columns, told of tables and rows one after the other."""

    def __init__(self, columns: Mapping[str, Input], keep: Mapping[str, Keep] | None = None) -> None:
        self.counts = {column: Counts() for column in columns}
        self.num_examples = 0
        self._columns, self._keep = columns, keep or {}

    def __call__(self, table: pa.Table, rows: Rows) -> None:
        """Count the rows of a table."""
        self.num_examples += rows.count
        for column, item in self._columns.items():
            self.counts[column].add(seen_values(table, column, item), self._keep.get(column, lambda counts: counts))

    def items(self) -> Iterator[tuple[str, Counts]]:
        """Each column with its counts."""
        yield from self.counts.items()
