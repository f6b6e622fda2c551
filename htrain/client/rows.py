"""One cache of a worker, and the lookups of a step that are open in it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from htrain.client.direct import DirectRows
from htrain.client.warm_up import dedupe, dedupe_at_once, new_cache
from htrain.errors import DataError, UsageError
from htrain.membership.served import ServedCache
from htrain.sync.het.client import HetCache
from htrain.sync.request import Request
from htrain.sync.territory import Ids


@dataclass(frozen=True)
class Lookup:
    """rows[u,D], whose gradient is to be trained, and inverse[n]: which of them each id has."""

    rows: torch.Tensor
    inverse: torch.Tensor


@dataclass
class _Open:
    """Rows that were read for a step: slots[u] of keys[u], and rows[u,D], which gather a gradient."""

    keys: Ids
    slots: Ids
    rows: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class _Batch:
    """An announced batch: its distinct keys, and of each lookup its table, its ids and which of the keys each is."""

    keys: Ids
    lookups: Sequence[tuple[str, Ids, torch.Tensor]]


class Side:
    """A cache on this worker.

    - `num_open` sets of rows have been read, and neither written nor let go; `lookups` of this step have been given out.
    - Of the announced batches, one may be asked for, and one present: the batch of the step that goes on.
    """

    def __init__(self, served: ServedCache, rows: DirectRows) -> None:
        self.served = served
        self._rows: DirectRows | HetCache = rows
        self._first_keys = {table.name: table.first_key for table in served.tables}
        self.lookups = 0
        self._opens: list[_Open] = []
        self._announced_rows: _Open | None = None
        self._reading: _Open | None = None
        self._finish: Callable[[], None] = lambda: None
        self._batches: deque[_Batch] = deque()
        self._asked: _Batch | None = None
        self._present: _Batch | None = None
        self._direct_fetched = 0

    @property
    def is_direct(self) -> bool:
        """Whether nothing is cached yet."""
        return isinstance(self._rows, DirectRows)

    @property
    def asks_ahead(self) -> bool:
        """Whether rows may be asked for before those of the present step are written."""
        return not self.is_direct and self.served.staleness != 0

    @property
    def num_open(self) -> int:
        """Sets of rows that are read."""
        return len(self._opens)

    @property
    def unsent(self) -> int:
        """Rows with updates that the servers do not have."""
        return self._rows.unsent

    def settle(self, capacity: int | None) -> None:
        """Hold rows from now on. Requires: nothing is open or asked for. Raises UsageError where there is no memory for so many."""
        if isinstance(self._rows, DirectRows):
            wanted = self.served.capacity if capacity is None else capacity
            try:
                cache = new_cache(self.served, wanted)
            except (MemoryError, OverflowError, ValueError):  # of NumPy: no memory, no such number, no such array
                raise UsageError(
                    f"connect: capacity: there is no memory for a cache of {wanted} rows of {', '.join(self._first_keys)}: connect with a smaller one"
                ) from None
            cache.take_over(self._rows.handed_over())
            for batch in self._batches:
                cache.announce(batch.keys)
            self._direct_fetched, self._rows = self._rows.fetched, cache

    def counts(self) -> dict[str, int]:
        """What the cache has done."""
        if isinstance(self._rows, DirectRows):
            return {"hits": 0, "misses": self._rows.fetched}
        counts = self._rows.counts
        names = ("hits", "misses", "run_out", "stale", "evicted")
        found = {name: int(getattr(counts, name)) for name in names} | {
            f"{kind}_bytes": n for kind, n in counts.bytes.items()
        }
        found["misses"] += self._direct_fetched
        return found

    # -- lookups that were not announced -----------------------------------------------------------------------------

    def begin(self, table: str, ids: Ids) -> tuple[list[Lookup], Ids]:
        """A lookup, which is in the list once `end_read` has its rows, and the keys that are to be asked for: not those that this step has read already."""
        distinct, (inverse,) = self._distinct([(table, ids)])
        known, sources = np.zeros(distinct.size, bool), []
        for each in self._opens:
            order = np.argsort(each.keys, kind="stable")
            near = np.minimum(np.searchsorted(each.keys, distinct, sorter=order), max(0, each.keys.size - 1))
            here = ~known & (each.keys[order[near]] == distinct) if each.keys.size else np.zeros(distinct.size, bool)
            sources.append((each, np.flatnonzero(here), order[near[here]]))
            known |= here
        fresh = np.flatnonzero(~known)
        places = np.empty(distinct.size, np.int64)
        places[fresh] = np.arange(fresh.size)
        at, shared = fresh.size, []
        for each, here, there in sources:
            places[here] = np.arange(at, at + here.size)
            at += here.size
            if here.size:
                shared.append(each.rows.index_select(0, torch.from_numpy(there)))
        if shared:
            inverse = torch.from_numpy(places)[inverse]
        found: list[Lookup] = []
        self._reading = _Open(distinct[fresh], np.empty(0, np.int64))
        self._finish_with(shared, inverse, found)
        if not fresh.size:
            self._fill(np.empty((0, self.served.width), np.float32), np.empty(0, np.int64))
        return found, distinct[fresh]

    def _finish_with(self, shared: Sequence[torch.Tensor], inverse: torch.Tensor, into: list[Lookup]) -> None:
        """What is done when the rows have come: behind them stand those that are `shared`."""

        def finish() -> None:
            rows = self._opens[-1].rows
            rows = torch.cat([rows, *shared]) if shared else rows
            into.append(Lookup(rows, inverse))
            self.lookups += 1

        self._finish = finish

    def ask(self, keys: Ids) -> list[Request]:
        """A request to each server for the rows of distinct keys."""
        slots, requests = self._rows.ask(keys)
        assert self._reading is not None
        self._reading.slots = slots
        return requests

    def end_read(self, answers: Sequence[Any]) -> None:
        """Servers have answered."""
        assert self._reading is not None
        slots = self._reading.slots
        self._fill(self._rows.read_arrays(slots, answers), slots)

    def _fill(self, rows: np.ndarray, slots: Ids) -> None:
        assert self._reading is not None
        self._open(self._reading.keys, slots, rows)
        self._reading = None
        self._finish()

    def _open(self, keys: Ids, slots: Ids, rows: np.ndarray) -> _Open:
        made = _Open(keys, slots, torch.from_numpy(rows).requires_grad_())
        self._opens.append(made)
        return made

    # -- announced batches -------------------------------------------------------------------------------------------

    def announce(self, lookups: Sequence[tuple[str, Ids]]) -> None:
        """A later step will look up these ids of these tables."""
        keys, inverse = self._distinct(lookups)
        self._batches.append(_Batch(keys, [(*each, part) for each, part in zip(lookups, inverse, strict=True)]))
        self._rows.announce(keys)

    def ask_announced(self) -> list[Request]:
        """Ask for the next of them."""
        self._asked = self._batches.popleft()
        slots, requests = self._rows.ask(self._asked.keys)
        self._reading = _Open(self._asked.keys, slots)
        return requests

    def end_announced(self, answers: Sequence[Any]) -> None:
        """Servers have answered; it is the present batch from now on."""
        assert self._reading is not None
        self._present, self._asked = self._asked, None
        rows = self._rows.read_arrays(self._reading.slots, answers)
        self._announced_rows = self._open(self._reading.keys, self._reading.slots, rows)
        self._reading = None

    def taken(self, table: str, ids: Ids) -> Lookup:
        """A table of the present batch. Raises DataError where it was announced with other ids, or not at all."""
        announced = [each for each in self._present.lookups if each[0] == table] if self._present else []
        if not announced:
            raise DataError(
                f"table '{table}' is looked up in a step whose batch was announced without it: announce all lookups of a step"
            )
        for _, known, inverse in announced:
            if np.array_equal(known, ids):
                assert self._announced_rows is not None
                self.lookups += 1
                return Lookup(self._announced_rows.rows, inverse)
        raise DataError(
            f"table '{table}' is looked up with other ids than were announced: announce batches in the order of their steps"
        )

    # -- what is written ---------------------------------------------------------------------------------------------

    def scale(self, scale: float) -> list[str]:
        """Multiply the gradients of all open lookups by `scale`. The names of tables that have a row whose gradient is not finite then.

        What gradients were computed from, in a backward pass with create_graph, is let go.
        """
        unusable: set[str] = set()
        for each in self._opens:
            if each.rows.grad is None:
                continue
            gradient = each.rows.grad.detach()
            each.rows.grad = gradient if scale == 1 else gradient * scale
            if not np.isfinite(float(each.rows.grad.sum())):  # finite ones may sum to one that is not
                unusable |= self._tables_of(each.keys[~torch.isfinite(each.rows.grad).all(1).numpy()])
        return [table.name for table in self.served.tables if table.name in unusable]

    def _tables_of(self, keys: Ids) -> set[str]:
        tables = self.served.tables
        return {t.name for t in tables if ((keys >= t.first_key) & (keys < t.first_key + t.rows)).any()}

    def step(self) -> None:
        """Write the gradients of all open lookups."""
        opens = self._end()
        for each in opens:
            gradient = each.rows.grad
            if gradient is None:
                self._rows.let_go(each.slots)
                continue
            self._rows.write(each.slots, gradient.numpy())
        self._rows.trim()

    def let_go(self) -> None:
        """Write nothing."""
        for each in self._end():
            self._rows.let_go(each.slots)
        self._rows.trim()

    def _end(self) -> list[_Open]:
        """What was read; nothing is from here on."""
        opens, self._opens, self._present, self._announced_rows, self.lookups = self._opens, [], None, None, 0
        return opens

    def outgoing(self) -> list[Request]:
        """What waits to be pushed, and nothing asked."""
        return self._rows.outgoing()

    def flush(self) -> list[Request]:
        """Every update that was not pushed."""
        return self._rows.flush()

    def absorb(self, answers: Sequence[Any]) -> None:
        """Servers have answered to what asked for nothing."""
        self._rows.read_arrays(np.empty(0, np.int64), answers)

    # -- keys --------------------------------------------------------------------------------------------------------

    def _distinct(self, lookups: Sequence[tuple[str, Ids]]) -> tuple[Ids, Sequence[torch.Tensor]]:
        """The distinct keys of some lookups, and for each lookup which of them each id is."""
        parts = [ids + self._first_keys[table] for table, ids in lookups]
        keys, inverse = (dedupe_at_once if self.is_direct else dedupe)(np.concatenate(parts))
        return keys, torch.from_numpy(inverse).split([part.size for part in parts])
