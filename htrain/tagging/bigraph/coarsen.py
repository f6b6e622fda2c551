"""Clusters of vertices that share rows, and their agglomeration to as many as there are workers.

A vertex joins the cluster with which it shares most. Ratings are those of hypergraph partitioners, which favour rows of few readers and small clusters: the sum
over the shared rows of (readers - 1)^-a, over the cluster's samples or their square root. Vertices are visited in a random order, one after another.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.graph import Level, Longs, contracted

_LOOKED_AT = 64  # readers of a row that a vertex looks at
_SMALLER = 0.95  # of the vertices: a level that has more is no use


@dataclass(frozen=True)
class Rating:
    """`readers`: a; `even`: whether it is the samples that divide, which keeps clusters of one size, and not their square root."""

    readers: float
    even: bool


class Linking(NamedTuple):
    """shared[u, v] and the load of each cluster; which are alive, the partner that each would have, and how good it is."""

    shared: NDArray[np.float64]
    load: NDArray[np.float64]
    alive: NDArray[np.bool_]
    partner: NDArray[np.int64]
    rating: NDArray[np.float64]
    most: int


class Limits(NamedTuple):
    """A rating for one level: by_row[x] = (readers - 1)^-a, and the most samples of a cluster."""

    most: int
    even: bool
    by_row: NDArray[np.float32]


SPARSE = Rating(readers=0.5, even=True)  # of graphs with few ids a sample
DENSE = Rating(readers=1.0, even=False)


def coarser_levels(
    level: Level,
    rating: Rating,
    *,
    num_vertices: int,
    random: np.random.Generator,
    within: Longs | None = None,
    enough: int = 0,
) -> list[tuple[Level, Longs]]:
    """Levels of ever fewer vertices, down to about `num_vertices`, each with cluster[v] for the vertices v of the level before.

    They end where a level has no more than `enough`, which does not change what the levels before it are.

    No cluster has samples of different numbers in within[v], where that is given.
    """
    levels: list[tuple[Level, Longs]] = []
    block = np.zeros(level.num_vertices, np.int32) if within is None else within.astype(np.int32)
    most = max(2, 2 * int(level.weight.sum()) // num_vertices)
    while level.num_vertices > max(num_vertices, enough):
        order = random.permutation(level.num_vertices)
        by_row = (np.maximum(1, np.diff(level.row_starts) - 1) ** -rating.readers).astype(np.float32)
        joined = _joined(level, order.astype(np.int32), block, Limits(most, rating.even, by_row))
        names, cluster = np.unique(joined, return_inverse=True)
        if len(names) > _SMALLER * level.num_vertices:
            break
        level = contracted(level, cluster, len(names))
        levels.append((level, cluster))
        block = block[names]
    return levels


@njit(nogil=True, cache=True)
def _joined(level, order, block, limits):  # type: ignore[no-untyped-def]
    """cluster[v]: the vertex that v has joined, or v itself. No cluster has more than `most` samples, unless a vertex has them alone."""
    starts, rows, _, weight, row_starts, readers, _ = level
    most, even, by_row = limits
    cluster, load = np.arange(np.int32(weight.size)), weight.copy()
    shared, touched = np.zeros(weight.size, np.float32), np.empty(weight.size, np.int32)
    for v in order:
        if cluster[v] != v or load[v] != weight[v]:
            continue  # others have joined it, or it has joined another
        num_touched = 0
        for e in range(starts[v], starts[v + 1]):
            x = rows[e]
            num_readers = row_starts[x + 1] - row_starts[x]
            if num_readers == 1:
                continue
            step = max(1, num_readers // _LOOKED_AT)
            rating = np.float32(step) * by_row[x]
            for j in range(row_starts[x] + v % step, row_starts[x + 1], step):
                other = cluster[readers[j]]
                if readers[j] == v or block[other] != block[v]:
                    continue
                if shared[other] == 0.0:
                    touched[num_touched] = other
                    num_touched += 1
                shared[other] += rating
        best, best_rating = v, np.float32(0.0)
        for j in range(num_touched):
            other = touched[j]
            if other != v and load[other] + weight[v] <= most:
                crowd = np.float32(load[other])
                rating = shared[other] / (crowd if even else np.sqrt(crowd))
                if rating > best_rating:
                    best, best_rating = other, rating
            shared[other] = 0.0
        if best != v:
            cluster[v] = best
            load[best] += weight[v]
            load[v] = 0
    return cluster


def linked(level: Level, *, most: int, shares: Longs) -> Longs:
    """part[v] by average linkage: the two clusters that share most for their sizes are made one, again and again, while one has at most `most` samples; what is
    left is dealt out as by `dealt_out`.

    Takes num_vertices^2 numbers and num_vertices^3 steps at most.
    """
    shared = _shared_uses(level)
    num = level.num_vertices
    linking = Linking(
        shared,
        load=level.weight.astype(np.float64),
        alive=np.ones(num, np.bool_),
        partner=np.full(num, -1),
        rating=np.zeros(num),
        most=most,
    )
    names, cluster = np.unique(_linked(linking), return_inverse=True)
    weight = np.bincount(cluster, weights=level.weight, minlength=len(names))
    return dealt_out(weight, shares)[cluster]


def dealt_out(weight: NDArray[Any], shares: Longs) -> Longs:
    """part[v]: vertices in the order of their weight, the heaviest first, each to the part that then has least for its share."""
    part, load = np.empty(len(weight), np.int64), np.zeros(len(shares))
    for v in np.argsort(-weight, kind="stable"):
        part[v] = ((load + weight[v]) / shares).argmin()
        load[part[v]] += weight[v]
    return part


@njit(nogil=True, cache=True)
def _shared_uses(level):  # type: ignore[no-untyped-def]
    """shared[u, v]: sum over rows of c_u c_v / sum of c, the uses of u that would meet one of v's."""
    row_starts, readers, times = level.row_starts, level.readers, level.times
    shared = np.zeros((level.weight.size, level.weight.size))
    for x in range(row_starts.size - 1):
        uses = 0
        for e in range(row_starts[x], row_starts[x + 1]):
            uses += times[e] if times.size else 1
        for e in range(row_starts[x], row_starts[x + 1]):
            of_e = times[e] if times.size else 1
            for f in range(row_starts[x], row_starts[x + 1]):
                shared[readers[e], readers[f]] += of_e * (times[f] if times.size else 1) / uses
    return shared


