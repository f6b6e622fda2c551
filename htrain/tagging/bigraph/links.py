"""Workers on hosts, where a row of another host costs more than one of a worker beside it (HET-GMP 5.2, uneven links).

With a row's home on worker h of host g, and p_i the probability that a batch of worker i uses it, the row costs

    W sum over workers not on g of p_i + sum over the others on g but h of p_i  =  W sum of all p_i - kept(h)
    kept(h) = (W - 1) S_g + p_h        S_g: the sum of p_i over the workers on g

so that its home is best where most is kept. On one host, or with W = 1, that is the worker that uses it most.
"""

from typing import NamedTuple

import numpy as np

from htrain.jit import njit
from htrain.tagging.bigraph.graph import Floats, Longs


class Links(NamedTuple):
    """The workers starts[g] to starts[g + 1] - 1 are on host g, host_of[i] is that of worker i, and a row of another host costs `cost` times one of the own."""

    starts: Longs
    host_of: Longs
    cost: float


def links_of(hosts: tuple[int, ...], cost: float) -> Links:
    """Links of hosts with so many workers each."""
    return Links(np.append(0, np.cumsum(hosts)).astype(np.int64), np.repeat(np.arange(len(hosts)), hosts), float(cost))


def one_host(num_workers: int) -> Links:
    """All workers beside each other."""
    return links_of((num_workers,), 1.0)


def costs_of_pairs(links: Links) -> Floats:
    """[i, j]: what a row of worker j costs worker i, none where they are one."""
    apart = links.host_of[:, None] != links.host_of[None, :]
    costs = np.where(apart, links.cost, 1.0)
    np.fill_diagonal(costs, 0.0)
    return costs


@njit(nogil=True, cache=True, inline="always")
def _p(probability, count):  # type: ignore[no-untyped-def]
    return probability[min(count, probability.size - 1)]


@njit(nogil=True, cache=True)
def linked_cost(count, probability, links):  # type: ignore[no-untyped-def]
    """What a row costs that worker i uses count[i] times, with its home where most is kept."""
    starts, total, most = links.starts, 0.0, 0.0
    for g in range(starts.size - 1):
        here, best = 0.0, 0.0
        for i in range(starts[g], starts[g + 1]):
            used = _p(probability, count[i])
            here += used
            best = max(best, used)
        total += here
        most = max(most, (links.cost - 1) * here + best)
    return links.cost * total - most


@njit(nogil=True, cache=True)
def find_kept(count, probability, links, kept):  # type: ignore[no-untyped-def]
    """kept[i]: what a row that worker j uses count[j] times costs less because its home is on worker i."""
    starts = links.starts
    for g in range(starts.size - 1):
        here = 0.0
        for i in range(starts[g], starts[g + 1]):
            kept[i] = _p(probability, count[i])
            here += kept[i]
        for i in range(starts[g], starts[g + 1]):
            kept[i] += (links.cost - 1) * here


@njit(nogil=True, cache=True)
def add_linked_costs(count, touched, uses, probability, links, sums, costs):  # type: ignore[no-untyped-def]
    """Add what a row costs with `uses` more of it on each worker of the touched workers' hosts, beyond what it costs on any other host.

    Counts of workers that are not touched are 0. `sums`[2, hosts] is zero before and after.
    """
    starts, host_of, between = links.starts, links.host_of, links.cost
    for i in touched:
        used = _p(probability, count[i])
        sums[0, host_of[i]] += used
        sums[1, host_of[i]] = max(sums[1, host_of[i]], used)
    most = 0.0
    for i in touched:
        most = max(most, (between - 1) * sums[0, host_of[i]] + sums[1, host_of[i]])
    alone = between * _p(probability, uses)
    elsewhere = alone - max(0.0, alone - most)
    for t in touched:
        g = host_of[t]
        here, best = sums[0, g], sums[1, g]
        if best < 0:
            continue  # one of its workers has come before
        for i in range(starts[g], starts[g + 1]):
            now, with_it = _p(probability, count[i]), _p(probability, count[i] + uses)
            kept = (between - 1) * (here + with_it - now) + max(best, with_it)
            costs[i] += between * (with_it - now) - max(0.0, kept - most) - elsewhere
        sums[1, g] = -1.0
    for i in touched:
        sums[0, host_of[i]], sums[1, host_of[i]] = 0.0, 0.0
