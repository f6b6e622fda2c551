"""No update is lost or doubled: whatever caches do on the way, tables end as the sum of all gradients."""

import numpy as np
import pytest
import torch

from htrain.errors import DataError
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

ROWS, WIDTH, LR = 400, 4, 0.05
SGD = SparseStep("sgd", LR)


class World:
    """Workers, and two servers that hold the rows of two tables in three shards."""

    def __init__(self, workers: int, staleness: int, capacity: int, policy: str, step: SparseStep = SGD) -> None:
        self.random = np.random.default_rng(1)
        self.rows = self.random.standard_normal((ROWS, WIDTH)).astype(np.float32)
        # keys 0..149 are server 1's rows 50..199, keys 150..349 server 0's 0..199, keys 350..399 server 1's 0..49
        self.tables = [self.rows[150:350].copy(), np.concatenate([self.rows[350:], self.rows[:150]])]
        self.servers = [
            HetServer(t, np.zeros((len(t), step.state_width(WIDTH)), np.float32), staleness=staleness, step=step)
            for t in self.tables
        ]
        territory = Territory([0, 150, 350], [1, 0, 1], [50, 0, 0], ROWS)
        self.caches = [
            HetCache(territory, WIDTH, capacity=capacity, staleness=staleness, policy=policy, step=step)
            for _ in range(workers)
        ]

    def all_rows(self) -> np.ndarray:
        return np.concatenate([self.tables[1][50:], self.tables[0], self.tables[1][:50]])

    def exchange(self, requests: list[Request]) -> list[Answer]:
        for server, request in zip(self.servers, requests, strict=True):
            server.push(request)
        return [server.pull(request) for server, request in zip(self.servers, requests, strict=True)]

    def flush(self) -> None:
        none = np.empty(0, np.int64)
        for cache in self.caches:
            cache.read(none, self.exchange(cache.flush()))


def keys_of(random: np.random.Generator, count: int) -> np.ndarray:
    return np.unique(random.zipf(1.3, count) % ROWS).astype(np.int64)


@pytest.mark.parametrize("policy", ["lru", "lfu", "light-lfu"])
@pytest.mark.parametrize("staleness", [UNBOUNDED, 7])
def test_tables_end_as_the_sum_of_all_gradients(policy: str, staleness: int) -> None:
    world = World(8, staleness, capacity=40, policy=policy)
    total = np.zeros((ROWS, WIDTH))
    random = np.random.default_rng(2)
    for _ in range(1000):
        for cache in world.caches:
            keys = keys_of(random, 30)
            slots, requests = cache.ask(keys)
            rows = cache.read(slots, world.exchange(requests))
            gradients = random.standard_normal(rows.shape).astype(np.float32) - 0.01 * rows
            cache.write(slots, gradients)
            cache.trim()
            total[keys] += gradients
    world.flush()
    np.testing.assert_allclose(world.all_rows(), world.rows - LR * total, atol=2e-4)


def test_a_batch_larger_than_the_cache_is_held_while_it_is_under_way() -> None:
    world = World(1, 3, capacity=10, policy="lfu")
    cache = world.caches[0]
    keys = np.arange(ROWS, dtype=np.int64)
    slots, requests = cache.ask(keys)
    np.testing.assert_array_equal(cache.read(slots, world.exchange(requests)), world.rows)
    cache.write(slots, np.ones((ROWS, WIDTH), np.float32))
    cache.trim()
    assert cache.resident == 10
    world.flush()
    np.testing.assert_allclose(world.all_rows(), world.rows - LR, rtol=1e-6)


def test_a_cache_grows_for_the_rows_of_a_step_and_keeps_those_that_it_has() -> None:
    rows = np.arange(20_000, dtype=np.float32)[:, None]
    server = HetServer(rows, np.empty((20_000, 0), np.float32), staleness=5, step=SGD)
    cache = HetCache(Territory([0], [0], [0], 20_000), 1, capacity=10, staleness=5, policy="light-lfu", step=SGD)
    first, (request,) = cache.ask(np.arange(5, dtype=np.int64))
    cache.read(first, [server.pull(request)])
    second, (request,) = cache.ask(np.arange(20_000, dtype=np.int64))
    np.testing.assert_array_equal(cache.read(second, [server.pull(request)]), rows)
    assert cache.resident == 20_000
    cache.write(first, np.zeros((5, 1), np.float32))
    cache.write(second, np.zeros((20_000, 1), np.float32))
    cache.trim()
    assert cache.resident == 10


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad"])
def test_without_staleness_workers_train_as_one_with_all_their_batches(kind: str) -> None:
    """Synchronous training: in each round everybody pushes, then everybody pulls; the reference is one optimizer over the summed gradient."""
    step = SparseStep(kind, LR, 1e-8)
    world = World(4, 0, capacity=40, policy="lru", step=step)
    random = np.random.default_rng(3)
    reference = torch.from_numpy(world.rows.copy())
    squares = torch.zeros(ROWS, step.state_width(WIDTH) or 1)
    for _ in range(30):
        asked = [(keys := keys_of(random, 25), *cache.ask(keys)) for cache in world.caches]
        for _, _, requests in asked:
            for server, request in zip(world.servers, requests, strict=True):
                server.push(request)
        total = torch.zeros(ROWS, WIDTH)
        for cache, (keys, slots, requests) in zip(world.caches, asked, strict=True):
            answers = [server.pull(request) for server, request in zip(world.servers, requests, strict=True)]
            rows = cache.read(slots, answers)
            np.testing.assert_allclose(rows, reference[keys].numpy(), atol=1e-5)
            gradients = random.standard_normal(rows.shape).astype(np.float32)
            cache.write(slots, gradients)
            total[keys] += torch.from_numpy(gradients)
            assert cache.resident == 0
        if kind == "sgd":
            reference -= LR * total
        else:
            squares += total**2 if kind == "adagrad" else (total**2).mean(1, keepdim=True)
            reference -= torch.where(total != 0, LR * total / (squares.sqrt() + 1e-8), 0.0)
    for cache in world.caches:
        for server, request in zip(world.servers, cache.flush(), strict=True):
            server.push(request)
    for server in world.servers:
        server.pull(
            Request(
                np.zeros(3, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty((0, WIDTH), np.float32)
            )
        )
    np.testing.assert_allclose(world.all_rows(), reference.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "ftrl"])
