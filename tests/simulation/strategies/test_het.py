"""What HET's caches are counted to ask for, against the paper's pseudo-code over dictionaries, with LRU and LFU as lists sorted by hand."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from cached_plans import ROWS, Given, cached_plan, changed
from het_model import Server, Worker
from hypothesis import example, given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.id_sources import Zipf
from htrain.simulation.run import sized_nets
from htrain.simulation.strategies.het import PlaysHet
from htrain.spec.options import Options

ZERO = np.zeros(1)


@dataclass
class Plain:
    """A worker of the pseudo-code that gives up rows by a policy, and what it has done in a batch."""

    worker: Worker
    capacity: int
    policy: str
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    now: int = 0
    hits: int = 0
    cold: int = 0
    evicted: int = 0
    ever: set[int] = field(default_factory=set)
    writing: list[int] = field(default_factory=list)

    def victims(self, surplus: int, pinned: set[int]) -> list[int]:
        order = sorted(self.uses, key=lambda key: self.uses[key] if self.policy == "lfu" else self.uses[key][1:])
        found = [key for key in order if key not in pinned and key in self.worker.cache][: max(0, surplus)]
        self.evicted += len(found)
        return self.forgotten(found)

    def forgotten(self, keys: list[int]) -> list[int]:
        for key in keys:
            del self.uses[key]
        return keys

    def ask(self, keys: list[int]) -> None:
        known = self.worker.cache
        self.hits, misses = sum(key in known for key in keys), sum(key not in known for key in keys)
        self.cold = len(set(keys) - self.ever)
        self.ever |= set(keys)
        pinned = {*keys, *self.writing}
        dropped = self.victims(len(known) + misses - self.capacity, pinned)
        self.worker.ask(keys, set(self.writing), dropped)

    def write(self, staleness: int, following: list[int]) -> None:
        for key in self.writing:
            self.worker.write(key, ZERO)
            self.now += 1
            self.uses[key] = self.uses.get(key, (0, 0))[0] + 1, self.now
        if staleness == 0:
            self.worker.drop(self.forgotten(list(self.writing)))
        self.writing = []
        asked = [key for key in following if key not in self.worker.cache]  # they have slots already
        self.worker.drop(self.victims(len(self.worker.cache) + len(asked) - self.capacity, set(following)))


def in_dictionaries(
    ids: list[list[list[int]]], capacity: int, staleness: int, policy: str, ahead: bool
) -> list[list[float]]:
    """Of each batch, in the mean over workers: hits, cold, evicted, fetched, pushed, checked, stale."""
    everything = range(ROWS)
    server = Server(
        "sgd", dict.fromkeys(everything, ZERO), dict.fromkeys(everything, ZERO), dict.fromkeys(everything, 0)
    )
    workers = [Plain(Worker(server, staleness), capacity, policy) for _ in ids]
    found: list[list[float]] = []

    def ask(step: int) -> None:
        for plain, batches in zip(workers, ids, strict=True):
            plain.ask(batches[step])
        sent = sum(len(plain.worker.sent) for plain in workers)
        for plain in workers:
            for evicted in plain.worker.sent:
                server.evict(evicted)
            plain.worker.sent = []
        for plain in workers:
            plain.worker.reach_server()
        each = [
            (p.hits, p.cold, p.evicted, len(p.worker.fetched), 0, len(p.worker.checked), len(p.worker.stale))
            for p in workers
        ]
        found.append([total / len(ids) for total in np.array(each).sum(0) + [0, 0, 0, 0, sent, 0, 0]])
        for plain in workers:
            plain.evicted = 0

    steps = min(map(len, ids))
    ask(0)
    for step in range(steps):
        for plain, batches in zip(workers, ids, strict=True):
            plain.worker.hear()
            plain.writing = batches[step]
        if ahead and step + 1 < steps:
            ask(step + 1)
        for plain, batches in zip(workers, ids, strict=True):
            plain.write(staleness, batches[step + 1] if ahead and step + 1 < steps else [])
        if not ahead and step + 1 < steps:
            ask(step + 1)
    return found


def played(plan: Plan, ids: list[list[list[int]]]) -> list[list[float]]:
    rounds = [r.rates for r in PlaysHet(plan, Given(ids), 100).rounds()]
    caches = [cache for rates in rounds for cache in rates.values()]
    return [[c.hits, c.cold, c.evicted, c.fetched - c.stale, c.pushed, c.checked, c.stale] for c in caches]


def plan_of(trainers: int, ahead: bool = True, **attrs: object) -> Plan:
    """Without announced batches, whose rows a cache spares."""
    plan = cached_plan("het", trainers, cache_window=1)
    options: Options = replace(plan.options, prefetch=ahead)
    if attrs.get("staleness") == 0:
        options = replace(options, cache=replace(options.cache, staleness=0))
    return changed(replace(plan, options=options), "HetAsk", **attrs)  # type: ignore[arg-type]


batches = st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=8, unique=True), min_size=1, max_size=14)

OTHERS_WRITE = [[[0]] * 6, [[0], [5], [5], [5], [5], [0]]]  # of the first trainer, and of the second


@settings(max_examples=80, deadline=None)
@given(
    ids=st.lists(batches, min_size=1, max_size=2), capacity=st.integers(1, 16), staleness=st.sampled_from([0, 1, 2, 5, 1000]),
    policy=st.sampled_from(["lru", "lfu"]), prefetch=st.booleans(),
)  # fmt: skip
@example(ids=OTHERS_WRITE, capacity=16, staleness=1, policy="lru", prefetch=True)
@example(ids=OTHERS_WRITE, capacity=16, staleness=1, policy="lfu", prefetch=False)
def test_counts_are_those_of_the_pseudo_code(
    ids: list[list[list[int]]], capacity: int, staleness: int, policy: str, prefetch: bool
) -> None:
    plan = plan_of(len(ids), prefetch, capacity=capacity, staleness=staleness, policy=policy)
    wanted = in_dictionaries(ids, capacity, staleness, policy, ahead=prefetch and staleness > 0)
    np.testing.assert_allclose(played(plan, ids), wanted)


def test_a_row_that_others_write_is_stale() -> None:
    stale = [counts[-1] for counts in played(plan_of(2, capacity=16, staleness=1, policy="lru"), OTHERS_WRITE)]
    assert stale == [0, 0, 0, 0, 0, 0.5]


def test_every_server_is_asked_for_its_own_rows() -> None:
    """Rows 0 to 11 are on the first of two servers."""
    plan = changed(cached_plan("het", shards=2, cache_window=1), "HetAsk", capacity=3)
    cycle = [[0, 1, 2, 20], [3, 4, 5, 21]] * 60
    (cache,) = rates_of(plan, Given([cycle])).caches.values()
    assert [shard.fetched for shard in cache.shards] == pytest.approx([3, 1])
    assert [shard.pushed for shard in cache.shards] == pytest.approx([3, 1])
    assert (cache.asked, cache.hits, cache.cold) == pytest.approx((4, 0, 0), abs=0.1)


def test_what_travels_is_as_large_as_was_counted() -> None:
    plan = changed(cached_plan("het", shards=2, cache_window=1), "HetAsk", capacity=3)
    rates = rates_of(plan, Given([[[0, 1, 2, 20], [3, 4, 5, 21]] * 60]))
    trainer, first = (sized_nets(plan, rates)[device] for device in ("trainer", "sparse_ps:0"))
    (ask,) = (op for op in trainer.ops if op.type == "HetAsk")
    (pull,) = (op for op in first.ops if op.type == "HetPull")
    sizes = [trainer.blobs[name].shape[0] for name in ask.outputs]
    assert sizes == [4, 3, 6, 3, 3, 3, 2, 1, 1]  # slots; counts, keys, clocks and gradients of each server
    assert [first.blobs[name].shape[0] for name in pull.outputs] == [3, 3, 1]  # at least one
    assert trainer.blobs[ask.inputs[1]].shape == (4,)
    assert sized_nets(plan)["trainer"].blobs[ask.inputs[1]].shape == (12,)  # as if all rows were alike


def test_announced_rows_are_spared() -> None:
    """A cache that hears of the next batches keeps the rows that they use, where LRU alone gives up the row that comes next in a cycle."""
    ids = [[[key, 10 + key] for key in range(6)] * 40]
    hits = {}
    for window in (1, 4):
        plan = changed(cached_plan("het", cache_window=window), "HetAsk", capacity=8, policy="lru")
        (cache,) = rates_of(plan, Given(ids)).caches.values()
        hits[window] = cache.hits
    assert hits[1] == 0
    assert hits[4] > 0.9


def test_tables_that_no_memory_holds_are_played() -> None:
    """10^12 rows, of which a cache could hold a tenth."""
    plan = changed(cached_plan("het", cache_window=1), "HetAsk", bounds=(0, 10**12), capacity=10**11)
    (cache,) = rates_of(plan, Zipf(1.05), most_batches=200).caches.values()
    assert 15 < cache.asked <= 16
    assert 0 < cache.hits < cache.asked
    assert cache.evicted == 0


def test_an_id_that_no_table_has_is_refused() -> None:
    with pytest.raises(DataError, match=f"^row {ROWS} is asked for, the cached tables have {ROWS}: is an id too large"):
        rates_of(cached_plan("het"), Given([[[0, ROWS]]]))
