"""Workers and owners of HET-GMP against section 5.3 over dictionaries, under arbitrary interleavings of two to four workers."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from htrain.sync.gmp.messages import Answer
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.gmp.worker import Bounds, Expected, GmpWorker
from htrain.sync.request import Request
from htrain.sync.territory import Territory
from tests.support import gmp_model as model
from tests.support.het_model import LR, sparse_step

EACH, WIDTH, FIELDS = 2, 2, 3
Samples = st.lists(st.lists(st.integers(0, 4 * EACH - 1), min_size=FIELDS, max_size=FIELDS), min_size=1, max_size=3)
KINDS = ("sgd", "adagrad", "rowwise_adagrad", "ftrl")


Update = tuple[int, np.ndarray, int]  # a row's key, the sum of its gradients, how many they are


@dataclass
class Batch:
    samples: list[list[int]]
    keys: list[int]
    slots: np.ndarray
    came: set[int] = field(default_factory=set)  # rows that owners sent
    is_read: bool = False


@dataclass
class Side:
    """A worker, its replicas as section 5.3 has them, and what is under way: requests by owner, in order."""

    worker: GmpWorker
    replicas: dict[int, model.Replica] = field(default_factory=dict)
    passing: dict[int, model.Replica] = field(default_factory=dict)  # rows that are here for a step
    batches: deque[Batch] = field(default_factory=deque)
    requests: dict[int, Request] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    leaving: list[Update] = field(default_factory=list)  # by the next request
    sent: list[Update] = field(default_factory=list)  # by the present one
    step: int = 0


class Interleaving:
    """`move` does the next thing of one worker or owner, and compares."""

    def __init__(self, workers: int, kind: str, bounds: Bounds, secondaries: list[set[int]]) -> None:
        self.kind, self.bounds = kind, bounds
        random = self.random = np.random.default_rng(0)
        step = sparse_step(kind)
        rows = EACH * workers
        table = random.standard_normal((rows, WIDTH)).astype(np.float32)
        state = np.zeros((rows, step.state_width(WIDTH)), np.float32)
        self.primaries = {
            k: model.Primary(table[k].astype(np.float64), state[k].astype(np.float64)) for k in range(rows)
        }
        self.expected = {k: float(p) for k, p in enumerate(random.choice([0.0, 0.25, 1.0, 2.5], rows))}
        self.owners = [
            GmpOwner(table[EACH * k : EACH * (k + 1)].copy(), state[EACH * k : EACH * (k + 1)].copy(), staleness=max(1, bounds.staleness), step=step)
            for k in range(workers)
        ]  # fmt: skip
        bounds_of = [EACH * k for k in range(workers)]
        self.sides = []
        for k in range(workers):
            mine = np.array(sorted(key for key in secondaries[k] if key < rows and key // EACH != k), np.int64)
            p = np.array([self.expected[key] for key in range(rows)], np.float32)
            worker = GmpWorker(
                Territory(bounds_of, list(range(workers)), [0] * workers, rows), WIDTH, number=k, bounds=bounds, step=step, secondaries=mine,
                expected=Expected(p[EACH * k : EACH * (k + 1)], p[mine]),
            )  # fmt: skip
            worker.stand_beside(self.owners[k])
            self.sides.append(Side(worker))
        self.secondaries = [{key for key in secondaries[k] if key < rows and key // EACH != k} for k in range(workers)]
        self.rows = rows
        self.updates = dict.fromkeys(range(rows), 0)
        self.sums = {k: np.zeros(WIDTH) for k in range(rows)}
        self.start = {k: p.row.copy() for k, p in self.primaries.items()}

    # -- a worker ----------------------------------------------------------------------------------------------------

    def ask(self, k: int, samples: list[list[int]]) -> None:
        side = self.sides[k]
        if len(side.batches) > 1 or any(not b.is_read for b in side.batches):
            return
        samples = [[key % self.rows for key in sample] for sample in samples]
        keys = sorted({key for sample in samples for key in sample})
        places = {key: place for place, key in enumerate(keys)}
        before = {key: (r.seen + len(r.pending)) for key, r in side.replicas.items()}
        self._leave(k, least=max(1, self.bounds.staleness) if self.bounds.deferred else 1)
        side.sent, side.leaving = side.leaving, []
        slots, requests = side.worker.ask(
            np.array(keys), np.array([[places[key] for key in sample] for sample in samples])
        )
        assert before == {key: (r.seen + len(r.pending)) for key, r in side.replicas.items()}
        side.requests = dict(enumerate(requests))
        side.step += 1
        side.batches.append(Batch(samples, keys, slots))
        self._must_come(k, side.batches[-1])

    def _leave(self, k: int, least: int) -> None:
        side = self.sides[k]
        for key, replica in {**side.replicas, **side.passing}.items():
            if replica.pending and (len(replica.pending) >= least or key in side.passing):
                side.leaving.append((key, *replica.leave(self.kind)))

    def _must_come(self, k: int, batch: Batch) -> None:
        """Secondaries that are too far behind another row of a sample are asked for whatever their clock is, and no others that are here."""
        side = self.sides[k]
        clocks = {key: r.clock_at(side.step, self.expected[key]) for key, r in side.replicas.items()}
        clocks |= {key: p * side.step for key, p in self.expected.items() if key // EACH == k}
        far = {
            key
            for sample in batch.samples
            for key in sample
            if key in side.replicas and any(d > self.bounds.staleness + 1e-6 for d in model.behind(key, sample, clocks, self.expected))
        }  # fmt: skip
        asked = self._asked_anyhow(side)
        if self.bounds.inter:
            assert far <= asked
            near = {
                key
                for key in asked & side.replicas.keys()
                if all(d < self.bounds.staleness - 1e-3 for s in batch.samples if key in s for d in model.behind(key, s, clocks, self.expected))
            }  # fmt: skip
            assert not near

    def _asked_anyhow(self, side: Side) -> set[int]:
        asked = set()
        for owner, request in side.requests.items():
            pushed, fetched, _ = request.counts
            checked = request.keys[pushed + fetched :]
            asked |= {
                int(row) + EACH * owner
                for row, clock in zip(checked, request.clocks[pushed:], strict=True)
                if clock < 0
            }
        return asked

    def read(self, k: int) -> None:
        side = self.sides[k]
        if not side.batches or side.batches[-1].is_read or len(side.answers) < len(self.owners):
            return
        batch = side.batches[-1]
        if len(side.batches) > 1:  # the step before is written first
            return
        rows = side.worker.read(batch.slots, [side.answers[owner] for owner in range(len(self.owners))])
        side.answers, batch.is_read = {}, True
        for key, row in zip(batch.keys, rows, strict=True):
            held = self.primaries.get(key) if key // EACH == k else None
            wanted = held.row if held else {**side.passing, **side.replicas}[key].value(self.kind)
            np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-5)

    def write(self, k: int) -> None:
        side = self.sides[k]
        if not side.batches or not side.batches[0].is_read:
            return
        batch = side.batches.popleft()
        grads = self.random.standard_normal((len(batch.keys), WIDTH)).astype(np.float32)
        side.worker.write(batch.slots, grads)
        still = {key for other in side.batches for key in other.keys}
        for key, grad in zip(batch.keys, grads.astype(np.float64), strict=True):
            self.updates[key] += 1
            self.sums[key] += grad
            if key // EACH == k:
                self.primaries[key].update(self.kind, grad, 1)
            elif key in side.replicas or key in side.passing:
                {**side.passing, **side.replicas}[key].write(grad)
        for key in [key for key in side.passing if key not in still]:
            self._leave_one(k, key)

    def _leave_one(self, k: int, key: int) -> None:
        side = self.sides[k]
        replica = side.passing.pop(key)
        if replica.pending:
            side.leaving.append((key, *replica.leave(self.kind)))

    # -- an owner ----------------------------------------------------------------------------------------------------

    def serve(self, k: int, owner: int) -> None:
        side = self.sides[k]
        request = side.requests.pop(owner, None)
        if request is None:
            return
        self.owners[owner].push(request)
        mine = [one for one in side.sent if one[0] // EACH == owner]
        assert sorted(int(row) + EACH * owner for row in request.keys[: request.counts[0]]) == sorted(
            key for key, _, _ in mine
        )
        for key, grad, count in mine:
            self.primaries[key].update(self.kind, grad, count)
        side.sent = [one for one in side.sent if one[0] // EACH != owner]
        answer = self.owners[owner].pull(request)
        side.answers[owner] = answer
        pushed, fetched, _ = (int(n) for n in request.counts)
        keys = [int(row) + EACH * owner for row in request.keys[pushed:]]
        came = keys[:fetched] + [keys[fetched + place] for place in answer.stale]
        for key in came:
            primary = self.primaries[key]
            held = side.replicas if key in self.secondaries[k] else side.passing
            held.setdefault(key, model.Replica(primary.row, primary.state, primary.clock)).come(primary, side.step)
        if self.bounds.intra and side.batches:
            for key in side.batches[-1].keys:  # the promise of 5.3, at the moment of the answer
                if key in self.secondaries[k] and key // EACH == owner:
                    assert self.primaries[key].clock - side.replicas[key].seen <= self.bounds.staleness
                    assert key in came or side.worker.gap_of(key, self.primaries[key].clock) is not None

    def end(self) -> None:
        """All that is under way ends, and every update is where it belongs, once."""
        for k, side in enumerate(self.sides):
            for _ in range(2):
                for owner in range(len(self.owners)):
                    self.serve(k, owner)
                self.write(k) if len(side.batches) > 1 or (side.batches and side.batches[0].is_read) else None
                self.read(k)
                self.write(k)
            assert not side.batches
            self._leave(k, least=1)
            side.sent, side.leaving = side.leaving, []
            side.requests = dict(enumerate(side.worker.flush()))
            for owner in range(len(self.owners)):
                self.serve(k, owner)
            side.worker.read(np.empty(0, np.int64), [side.answers[owner] for owner in range(len(self.owners))])
        for key, primary in self.primaries.items():
            owner, row = divmod(key, EACH)
            assert self.owners[owner].clocks[row] == primary.clock == self.updates[key]
            out = np.empty((1, WIDTH), np.float32)
            self.owners[owner].read(np.array([row]), out)
            np.testing.assert_allclose(out[0], primary.row, rtol=1e-3, atol=1e-4)
            if self.kind == "sgd":
                np.testing.assert_allclose(out[0], self.start[key] - LR * self.sums[key], rtol=1e-3, atol=1e-4)


class Workers(RuleBasedStateMachine):
    @initialize(
        workers=st.integers(2, 4), kind=st.sampled_from(KINDS), staleness=st.integers(1, 4), intra=st.booleans(), inter=st.booleans(), deferred=st.booleans(),
        secondaries=st.lists(st.sets(st.integers(0, 4 * EACH - 1), min_size=EACH), min_size=4, max_size=4),
    )  # fmt: skip
    def begin(
        self, workers: int, kind: str, staleness: int, intra: bool, inter: bool, deferred: bool, secondaries: list[set[int]]
    ) -> None:  # fmt: skip
        self.all = Interleaving(workers, kind, Bounds(staleness, intra, inter, deferred), secondaries)

    @rule(k=st.integers(0, 3), samples=Samples)
    def ask(self, k: int, samples: list[list[int]]) -> None:
        self.all.ask(k % len(self.all.sides), samples)

    @rule(k=st.integers(0, 3), owner=st.integers(0, 3))
    def serve(self, k: int, owner: int) -> None:
        self.all.serve(k % len(self.all.sides), owner % len(self.all.sides))

    @rule(k=st.integers(0, 3))
    def serve_all(self, k: int) -> None:
        for owner in range(len(self.all.owners)):
            self.all.serve(k % len(self.all.sides), owner)

    @rule(k=st.integers(0, 3))
    def read(self, k: int) -> None:
        self.all.read(k % len(self.all.sides))

    @rule(k=st.integers(0, 3), samples=Samples, ahead=Samples, again=st.integers(1, 4))
    def step(self, k: int, samples: list[list[int]], ahead: list[list[int]], again: int) -> None:
        """Whole steps of one worker, each batch asked for before the one before is written."""
        k %= len(self.all.sides)
        for batch in [samples, ahead] * again:
            self.all.ask(k, batch)
            self.all.write(k)
            self.serve_all(k)
            self.all.read(k)

    @rule(k=st.integers(0, 3))
    def write(self, k: int) -> None:
        self.all.write(k % len(self.all.sides))

    def teardown(self) -> None:
        if hasattr(self, "all"):
            self.all.end()


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
