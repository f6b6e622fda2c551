"""How many hosts reach a target EPS (`htrain size`): the cost model narrows, the simulation decides."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from htrain.cluster import Cluster
from htrain.errors import PlacementError
from htrain.options import Options
from htrain.plan import Plan
from htrain.simulation.result import Simulated
from htrain.simulation.run import simulate

Compiler = Callable[[Cluster, Options], Plan]
_FINALISTS = 4
_PER_GROUP = (1, 2, 4, 6, 8, 10, 12)


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
    workers: int = 18,
    steps: int = 24,
    on_try: Callable[[Candidate], None] = lambda candidate: None,
) -> Candidate:
    """The fewest hosts that reach `eps` in simulation, with `cluster`'s kinds of hosts.

    Groups of n trainers and n group PSs are tried, with as many groups as the prediction asks for, and sparse PSs so that they are not
    what holds the run up. Finalists by predicted hosts are simulated, with a group more each time they fall short.
    Raises PlacementError naming what binds when no number of groups up to `most_groups` does.
    """
    sketches = sorted(_sketches(compile_for, cluster, options, eps, most_groups), key=lambda s: (hosts_of(s), s.groups))
    best: Candidate | None = None
    last: Simulated | None = None
    for sketch in sketches[:_FINALISTS]:
        tried = sketch
        while tried.groups <= most_groups and (best is None or hosts_of(tried) < best.hosts):
            plan = compile_for(tried, options)
            candidate = Candidate(plan, hosts_of(tried), simulate(plan, steps=steps, workers=workers))
            on_try(candidate)
            last = candidate.found
            if last.eps >= eps:
                best = candidate
                break
            tried = _more(tried, eps / max(last.eps, 1.0))
    if best is None:
        raise PlacementError(_short(eps, most_groups, last))
    return best


def _sketches(compile_for: Compiler, cluster: Cluster, options: Options, eps: float, most_groups: int) -> list[Cluster]:
    """Clusters that the cost model says reach the target, one for each size of a group."""
    found = []
    for per_group, dense in product(_PER_GROUP, (max(1, cluster.dense_ps),)):
        one = replace(cluster, groups=2, trainers=per_group, group_ps=per_group, dense_ps=dense)
        plan = compile_for(one, options)
        inner = [load for device, load in plan.loads.items() if device.split(":")[0] in ("trainer", "group_ps")]
        busiest = max(max(load.cpu, load.network) for load in inner)
        per_group_eps = plan.predicted_eps / busiest / 2 if busiest else plan.predicted_eps
        groups = max(1, -(-int(eps) // max(1, int(per_group_eps))))
        if groups > most_groups:
            continue
        sparse = [load for device, load in plan.loads.items() if device.startswith("sparse_ps")]
        used = max((max(load.cpu, load.network) for load in sparse), default=0.0) * eps / plan.predicted_eps
        found.append(replace(one, groups=groups, sparse_ps=max(1, round(one.sparse_ps * used / 0.7 + 0.5))))
    return found


def _more(cluster: Cluster, factor: float) -> Cluster:
    """Groups, and sparse PSs, for what was missing."""
    groups = max(cluster.groups + 1, int(cluster.groups * min(factor, 2.0)))
    return replace(
        cluster, groups=groups, sparse_ps=max(cluster.sparse_ps + 1, int(cluster.sparse_ps * min(factor, 2.0)))
    )


def _short(eps: float, most_groups: int, last: Simulated | None) -> str:
    if last is None:
        return f"{eps:,.0f} EPS: no group of up to {_PER_GROUP[-1]} trainers reaches it with {most_groups} groups, says the cost model: raise --most-groups"
    device, what, share = last.bottleneck
    return (
        f"{eps:,.0f} EPS: {most_groups} groups reach {last.eps:,.0f}; the {what} of {device} is the busiest ({share:.0%}): raise --most-groups, "
        "more net replicas (--net-replicas), or faster hosts"
    )
