"""A worker's part in HET-GMP's bounded asynchrony (HET-GMP 5.3). Decisions alone; who carries messages is the caller's business.

A step of a worker is

    slots, requests = worker.ask(keys, samples)   Read: a request to each owner
    rows = worker.read(slots, answers)            when each has answered; from here on the next batch may be asked for
    worker.write(slots, gradients)                Update, before the next batch is read

and `flush` at a pause or at the end. A row that a batch reads is one of three:

- a primary of its own: read and written where it is, by way of `owner`;
- a secondary, one of a set that does not change. Its clock goes to the owner with the keys of the step (intra), and the row comes back where its primary has
  more than s updates that it has not seen. Where it is further than s behind another row of the same sample (inter), it comes whatever its clock is;
- any other: fetched for this step.

Updates leave with the next request after they were written ("through"), or when `s` of them have come together ("deferred"); then the owner takes one
optimizer step with their sum, as with HET. Until then they are on top of the row that came, and when they leave the row here takes the step that its
primary will take.

Without an `owner` beside it, its own rows are asked for by message like all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from htrain.errors import DataError
from htrain.sync.gmp import loops
from htrain.sync.gmp.counts import GmpCounts
from htrain.sync.gmp.messages import Answer
from htrain.sync.index import index_all, new_index
from htrain.sync.request import Clocks, Pushed, Request, Rows, requests_of
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Ids, Territory

UNBOUNDED = 2**30  # a staleness that no clock reaches
_SPARE = 1024  # slots for rows that are here for a step
_NOBODY = -1


class Owner(Protocol):
    """The owner of the worker's own rows, in the same memory."""

    clocks: Clocks

    def read(self, rows: Ids, out: Rows) -> None:
        """out[n,D] are the primaries `rows`[n]."""

    def write(self, rows: Ids, gradients: Rows) -> None:
        """One update of each of distinct `rows`[n]."""


@dataclass(frozen=True)
class Bounds:
    """What is held: by `staleness` updates, of a secondary against its primary (`intra`) and against the other rows of a sample (`inter`), and whether writes
    are `deferred`."""

    staleness: int
    intra: bool = True
    inter: bool = True
    deferred: bool = False


@dataclass(frozen=True)
class Expected:
    """The updates that a step is expected to make, in all, of the worker's `own`[R] rows and of its `secondaries`[m]."""

    own: Rows
    secondaries: Rows


@dataclass(frozen=True)
class _Awaited:
    """The slots that one owner's answer is for; `forced` of the checked ones come whatever their clock is, `inter` of these for the sake of other rows."""

    fetched: Ids
    checked: Ids
    inter: np.ndarray


