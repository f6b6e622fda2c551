"""HET's client and server against its pseudo-code, under arbitrary interleavings of two to four workers."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from htrain.sync.het.client import HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory
from tests.support import het_model

ROWS, WIDTH = 6, 2
Keys = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5, unique=True)


@dataclass
class Batch:
    """A batch of one worker on its way; `rows` once it has been read."""

    keys: list[int]
    slots: np.ndarray
    under_way: set[int]
    rows: np.ndarray | None = None


@dataclass
class Side:
    """A worker twice: as it is, and as the pseudo-code has it. `read_at` are the global clocks when its last read reached the server."""

    cache: HetCache
    model: het_model.Worker
    batches: list[Batch] = field(default_factory=list)
    request: list[Request] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    read_at: dict[int, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.request and not self.answers

    def vanished(self) -> list[int]:
        return [key for key in self.model.cache if self.cache.clocks_of(key) is None]


class Interleaving:
    """Two to four workers and a server; `move` does the next thing of one of them, and compares."""

    def __init__(self, workers: int, staleness: int, capacity: int, policy: str, kind: str) -> None:
        self.random = np.random.default_rng(0)
        step = het_model.sparse_step(kind)
        self.table = self.random.standard_normal((ROWS, WIDTH)).astype(np.float32)
        state = np.zeros((ROWS, step.state_width(WIDTH)), np.float32)
        rows = {k: self.table[k].astype(np.float64) for k in range(ROWS)}
        states = {k: np.zeros(state.shape[1]) for k in range(ROWS)}
        self.model = het_model.Server(kind, rows, states, dict.fromkeys(range(ROWS), 0))
        self.staleness, self.capacity = staleness, capacity
        self.server = HetServer(self.table, state, staleness=staleness, step=step)
        self.sides = [Side(self._cache(policy, step), het_model.Worker(self.model, staleness)) for _ in range(workers)]

    def _cache(self, policy: str, step: SparseStep) -> HetCache:
        territory = Territory([0], [0], [0], ROWS)
        return HetCache(territory, WIDTH, capacity=self.capacity, staleness=self.staleness, policy=policy, step=step)

    def move(self, who: int, which: int, keys: list[int]) -> None:
        side = self.sides[who % len(self.sides)]
        possible = []
        if side.idle and len(side.batches) < 2:
            possible.append(partial(self.ask, side, keys))
        if side.request:
            possible.append(partial(self.serve, side))
        if side.answers and len(side.batches) == 1:
            possible.append(partial(self.read, side))
        if side.batches and side.batches[0].rows is not None:
            possible.append(partial(self.write, side))
        if side.idle and which % 5 == 4:
            possible.append(partial(self.flush, side))
        possible[which % len(possible)]()
        self.compare_clocks()
        self.check_lemma()

    def ask(self, side: Side, keys: list[int]) -> None:
        slots, side.request = side.cache.ask(np.array(keys, np.int64))
        under_way = {k for batch in side.batches for k in batch.keys}
        dropped = side.vanished()
        side.model.ask(keys, under_way, dropped)
        side.batches.append(Batch(keys, slots, under_way))
        pinned = under_way.union(keys)
        assert side.cache.resident <= max(self.capacity, len(pinned))
        assert not pinned.intersection(dropped)

    def serve(self, side: Side) -> None:
        for request in side.request:
            self.server.push(request)
        side.answers = [self.server.pull(request) for request in side.request]
        side.request = []
        side.model.reach_server()
        side.read_at = {k: self.model.clocks[k] for k in side.batches[-1].keys}
        assert {k: int(self.server.clocks[k]) for k in range(ROWS)} == self.model.clocks
        self.compare_rows()

    def read(self, side: Side) -> None:
        batch = side.batches[0]
        batch.rows = side.cache.read(batch.slots, side.answers)
        side.answers = []
        side.model.hear()
        np.testing.assert_allclose(batch.rows, [side.model.get(k) for k in batch.keys], rtol=1e-3, atol=1e-3)
        for key in batch.keys:
            start, current = side.cache.clocks_of(key) or (0, 0)
            at = side.read_at[key]
            assert at - self.staleness <= current <= min(start, at) + self.staleness

    def write(self, side: Side) -> None:
        batch = side.batches.pop(0)
        gradients = self.random.standard_normal((len(batch.keys), WIDTH)).astype(np.float32)
        side.cache.write(batch.slots, gradients)
        side.cache.trim()
        for key, gradient in zip(batch.keys, gradients, strict=True):
            side.model.write(key, gradient.astype(np.float64))
        side.model.drop(side.vanished())
        assert side.cache.resident <= max(self.capacity, sum(len(b.keys) for b in side.batches))

    def flush(self, side: Side) -> None:
        side.model.flush()
        for request in side.cache.flush():
            self.server.push(request)
            side.cache.read(np.empty(0, np.int64), [self.server.pull(request)])
        self.compare_rows()

    def end(self) -> None:
        """Every worker to its end; what is left goes to the server, and is sent once."""
        for who, side in enumerate(self.sides):
            while side.batches or not side.idle:
                self.move(who, 1, [])
            self.flush(side)
            assert side.cache.unsent == 0
            (request,) = side.cache.flush()
            assert not request.keys.size
            side.cache.read(np.empty(0, np.int64), [self.server.pull(request)])
        self.compare_rows()

    def compare_rows(self) -> None:
        np.testing.assert_allclose(self.table, [self.model.rows[k] for k in range(ROWS)], rtol=1e-3, atol=1e-3)

    def compare_clocks(self) -> None:
        for side in self.sides:
            if side.idle:
                seen = {k: side.cache.clocks_of(k) for k in side.model.cache}
                assert seen == {k: (r.start, r.current) for k, r in side.model.cache.items()}

    def check_lemma(self) -> None:
        """Lemma 1: of the replicas that CheckValid would let through now, no two differ by more than 2s."""
        for key in range(ROWS):
            at, clocks = self.model.clocks[key], []
            for side in self.sides:
                start, current = side.cache.clocks_of(key) or (0, -1)
                if side.idle and 0 <= current <= start + self.staleness and at <= current + self.staleness:
                    clocks.append(current)
            assert not clocks or max(clocks) - min(clocks) <= 2 * self.staleness


Settings = st.tuples(
    st.integers(2, 4),
    st.sampled_from([1, 1, 2, 3, 1000]),
    st.integers(1, ROWS),
    st.sampled_from(["lru", "lfu", "light-lfu"]),
    st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "ftrl"]),
)


class Protocol(RuleBasedStateMachine):
    """Draws what happens next."""

    @initialize(drawn=Settings)
    def begin(self, drawn: tuple[int, int, int, str, str]) -> None:
        self.run = Interleaving(*drawn)

    @rule(who=st.integers(0, 3), which=st.integers(0, 4), keys=Keys)
    def move(self, who: int, which: int, keys: list[int]) -> None:
        self.run.move(who, which, keys)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.end()


Protocol.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, report_multiple_bugs=False
)
TestProtocol = Protocol.TestCase


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "ftrl"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "light-lfu"])
def test_long_runs_meet_every_case(policy: str, kind: str) -> None:
    for staleness, capacity in ((1, 3), (1, ROWS), (2, 2), (3, ROWS)):
        run = Interleaving(4, staleness, capacity, policy, kind)
        for who, which, key in run.random.integers(0, 60, (1500, 3)):
            keys = sorted({int(k) % ROWS for k in (key, key // 7, key // 3)})
            run.move(int(who) if who < 30 else 0, int(which), keys)  # one worker runs ahead: the others' rows go stale
        run.end()
        counts = [side.cache.counts for side in run.sides]
        assert all(sum(getattr(c, what) for c in counts) for what in ("hits", "misses", "run_out", "stale"))
        assert capacity == ROWS or all(c.evicted for c in counts)
