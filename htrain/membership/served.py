"""What servers offer to workers from outside: caches, their tables, and where their rows are."""

from collections.abc import Mapping

import msgspec
import numpy as np

from htrain.errors import DataError
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Ids

FILE = "serving.json"  # of a run folder


class ServedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Row r of a table is key first_key + r of its cache."""

    name: str
    first_key: int
    rows: int


class ServedCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cache of HET, which serves tables of one width D, and their optimizer.

    Its rows are on the sparse PSs `devices`, which call it `slots`. The keys from bounds[i] on are rows from first_rows[i] on of devices[servers[i]]; the
    last of `bounds` is their number. `staleness` is -1 where there is no bound.
    """

    name: str
    tables: tuple[ServedTable, ...]
    width: int
    devices: tuple[int, ...]
    slots: tuple[str, ...]
    bounds: tuple[int, ...]
    servers: tuple[int, ...]
    first_rows: tuple[int, ...]
    capacity: int
    staleness: int
    policy: str
    optimizer: str
    lr: float
    eps: float
    beta: float = 0.0
    l1: float = 0.0
    l2: float = 0.0

    @property
    def step(self) -> SparseStep:
        """How its rows are stepped."""
        return SparseStep(self.optimizer, self.lr, self.eps, beta=self.beta, l1=self.l1, l2=self.l2)

    @property
    def state_width(self) -> int:
        """Numbers of optimizer state beside a row."""
        return self.step.state_width(self.width)

    def held_at(self, place: int, keys: Ids) -> tuple[Ids, Ids]:
        """Which of some keys the server at a place of `devices` holds, by their places among them, and as which of its rows. By NumPy alone."""
        bounds, servers, first_rows = (np.array(numbers) for numbers in (self.bounds, self.servers, self.first_rows))
        shards = np.searchsorted(bounds, keys, side="right") - 1
        here = np.flatnonzero(servers[shards] == place)
        return here, keys[here] - bounds[shards[here]] + first_rows[shards[here]]


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All caches of a plan, and how many servers there are; `plan` is the plan's digest."""

    plan: str
    model: str
    num_servers: int
    caches: tuple[ServedCache, ...]

    def at(self, server: int) -> tuple[ServedCache, ...]:
        """The caches that have rows on a server, in the order in which messages name them."""
        return tuple(cache for cache in self.caches if server in cache.devices)

    def place_of(self, table: str) -> tuple[ServedCache, ServedTable]:
        """Where a table is, by its name in the plan or the path of its module. Raises DataError for one that is not here."""
        for cache in self.caches:
            for found in cache.tables:
                if table in (found.name, found.name.removesuffix(".weight")):
                    return cache, found
        raise DataError(f"no table '{table}' is served; there are {', '.join(self.tables)}")

    @property
    def tables(self) -> Mapping[str, tuple[int, int]]:
        """Rows and width of every table."""
        return {table.name: (table.rows, cache.width) for cache in self.caches for table in cache.tables}

    @property
    def is_synchronous(self) -> bool:
        """Whether workers step together: a staleness of 0."""
        return any(cache.staleness == 0 for cache in self.caches)


class Listening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where servers take messages of workers: server k at ports[k] of an address of its host, or at any that is free where that is 0; and who may come.

    A worker that is not heard for `lease_seconds` has left.
    """

    host: str
    ports: tuple[int, ...]
    token: str
    lease_seconds: float


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sparse PS is told that serves workers from outside."""

    served: Served
    listening: Listening


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """serving.json in a run folder: where to join, and with what word; `others` are the servers behind the first."""

    address: str
    token: str
    others: tuple[str, ...] = ()
