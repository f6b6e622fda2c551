"""What look-ahead caches are counted to ask for, against sets in plain Python, and against the caches of a trainer."""

import numpy as np
import pytest
import torch
from cached_plans import ROWS, Given, cached_plan, changed
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.strategies.lookahead.joint_caches import JointCaches
from htrain.executor.strategies.lookahead.slot_rows import HostRows
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.transport.peers import Peers
from htrain.net.placement import CacheGeometry
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.run import sized_nets
from htrain.simulation.strategies.lookahead import PlaysLookAhead
from htrain.sync.lookahead.averaging import EverySteps

batches = st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=8, unique=True), min_size=1, max_size=16)


def plan_of(trainers: int, window: int, sets: int, ways: int) -> Plan:
    plan = cached_plan("lookahead", trainers, cache_window=2)
    return changed(plan, "LookaheadSlots", window=window, sets=sets, ways=ways)


def in_sets(ids: list[list[list[int]]], window: int, sets: int) -> list[list[float]]:
    """A direct-mapped cache. Of each window: hits of a trainer, victims, rows put in, evicted and fetched: what is put in, and victims."""
    held: dict[int, int] = {}
    found = []
    for begin in range(0, min(map(len, ids)) // window * window, window):
        steps = [[own[step] for own in ids] for step in range(begin, begin + window)]
        order = list(dict.fromkeys(key for own in ids for batch in own[begin : begin + window] for key in batch))
        missing = [key for key in order if held.get(key % sets) != key]
        pinned = {key % sets for key in order if held.get(key % sets) == key}
        loaded = evicted = 0
        for key in missing:
            if key % sets not in pinned:
                evicted += key % sets in held
                loaded += 1
                held[key % sets] = key
                pinned.add(key % sets)
        missed = [[[key for key in batch if held[key % sets] != key] for batch in step] for step in steps]
        victims = sum(len({key for batch in step for key in batch}) for step in missed)
        hits = sum(len(batch) for step in steps for batch in step) - sum(
            len(batch) for step in missed for batch in step
        )
        found.append([hits / len(ids), victims, loaded, evicted, loaded + victims])
    return found


def played(plan: Plan, ids: list[list[list[int]]], window: int) -> list[list[float]]:
    caches = [cache for r in PlaysLookAhead(plan, Given(ids), 100).rounds() for cache in r.rates.values()]
    return [[window * n for n in (c.hits, c.victims, c.loaded, c.evicted, c.fetched)] for c in caches]


@settings(max_examples=80, deadline=None)
@given(ids=st.lists(batches, min_size=1, max_size=2), window=st.integers(1, 8), sets=st.sampled_from([1, 3, 7, 13]))
def test_counts_are_those_of_sets_of_one_row(ids: list[list[list[int]]], window: int, sets: int) -> None:
    found, wanted = played(plan_of(len(ids), window, sets, 1), ids, window), in_sets(ids, window, sets)
    np.testing.assert_allclose(np.reshape(found, (-1, 5)), np.reshape(wanted, (-1, 5)))


@settings(max_examples=40, deadline=None)
@given(ids=batches, window=st.integers(1, 4), sets=st.sampled_from([1, 3, 5]), ways=st.integers(2, 4))
def test_counts_are_those_of_a_trainer(ids: list[list[int]], window: int, sets: int, ways: int) -> None:
    cache = TableCache(CacheGeometry(sets, ways), HostRows((torch.zeros(sets * ways + 8, 1),)), patch=True)
    joint, found = JointCaches({"c": cache}, Peers(None), EverySteps(1)), []
    for begin in range(0, len(ids) // window * window, window):
        counts = cache.counts
        before = counts.hits, counts.misses, counts.loaded, counts.evicted
        for batch in ids[begin : begin + window]:
            cache.announce(np.array(batch, np.int64))
        table = cache.plan([cache.announced()])
        read = table.fresh_keys.size
        cache.begin_read(table)
        table.rows = np.zeros((read, 1), np.float32)
        joint.place({"c": table}, joint.turnover({"c": table}))
        for _ in range(window):
            for victims in joint.begin_step().values():
                joint.take_victims({"c": np.zeros((victims.size, 1), np.float32)})
            cache.flush_victims()
            joint.end_step()
        now = counts.hits, counts.misses, counts.loaded, counts.evicted
        hits, misses, loaded, evicted = (b - a for a, b in zip(before, now, strict=True))
        found.append([hits, misses, loaded, evicted, read + misses])
    mine = played(plan_of(1, window, sets, ways), [ids], window)
    np.testing.assert_allclose(np.reshape(mine, (-1, 5)), np.reshape(found, (-1, 5)))


def test_what_travels_is_as_large_as_was_counted() -> None:
    """A cache of one row whose window of one batch has two: one is read for its slot, the other, a victim, read and written in its step."""
    plan = plan_of(1, 1, 1, 1)
    rates = rates_of(plan, Given([[[0, 1], [2, 3]] * 80]))
    (cache,) = rates.caches.values()
    assert (cache.asked, cache.hits, cache.victims, cache.loaded) == pytest.approx((2, 1, 1, 1))
    assert (cache.fetched, cache.pushed, cache.window_rows) == pytest.approx((2, 2, 2), abs=0.02)
    trainer, server = (sized_nets(plan, rates)[device] for device in ("trainer", "sparse_ps:0"))
    (request,) = (op for op in trainer.ops if op.type == "LookaheadRequest")
    (prefetch,) = (op for op in server.ops if op.type == "Prefetch")
    assert [trainer.blobs[name].shape[0] for name in request.outputs] == [2, 2, 2]
    assert server.blobs[prefetch.outputs[0]].shape[0] == 2
