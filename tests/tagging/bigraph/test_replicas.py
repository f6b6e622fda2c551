"""2D replication against counts by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph.links import one_host
from htrain.tagging.bigraph.replicas import replicas
from tests.support.bigraphs import counts_by_hand, drawn_graph, probability_by_hand


@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(2, 5), budget=st.integers(0, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_each_worker_holds_the_rows_of_others_that_it_uses_most(seed: int, workers: int, budget: int) -> None:
    graph = drawn_graph(seed)
    random = np.random.default_rng(seed)
    samples, homes = random.integers(0, workers, graph.num_samples), random.integers(0, workers, graph.num_rows)
    counts, sizes = counts_by_hand(graph, samples, workers), np.bincount(samples, minlength=workers)
    found = replicas(graph, samples, homes, links=one_host(workers), batch_size=7, num_rows_each=budget)
    for worker, rows in enumerate(found.rows):
        others = [x for x in range(graph.num_rows) if homes[x] != worker and counts[x, worker]]
        best = sorted(others, key=lambda x: (-counts[x, worker], x))[:budget]
        assert rows.tolist() == sorted(best)
        saved = np.zeros(workers)
        for x in best:
            saved[homes[x]] += probability_by_hand(int(counts[x, worker]), int(sizes[worker]), 7)
        assert found.saved[worker] == pytest.approx(saved, abs=1e-4)
