"""In which order rows are trained: that of the data, shuffled within windows (htrain.data.shuffled), or one of time, which the data must have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset, Source
from htrain.data.rows import Rows
from htrain.data.shuffled import Shuffle
from htrain.data.times import shown
from htrain.errors import DataError

OPTIONS = ("shuffle", "shuffle_seed", "order")
_MOST_ROWS = 1 << 31
_MOST_SEED = 1 << 32


def ordered(dataset: Dataset, values: Mapping[str, str]) -> Dataset:
    """The dataset in the order that options say: `shuffle`, the rows of a window, with `shuffle_seed`, or `order`; as it is where none is given. Raises
    DataError.
    """
    if "order" in values:
        return _in_time(dataset, values)
    if not values:
        return dataset
    if "shuffle" not in values:
        raise DataError(
            f"option shuffle_seed={values['shuffle_seed']}: has no effect without shuffle=ROWS, the rows of a window"
        )
    rows = _number("shuffle", values["shuffle"], 2, _MOST_ROWS)
    return dataset.ordered(Shuffle(rows, _number("shuffle_seed", values.get("shuffle_seed", "0"), 0, _MOST_SEED)))


def _number(option: str, text: str, low: int, high: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not low <= number < high:
        raise DataError(f"option {option}={text}: want a whole number from {low} to {high - 1}")
    return number


def _in_time(dataset: Dataset, values: Mapping[str, str]) -> Dataset:
    if values["order"] != "time":
        raise DataError(f"option order={values['order']}: want time, or leave it out: rows come as they lie")
    if others := [name for name in OPTIONS if name in values and name != "order"]:
        raise DataError(f"option order=time: {others[0]} would undo it: want one of them")
    if not dataset.is_timed:
        raise DataError(
            f"{dataset.source.name}: has no times of rows, which order=time is of: a schema file names their column (time: COLUMN), packed data has "
            "those of its source"
        )
    return dataset.ordered(ByTime())


@dataclass(frozen=True)
class ByTime:
    """Rows come as they lie, and must lie in the order of time."""

    regroups = False

    @property
    def option(self) -> str:
        """See `Order`."""
        return "order"

    def of(self, source: Source, epoch: int, begins: Sequence[int]) -> Source:
        """A source as it is read in any epoch: what has come must be of later times, too."""
        return InTime(source)


@dataclass(frozen=True)
class InTime:
    """A source whose reader gets no row that is earlier than one before it."""

    source: Source

    @property
    def name(self) -> str:
        """The source's name."""
        return self.source.name

    def num_examples(self) -> int:
        """As many as the source has."""
        return self.source.num_examples()

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for the first row that is earlier than one before it."""
        latest = np.iinfo(np.int64).min
        for number, rows in self.source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=malformed):
            assert rows.times is not None
            before = np.maximum.accumulate(np.append(latest, rows.times))
            early = np.flatnonzero(rows.times < before[:-1])
            if early.size:
                row = int(early[0])
                where = self.source.place(number=number, row=row, num_shards=num_shards)
                raise DataError(
                    f"{where}: is of {shown(int(rows.times[row]))}, and a row before it of {shown(int(before[row]))}: order=time wants rows, and files by "
                    "their names, in the order of time: sort them"
                )
            latest = before[-1]
            yield number, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`."""
        return self.source.place(number=number, row=row, num_shards=num_shards)
