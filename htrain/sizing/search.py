"""The cheapest cluster for a target EPS (`htrain size`): bounds say where to look, the simulation decides.

A shape is a number of trainers, group PSs and sparse PSs. Shapes wait in a queue by the fewest hosts on which they might reach the target.
The first is looked at closer: it is compiled, which gives bounds on its EPS; or simulated, and where it falls short waits again with more
groups. The first that reaches the target is the answer, since nothing cheaper is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import product
from math import ceil, inf

from htrain.errors import PlacementError, UsageError
from htrain.net.names import number_of, role_of
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import simulate_at
from htrain.simulation.result import Simulated
from htrain.sizing.bounds import bound_of, gain_of_sparse_ps, most_peers
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import role_bytes
from htrain.spec.options import Options
from htrain.spec.settings import Workers
from htrain.tagging.shards import NO_LIMIT

Compiler = Callable[[Cluster, Options], Plan]
MARGIN = 1.1  # a simulation may exceed a bound by so much: steps under way when it starts to count, durations that vary
LOOSE_MARGIN = 1.25  # and what was found for fewer groups or sparse PSs, whose placement is another one
_MOST_EPS = 1e12


@dataclass(frozen=True)
class Candidate:
    """A cluster with its plan, the hosts that it takes, and what was simulated."""

    plan: Plan
    hosts: int
    found: Simulated


def hosts_of(cluster: Cluster) -> int:
    """Every role on a host of its own."""
    dense = cluster.dense_ps if cluster.groups > 1 else 0
    return cluster.groups * (cluster.trainers + cluster.group_ps) + cluster.sparse_ps + dense


def size(
    compile_for: Compiler,
    cluster: Cluster,
    options: Options,
    *,
    eps: float,
    most_groups: int = 32,
    most_trainers: int = 12,
    most_group_ps: int = 12,
    more_sparse_ps: int = 31,
    workers: Workers = "auto",
    steps: int = 24,
    rates_of: Callable[[Plan], Rates] = lambda plan: NO_RATES,
    on_try: Callable[[Candidate], None] = lambda candidate: None,
) -> Candidate:
    """The fewest hosts that reach `eps` in simulation, with `cluster`'s kinds of hosts. The caches of a plan ask for rows at the rates of `rates_of`.

    The space: up to `most_groups` groups, of up to `most_trainers` trainers and `most_group_ps` group PSs (of one trainer alone where
    `cluster` has no group PS); sparse PSs from the fewest that hold the tables to `more_sparse_ps` more, none where trainers hold them all.
    Devices that `cluster` pins modules to are always there, and its `dense_ps` are kept. Of clusters with as many hosts, the one with the
    fewest groups is taken, then trainers, then group PSs.

    A cluster is passed over, unsimulated, when cores, links, Python's lock or the time of a lone step keep its plan 10 % below the target, or
    when it would have to be 25 % faster than others let expect: those with fewer groups; with fewer sparse PSs that do not hold the run up; and
    a trainer's lone step with one group PS less.
    Raises UsageError for a target that is none, PlacementError naming what binds when no cluster reaches the target, and why where no plan fits.
    """
    if not 1 <= eps <= _MOST_EPS:
        raise UsageError(f"--eps: {eps:g} is not a target: want 1 to {_MOST_EPS:g} examples per second")
    ask = _Ask(
        cluster, options, eps=eps, most_groups=most_groups,
        most_trainers=most_trainers, most_group_ps=most_group_ps, more_sparse_ps=more_sparse_ps, workers=workers, steps=steps,
        rates_of=rates_of,
    )  # fmt: skip
    return _Search(compile_for, ask, on_try).run()


@dataclass(frozen=True)
class _Ask:
    """What `size` was asked."""

    cluster: Cluster
    options: Options
    eps: float
    most_groups: int
    most_trainers: int
    most_group_ps: int
    more_sparse_ps: int
    workers: Workers
    steps: int
    rates_of: Callable[[Plan], Rates]

    def shapes(self) -> list[tuple[int, int]]:
        """Trainers and group PSs of every group in the space."""
        if not self.cluster.group_ps:
            return [(1, 0)]
        least = max(1, self.pinned("group_ps"))
        return list(product(range(1, self.most_trainers + 1), range(least, max(least, self.most_group_ps) + 1)))

    def pinned(self, role: str) -> int:
        """How many devices of a role there must be for what is pinned to them."""
        numbers = [number_of(device) + 1 for _, device in self.cluster.pin if role_of(device) == role]
        return max(numbers, default=0)

    def cluster_of(self, groups: int, trainers: int, group_ps: int, sparse_ps: int) -> Cluster:
        dense_ps = max(1, self.cluster.dense_ps) if self.options.dense_sync.uses_dense_ps else 0
        sparse_ps = sparse_ps if self.options.sparse_sync.served else 0
        return replace(
            self.cluster, groups=groups, trainers=trainers, group_ps=group_ps, sparse_ps=sparse_ps, dense_ps=dense_ps
        )


@dataclass(frozen=True, order=True)
class _Node:
    """A shape that may reach the target with `groups` groups, and not with fewer. Of one that is not compiled this holds with more sparse
    PSs, too."""

    hosts: int
    groups: int
    trainers: int
    group_ps: int
    sparse_ps: int
    is_compiled: bool = False


class _Search:
    """The queue, and what is known of shapes.

    `group_eps[trainers, group_ps]` are pairs of a number of sparse PSs and the most EPS of a group with more of them;
    `trainer_eps[whether a group has several trainers, group_ps]` is the most EPS of a trainer so far.
    """

    def __init__(self, compile_for: Compiler, ask: _Ask, on_try: Callable[[Candidate], None]) -> None:
        self.compile_for, self.ask, self.on_try = compile_for, ask, on_try
        self.queue: list[_Node] = []
        self.group_eps: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self.trainer_eps: dict[tuple[bool, int], float] = {}
        self.best: Candidate | None = None
        self.refused: PlacementError | None = None
        self.num_compiled = 0

    def run(self) -> Candidate:
        """The first in the queue that reaches the target."""
        self._fill()
        while self.queue:
            node = heappop(self.queue)
            fewest = self._fewest_groups(node)
            if fewest > node.groups:
                self._push(replace(node, groups=fewest))
            elif not node.is_compiled:
                self._compile(node)
            else:
                candidate = self._simulate(node)
                if candidate.found.eps >= self.ask.eps:
                    return candidate
        raise self._short()

    def _push(self, node: _Node) -> None:
        if node.groups <= self.ask.most_groups and node.sparse_ps <= self.last_sparse_ps:
            cluster = self.ask.cluster_of(node.groups, node.trainers, node.group_ps, node.sparse_ps)
            heappush(self.queue, replace(node, hosts=hosts_of(cluster)))

    def _fill(self) -> None:
        """Every group of the space, with the fewest sparse PSs that may do."""
        first, least = self._first()
        self.last_sparse_ps = least + (self.ask.more_sparse_ps if self.ask.options.sparse_sync.served else 0)
        bound = bound_of(first, workers=self.ask.workers, steps=self.ask.steps, rates_of=self.ask.rates_of)
        seconds = bound.sparse_seconds * first.cluster.sparse_ps / most_peers(first)
        enough = max(least, ceil(self.ask.eps * seconds / MARGIN))
        if enough > self.last_sparse_ps:
            raise PlacementError(
                f"{self.ask.eps:,.0f} EPS: {self.last_sparse_ps} sparse PSs reach at most {self.last_sparse_ps / seconds:,.0f}, whatever --most-groups "
                "allows: raise --batch-size, or take faster hosts"
            )
        for trainers, group_ps in self.ask.shapes():
            self._push(_Node(0, 1, trainers, group_ps, enough))

    def _first(self) -> tuple[Plan, int]:
        """A plan, of hosts with any memory, and the fewest sparse PSs that may hold its tables."""
        trainers, group_ps = self.ask.shapes()[0]
        cluster = self.ask.cluster_of(1, trainers, group_ps, max(1, self.ask.pinned("sparse_ps")))
        boundless = replace(cluster, trainer_memory=NO_LIMIT, group_ps_memory=NO_LIMIT, sparse_ps_memory=NO_LIMIT)
        plan = self.compile_for(boundless, self.ask.options)
        table_bytes = sum(
            load.holds.parameters for device, load in plan.loads.items() if role_of(device) == "sparse_ps"
        )
        fewest = -(-table_bytes // max(1, cluster.sparse_ps_memory - role_bytes(cluster.sparse_ps_processes)))
        return plan, max(cluster.sparse_ps, fewest)

    def _compile(self, node: _Node) -> None:
        """Bound a shape by its plan; with more sparse PSs it waits on."""
        cluster = self.ask.cluster_of(min(2, self.ask.most_groups), node.trainers, node.group_ps, node.sparse_ps)
        try:
            plan = self.compile_for(cluster, self.ask.options)
        except PlacementError as error:
            self.refused = error
            if self._fits_with_more_sparse_ps(cluster):
                self._push(replace(node, sparse_ps=node.sparse_ps + 1))
            return
        self.num_compiled += 1
        bound = bound_of(plan, workers=self.ask.workers, steps=self.ask.steps, rates_of=self.ask.rates_of)
        self._learn(node, bound.more_eps * LOOSE_MARGIN)
        kind = node.trainers > 1, node.group_ps
        self.trainer_eps[kind] = max(self.trainer_eps.get(kind, 0.0), bound.trainer_eps)
        needed = ceil(node.sparse_ps * self.ask.eps / (bound.shared_eps * LOOSE_MARGIN))
        self._push(replace(node, sparse_ps=max(node.sparse_ps + 1, needed)))
        if bound.shared_eps * MARGIN >= self.ask.eps:
            fewest = ceil(self.ask.eps / (bound.group_eps * MARGIN))
            self._push(replace(node, is_compiled=True, groups=max(node.groups, fewest)))

    def _fits_with_more_sparse_ps(self, cluster: Cluster) -> bool:
        try:
            self.compile_for(replace(cluster, sparse_ps_memory=NO_LIMIT), self.ask.options)
        except PlacementError:
            return False
        return True

    def _simulate(self, node: _Node) -> Candidate:
        """Try a cluster; where it falls short it waits on with more groups."""
        cluster = self.ask.cluster_of(node.groups, node.trainers, node.group_ps, node.sparse_ps)
        plan = self.compile_for(cluster, self.ask.options)
        rates = self.ask.rates_of(plan)
        found = simulate_at(plan, rates, steps=self.ask.steps, workers=self.ask.workers)
        candidate = Candidate(plan, node.hosts, found)
        self.on_try(candidate)
        eps = candidate.found.eps
        if self.best is None or eps > self.best.found.eps:
            self.best = candidate
        if eps < self.ask.eps:
            fewest = ceil(node.groups * self.ask.eps / (eps * LOOSE_MARGIN))
            self._push(replace(node, groups=max(node.groups + 1, fewest)))
            self._learn(node, eps / node.groups * gain_of_sparse_ps(plan, candidate.found) * LOOSE_MARGIN)
        return candidate

    def _learn(self, node: _Node, group_eps: float) -> None:
        """A group has no more EPS than this with as many sparse PSs or more."""
        self.group_eps.setdefault((node.trainers, node.group_ps), []).append((node.sparse_ps, group_eps))

    def _fewest_groups(self, node: _Node) -> int:
        known = self.group_eps.get((node.trainers, node.group_ps), [])
        most = min((eps for sparse_ps, eps in known if sparse_ps < node.sparse_ps), default=inf)
        alike = [n for several, n in self.trainer_eps if several == (node.trainers > 1) and n <= node.group_ps]
        if alike and not node.is_compiled:
            eps = self.trainer_eps[node.trainers > 1, max(alike)]
            most = min(most, node.trainers * eps * LOOSE_MARGIN ** (node.group_ps - max(alike) + 1))
        return ceil(self.ask.eps / most)

    def _short(self) -> PlacementError:
        """What to say when the queue is empty."""
        target = f"{self.ask.eps:,.0f} EPS"
        if self.best is None:
            if not self.num_compiled and self.refused:
                return self.refused
            return PlacementError(
                f"{target}: no cluster of up to {self.ask.most_groups} groups reaches it, says the cost model: raise --most-groups, more net replicas "
                "(--net-replicas), or faster hosts"
            )
        cluster, (device, what, share) = self.best.plan.cluster, self.best.found.bottleneck
        return PlacementError(
            f"{target}: the fastest cluster that was tried, {cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs, "
            f"{cluster.sparse_ps} sparse PSs, reaches {self.best.found.eps:,.0f}; the {what} of {device} is the busiest ({share:.0%}): "
            "raise --most-groups, --net-replicas or --batch-size, or take faster hosts"
        )
