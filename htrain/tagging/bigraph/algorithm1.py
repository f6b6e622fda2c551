"""The paper's own algorithm, as the baseline of `partition` (HET-GMP, Algorithm 1, its 1D partitioning).

From samples and rows anywhere, a round visits every vertex once, rows and samples in one random order, and gives it at once to the worker of least marginal
delta_c(i) + delta_b(i). (Equation 2 prints a difference: it would fill the fullest worker.) delta_c is either the paper's, the uses of remote rows ("raw"), or
F_B's ("soft"): the expected distinct remote rows of a batch. The weights of the balance are given nowhere. They are here

    alpha    what a sample costs in the mean whose rows are all remote, and nobody else uses, for a worker 3 % above its even share of samples
    beta     what a row costs in the mean, for a worker 3 % above its even share of rows
    gamma    a tenth of these, for a worker that fetches twice the mean

It keeps counts of all rows on all workers, rows x workers numbers, and one thread does it, as each move depends on the one before: for comparison, not for use.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.graph import Bigraph, Longs

Objective = Literal["raw", "soft"]
_SLACK = 0.03
_GAMMA = 0.1


def algorithm1(
    graph: Bigraph, *, num_workers: int, batch_size: int, rounds: int, objective: Objective, seed: int = 0
) -> tuple[Longs, Longs]:
    """samples[s] and homes[x], the worker of each sample and row, after so many rounds."""
    random = np.random.default_rng(seed)
    level = graph.level
    samples = random.permutation(graph.num_samples) % num_workers
    homes = random.permutation(graph.num_rows) % num_workers
    per_worker = -(-graph.num_samples // num_workers)
    soft = use_probability(per_worker, batch_size)
    weight = soft if objective == "soft" else np.arange(per_worker * num_workers + 2, dtype=np.float32)
    for _ in range(rounds):
        order = random.permutation(graph.num_samples + graph.num_rows)
        _round(level, Assigned(samples, homes, weight, num_workers), order)
    names = np.empty(graph.num_rows, np.int64)
    names[graph.row_order] = homes
    return samples, names


class Assigned(NamedTuple):
    """samples[s] and homes[x], of N workers; weight[c] is what c uses of a remote row by a worker cost it."""

    samples: Longs
    homes: Longs
    weight: NDArray[np.float32]
    num_workers: int


class Loads(NamedTuple):
    """counts[x, i]; what each worker fetches, how many samples it has and how many rows."""

    counts: NDArray[np.int32]
    fetched: NDArray[np.float64]
    sizes: Longs
    owned: Longs


@njit(nogil=True, cache=True, inline="always")
def _w(weight, count):  # type: ignore[no-untyped-def]
    return weight[min(count, weight.size - 1)]


@njit(nogil=True, cache=True)
def _round(level, assigned, order):  # type: ignore[no-untyped-def]
    samples, homes, weight, num_workers = assigned
    num_samples, num_rows = level.starts.size - 1, level.row_starts.size - 1
    counts, fetched = np.zeros((num_rows, num_workers), np.int32), np.zeros(num_workers)
    for s in range(num_samples):
        for e in range(level.starts[s], level.starts[s + 1]):
            counts[level.rows[e], samples[s]] += 1
    for x in range(num_rows):
        for i in range(num_workers):
            if i != homes[x]:
                fetched[i] += _w(weight, counts[x, i])
    sizes, owned = np.bincount(samples, minlength=num_workers), np.bincount(homes, minlength=num_workers)
    loads = Loads(counts, fetched, sizes, owned)
    of_sample, of_row = weight[1] * level.rows.size / num_samples, fetched.sum() / num_rows
    costs = np.empty(num_workers)
    for v in order:
        if v < num_samples:
            _take_sample(level, assigned, loads, v, -1)
            for i in range(num_workers):
                costs[i] = of_sample * (sizes[i] * num_workers / num_samples - 1) / _SLACK
                costs[i] += _GAMMA * of_sample * (fetched[i] / max(1e-9, fetched.mean()) - 1)
                for e in range(level.starts[v], level.starts[v + 1]):
                    if homes[level.rows[e]] != i:
                        count = counts[level.rows[e], i]
                        costs[i] += _w(weight, count + 1) - _w(weight, count)
            samples[v] = np.argmin(costs)
            _take_sample(level, assigned, loads, v, 1)
        else:
            x = v - num_samples
            owned[homes[x]] -= 1
            fetched[homes[x]] += _w(weight, counts[x, homes[x]])
            for i in range(num_workers):
                costs[i] = of_row * (owned[i] * num_workers / num_rows - 1) / _SLACK
                costs[i] += _GAMMA * of_row * (fetched[i] / max(1e-9, fetched.mean()) - 1)
                costs[i] -= _w(weight, counts[x, i])
            homes[x] = np.argmin(costs)
            owned[homes[x]] += 1
            fetched[homes[x]] -= _w(weight, counts[x, homes[x]])


@njit(nogil=True, cache=True)
def _take_sample(level, assigned, loads, s, by):  # type: ignore[no-untyped-def]
    """Count a sample out of the worker that it is on, or in."""
    at = assigned.samples[s]
    loads.sizes[at] += by
    for e in range(level.starts[s], level.starts[s + 1]):
        x = level.rows[e]
        count = loads.counts[x, at]
        loads.counts[x, at] += by
        if assigned.homes[x] != at:
            loads.fetched[at] += _w(assigned.weight, count + by) - _w(assigned.weight, count)
