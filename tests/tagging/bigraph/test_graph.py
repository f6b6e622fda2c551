"""The bigraph and its levels against dictionaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.tagging.bigraph.graph import Bigraph, Level, contracted
from tests.support.bigraphs import drawn_graph

quick = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def uses_of(level: Level) -> dict[tuple[int, int], int]:
    """How many times each vertex uses each row, as the vertices say it."""
    found: dict[tuple[int, int], int] = {}
    for v in range(level.num_vertices):
        for e in range(level.starts[v], level.starts[v + 1]):
            found[v, int(level.rows[e])] = int(level.mult[e]) if len(level.mult) else 1
    assert len(found) == len(level.rows), "a vertex names each row once"
    return found


def uses_by_rows(level: Level) -> dict[tuple[int, int], int]:
    """The same, as the rows say it."""
    return {
        (int(level.readers[e]), x): int(level.times[e]) if len(level.times) else 1
        for x in range(level.num_rows)
        for e in range(level.row_starts[x], level.row_starts[x + 1])
    }


@given(seed=seeds)
@quick
def test_a_level_says_the_same_from_both_sides_and_rows_come_by_falling_number_of_readers(seed: int) -> None:
    graph = drawn_graph(seed)
    level = graph.level
    assert uses_of(level) == uses_by_rows(level)
    by_name = {(v, int(graph.row_order[x])) for v, x in uses_of(level)}
    assert by_name == {
        (s, int(row)) for s in range(graph.num_samples) for row in graph.rows[graph.starts[s] : graph.starts[s + 1]]
    }
    num_readers = np.diff(level.row_starts)
    assert (np.diff(num_readers) <= 0).all()
    for least in (1, 2, 5, 100):
        assert level.num_rows_read_by(least) == (num_readers >= least).sum()


@given(seed=seeds, clusters=st.integers(1, 12))
@quick
def test_a_contracted_level_has_the_uses_of_its_clusters_but_for_rows_of_one_alone(seed: int, clusters: int) -> None:
    level = drawn_graph(seed).level
    random = np.random.default_rng(seed)
    for _ in range(2):  # of samples, and of clusters
        cluster = np.append(np.arange(clusters), random.integers(0, clusters, max(0, level.num_vertices - clusters)))
        cluster = cluster[: level.num_vertices]
        coarse = contracted(level, cluster, clusters)
        wanted: dict[int, dict[int, int]] = {}
        for (v, x), times in uses_of(level).items():
            mine = wanted.setdefault(x, {})
            mine[int(cluster[v])] = mine.get(int(cluster[v]), 0) + times
        shared = sorted(tuple(sorted(readers.items())) for readers in wanted.values() if len(readers) > 1)
        found: dict[int, dict[int, int]] = {}
        for (v, x), times in uses_of(coarse).items():
            found.setdefault(x, {})[v] = times
        assert sorted(tuple(sorted(readers.items())) for readers in found.values()) == shared
        assert uses_of(coarse) == uses_by_rows(coarse)
        assert coarse.weight.tolist() == np.bincount(cluster, weights=level.weight, minlength=clusters).tolist()
        assert (np.diff(np.diff(coarse.row_starts)) <= 0).all()
        level = coarse


@given(seed=seeds)
@quick
def test_a_part_of_the_samples_has_their_rows_numbered_anew(seed: int) -> None:
    graph = drawn_graph(seed)
    random = np.random.default_rng(seed)
    chosen = random.permutation(graph.num_samples)[: random.integers(0, graph.num_samples + 1)]
    part = graph.of_samples(chosen)
    rows = [graph.rows[graph.starts[s] : graph.starts[s + 1]].tolist() for s in chosen]
    names = {row: number for number, row in enumerate(sorted({row for mine in rows for row in mine}))}
    assert part.num_rows == len(names)
    assert [part.rows[part.starts[i] : part.starts[i + 1]].tolist() for i in range(len(chosen))] == [
        [names[row] for row in mine] for mine in rows
    ]


def test_arrays_that_are_no_graph_are_refused() -> None:
    rows = np.array([0, 3], np.int32)
    with pytest.raises(ValueError, match=r"starts: want int64\[n\+1\] from 0 to the 2 edges"):
        Bigraph(np.array([0, 1]), rows, 4)
    with pytest.raises(ValueError, match="starts: they fall"):
        Bigraph(np.array([0, 2, 1, 2]), rows, 4)
    with pytest.raises(ValueError, match="rows: from 0 to 3, want numbers from 0 to 2"):
        Bigraph(np.array([0, 2]), rows, 3)