class GmpWorker:
    """Worker `number` of as many as `territory` has owners; rows have width D. `secondaries`[m] are the keys of rows that it has replicas of; `rows` says in
    words which rows keys number; those from first to end of a pair of `repeated` are rows of the data that others number, too, and count as needed there. One
    thread at a time."""

    def __init__(
        self, territory: Territory, width: int, *, number: int, bounds: Bounds, step: SparseStep, secondaries: Ids, expected: Expected, rows: str = "",
        repeated: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.rows = rows
        self._repeated = repeated
        self.counts = GmpCounts(territory.num_servers)
        self.width = width
        self.bounds = bounds
        self.number = number
        self._own = _NOBODY
        self._owner: Owner | None = None
        self._territory = territory
        self._step = step
        self._expected = expected
        self._num_secondaries = secondaries.size
        num_slots = secondaries.size + _SPARE
        self._rows = np.zeros((num_slots, 2 * width + step.state_width(width)), np.float32)
        self._meta = np.zeros((num_slots, loops.COLUMNS), np.int32)
        self._key_of = np.full(num_slots, -1, np.int64)
        self._key_of[: secondaries.size] = secondaries
        self._free = np.arange(num_slots - 1, secondaries.size - 1, -1)
        self._num_free = self._free.size
        self._index = new_index(num_slots)
        index_all(self._index, self._key_of)
        self._written: list[Ids] = []
        self._written_own: list[tuple[Ids, Rows]] = []
        self._outgoing: list[Pushed] = []
        self._awaited: list[_Awaited] = []
        self._now = 0  # the step that was asked for last

    def stand_beside(self, owner: Owner) -> None:
        """Read and write its own rows there from now on. Requires: no step has been asked for."""
        self._owner, self._own = owner, self.number

    # -- a step ------------------------------------------------------------------------------------------------------

    def ask(self, keys: Ids, samples: Ids) -> tuple[Ids, list[Request]]:
        """Read's first half: slots[u] of distinct keys[u], and a request to each owner. samples[b,f] are places among keys of a sample's rows, or -1.

        Requires: the batch before has been read; without staleness, by all workers. Raises DataError for a key that no owner has.
        """
        assert not self._awaited, "read the batch before asking for the next"
        self._now += 1
        slots = self._placed(keys)
        self._push_written()
        forced = np.zeros(keys.size, np.bool_)
        self._mark_far(samples, slots, forced)
        self._settle(keys, slots)
        fetched, checked = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
        clocks = np.empty(keys.size, np.int32)
        checks = self.bounds.intra and self.bounds.staleness < UNBOUNDED
        num_fetched, num_checked, intra = loops.wanted(
            slots, forced, meta=self._meta, num_secondaries=self._num_secondaries, checks=checks, fetched=fetched, checked=checked, clocks=clocks,
        )  # fmt: skip
        self.counts.intra_checks += intra
        self._count_kinds(keys, slots)
        return slots, self._requests(
            keys,
            slots,
            forced,
            fetched=fetched[:num_fetched],
            checked=checked[:num_checked],
            clocks=clocks[:num_checked],
        )

    def read(self, slots: Ids, answers: Sequence[Answer]) -> Rows:
        """Read's second half: take each owner's answer, and give the rows[u,D] of `slots`, with this worker's own updates.

        Raises DataError for an answer that does not fit what was asked.
        """
        awaited, self._awaited = self._awaited, []
        for server, (asked, answer) in enumerate(zip(awaited, answers, strict=True)):
            self._absorb(server, asked, answer)
        out = np.empty((slots.size, self.width), np.float32)
        loops.read(slots, self._meta, self._rows, width=self.width, rule=self._step.rule, out=out)
        mine = np.flatnonzero(slots < 0)
        if mine.size and self._owner:
            rows = np.empty((mine.size, self.width), np.float32)
            self._owner.read(-1 - slots[mine], rows)
            out[mine] = rows
        return out

    def read_arrays(self, slots: Ids, answers: Sequence[Sequence[np.ndarray]]) -> Rows:
        """`read`, as an op calls it."""
        return self.read(slots, [Answer(*parts) for parts in answers])

    def write(self, slots: Ids, gradients: Rows) -> None:
        """Update: gradients[u,D] go to the rows. Raises DataError for gradients of another shape."""
        if gradients.shape != (slots.size, self.width):
            raise DataError(
                f"{slots.size} rows of width {self.width} are written, the gradients are {list(gradients.shape)}"
            )
        self.counts.written += slots.size
        mine = np.flatnonzero(slots < 0)
        if mine.size:
            self._written_own.append((-1 - slots[mine], gradients[mine]))
        if self.bounds.staleness:
            self._write_own()
        written = np.empty(slots.size, np.int64)
        count = loops.write(slots, self._num_secondaries, meta=self._meta, rows=self._rows, width=self.width, grads=gradients, written=written)  # fmt: skip
        self._written.append(written[:count])
        passing = written[:count][written[:count] >= self._num_secondaries]
        loose = passing[self._meta[passing, loops.PINS] == 0]
        self._push_out(loose, least=1)
        self._num_free = loops.let_go(
            loose, self._num_secondaries, self._index, meta=self._meta, key_of=self._key_of, free=self._free, num_free=self._num_free
        )  # fmt: skip

    def flush(self) -> list[Request]:
        """A request to each owner with every update that has not left."""
        self._written = []
        self._write_own()
        self._push_out(np.flatnonzero(self._meta[:, loops.PENDING] > 0), least=1)
        none = np.empty(0, np.int64)
        return self._requests(
            none, none, np.empty(0, np.bool_), fetched=none, checked=none, clocks=np.empty(0, np.int32)
        )

    def gap_of(self, key: int, clock: int) -> int | None:
        """By how many updates a row's replica is behind a primary with that clock; None where there is no replica that has come."""
        slot = np.flatnonzero(self._key_of == key)
        if not slot.size or not self._meta[slot[0], loops.IS_HERE]:
            return None
        return clock - int(self._meta[slot[0], loops.SEEN])

    # -- inside ------------------------------------------------------------------------------------------------------

    def _placed(self, keys: Ids) -> Ids:
        territory, slots = self._territory, np.empty(keys.size, np.int64)
        missing, bad = loops.locate(
            keys, territory.bounds, territory.servers, first_rows=territory.first_rows, own=self._own, index=self._index, slots=slots
        )  # fmt: skip
        if bad >= 0:
            raise DataError(
                f"row {keys[bad]} is asked for, the tables have {territory.bounds[-1]}: is an id too large?"
            )
        if missing > self._num_free:
            self._grow(max(missing, len(self._key_of) // 2))
        return slots

    def _settle(self, keys: Ids, slots: Ids) -> None:
        self._num_free = loops.settle(
            keys, slots, self._index, meta=self._meta, key_of=self._key_of, rows=self._rows, width=self.width, free=self._free, num_free=self._num_free
        )  # fmt: skip

    def _grow(self, more: int) -> None:
        """Room for `more` rows that are here for a step."""
        old = len(self._key_of)
        self._rows = np.concatenate([self._rows, np.zeros((more, self._rows.shape[1]), np.float32)])
        self._meta = np.concatenate([self._meta, np.zeros((more, self._meta.shape[1]), np.int32)])
        self._key_of = np.concatenate([self._key_of, np.full(more, -1, np.int64)])
        free = np.empty(len(self._key_of) - self._num_secondaries, np.int64)
        free[: self._num_free] = self._free[: self._num_free]
        free[self._num_free : self._num_free + more] = np.arange(old + more - 1, old - 1, -1)
        self._free, self._num_free = free, self._num_free + more
        self._index = new_index(len(self._key_of))
        index_all(self._index, self._key_of)

    def _mark_far(self, samples: Ids, slots: Ids, forced: np.ndarray) -> None:
        bounds = self.bounds
        if not bounds.inter or not samples.size or not self._num_secondaries or not 0 < bounds.staleness < UNBOUNDED:
            return  # without staleness the check of clocks leaves no row that is not fresh
        pairs, marked = loops.too_far(
            samples, slots, self._num_secondaries, meta=self._meta, now=self._now, own_updates=self._expected.own, updates=self._expected.secondaries,
            staleness=bounds.staleness, forced=forced,
        )  # fmt: skip
        self.counts.inter_checks += pairs
        self.counts.inter_syncs += marked

    def _write_own(self) -> None:
        """Its own rows are stepped. Without staleness not before it asks for the next step: others may still be about to read for the last one."""
        written, self._written_own = self._written_own, []
        if self._owner:
            for rows, gradients in written:
                self._owner.write(rows, gradients)

    def _push_written(self) -> None:
        """What was written since the last request leaves, if it is time."""
        self._write_own()
        written, self._written = self._written, []
        least = max(1, self.bounds.staleness) if self.bounds.deferred else 1
        for slots in written:
            self._push_out(slots, least=least)

    def _push_out(self, slots: Ids, *, least: int) -> None:
        keys, updates = np.empty(slots.size, np.int64), np.empty(slots.size, np.int32)
        grads = np.empty((slots.size, self.width), np.float32)
        count = loops.push_out(
            slots, least, self._num_secondaries, meta=self._meta, key_of=self._key_of, rows=self._rows, width=self.width,
            rule=self._step.rule, keys=keys, updates=updates, grads=grads,
        )  # fmt: skip
        if count:
            self._outgoing.append(Pushed(keys[:count], updates[:count], grads[:count]))

    def _requests(
        self, keys: Ids, slots: Ids, forced: np.ndarray, fetched: Ids, checked: Ids, clocks: Clocks
    ) -> list[Request]:
        """One request to each owner: what leaves, then the rows at places `fetched`, then those at `checked`."""
        pushed, self._outgoing = self._outgoing, []
        requests = []
        asked = requests_of(
            self._territory, self.width, pushed, fetch=keys[fetched], check=keys[checked], clocks=clocks
        )
        for server, (request, fetch, check) in enumerate(asked):
            places = checked[check]
            self._awaited.append(_Awaited(slots[fetched[fetch]], slots[places], forced[places]))
            self.counts.fetched[server] += fetch.size
            self._account(server, gradients=request.gradients, clocks=request.clocks, keys=request.keys)
            requests.append(request)
        return requests

    def _absorb(self, server: int, asked: _Awaited, answer: Answer) -> None:
        stale = answer.stale
        if stale.size and not 0 <= stale.min() <= stale.max() < asked.checked.size:
            raise DataError(f"an owner calls row {stale.max()} of {asked.checked.size} too old")
        slots = np.concatenate([asked.fetched, asked.checked[stale]])
        seen = answer.rows.shape, answer.states.shape, answer.clocks.shape
        wanted = (slots.size, self.width), (stale.size, self._rows.shape[1] - 2 * self.width), (stale.size,)
        if seen != wanted:
            raise DataError(
                f"an owner answers with rows, states and clocks {seen}, want {wanted}: do all roles run the same plan?"
            )
        useful = np.zeros(stale.size, np.bool_)
        was_here = self._meta[asked.checked[stale], loops.IS_HERE] > 0
        loops.absorb(
            slots, self._meta, self._rows, width=self.width, values=answer.rows, states=answer.states, clocks=answer.clocks,
            num_fetched=asked.fetched.size, now=self._now, useful=useful,
        )  # fmt: skip
        inter = asked.inter[stale]
        self.counts.intra_syncs += int((useful & ~inter).sum())
        self.counts.useless += int((was_here & inter & ~useful).sum())
        self.counts.synced[server] += stale.size
        self._account(server, rows=answer.rows, clocks=answer.clocks, keys=stale)
        self._account(server, rows=answer.states)

    def _account(self, server: int, **arrays: np.ndarray) -> None:
        if server == self._own:
            return
        for kind, array in arrays.items():
            self.counts.bytes[kind][server] += array.nbytes

    def _count_kinds(self, keys: Ids, slots: Ids) -> None:
        counts = self.counts
        counts.own += int((slots < 0).sum())
        counts.replicas += int(((slots >= 0) & (slots < self._num_secondaries)).sum())
        needed = keys[slots >= 0]
        for first, end in self._repeated:
            needed = needed[(needed < first) | (needed >= end)]
        _, _, starts = self._territory.split(needed)
        counts.needed += np.diff(starts)
