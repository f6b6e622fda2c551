"""Workers on hosts: costs, homes and moves against sums by hand, and partitions whose rows stay on their hosts."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph import Partition, Request, chunks, partition
from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.graph import Bigraph, Level, contracted
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.links import Links, costs_of_pairs, links_of
from htrain.tagging.bigraph.partition import _most
from htrain.tagging.bigraph.refine import Parts, costs_on, scratch_for
from htrain.tagging.bigraph.replicas import replicas
from tests.support.bigraphs import counts_by_hand, drawn_graph, planted_graph, probability_by_hand

quick = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
some_hosts = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)
some_costs = st.sampled_from([1.0, 2.5, 10.0])


def used_by_hand(level: Level, part: np.ndarray, probability: np.ndarray, num_workers: int) -> np.ndarray:
    """[x, i]: the probability that a batch of worker i uses row x."""
    counts = np.zeros((level.num_rows, num_workers), np.int64)
    for x in range(level.num_rows):
        for e in range(level.row_starts[x], level.row_starts[x + 1]):
            counts[x, part[level.readers[e]]] += level.times[e] if len(level.times) else 1
    return probability[np.minimum(counts, len(probability) - 1)].astype(float)


def cost_by_hand(used: np.ndarray, links: Links) -> float:
    """Every row on the worker on which it costs least, tried on all."""
    return float((used @ costs_of_pairs(links)).min(axis=1).sum()) / len(links.host_of)


def test_a_row_costs_nothing_at_home_one_beside_it_and_more_on_another_host() -> None:
    assert costs_of_pairs(links_of((2, 1), 10)).tolist() == [[0, 1, 10], [1, 0, 10], [10, 10, 0]]


@given(seed=seeds, hosts=some_hosts, cost=some_costs, is_coarse=st.booleans())
@quick
def test_the_cost_of_parts_and_of_every_move_is_that_of_all_rows(
    seed: int, hosts: tuple[int, ...], cost: float, is_coarse: bool
) -> None:
    level, links, workers = drawn_graph(seed, samples=30, rows=20).level, links_of(hosts, cost), sum(hosts)
    if is_coarse:
        level = contracted(level, np.arange(level.num_vertices) // 2, -(-level.num_vertices // 2))
    random = np.random.default_rng(seed)
    part, probability = random.integers(0, workers, level.num_vertices), use_probability(10, 3)
    parts = Parts(level, part, probability, links)
    before = cost_by_hand(used_by_hand(level, part, probability, workers), links)
    assert parts.cost == pytest.approx(before, abs=1e-5)
    for v in random.permutation(level.num_vertices)[:6]:
        scratch, costs = scratch_for(links), np.empty(workers)
        costs_on(parts.state, v, scratch, costs)
        assert not scratch.found.any()
        assert not scratch.sums.any()
        for target in range(workers):
            moved = part.copy()
            moved[v] = target
            by_hand = cost_by_hand(used_by_hand(level, moved, probability, workers), links) - before
            assert (costs[target] - costs[part[v]]) / workers == pytest.approx(by_hand, abs=1e-4)


@given(seed=seeds, hosts=some_hosts, cost=some_costs)
@quick
def test_each_row_lives_where_it_costs_least_and_none_has_more_than_its_limit(
    seed: int, hosts: tuple[int, ...], cost: float
) -> None:
    graph, links, workers = drawn_graph(seed), links_of(hosts, cost), sum(hosts)
    part, probability = np.random.default_rng(seed).integers(0, workers, graph.num_samples), use_probability(40, 5)
    free = homes_of(graph.level, part, probability, links=links, most=graph.num_rows)
    costs = used_by_hand(graph.level, part, probability, workers) @ costs_of_pairs(links)
    assert costs[np.arange(graph.num_rows), free] == pytest.approx(costs.min(axis=1), abs=1e-5)
    most = -(-graph.num_rows // workers)
    limited = homes_of(graph.level, part, probability, links=links, most=most)
    assert np.bincount(limited, minlength=workers).max() <= most


@given(seed=seeds, hosts=some_hosts, budget=st.integers(0, 30))
@quick
def test_each_worker_holds_the_rows_that_cost_it_most(seed: int, hosts: tuple[int, ...], budget: int) -> None:
    graph, links, workers = drawn_graph(seed), links_of(hosts, 10.0), sum(hosts)
    random = np.random.default_rng(seed)
    samples, homes = random.integers(0, workers, graph.num_samples), random.integers(0, workers, graph.num_rows)
    counts, sizes = counts_by_hand(graph, samples, workers), np.bincount(samples, minlength=workers)
    found = replicas(graph, samples, homes, links=links, batch_size=7, num_rows_each=budget)
    for worker, rows in enumerate(found.rows):
        used = np.array([probability_by_hand(int(count), int(sizes[worker]), 7) for count in counts[:, worker]])
        costs = used * costs_of_pairs(links)[worker][homes]
        assert len(rows) == min(budget, int((costs > 0).sum()))
        assert costs[rows].sum() == pytest.approx(np.sort(costs)[::-1][: len(rows)].sum(), abs=1e-4)
        assert found.saved[worker].sum() == pytest.approx(used[rows].sum(), abs=1e-4)


@given(seed=seeds, hosts=some_hosts, samples=st.integers(0, 60), most_ids=st.integers(0, 8))
@quick
def test_any_graph_is_divided_within_the_bounds_of_each_worker(
    seed: int, hosts: tuple[int, ...], samples: int, most_ids: int
) -> None:
    graph, workers = Bigraph(np.zeros(1, np.int64), np.empty(0, np.int32), 0), sum(hosts)
    if samples:
        graph = drawn_graph(seed, samples=samples, most_ids=most_ids)
    found = partition(graph, Request(workers, 5, seed=seed, hosts=hosts, link_cost=10.0))
    for part, slack in ((found.samples, 1.03), (found.homes, 1.05)):
        assert np.bincount(part, minlength=workers).size == workers
        assert np.bincount(part, minlength=workers).max(initial=0) <= _most(len(part), workers, slack)


def rows_of(found: Partition, hosts: tuple[int, ...]) -> tuple[float, float]:
    """Rows that a batch needs of other hosts, and of all other workers."""
    rows, costs = found.fetches.rows, costs_of_pairs(links_of(hosts, 2.0))
    return float(rows[costs == 2].sum()) / len(rows), found.fetches.per_batch


def two_levels(seed: int) -> Bigraph:
    """Samples of 8 topics: half of their rows are of the topic, the others of the even topics or of the odd ones."""
    random = np.random.default_rng(seed)
    topic = random.integers(0, 8, size=6000)
    near = random.random((6000, 8)) < 0.5
    ids = np.where(near, topic[:, None] * 500, 4000 + (topic[:, None] % 2) * 2000)
    ids = ids + np.minimum(random.geometric(0.01, (6000, 8)), np.where(near, 499, 1999)) + np.arange(8) * 8000
    seen, rows = np.unique(ids, return_inverse=True)
    return Bigraph(np.arange(6001) * 8, rows.reshape(-1).astype(np.int32), len(seen))


@pytest.mark.parametrize("hosts", [(4, 4), (2, 2, 2, 2), (4, 2, 2)])
def test_by_hosts_first_fewer_rows_cross_hosts_and_little_more_cross_workers(hosts: tuple[int, ...]) -> None:
    for graph in (planted_graph(6000, topics=32, share=0.5)[0], two_levels(0)):
        flat = Request(8, 64)
        by_hosts = rows_of(partition(graph, replace(flat, hosts=hosts, link_cost=10.0)), hosts)
        anyhow = rows_of(partition(graph, flat), hosts)
        assert by_hosts[0] < 0.97 * anyhow[0]
        assert by_hosts[1] < 1.15 * anyhow[1]


def test_two_hosts_take_a_half_of_the_topics_each() -> None:
    """Half of the rows of a sample are of its topic, the others of its half of the topics: none need cross hosts."""
    between, _ = rows_of(partition(two_levels(1), Request(8, 64, hosts=(4, 4), link_cost=10.0)), (4, 4))
    assert between < 0.05 * rows_of(partition(two_levels(1), Request(8, 64)), (4, 4))[0]


def test_the_same_graph_has_the_same_partition_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = planted_graph(3000, topics=16, share=0.5)[0]
    request = Request(5, 32, hosts=(3, 2), link_cost=10.0)
    found = {partition(graph, request).samples.tobytes()}
    monkeypatch.setattr(chunks, "_LEAST_EDGES", 1)
    for threads in (1, 2, 7):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)))
        again = partition(Bigraph(graph.starts, graph.rows, graph.num_rows), request)
        found.add(again.samples.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(4, 5, hosts=(2, 1)), r"hosts: \(2, 1\) are not the 4 workers"),
        (Request(4, 5, hosts=(4, 0)), r"hosts: \(4, 0\) are not the 4 workers"),
        (Request(4, 5, hosts=(2, 2), link_cost=0.5), r"link_cost: 0\.5 is below 1\.0"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(request_: Request, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        partition(drawn_graph(0), request_)
