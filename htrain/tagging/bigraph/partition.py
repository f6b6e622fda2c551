"""Samples and rows to workers, so that batches fetch few rows from others (HET-GMP 5.2; docs/decisions/bigraph.md).

No single way to begin is best on every graph, so several are tried, and the one of least F_B is kept:

    matching   clusters of samples that share rare rows, level by level; the coarsest are dealt out or linked, and improved on every level on the way back
    mixture    labels of samples by a mixture of their rows, made into as many as there are workers by average linkage
    scattered  every sample anywhere, as Algorithm 1 begins

Which of them that is, a part of the samples of a large graph tells. Where workers stand on several hosts, samples are cut by hosts first, then inside each.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from htrain.tagging.bigraph.coarsen import DENSE, SPARSE, Rating, coarser_levels, dealt_out, linked
from htrain.tagging.bigraph.fetches import Fetches, fetches, use_probability
from htrain.tagging.bigraph.graph import Bigraph, Level, Longs, contracted
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.links import Links, links_of, one_host
from htrain.tagging.bigraph.mixture import labelled, spread
from htrain.tagging.bigraph.refine import Parts

Levels = list[tuple[Level, Longs]]
_COARSE = 64  # vertices of the coarsest level for each worker
_COMMON = 2  # times as many: what has more is made coarser once for all tries
_LABELS = 16  # of a mixture, for each worker
_MOST_LABELS = 2048  # of a mixture, or two for each worker where that is more: each sample is held against all
_MOST_LINKED = 4096  # vertices: average linkage takes the square of their number
_TRIES, _DEALS = 3, 4
_COARSE_SWEEPS, _SWEEPS, _LAST_SWEEPS = 40, 4, 12
_MANY_IDS = 4  # of a sample: of fewer, a mixture learns nothing
_LARGE_EDGES = 1 << 20  # a graph of more is large
_SKETCH_EDGES = 1 << 17  # of the part of it that tells which start is best
_MIXTURE_EDGES = 1 << 20  # of the part whose samples are labelled
# Times what a worker may have, for a cluster while labels are linked; smaller ones are dealt out
_SLACKS = (1.1, 1.0, 0.5, 0.25)
_BETTER = 0.9  # of the mixture's F_B on the sketch: more is no reason to take another way
_CLEAR = 0.5  # of the F_B of samples anywhere: a start that has less needs no comparison with those


@dataclass(frozen=True)
class Request:
    """How a graph is to be cut: `sample_slack` and `row_slack` are how many times its even share a worker may have.

    hosts[g] workers stand on host g, in order of their numbers, and a row of another host costs as much as `link_cost` of the own; all are on one host where
    `hosts` is empty.
    """

    num_workers: int
    batch_size: int
    sample_slack: float = 1.03
    row_slack: float = 1.05
    seed: int = 0
    hosts: tuple[int, ...] = ()
    link_cost: float = 1.0

    @property
    def links(self) -> Links:
        """Between the hosts."""
        return links_of(self.hosts, self.link_cost) if len(self.hosts) > 1 else one_host(self.num_workers)


@dataclass(frozen=True)
class Partition:
    """samples[s]: the worker of sample s, int32[n]; homes[x]: that of row x, int32[m]; what its batches fetch; and how it was begun."""

    samples: Longs
    homes: Longs
    fetches: Fetches
    begun: str


def partition(graph: Bigraph, request: Request) -> Partition:
    """The best of several starts. The same for the same graph and request, whatever the number of threads.

    Raises ValueError for a request that makes no sense.
    """
    _check(request)
    k = request.num_workers
    if len(request.hosts) > 1:
        begun, parts = _by_hosts(graph, request)
    else:
        begun, parts = _Search(graph, request, np.ones(k, np.int64)).best()
    homes = np.empty(graph.num_rows, np.int32)
    homes[graph.row_order] = homes_of(
        graph.level,
        parts.part,
        parts.probability,
        links=request.links,
        most=_most(graph.num_rows, k, request.row_slack),
    )
    found = fetches(graph, parts.part, homes, num_workers=k, batch_size=request.batch_size)
    return Partition(parts.part, homes, found, begun)


def at_random(graph: Bigraph, request: Request) -> Partition:
    """Samples and rows anywhere, as many on each worker as on others: a control for what a search gains.

    Raises ValueError for a request that makes no sense.
    """
    _check(request)
    k, random = request.num_workers, np.random.default_rng(request.seed)
    samples = (random.permutation(graph.num_samples) % k).astype(np.int32)
    homes = (random.permutation(graph.num_rows) % k).astype(np.int32)
    found = fetches(graph, samples, homes, num_workers=k, batch_size=request.batch_size)
    return Partition(samples, homes, found, "chance")


def _check(request: Request) -> None:
    leasts = {"num_workers": 1, "batch_size": 1, "sample_slack": 1.0, "row_slack": 1.0, "link_cost": 1.0}
    for name, least in leasts.items():
        if not getattr(request, name) >= least:
            raise ValueError(f"{name}: {getattr(request, name)} is below {least}")
    if request.hosts and (min(request.hosts) < 1 or sum(request.hosts) != request.num_workers):
        raise ValueError(f"hosts: {request.hosts} are not the {request.num_workers} workers")


def _by_hosts(graph: Bigraph, request: Request) -> tuple[str, Parts]:
    """Hosts first, then the workers of each; then samples move by what a row of another host costs.

    A host may be fuller than even by half of what its workers may, so that its own cut has room.
    """
    n, k = graph.num_samples, request.num_workers
    most = np.full(k, _most(n, k, request.sample_slack))
    of_hosts = replace(request, sample_slack=(1 + request.sample_slack) / 2)
    begun, among = _Search(graph, of_hosts, np.array(request.hosts)).best()
    part = np.empty(n, np.int32)
    for host, size in enumerate(request.hosts):
        mine = np.flatnonzero(among.part == host)
        inside = replace(request, num_workers=size, sample_slack=max(1.0, most[0] * size / max(1, len(mine))))
        _, found = _Search(graph.of_samples(mine), inside, np.ones(size, np.int64)).best()
        part[mine] = sum(request.hosts[:host]) + found.part
    parts = Parts(graph.level, part, use_probability(-(-n // k), request.batch_size), request.links)
    parts.balance(most=most)
    parts.refine(most=most, sweeps=_LAST_SWEEPS, random=np.random.default_rng(request.seed))
    return f"{begun}, by hosts", parts


def _most(count: int, num_workers: int, slack: float) -> int:
    """How many of `count` a worker may have: never fewer than its even share, rounded up."""
    return max(-(-count // num_workers), int(slack * count / num_workers))


class _Search:
    """The starts for one request, and what is known for all of them: to parts of which number i is to have the samples of shares[i] workers."""

    def __init__(self, graph: Bigraph, request: Request, shares: Longs) -> None:
        self._graph = graph
        self._request = request
        self._shares = shares
        self._links = one_host(len(shares))
        self._num_workers = int(shares.sum())
        self._most = self._most_of(graph.num_samples)
        self._probability = use_probability(-(-graph.num_samples // self._num_workers), request.batch_size)
        self._random = np.random.default_rng(request.seed)

    def best(self) -> tuple[str, Parts]:
        """The best partition of the samples, and how it was begun."""
        graph = self._graph
        ways = self._ways
        if len(ways) > 1 and len(graph.rows) > _LARGE_EDGES:
            name = self._best_on_sketch()
            ways = {name: ways[name]}
        tried = [(name, way()) for name, way in ways.items()]
        if min(parts.cost for _, parts in tried) > _CLEAR * self._scattered_cost:
            workers = self._random.permutation(graph.num_samples) % self._num_workers
            anywhere = np.repeat(np.arange(len(self._shares)), self._shares)[workers]
            tried.append(("scattered", self._refine(self._parts(graph.level, anywhere), _SWEEPS)))
        begun, parts = min(tried, key=lambda each: each[1].cost)
        self._refine(parts, _LAST_SWEEPS)
        return begun, parts

    def _best_on_sketch(self) -> str:
        """The way that is best on a part of the graph; the mixture, which costs least, unless another is clearly better. It labels meanwhile."""
        sketch, _ = self._sketch(_SKETCH_EDGES)
        with ThreadPoolExecutor(1) as pool:
            telling = pool.submit(_Search(sketch, self._request, self._shares)._costs_of_ways)
            _ = self._labelled  # kept for `_mixture`: neither of the two keeps all cores at work
            costs = telling.result()
        best = min(costs, key=costs.__getitem__)
        return best if costs[best] < _BETTER * costs["mixture"] else "mixture"

    def _costs_of_ways(self) -> dict[str, float]:
        return {name: way().cost for name, way in self._ways.items()}

    @property
    def _scattered_cost(self) -> float:
        """About the F_B of samples anywhere."""
        num_readers = np.diff(self._graph.level.row_starts)
        k, last = len(self._shares), len(self._probability) - 1
        used = self._probability[np.minimum(np.maximum(1, num_readers // k), last)]
        return float(((np.minimum(num_readers, k) - 1) * used).sum()) / k

    @property
    def _ways(self) -> dict[str, Callable[[], Parts]]:
        if len(self._graph.rows) < _MANY_IDS * self._graph.num_samples:
            return {"matching": lambda: self._matching(SPARSE, self._linked)}
        return {"matching": lambda: self._matching(DENSE, self._dealt), "mixture": self._mixture}

    def _sketch(self, num_edges: int) -> tuple[Bigraph, Longs]:
        """The graph of some samples, drawn at random, with about so many edges; and which they are."""
        graph = self._graph
        num = min(graph.num_samples, -(-num_edges * graph.num_samples // len(graph.rows)))
        samples = np.sort(self._random.permutation(graph.num_samples)[:num])
        return graph.of_samples(samples), samples

    def _parts(self, level: Level, part: Longs) -> Parts:
        return Parts(level, part, self._probability, self._links)

    def _most_of(self, num_samples: int) -> Longs:
        """How many of `num_samples` each part may have."""
        slack = self._request.sample_slack
        return np.array([_most(int(share) * num_samples, self._num_workers, slack) for share in self._shares])

    def _refine(self, parts: Parts, sweeps: int) -> Parts:
        parts.balance(most=self._most)
        parts.refine(most=self._most, sweeps=sweeps, random=self._random)
        return parts

    def _mixture(self) -> Parts:
        level = self._graph.level
        part, samples = self._labelled
        if len(samples) == level.num_vertices:
            return self._refine(self._parts(level, part), _SWEEPS)
        part, is_sure = spread(level, samples, part, most=self._most, random=self._random)
        parts = self._parts(level, part)
        parts.let_rest(is_sure)
        return self._refine(parts, _SWEEPS)

    @cached_property
    def _labelled(self) -> tuple[Longs, Longs]:
        """The part that the labels of a mixture give each of some samples, or of all of a graph that is not large; and which they are."""
        graph, k = self._graph, self._num_workers
        is_large = len(graph.rows) > _MIXTURE_EDGES
        part_of, samples = self._sketch(_MIXTURE_EDGES) if is_large else (graph, np.arange(graph.num_samples))
        num_labels = min(_LABELS * k, max(_MOST_LABELS, 2 * k), part_of.num_samples)
        label = labelled(part_of.level, max(1, num_labels), self._random)
        coarse = contracted(part_of.level, label, int(label.max(initial=0)) + 1)
        return self._labels_apart(coarse, part_of.num_samples)[label], samples

    def _labels_apart(self, coarse: Level, num_samples: int) -> Longs:
        """A worker for each label: the best of several linkages, some of which make clusters that are too large at first, improved."""
        most = self._most_of(num_samples)
        ways = []
        for slack in _SLACKS:
            parts = self._parts(coarse, linked(coarse, most=int(slack * most.max()), shares=self._shares))
            parts.balance(most=most)
            parts.refine(most=most, sweeps=_COARSE_SWEEPS, random=self._random)
            ways.append(parts)
        return min(ways, key=lambda parts: parts.cost).part

    def _matching(self, rating: Rating, coarsest: Callable[[Level], Parts]) -> Parts:
        """The clusters of large levels are found once; what is above them, several times: the two best are combined."""
        finest = self._graph.level
        common = self._levels(finest, rating, enough=_COMMON * _COARSE * self._num_workers)
        level = common[-1][0] if common else finest
        tries = sorted((self._once(level, rating, coarsest) for _ in range(_TRIES)), key=lambda parts: parts.cost)
        best = self._combined(tries[0], tries[1])
        return self._finer(finest, common[:-1], best.part[common[-1][1]]) if common else best

    def _levels(self, level: Level, rating: Rating, *, within: Longs | None = None, enough: int = 0) -> Levels:
        return coarser_levels(
            level, rating, num_vertices=_COARSE * self._num_workers, random=self._random, within=within, enough=enough
        )

    def _once(self, level: Level, rating: Rating, coarsest: Callable[[Level], Parts]) -> Parts:
        levels = self._levels(level, rating)
        return self._finer(level, levels, coarsest(levels[-1][0] if levels else level).part)

    def _dealt(self, level: Level) -> Parts:
        """The best of several ways to deal vertices out."""
        weights = [level.weight * self._random.uniform(1, 2, level.num_vertices) for _ in range(_DEALS)]
        ways = [self._refine(self._parts(level, dealt_out(weight, self._shares)), _COARSE_SWEEPS) for weight in weights]
        return min(ways, key=lambda parts: parts.cost)

    def _linked(self, level: Level) -> Parts:
        if level.num_vertices > _MOST_LINKED:
            return self._dealt(level)
        return self._parts(level, linked(level, most=int(self._most.max()), shares=self._shares))

    def _finer(self, level: Level, levels: Levels, part: Longs) -> Parts:
        """From the coarsest level to `level`, improved on every one on the way."""
        for coarse, cluster in reversed(levels):
            parts = self._parts(coarse, part)
            parts.refine(most=self._most, sweeps=_SWEEPS, random=self._random)
            part = parts.part[cluster]
        return self._refine(self._parts(level, part), _SWEEPS)

    def _combined(self, best: Parts, other: Parts) -> Parts:
        """The best, improved by moves of clusters that neither of two partitions cuts."""
        within = best.part.astype(np.int64) * len(self._shares) + other.part
        levels = self._levels(best.level, DENSE, within=within)
        part = best.part
        for coarse, cluster in levels:
            on = np.empty(coarse.num_vertices, np.int32)
            on[cluster] = part
            part = on
        return min(best, self._finer(best.level, levels, part), key=lambda parts: parts.cost)
