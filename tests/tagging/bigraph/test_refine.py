"""Moves by the exact marginal: costs against sums over all rows, balance, and that sweeps do not make things worse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.graph import Bigraph, Level, contracted
from htrain.tagging.bigraph.links import one_host
from htrain.tagging.bigraph.refine import Parts, _price, costs_on, scratch_for
from tests.support.bigraphs import drawn_graph, planted_graph

quick = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def cost_by_hand(level: Level, part: np.ndarray, probability: np.ndarray, num_workers: int) -> float:
    """Sum over rows of p of every worker but the one that uses the row most, over the workers."""
    total = 0.0
    for x in range(level.num_rows):
        counts = np.zeros(num_workers, np.int64)
        for e in range(level.row_starts[x], level.row_starts[x + 1]):
            counts[part[level.readers[e]]] += level.times[e] if len(level.times) else 1
        used = probability[np.minimum(counts, len(probability) - 1)].astype(float)
        total += used.sum() - used.max()
    return total / num_workers


def small_level(seed: int, *, is_coarse: bool) -> Level:
    level = drawn_graph(seed, samples=30, rows=20).level
    if not is_coarse:
        return level
    return contracted(level, np.arange(level.num_vertices) // 2, -(-level.num_vertices // 2))


@given(seed=seeds, workers=st.integers(2, 12), is_coarse=st.booleans())
@quick
def test_the_cost_of_parts_and_of_every_move_is_that_of_all_rows(seed: int, workers: int, is_coarse: bool) -> None:
    level = small_level(seed, is_coarse=is_coarse)
    random = np.random.default_rng(seed)
    part = random.integers(0, workers, level.num_vertices)
    probability = use_probability(10, 3)
    parts = Parts(level, part, probability, one_host(workers))
    assert parts.cost == pytest.approx(cost_by_hand(level, part, probability, workers), abs=1e-5)
    for v in random.permutation(level.num_vertices)[:8]:
        scratch, costs = scratch_for(parts.state.links), np.empty(workers)
        costs_on(parts.state, v, scratch, costs)
        assert not scratch.found.any()
        for target in range(workers):
            moved = part.copy()
            moved[v] = target
            by_hand = cost_by_hand(level, moved, probability, workers) - cost_by_hand(level, part, probability, workers)
            if not is_priced(level, v, workers):
                assert (costs[target] - costs[part[v]]) / workers == pytest.approx(by_hand, abs=1e-5)


def is_priced(level: Level, v: int, workers: int) -> bool:
    """Whether a vertex has rows of so many readers that prices are kept for them, which take homes to stay."""
    num_priced = 0 if len(level.mult) else level.num_rows_read_by(4 * workers)
    return bool((level.rows[level.starts[v] : level.starts[v + 1]] < num_priced).any())


@given(counts=st.lists(st.integers(0, 12), min_size=2, max_size=6).filter(any))
@quick
def test_a_price_is_what_one_use_more_or_less_costs_of_a_row_whose_home_stays(counts: list[int]) -> None:
    probability, workers = use_probability(60, 7), len(counts)
    price = np.empty((2, workers), np.float32)
    _price(np.array(counts, np.int32), probability, price)

    def cost(by: list[int]) -> float:
        used = sorted(float(probability[min(count, len(probability) - 1)]) for count in by)
        return sum(used[:-1])

    for i in range(workers):
        with_one_more = [count + (j == i) for j, count in enumerate(counts)]
        assert price[0, i] == pytest.approx(cost(with_one_more) - cost(counts), abs=1e-5)
        if counts[i]:
            with_one_less = [count - (j == i) for j, count in enumerate(counts)]
            assert price[1, i] == pytest.approx(cost(counts) - cost(with_one_less), abs=1e-5)


def test_a_sample_whose_rows_are_priced_moves_where_all_rows_cost_least() -> None:
    """Many readers, clear homes: then prices are exact."""
    graph, topic = planted_graph(2000, topics=4, share=0.95, fields=6, vocabulary=40)
    part, probability = (topic % 4).astype(np.int64), use_probability(500, 64)
    parts = Parts(graph.level, part, probability, one_host(4))
    before = cost_by_hand(graph.level, part, probability, 4)
    for v in range(12):
        assert is_priced(graph.level, v, 4)
        costs = np.empty(4)
        costs_on(parts.state, v, scratch_for(parts.state.links), costs)
        for target in range(4):
            moved = part.copy()
            moved[v] = target
            by_hand = cost_by_hand(graph.level, moved, probability, 4) - before
            assert (costs[target] - costs[part[v]]) / 4 == pytest.approx(by_hand, abs=2e-3)


def test_prices_are_kept_up_to_date_while_vertices_move() -> None:
    graph, _ = planted_graph(3000, topics=16, share=0.6, vocabulary=300)
    probability = use_probability(750, 64)
    random = np.random.default_rng(0)
    parts = Parts(graph.level, random.permutation(3000) % 4, probability, one_host(4))
    parts.refine(most=np.full(4, 800), sweeps=5, random=random)
    again = Parts(graph.level, parts.part, probability, one_host(4))
    assert (parts.state.counts == again.state.counts).all()
    assert len(parts.state.prices)
    assert parts.state.prices == pytest.approx(again.state.prices)


def test_a_vertex_that_rests_is_not_looked_at_even_when_one_beside_it_has_moved() -> None:
    """Samples 0 to 4 share a row, as do 5 to 9; 4, 8 and 9 are on the other's worker: all three move, but for 4 and 8 where they rest."""
    graph = Bigraph(np.arange(11), np.repeat(np.arange(2, dtype=np.int32), 5), 2)
    at = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    for rests, expected in ((False, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]), (True, [0, 0, 0, 0, 1, 1, 1, 1, 0, 1])):
        parts = Parts(graph.level, at, use_probability(5, 3), one_host(2))
        if rests:
            parts.let_rest(np.arange(10) != 9)
        parts.refine(most=np.full(2, 8), sweeps=4, random=np.random.default_rng(0))
        assert parts.part.tolist() == expected


