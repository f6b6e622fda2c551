"""Which caches of a plan are asked for the same rows: these are recorded and played once."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from htrain.net.net import Net
from htrain.net.slices import leading_to
from htrain.simulation.strategies.strategy import Keyed
from htrain.sync.accesses import Longs


@dataclass(frozen=True)
class Group:
    """Caches that are asked for the same rows, by whatever names; the first stands for all. Part p has the keys from
    cuts[p] to cuts[p+1]: one part is of one table, and for each of the caches on one server."""

    caches: tuple[Keyed, ...]
    cuts: tuple[int, ...]

    @property
    def first_keys(self) -> Mapping[str, int]:
        """By the blob of a table's ids in the cache that stands for all, its first key."""
        return self.caches[0].first_keys

    @property
    def num_keys(self) -> int:
        """Rows of all tables."""
        return self.cuts[-1]

    @property
    def num_parts(self) -> int:
        """Parts of the keys."""
        return len(self.cuts) - 1

    @property
    def tables(self) -> Longs:
        """The number of each part's table, in the order of `first_keys`."""
        return np.searchsorted(list(self.first_keys.values()), self.cuts[:-1], side="right") - 1

    def servers(self, cache: Keyed) -> Longs:
        """The server of each part for one of the caches."""
        shards = np.searchsorted(cache.bounds, self.cuts[:-1], side="right") - 1
        return np.array(cache.servers, np.int64)[shards]

    def table_rows(self) -> tuple[int, ...]:
        """How many rows each table has."""
        return tuple(np.diff([*self.first_keys.values(), self.num_keys]).tolist())


def groups_of(train: Net, caches: tuple[Keyed, ...]) -> tuple[Group, ...]:
    """The caches by what they are asked for: the same ops over the same inputs, for tables of the same sizes."""
    found: dict[object, list[Keyed]] = {}
    for cache in caches:
        told = tuple((_told(train, blob), first) for blob, first in cache.first_keys.items())
        found.setdefault((told, cache.num_keys), []).append(cache)
    return tuple(Group(tuple(alike), _cuts(alike)) for alike in found.values())


def _cuts(caches: list[Keyed]) -> tuple[int, ...]:
    return tuple(sorted({cut for cache in caches for cut in (*cache.first_keys.values(), *cache.bounds)}))


def _told(train: Net, blob: str) -> object:
    """How a blob is made of the net's inputs, without the names of what is between."""
    numbers: dict[str, object] = {name: name for name in train.inputs}
    for place in leading_to(train.ops, {blob: 0}):
        op = train.ops[place]
        made = op.type, tuple(numbers[name] for name in op.inputs), tuple(sorted(op.attrs.items(), key=str))
        numbers.update({name: (made, k) for k, name in enumerate(op.outputs)})
    return numbers[blob]
