"""Rows live where they are used most, as far as they are to be balanced."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph import Bigraph
from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.links import one_host
from tests.support.bigraphs import counts_by_hand, drawn_graph

quick = settings(max_examples=60, deadline=None, derandomize=True)


@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 6))
@quick
def test_without_a_limit_each_row_is_where_most_use_it_and_with_one_none_has_more(seed: int, workers: int) -> None:
    graph = drawn_graph(seed)
    samples = np.random.default_rng(seed).integers(0, workers, graph.num_samples)
    counts = counts_by_hand(graph, samples, workers)[graph.row_order]
    probability = use_probability(40, 5)
    free = homes_of(graph.level, samples, probability, links=one_host(workers), most=graph.num_rows)
    used = probability[np.minimum(counts, len(probability) - 1)]
    assert (used[np.arange(graph.num_rows), free] >= 0.99 * used.max(axis=1)).all()
    rare = counts.sum(axis=1) < 128
    assert (counts[np.arange(graph.num_rows), free] == counts.max(axis=1))[rare].all()
    most = -(-graph.num_rows // workers)
    limited = homes_of(graph.level, samples, probability, links=one_host(workers), most=most)
    assert np.bincount(limited, minlength=workers).max() <= most


def test_the_rows_that_leave_a_crowded_worker_are_those_that_cost_least() -> None:
    # row 0 is used by samples of worker 0 alone, rows 1 and 2 by one of each worker
    graph = Bigraph(np.array([0, 3, 6, 7, 7]), np.array([0, 1, 2, 0, 1, 2, 0], np.int32), 3)
    samples = np.array([0, 1, 0, 1])
    homes = np.empty(3, np.int64)
    homes[graph.row_order] = homes_of(graph.level, samples, use_probability(2, 1), links=one_host(2), most=2)
    assert homes[0] == 0
    assert sorted(homes.tolist()) == [0, 0, 1]


@pytest.mark.parametrize("workers", [2, 5])
def test_rows_that_nobody_uses_are_dealt_out(workers: int) -> None:
    graph = Bigraph(np.array([0, 1]), np.array([0], np.int32), 11)
    found = homes_of(graph.level, np.zeros(1, np.int64), use_probability(1, 1), links=one_host(workers), most=11)
    assert np.bincount(found, minlength=workers).max() <= 11 // workers + 2


def test_rows_that_every_batch_uses_are_served_by_all_workers_alike() -> None:
    """Forty rows in every sample, and one row for each sample of its own."""
    samples, rows = 400, 40
    mine = np.arange(samples)[:, None] + rows
    ids = np.concatenate([np.tile(np.arange(rows), (samples, 1)), mine], axis=1).astype(np.int32)
    graph = Bigraph(np.arange(samples + 1) * (rows + 1), ids.reshape(-1), rows + samples)
    part = np.arange(samples) % 4
    homes = np.empty(graph.num_rows, np.int64)
    homes[graph.row_order] = homes_of(graph.level, part, use_probability(100, 10), links=one_host(4), most=115)
    assert np.bincount(homes[:rows], minlength=4).tolist() == [10, 10, 10, 10]
    assert (homes[rows:] == part).all()