@given(seed=seeds, workers=st.integers(2, 6))
@settings(quick, max_examples=20)
def test_sweeps_make_it_better_and_no_worker_gets_too_much(seed: int, workers: int) -> None:
    graph, _ = planted_graph(400, topics=8, share=0.7, fields=5, vocabulary=64, seed=seed)
    random = np.random.default_rng(seed)
    probability = use_probability(-(-400 // workers), 16)
    parts = Parts(graph.level, random.permutation(400) % workers, probability, one_host(workers))
    before, most = parts.cost, int(1.05 * 400 / workers) + 1
    parts.refine(most=np.full(workers, most), sweeps=8, random=random)
    assert parts.cost < before
    assert parts.loads.max() <= most


@given(seed=seeds, workers=st.integers(2, 9))
@quick
def test_what_is_too_much_for_a_worker_is_moved_to_others(seed: int, workers: int) -> None:
    level = drawn_graph(seed).level
    random = np.random.default_rng(seed)
    part = np.minimum(random.geometric(0.5, level.num_vertices) - 1, workers - 1)
    most = -(-level.num_vertices // workers)
    parts = Parts(level, part, use_probability(most, 4), one_host(workers))
    parts.balance(most=np.full(workers, most))
    assert parts.loads.sum() == level.num_vertices
    assert parts.loads.max() <= most


def test_what_leaves_a_crowded_worker_is_what_costs_least() -> None:
    """Samples 0 to 3 share a row; 4 and 5 have rows of their own, and may go."""
    graph = Bigraph(np.arange(7), np.array([0, 0, 0, 0, 1, 2], np.int32), 3)
    parts = Parts(graph.level, np.zeros(6, np.int64), use_probability(3, 2), one_host(2))
    parts.balance(most=np.full(2, 4))
    assert parts.part.tolist() == [0, 0, 0, 0, 1, 1]
