"""One pass over data: the rows that caches are asked for, all of them or a sample by row that fits a budget (SHARDS:
Waldspurger et al. 2015).

A row is in the sample where a hash of its key is below a threshold, with all of its accesses, so that what is kept is
what a cache of the same share of the size would be asked for. When there are more accesses than the budget, the
threshold is halved and those above it are dropped: what is left is what a lower threshold would have taken from the
beginning. Of few rows, a smaller share would tell little; of those the earlier half of the batches is dropped
instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from htrain.advising.groups import Group
from htrain.errors import DataError
from htrain.jit import njit
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import IdSource
from htrain.sync.accesses import Accesses, Ints, Longs, accesses_of
from htrain.sync.index import find, insert, new_index

ALL = 1 << 32  # the threshold that takes every row
FEWEST_ROWS = 1 << 15  # of a sample


@dataclass(frozen=True)
class Recorded:
    """What a group of caches is asked for: the accesses that were kept, of the last batches of each trainer; and
    asked[b, t, c], the distinct rows of table c in batch b of trainer t, kept or not. Where batches were dropped, the
    first `primed` of each trainer stand for them: rows in the order of their last uses. `total` accesses were there."""

    group: Group
    accesses: Accesses
    asked: Longs
    primed: int
    total: int


@dataclass
class Recorder:
    """Batches of all trainers, taken in one by one. `threshold` of 2^32 is the share of all rows that is kept, but not
    of fewer than `fewest_rows`."""

    group: Group
    trainers: int
    budget: float
    threshold: int = ALL
    fewest_rows: int = FEWEST_ROWS
    _keys: Longs = field(default_factory=lambda: np.empty(1 << 16, np.int64))
    _used: int = 0
    _lengths: list[int] = field(default_factory=list)
    _asked: list[Ints] = field(default_factory=list)
    _primed: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        self._table_rows = self.group.table_rows()

    def take(self, ids: Mapping[str, Longs] | None) -> None:
        """The distinct ids of the next batch, by blob; None for a trainer that has no more. Trainers take turns.
        Raises DataError for an id that no table has."""
        before, sizes = self._used, np.zeros(len(self._table_rows), np.int32)
        tables = zip(self.group.first_keys.items(), self._table_rows, strict=True) if ids is not None else ()
        for c, ((blob, first), rows) in enumerate(tables):
            assert ids is not None
            sizes[c] = len(ids[blob])
            self._room(len(ids[blob]))
            self._used = int(
                _sift(ids[blob], first, rows=rows, threshold=self.threshold, keys=self._keys, used=self._used)
            )
            if self._used < 0:
                bad = ids[blob][(ids[blob] < 0) | (ids[blob] >= rows)][0]
                raise DataError(f"row {bad} is asked for by {blob}, the table has {rows}: is an id too large?")
        self._total += int(sizes.sum())
        self._lengths.append(self._used - before)
        self._asked.append(sizes)

    def fit(self) -> None:
        """Make the sample fit its budget. Called between batches of all trainers."""
        while self._used > self.budget:
            if _has_few_rows(self._keys[: self._used], 2 * self.fewest_rows):
                self._drop_batches()
            else:
                self._drop_rows()

    def end(self) -> Recorded:
        """What was taken in."""
        starts = np.append(0, np.cumsum(self._lengths)).astype(np.int64)
        cuts = np.array(self.group.cuts, np.int64)
        accesses = accesses_of(self._keys[: self._used], starts, self.trainers, cuts, self.threshold / ALL)
        asked = np.array(self._asked, np.int64).reshape(-1, self.trainers, len(self._table_rows))
        return Recorded(self.group, accesses, asked, self._primed, self._total)

    def _room(self, more: int) -> None:
        if self._used + more > len(self._keys):
            self._keys = np.concatenate([self._keys, np.empty(max(more, len(self._keys)), np.int64)])

    def _drop_rows(self) -> None:
        self.threshold //= 2
        lengths = np.array(self._lengths, np.int64)
        self._used = int(_thin(self._keys, lengths, self.threshold))
        self._lengths = lengths.tolist()

    def _drop_batches(self) -> None:
        """The rows of the earlier half stay as batches in the order of their last uses, for caches to begin with."""
        rounds = len(self._lengths) // self.trainers
        if rounds < 2 + self._primed:
            self._drop_rows()
            return
        first = (self._primed + rounds) // 2 * self.trainers
        ends = np.cumsum(self._lengths[:first])
        batches = np.split(self._keys[: ends[-1]], ends[:-1])
        orders = [_by_last_use(np.concatenate(batches[t :: self.trainers])) for t in range(self.trainers)]
        primed = -(-max(map(len, orders)) // max(1, self._used // len(self._lengths)))
        parts = [
            part for together in zip(*(np.array_split(o, primed) for o in orders), strict=True) for part in together
        ]
        self._keys = np.concatenate([*parts, self._keys[ends[-1] : self._used]])
        self._used = len(self._keys)
        self._lengths = [*map(len, parts), *self._lengths[first:]]
        self._asked = [*(np.zeros_like(self._asked[0]) for _ in parts), *self._asked[first:]]
        self._primed = primed


@dataclass(frozen=True)
class Listener:
    """What hears how many examples have been read, about, and what is done next."""

    examples: Callable[[int], None] = lambda number: None
    step: Callable[[str], None] = lambda what: None


def read(
    plan: Plan, groups: Sequence[Group], source: IdSource, budget: float, listener: Listener = Listener()
) -> list[Recorded]:
    """What each group of a plan's caches is asked for by all trainers, over all data of a source; at most about
    `budget` accesses of each are kept.

    Trainers take turns, and one whose data is over has empty batches until that of all is. Raises DataError.
    """
    trainers = plan.cluster.groups * plan.cluster.trainers
    recorders = [Recorder(group, trainers, budget) for group in groups]
    tables = {blob: rows for group in groups for blob, rows in zip(group.first_keys, group.table_rows(), strict=True)}
    feeds = [source.batches(plan, tables, trainer) for trainer in range(trainers)]
    num_examples = 0
    while any(batches := [next(feed, None) for feed in feeds]):
        for recorder in recorders:
            for ids in batches:
                recorder.take(ids)
            recorder.fit()
        num_examples += plan.options.batch_size * sum(ids is not None for ids in batches)
        listener.examples(num_examples)
    return [recorder.end() for recorder in recorders]


def _has_few_rows(keys: Longs, most: int) -> bool:
    return int(_last_uses(keys, new_index(most), np.empty(most, np.int64))) >= 0


def _by_last_use(keys: Longs) -> Longs:
    """The distinct keys, the one whose last use is the longest ago first."""
    found = np.empty(len(keys), np.int64)
    return found[: _last_uses(keys, new_index(len(keys)), found)][::-1]


@njit(nogil=True, cache=True)
def _last_uses(keys, index, found):  # type: ignore[no-untyped-def]
    """Put the distinct keys into `found`, the last first. How many there are, -1 where there is no room for so many."""
    count = 0
    for i in range(keys.size - 1, -1, -1):
        if find(index, keys[i]) < 0:
            if count == found.size:
                return -1
            insert(index, keys[i], count)
            found[count] = keys[i]
            count += 1
    return count


@njit(nogil=True, cache=True)
def _hash(key):  # type: ignore[no-untyped-def]
    """The upper 32 bits of splitmix64's mixing of a key."""
    mixed = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32))


@njit(nogil=True, cache=True)
def _sift(ids, first, rows, threshold, keys, used):  # type: ignore[no-untyped-def]
    """Put the keys of the sample behind the first `used` of `keys`; how many there are then, -1 where an id is out of
    range."""
    for row in ids:
        if row < 0 or row >= rows:
            return -1
        key = first + row
        if _hash(key) < threshold:
            keys[used] = key
            used += 1
    return used


@njit(nogil=True, cache=True)
def _thin(keys, lengths, threshold):  # type: ignore[no-untyped-def]
    """Keep those of a lower threshold, batch by batch; how many there are."""
    at = kept = 0
    for b in range(lengths.size):
        end, before = at + lengths[b], kept
        while at < end:
            if _hash(keys[at]) < threshold:
                keys[kept] = keys[at]
                kept += 1
            at += 1
        lengths[b] = kept - before
    return kept
