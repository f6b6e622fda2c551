"""F_B and F1 by whole numbers, and by batches that are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph import fetches
from htrain.tagging.bigraph.fetches import use_probability
from tests.support.bigraphs import counts_by_hand, drawn_graph, fetches_by_hand, planted_graph, probability_by_hand

quick = settings(max_examples=60, deadline=None, derandomize=True)


@given(num_samples=st.integers(0, 400), batch_size=st.integers(1, 500))
@quick
def test_the_probability_that_a_batch_uses_a_row_is_that_of_drawing_without_replacement(
    num_samples: int, batch_size: int
) -> None:
    table = use_probability(num_samples, batch_size)
    for count in range(num_samples + 1):
        found = table[min(count, len(table) - 1)]
        assert found == pytest.approx(probability_by_hand(count, num_samples, batch_size), abs=2e-7)
    assert (np.diff(table) >= 0).all()


@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 5), batch_size=st.integers(1, 30))
@quick
def test_both_figures_are_the_sums_that_define_them(seed: int, workers: int, batch_size: int) -> None:
    graph = drawn_graph(seed)
    random = np.random.default_rng(seed)
    samples, homes = random.integers(0, workers, graph.num_samples), random.integers(0, workers, graph.num_rows)
    found = fetches(graph, samples, homes, num_workers=workers, batch_size=batch_size)
    by_hand = fetches_by_hand(graph, samples, homes, workers, batch_size)
    assert found.rows == pytest.approx(by_hand, abs=1e-4)
    assert found.per_batch == pytest.approx((by_hand.sum() - np.trace(by_hand)) / workers, abs=1e-4)
    counts = counts_by_hand(graph, samples, workers)
    remote = sum(counts[x, i] for x in range(graph.num_rows) for i in range(workers) if homes[x] != i)
    assert found.per_sample == pytest.approx(remote / graph.num_samples)


def test_batches_that_are_drawn_fetch_what_is_predicted() -> None:
    graph, topic = planted_graph(4000, topics=16, share=0.5)
    samples, homes = topic % 4, np.random.default_rng(1).integers(0, 4, graph.num_rows)
    predicted = fetches(graph, samples, homes, num_workers=4, batch_size=64).rows
    random, counted = np.random.default_rng(0), np.zeros((4, 4))
    for worker in range(4):
        order = random.permutation(np.flatnonzero(samples == worker))
        batches = [order[i : i + 64] for i in range(0, len(order) - 63, 64)]
        for batch in batches:
            rows = np.unique(np.concatenate([graph.rows[graph.starts[s] : graph.starts[s + 1]] for s in batch]))
            counted[worker] += np.bincount(homes[rows], minlength=4) / len(batches)
    assert counted == pytest.approx(predicted, rel=0.03)
