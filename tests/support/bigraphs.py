"""Graphs of samples and rows for tests, and what they cost by the book."""

from math import comb

import numpy as np
from numpy.typing import NDArray

from htrain.tagging.bigraph import Bigraph

Longs = NDArray[np.int64]


def drawn_graph(seed: int, *, samples: int = 40, rows: int = 25, most_ids: int = 6) -> Bigraph:
    """Each sample has some distinct rows, a few of them often."""
    random = np.random.default_rng(seed)
    mine = [
        np.sort(random.choice(rows, random.integers(0, min(most_ids, rows) + 1), replace=False)) for _ in range(samples)
    ]
    starts = np.append(0, np.cumsum([len(each) for each in mine]))
    return Bigraph(starts, np.concatenate([*mine, []]).astype(np.int32), rows)


def planted_graph(
    num_samples: int, *, topics: int, share: float, fields: int = 12, vocabulary: int = 2000, seed: int = 0
) -> tuple[Bigraph, Longs]:
    """Samples of topics, and their topics: an id is, with probability `share`, one of its topic's part of a vocabulary, else any, both by Zipf's law."""
    random = np.random.default_rng(seed)
    topic = random.integers(topics, size=num_samples)
    of_topic = vocabulary // topics
    columns = []
    for field in range(fields):
        at_large = _zipf(random, vocabulary, num_samples)
        own = random.permutation(of_topic * topics)[_zipf(random, of_topic, num_samples) * topics + topic]
        columns.append(np.where(random.random(num_samples) < share, own, at_large) + field * vocabulary)
    ids = np.stack(columns, axis=1)
    seen, rows = np.unique(ids, return_inverse=True)
    starts = np.arange(num_samples + 1) * fields
    return Bigraph(starts, rows.reshape(-1).astype(np.int32), len(seen)), topic


def _zipf(random: np.random.Generator, values: int, number: int) -> Longs:
    weights = 1 / np.arange(1, values + 1) ** 1.05
    found: Longs = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(number)).clip(0, values - 1)
    return found


def counts_by_hand(graph: Bigraph, samples: Longs, num_workers: int) -> Longs:
    """count(x, i): int64[m, N]."""
    counts = np.zeros((graph.num_rows, num_workers), np.int64)
    for sample in range(graph.num_samples):
        for row in graph.rows[graph.starts[sample] : graph.starts[sample + 1]]:
            counts[row, samples[sample]] += 1
    return counts


def probability_by_hand(count: int, num_samples: int, batch_size: int) -> float:
    """1 - C(n - c, B) / C(n, B), in whole numbers."""
    batch = min(batch_size, num_samples)
    return 1 - comb(num_samples - count, batch) / comb(num_samples, batch) if num_samples else 0.0


def fetches_by_hand(
    graph: Bigraph, samples: Longs, homes: Longs, num_workers: int, batch_size: int
) -> NDArray[np.float64]:
    """[i, j]: distinct rows of worker j that a batch of worker i needs."""
    counts, sizes = counts_by_hand(graph, samples, num_workers), np.bincount(samples, minlength=num_workers)
    matrix = np.zeros((num_workers, num_workers))
    for row in range(graph.num_rows):
        for worker in range(num_workers):
            matrix[worker, homes[row]] += probability_by_hand(int(counts[row, worker]), int(sizes[worker]), batch_size)
    return matrix
