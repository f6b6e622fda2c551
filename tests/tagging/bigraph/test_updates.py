"""Expected updates of a row, against the sum of exact probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph.updates import updates_of
from tests.support.bigraphs import counts_by_hand, drawn_graph, probability_by_hand


@given(seed=st.integers(0, 2**32 - 1), num_workers=st.integers(1, 5), batch_size=st.integers(1, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_step_updates_a_row_once_for_each_worker_whose_batch_uses_it(
    seed: int, num_workers: int, batch_size: int
) -> None:
    graph = drawn_graph(seed)
    samples = np.random.default_rng(seed).integers(0, num_workers, graph.num_samples)
    counts, sizes = counts_by_hand(graph, samples, num_workers), np.bincount(samples, minlength=num_workers)
    wanted = [
        sum(probability_by_hand(int(c), int(n), batch_size) for c, n in zip(row, sizes, strict=True)) for row in counts
    ]
    found = updates_of(graph, samples, num_workers=num_workers, batch_size=batch_size)
    assert found.dtype == np.float16
    assert found.astype(float) == pytest.approx(wanted, rel=1e-3, abs=1e-6)