def test_a_lone_worker_reads_what_its_server_would_hold_had_it_evicted(kind: str) -> None:
    world = World(1, UNBOUNDED, capacity=ROWS, policy="lfu", step=SparseStep(kind, LR, 1e-8, beta=1.0, l1=0.2))
    cache = world.caches[0]
    random = np.random.default_rng(4)
    keys = np.arange(100, 200, dtype=np.int64)
    for _ in range(5):
        slots, requests = cache.ask(keys)
        rows = cache.read(slots, world.exchange(requests))
        cache.write(slots, random.standard_normal(rows.shape).astype(np.float32))
    slots, requests = cache.ask(keys)
    rows = cache.read(slots, world.exchange(requests))
    cache.write(slots, np.zeros_like(rows))
    world.flush()
    np.testing.assert_allclose(world.all_rows()[keys], rows, rtol=1e-6, atol=1e-7)


def request_of(counts: list[int], keys: list[int], clocks: list[int], gradients: int) -> Request:
    grads = np.zeros((gradients, WIDTH), np.float32)
    return Request(np.array(counts, np.int64), np.array(keys, np.int64), np.array(clocks, np.int32), grads)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (request_of([1, 0, 0], [200], [1], 1), "a cache asks for row 200, this server holds 200"),
        (request_of([1, 0, 0], [-1], [1], 1), "a cache asks for row -1, this server holds 200"),
        (request_of([2, 0, 0], [1], [1], 1), r"want \(\(2,\), \(2,\), \(2, 4\)\)"),
        (request_of([0, 1, 1], [1, 2], [], 0), r"want \(\(2,\), \(1,\), \(0, 4\)\)"),
        (request_of([-1, 1, 0], [], [], 0), r"has the counts \[-1, 1, 0\], want three counts"),
    ],
)
def test_a_request_that_does_not_hold_together_is_refused(request_: Request, says: str) -> None:
    server = World(1, 5, 10, "lru").servers[0]
    with pytest.raises(DataError, match=says):
        server.push(request_)
    with pytest.raises(DataError, match=says):
        server.pull(request_)


def test_an_answer_that_does_not_fit_is_refused() -> None:
    cache = World(1, 5, 10, "lru").caches[0]
    slots, _ = cache.ask(np.array([160], np.int64))
    with pytest.raises(DataError, match=r"a server answers with rows \[2, 4\] and 2 clocks, want rows \[1,4\]"):
        cache.read(slots, [Answer(np.zeros((2, 4), np.float32), np.zeros(2, np.int32), np.empty(0, np.int32))] * 2)


def test_an_id_beyond_all_tables_is_refused_by_name() -> None:
    cache = World(1, 5, 10, "lru").caches[0]
    with pytest.raises(DataError, match="row 400 is asked for, the cached tables have 400"):
        cache.ask(np.array([3, 400], np.int64))


@pytest.mark.parametrize("policy", ["lru", "lfu", "light-lfu"])
def test_rows_that_announced_batches_use_stay_while_others_can_go(policy: str) -> None:
    """Batches are announced three ahead, past evictions and pauses; what is counted ahead is always what is announced and not asked."""
    world = World(1, 5, capacity=60, policy=policy)
    cache = world.caches[0]
    random = np.random.default_rng(5)
    window: list[np.ndarray] = []
    for number in range(400):
        while len(window) < 4:
            window.append(keys_of(random, 30))
            cache.announce(window[-1])
        before = {k for k in range(ROWS) if cache.clocks_of(k)}
        keys = window.pop(0)
        slots, requests = cache.ask(keys)
        gone = {k for k in before if not cache.clocks_of(k)}
        soon = set(np.concatenate(window).tolist())
        assert not gone & soon or before - gone - set(keys.tolist()) <= soon
        rows = cache.read(slots, world.exchange(requests))
        cache.write(slots, rows)
        cache.trim()
        if number % 100 == 99:
            cache.read(np.empty(0, np.int64), world.exchange(cache.flush()))
    for keys in window:
        slots, requests = cache.ask(keys)
        cache.write(slots, cache.read(slots, world.exchange(requests)))
    assert cache.num_expected == 0


@pytest.mark.parametrize("staleness", [10, 100])
def test_a_checkpoint_costs_a_warm_cache_no_hits(staleness: int) -> None:
    """Rows that may be read without being fetched, with a flush every 20 batches and without; it was 19 points when a flush emptied the cache."""

    def share_read(every: int) -> float:
        world = World(2, staleness, capacity=120, policy="light-lfu")
        random = np.random.default_rng(6)
        for number in range(400):
            for cache in world.caches:
                slots, requests = cache.ask(keys_of(random, 60))
                cache.write(slots, cache.read(slots, world.exchange(requests)))
                cache.trim()
            if number % every == every - 1:
                world.flush()
        counts = [cache.counts for cache in world.caches]
        asked = sum(count.hits + count.misses for count in counts)
        return sum(count.hits - count.run_out - count.stale for count in counts) / asked

    assert share_read(20) > share_read(1000) - 0.01
