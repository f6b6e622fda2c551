"""A worker's embedding cache: HET's client (HET 3, Algorithms 1 to 3). Decisions alone; who carries messages is the caller's business.

A step of a worker is

    cache.announce(keys)                   any number of batches before; rows that will be used soon are the last to leave
    slots, requests = cache.ask(keys)      Read: a request to each server
    rows = cache.read(slots, answers)      when each has answered; from here on the next batch may be asked for
    cache.write(slots, gradients)          Write, before the next batch is read
    cache.trim()

and `flush` at a pause or at the end. Clocks are the paper's: a row fetched has c_s = c_c = c_g; a write adds 1 to c_c; a row is evicted and
fetched anew when it is read with c_c > c_s + s, or where its server says that c_g > c_c + s.

While a batch is asked for ahead, the one before may still write. CheckValid is therefore asked of the clock that a row will have when it
is read, and what is written meanwhile lands on the row that was fetched. A row that its server finds stale is fetched before it is
evicted, since its worker learns of it with the answer: the updates leave with the next request, and the worker adds them to the answer
itself. Its clocks and values are what evicting first would have given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from htrain.errors import DataError
from htrain.spec.policies import POLICIES as KNOWN
from htrain.sync.het import loops
from htrain.sync.het.counts import CacheCounts
from htrain.sync.het.messages import Answer
from htrain.sync.het.policy import (
    CURRENT,
    FIRST_LIMIT,
    LIGHT_LFU,
    POLICIES,
    SCORED,
    START,
    bring_back,
    choose_victims,
)
from htrain.sync.het.scored import victims_by
from htrain.sync.het.slots import Slots
from htrain.sync.index import find
from htrain.sync.request import Clocks, Pushed, Request, Rows, requests_of
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Ids, Territory

UNBOUNDED = 2**30  # a staleness that no clock reaches
_HEADROOM = 1024


@dataclass(frozen=True)
class _Awaited:
    """The slots that one server's answer is for."""

    fetched: Ids
    checked: Ids