@njit(nogil=True, cache=True)
def _linked(linking):  # type: ignore[no-untyped-def]
    """cluster[v]: the vertex that stands for v's cluster. Each keeps its best partner, which is looked for again when it has changed."""
    shared, load, alive, partner, rating, most = linking
    num = load.size
    cluster = np.arange(num)
    for w in range(num):
        _find_partner(linking, w)
    while True:
        u = np.argmax(rating)
        if rating[u] <= 0.0:
            return cluster
        v = partner[u]
        for w in range(num):
            shared[u, w] += shared[v, w]
            shared[w, u] = shared[u, w]
        load[u] += load[v]
        alive[v], rating[v] = False, 0.0
        for w in range(num):
            if cluster[w] == v:
                cluster[w] = u
        for w in range(num):
            if not alive[w]:
                continue
            if w == u or partner[w] == u or partner[w] == v:
                _find_partner(linking, w)
            elif load[w] + load[u] <= most and shared[w, u] / (load[w] * load[u]) > rating[w]:
                partner[w], rating[w] = u, shared[w, u] / (load[w] * load[u])


@njit(nogil=True, cache=True)
def _find_partner(linking, u):  # type: ignore[no-untyped-def]
    shared, load, alive, partner, rating, most = linking
    partner[u], rating[u] = -1, 0.0
    for v in range(load.size):
        if v != u and alive[v] and load[u] + load[v] <= most:
            found = shared[u, v] / (load[u] * load[v])
            if found > rating[u]:
                partner[u], rating[u] = v, found
