"""What windows cost: rows that they move between caches and store, and the CPU of finding, placing and averaging them (cDLRM 4 to 6).

Passes are priced as nets are, by their ops and messages. What the trainer does between its ops is priced here: calls for each table, as dear as starting an
op; keys that are found in an index; rows that are copied. `python tools/bench/lookahead_window.py` prints it beside what it takes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from htrain.costs.expected import expected_counts
from htrain.net.net import Net
from htrain.ops.cache_rates import Rates
from htrain.ops.lookahead import REQUEST
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster

_PLAN_CALLS, _READ_CALLS, _PLACE_CALLS, _STEP_CALLS = 3, 2, 5, 1  # for each table
_PLAN_FINDS, _STEP_FINDS = 3, 0.25  # for each key; a step's are known by their places in the window
_READ_COPIES, _PLACE_COPIES, _EVICTED_COPIES = 2, 4, 1  # of a row's bytes, read or written, each
PASS_COPIES, MEAN_COPIES = 2, 4


class Seconds(NamedTuple):
    """CPU seconds: under Python's lock, and without it."""

    locked: float
    free: float


class Moved(NamedTuple):
    """What a pass moves, for so many batches: the rows of a window, or what made room for them, conflict victims there, or these back."""

    what: Literal["window", "evicted", "victims", "updated"]
    batches: int


@dataclass(frozen=True)
class TableRates:
    """Rows of one table per batch of one trainer: `asked` in a step, `read` for windows, `loaded` into the cache, `evicted` from it, and `victims`, of
    all trainers. Distinct rows of m batches are asked * m ** growth."""

    name: str
    row_bytes: int
    asked: float
    read: float
    loaded: float
    evicted: float
    victims: float
    growth: float

    def distinct(self, batches: float) -> float:
        """Distinct rows of so many batches, of whichever trainers."""
        return self.asked * max(1.0, batches) ** self.growth


def tables_of(plan: Plan, rates: Rates) -> tuple[TableRates, ...]:
    """The tables that are looked up through caches, at `rates`, or as the cluster says."""
    counts = expected_counts(plan.train, plan.cluster, plan.options.batch_size, rates)
    trainers = plan.cluster.groups * plan.cluster.trainers
    return tuple(_tables(plan.train, counts, rates, trainers))


def _tables(train: Net, counts: Mapping[str, float], rates: Rates, trainers: int) -> Iterator[TableRates]:
    ids = {op.inputs[0]: op.inputs[-1] for op in train.ops if op.type == "LookaheadSlots"}
    for op in train.ops:
        if op.type != "LookaheadRequest":
            continue
        name, width = op.inputs[0], op.attrs["width"]
        assert isinstance(width, int)
        known = rates.caches.get(name)
        asked = counts.get(ids[name], 0.0)
        pushed, fetched = (_of_shards(op.outputs, part, counts) for part in ("keys", "wanted"))
        victims = known.victims if known else 0.0
        read, evicted = max(0.0, fetched - victims), max(0.0, pushed - victims)
        yield TableRates(
            name, 4 * width, asked, read, known.loaded if known else read, evicted, victims,
            growth=_growth(asked, known.window_rows, trainers * known.window) if known else 1.0,
        )  # fmt: skip


def _of_shards(outputs: Sequence[str], part: str, counts: Mapping[str, float]) -> float:
    return sum(counts.get(name, 0.0) for name in outputs[REQUEST.index(part) :: len(REQUEST)])


def _growth(asked: float, rows: float, batches: float) -> float:
    """The exponent by which distinct rows grow with batches (Heaps), from those of one batch and of several."""
    if batches <= 1 or asked <= 0 or rows <= asked:
        return 0.0 if batches > 1 else 1.0
    return min(1.0, math.log(rows / asked) / math.log(batches))


def shares_of(plan: Plan, rates: Rates, moved: Moved) -> dict[str, float]:
    """How many times the rows that a batch asks the store for, or gives it, each blob of a pass has, by its name."""
    found: dict[str, float] = {}
    tables = {table.name: table for table in tables_of(plan, rates)}
    for op in plan.train.ops:
        if op.type == "LookaheadRequest":
            of_read, of_written = _shares(tables[op.inputs[0]], moved)
            for place, name in enumerate(op.outputs):
                found[name] = of_read if REQUEST[place % len(REQUEST)] == "wanted" else of_written
        elif op.type == "Prefetch":
            found[op.outputs[0]] = found[op.inputs[-1]]
    return found


def _shares(table: TableRates, moved: Moved) -> tuple[float, float]:
    """The share of what is fetched, and that of what is pushed, times batches."""
    fetched, pushed = table.read + table.victims, table.evicted + table.victims
    parts = {"window": (table.read, 0.0), "victims": (table.victims, 0.0), "evicted": (0.0, table.evicted), "updated": (0.0, table.victims)}  # fmt: skip
    read, written = parts[moved.what]
    return (moved.batches * read / fetched if fetched else 0.0), (moved.batches * written / pushed if pushed else 0.0)


class WindowCosts:
    """CPU seconds of what a trainer does with windows between its ops; of `trainers` with the same caches."""

    def __init__(self, tables: Sequence[TableRates], cluster: Cluster, trainers: int) -> None:
        self.tables, self.trainers = tables, trainers
        self._cluster = cluster
        self._call = cluster.op_nanoseconds * 1e-9
        self._find = cluster.core_key_nanoseconds * 1e-9

    def plan(self, batches: int) -> Seconds:
        """Find the distinct rows of a window, and give them their slots."""
        keys = sum(table.distinct(self.trainers * batches) for table in self.tables)
        return self._seconds(_PLAN_CALLS, _PLAN_FINDS * keys, 0.0)

    def read(self, batches: int) -> Seconds:
        """Take the values of a window's rows, as they have come from the store."""
        return self._seconds(_READ_CALLS, 0.0, _READ_COPIES * batches * self.bytes_of("read"))

    def place(self, batches: int) -> Seconds:
        """Take what makes room for a window's rows out of their slots, and put these in."""
        copies = _PLACE_COPIES * self.bytes_of("loaded") + _EVICTED_COPIES * self.bytes_of("evicted")
        return self._seconds(_PLACE_CALLS, 0.0, batches * copies)

    def step(self) -> Seconds:
        """Begin a step: where its rows stand."""
        return self._seconds(_STEP_CALLS, _STEP_FINDS * sum(table.asked for table in self.tables), 0.0)

    def end(self) -> Seconds:
        """End a step."""
        return self._seconds(_STEP_CALLS, 0.0, 0.0)

    def copied(self, num_bytes: float, times: int) -> Seconds:
        """Rows that are read and written `times` times."""
        return Seconds(0.0, times * num_bytes / self._cluster.core_gather_bandwidth)

    def bytes_of(self, rows: Literal["read", "loaded", "evicted", "victims"]) -> float:
        """Bytes of such rows of a batch."""
        return sum(table.row_bytes * float(getattr(table, rows)) for table in self.tables)

    def bytes_in(self, moved: Moved) -> float:
        """Bytes of the rows of a pass."""
        of_batch = {"window": self.bytes_of("read"), "evicted": self.bytes_of("evicted")}
        return moved.batches * of_batch.get(moved.what, self.bytes_of("victims"))

    def _seconds(self, calls: int, finds: float, copied_bytes: float) -> Seconds:
        return Seconds(calls * len(self.tables) * self._call, finds * self._find + self.copied(copied_bytes, 1).free)