class HetCache:
    """At most `capacity` rows of width D, and those of the steps under way; one thread at a time."""

    def __init__(
        self, territory: Territory, width: int, *, capacity: int, staleness: int, policy: str, step: SparseStep
    ) -> None:
        self.counts = CacheCounts()
        self.capacity = capacity
        self.staleness = staleness
        self.width = width
        self._territory = territory
        self._step = step
        self._policy = POLICIES.get(policy, SCORED)
        score = KNOWN.get(policy)
        if self._policy == SCORED and score is None:
            raise DataError(
                f"a cache has the policy '{policy}', which is not known here: name the file that registers it (--ops)"
            )
        self._victims = victims_by(score) if score else None
        self._limit = FIRST_LIMIT if self._policy != SCORED else 0
        self._num_announced = 0
        self._outgoing: list[Pushed] = []
        self._awaited: list[_Awaited] = []
        self._at = Slots(2 * width + step.state_width(width), capacity + _HEADROOM)

    # -- a step ------------------------------------------------------------------------------------------------------

    def announce(self, keys: Ids) -> None:
        """A batch with these distinct keys[u] will be asked for.

        Batches are asked for in the order in which they were announced; when none is announced any more, others may be.
        """
        self._num_announced += 1
        elsewhere = np.empty(keys.size, np.int64)
        count = loops.announce(self._at.index, self._at.meta, keys, elsewhere)
        self._at.expect(elsewhere[:count], np.ones(count, np.int64))

    def ask(self, keys: Ids) -> tuple[Ids, list[Request]]:
        """Read's first half: slots[u] of distinct keys[u], pinned until they are written, and a request to each server.

        Requires: the batch before has been read. Raises DataError for a key that no server has.
        """
        assert not self._awaited, "read the batch before asking for the next"
        size = keys.size
        slots = np.empty(size, np.int64)
        fetched, checked, run_out = (np.empty(size, np.int64) for _ in range(3))
        clocks, tally = np.empty(size, np.int32), np.zeros(3, np.int64)
        announced = int(self._num_announced > 0)
        self._num_announced -= announced
        arguments = (self._at.index, self._at.meta, keys, announced, self.staleness)
        num_fetched, num_checked, num_run_out = loops.locate(
            *arguments, slots, fetched, checked, clocks, run_out, tally
        )
        assert self.staleness or not num_run_out, "without staleness nothing can be asked ahead"
        self._count(tally)
        self._push_out(run_out[:num_run_out])
        misses = int(tally[1])
        self._make_room(self.resident + misses - self.capacity)
        if misses > self._at.num_free:
            self._at.grow(len(self._at.key_of) + max(misses, len(self._at.key_of) // 2))
        self._at.settle_in(keys, announced, slots, self.width)
        return slots, self._requests(keys, slots, fetched[:num_fetched], checked[:num_checked], clocks[:num_checked])

    def read(self, slots: Ids, answers: Sequence[Answer]) -> Rows:
        """Read's second half: take each server's answer, and Get the rows[u,D] of `slots`, this worker's own updates in them.

        Raises DataError for an answer that does not fit what was asked.
        """
        awaited, self._awaited = self._awaited, []
        for asked, answer in zip(awaited, answers, strict=True):
            self._absorb(asked, answer)
        out = np.empty((slots.size, self.width), np.float32)
        loops.read(
            self._at.meta,
            self._at.rows,
            slots=slots,
            width=self.width,
            rule=self._step.rule,
            out=out,
            ages=self.counts.ages,
        )
        return out

    def read_arrays(self, slots: Ids, answers: Sequence[Sequence[np.ndarray]]) -> Rows:
        """`read`, as an op calls it."""
        return self.read(slots, [Answer(*parts) for parts in answers])

    def write(self, slots: Ids, gradients: Rows) -> None:
        """Write (Algorithm 3): accumulate gradients[u,D], advance the clocks, and evict what is over capacity.

        With a staleness of 0 all that was written is evicted: it could never be read again.
        Raises DataError for gradients of another shape.
        """
        if gradients.shape != (slots.size, self.width):
            raise DataError(
                f"{slots.size} rows of width {self.width} are written, the gradients are {list(gradients.shape)}"
            )
        if self._policy == SCORED:
            self._limit += 1  # its steps
        loops.write(
            self._at.meta,
            self._at.lists,
            rows=self._at.rows,
            slots=slots,
            width=self.width,
            policy=self._policy,
            limit=self._limit,
            grads=gradients,
        )
        if self.staleness == 0:
            self._take_out_unpinned(slots)

    def trim(self) -> None:
        """Algorithm 3, line 5: evict rows over capacity, which a batch of more rows than that leaves behind."""
        self._make_room(self.resident - self.capacity)

    def let_go(self, slots: Ids) -> None:
        """Instead of Write: nothing is written to `slots`, which were read. Rows that must not be read again leave."""
        loops.let_go(self._at.meta, self._at.lists, slots, self._policy, self._limit)
        if self.staleness == 0:
            self._take_out_unpinned(slots)

    def flush(self) -> list[Request]:
        """A request to each server with every update that has not been pushed, but those of rows that are asked for and have not come.

        Rows stay, with their clocks: they are then what their servers hold, as far as this worker has changed them.
        """
        resident = np.flatnonzero(self._at.key_of >= 0)
        pushed = self._buffers(resident.size)
        count = loops.push_kept(
            self._at.meta, self._at.key_of, rows=self._at.rows, slots=resident, width=self.width, rule=self._step.rule,
            pinned=not self._awaited, keys=pushed.keys, clocks=pushed.clocks, grads=pushed.grads,
        )  # fmt: skip
        self._keep(pushed, count)
        return self.outgoing()

    def outgoing(self) -> list[Request]:
        """A request to each server with the updates that have left the cache and were not sent, and nothing asked."""
        none = np.empty(0, np.int64)
        return self._requests(none, none, none, none, np.empty(0, np.int32))

    def take_over(self, pushed: Pushed) -> None:
        """Updates of rows that are not here leave with the next request."""
        self._keep(pushed, pushed.keys.size)

    @property
    def unsent(self) -> int:
        """Rows with updates that were not pushed."""
        waiting = sum(pushed.keys.size for pushed in self._outgoing)
        resident = np.flatnonzero(self._at.key_of >= 0)
        return waiting + int(loops.unsent(self._at.meta, self._at.rows, resident, self.width))

    @property
    def resident(self) -> int:
        """Rows in the cache, those of steps under way included."""
        return self._at.num_taken

    @property
    def num_expected(self) -> int:
        """Uses of rows by batches that have been announced and not asked for."""
        return self._at.num_expected

    def clocks_of(self, key: int) -> tuple[int, int] | None:
        """Start and current clock of a row, or None where it is not in the cache."""
        slot = find(self._at.index, key)
        return (int(self._at.meta[slot, START]), int(self._at.meta[slot, CURRENT])) if slot >= 0 else None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _absorb(self, asked: _Awaited, answer: Answer) -> None:
        slots = self._answered(asked, answer)
        self.counts.stale += answer.stale.size
        self._account(rows=answer.rows, clocks=answer.clocks, keys=answer.stale)
        pushed = self._buffers(slots.size)
        count = loops.absorb(
            self._at.meta, self._at.key_of, rows=self._at.rows, width=self.width, slots=slots, answers=answer.rows, answer_clocks=answer.clocks,
            refused=asked.fetched.size, rule=self._step.rule, keys=pushed.keys, clocks=pushed.clocks, grads=pushed.grads,
        )  # fmt: skip
        self._keep(pushed, count)

    def _answered(self, asked: _Awaited, answer: Answer) -> Ids:
        """The slots that an answer's rows are for."""
        stale = answer.stale
        if stale.size and not 0 <= stale.min() <= stale.max() < asked.checked.size:
            raise DataError(f"a server calls row {stale.max()} of {asked.checked.size} stale")
        slots = np.concatenate([asked.fetched, asked.checked[stale]])
        if answer.rows.shape != (slots.size, self._at.rows.shape[1] - self.width) or answer.clocks.size != slots.size:
            raise DataError(
                f"a server answers with rows {list(answer.rows.shape)} and {answer.clocks.size} clocks, "
                f"want rows [{slots.size},{self._at.rows.shape[1] - self.width}]: do all roles run the same plan?"
            )
        return slots

    def _requests(self, keys: Ids, slots: Ids, fetched: Ids, checked: Ids, clocks: Clocks) -> list[Request]:
        """One request per server: what waits to be pushed, then the rows at positions `fetched`, then those at `checked`."""
        pushed, self._outgoing = self._outgoing, []
        requests = []
        for request, fetch, check in requests_of(
            self._territory, self.width, pushed, fetch=keys[fetched], check=keys[checked], clocks=clocks
        ):
            self._awaited.append(_Awaited(slots[fetched[fetch]], slots[checked[check]]))
            self._account(gradients=request.gradients, clocks=request.clocks, keys=request.keys)
            requests.append(request)
        return requests

    def _account(self, **arrays: np.ndarray) -> None:
        for kind, array in arrays.items():
            self.counts.bytes[kind] += array.nbytes

    def _count(self, tally: Ids) -> None:
        self.counts.hits += int(tally[0])
        self.counts.misses += int(tally[1])
        self.counts.run_out += int(tally[2])

    def _make_room(self, surplus: int) -> None:
        """Evict `surplus` rows by the policy, as far as rows are not pinned; those of announced batches when there are no others."""
        spare = True
        while surplus > 0:
            victims = np.empty(surplus, np.int64)
            if self._victims:
                count = self._victims(
                    self._at.meta, self._at.lists, self._at.key_of, self._limit, surplus, spare, victims
                )
            else:
                count = choose_victims(
                    self._at.meta, self._at.lists, policy=self._policy, wanted=surplus, spare=spare, victims=victims
                )
            self.counts.evicted += count
            self._take_out(victims[:count])
            surplus -= count
            if surplus > 0 and not self._bring_back():
                if not spare:
                    return
                spare = False

    def _bring_back(self) -> bool:
        """light-LFU's lists have run dry: rows that had left them come back. False where there are none."""
        if self._policy != LIGHT_LFU:
            return False
        limit = bring_back(self._at.meta, self._at.lists, np.flatnonzero(self._at.key_of >= 0), self._limit)
        self._limit = int(limit) or self._limit
        return bool(limit)

    def _take_out_unpinned(self, slots: Ids) -> None:
        loose = np.empty(slots.size, np.int64)
        self._take_out(loose[: loops.unpinned(self._at.meta, slots, loose)])

    def _take_out(self, slots: Ids) -> None:
        pushed = self._buffers(slots.size)
        missed = np.empty((slots.size, 2), np.int64)
        count, self._at.num_free = loops.take_out(
            self._at.index, self._at.meta, lists=self._at.lists, key_of=self._at.key_of, rows=self._at.rows, slots=slots, width=self.width,
            free=self._at.free, num_free=self._at.num_free, keys=pushed.keys, clocks=pushed.clocks, grads=pushed.grads, missed=missed,
        )  # fmt: skip
        self._keep(pushed, count)
        missed = missed[missed[:, 1] > 0]
        self._at.expect(missed[:, 0].copy(), missed[:, 1].copy())

    def _push_out(self, slots: Ids) -> None:
        pushed = self._buffers(slots.size)
        arguments = (self._at.meta, self._at.key_of, self._at.rows, slots, self.width)
        self._keep(pushed, loops.push_out(*arguments, pushed.keys, pushed.clocks, pushed.grads))

    def _buffers(self, count: int) -> Pushed:
        return Pushed(np.empty(count, np.int64), np.empty(count, np.int32), np.empty((count, self.width), np.float32))

    def _keep(self, pushed: Pushed, count: int) -> None:
        if count:
            self._outgoing.append(Pushed(pushed.keys[:count], pushed.clocks[:count], pushed.grads[:count]))
