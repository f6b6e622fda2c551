"""Stack distances against LRU's caches, each a list of its own, over traces that are drawn."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.advising.sequence import sequences_of
from htrain.advising.stack import bin_edges, stack_hits
from htrain.sync.accesses import accesses_of

Batches = list[list[int]]
batches = st.lists(st.lists(st.integers(0, 11), unique=True, max_size=6), min_size=1, max_size=25)


def in_a_list(trace: Batches, capacity: int, *, counted: int, ahead: bool) -> int:
    """LRU's hits: rows in the order of their last use, of which the last `capacity` are there, and those of a batch under way."""
    used: list[int] = []
    hits, before = 0, set[int]()
    for number, batch in enumerate(trace):
        there = set(used[-capacity:]) | (before if ahead else set())
        hits += sum(row in there for row in batch) if number >= counted else 0
        used = [row for row in used if row not in batch] + batch
        before = set(batch)
    return hits


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 2), st.booleans(), st.integers(0, 3))
def test_one_pass_hits_what_caches_of_every_size_would(trace: Batches, epochs: int, ahead: bool, counted: int) -> None:
    keys = np.array([row for batch in trace for row in batch], np.int64)
    starts = np.append(0, np.cumsum([len(batch) for batch in trace])).astype(np.int64)
    accesses = accesses_of(keys, starts, 1, np.array([0, 5, 12]))
    (sequence,) = sequences_of(accesses, epochs)
    edges = bin_edges(12)
    found = stack_hits(sequence, edges, num_parts=2, counted=counted, ahead=ahead).sum(0)
    assert found.tolist() == [in_a_list(trace * epochs, int(c), counted=counted, ahead=ahead) for c in edges]


def test_sizes_are_all_small_ones_and_16_of_each_octave() -> None:
    edges = bin_edges(1000)
    assert edges[:20].tolist() == list(range(1, 21))
    assert edges[-1] >= 1000
    assert (edges[1:] / edges[:-1]).max() <= 2
    assert bin_edges(1).tolist()[:1] == [1]


def test_each_trainer_has_a_sequence_of_its_own() -> None:
    accesses = accesses_of(np.array([3, 5, 5, 3]), np.array([0, 2, 3, 3, 4]), 2, np.array([0, 8]))
    first, second = sequences_of(accesses, 2)
    assert first.starts.tolist() == [0, 2, 2, 4, 4]
    assert second.starts.tolist() == [0, 1, 2, 3, 4]
    assert (first.num_slots, second.num_slots) == (2, 2)
    assert second.slots.tolist() == [1, 0, 1, 0]
