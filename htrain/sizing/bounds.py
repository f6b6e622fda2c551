"""What a cluster cannot exceed, whatever is queued in it: from the simulation of one net replica that has it to itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from htrain.net.names import SPARSE_PS, role_of
from htrain.ops.cache_rates import Rates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import simulate_at
from htrain.simulation.counts import with_counts
from htrain.simulation.result import Simulated
from htrain.spec.cluster import Cluster
from htrain.spec.settings import Workers


@dataclass(frozen=True)
class Bound:
    """EPS that a plan does not exceed: each group `group_eps`, all together `shared_eps`; `more_eps` a group, and
    `trainer_eps` each trainer, with more sparse PSs. Each sparse PS
    spends `sparse_seconds` on an example, in the mean."""

    group_eps: float
    shared_eps: float
    more_eps: float
    trainer_eps: float
    sparse_seconds: float


def bound_of(plan: Plan, *, workers: Workers, steps: int, rates_of: Callable[[Plan], Rates]) -> Bound:
    """What one net replica that has the cluster to itself tells: how long its steps take, and how much of every device they use."""
    cluster, options = plan.cluster, plan.options
    free = replace(plan, options=replace(options, net_replicas=1, bounded_staleness=False))
    lone = with_counts(free, groups=1, trainers=1)
    alone = simulate_at(lone, rates_of(lone), steps=steps, workers=workers)
    used = {use.device: max(use.cpu, use.received, use.sent, use.lock) for use in alone.devices}
    sparse = [share for device, share in used.items() if _is_sparse(device)]
    inner = max(share / (cluster.trainers if d == "trainer" else 1) for d, share in used.items() if not _is_sparse(d))
    shared = sum(use.cpu for use in alone.devices) if cluster.shared_cores else max(sparse, default=0.0)
    one_by_one = alone.eps * cluster.trainers * options.net_replicas
    waits = min(1.0, _sparse_share(alone, cluster))
    trainer = min(_over(alone.eps, used["trainer"]), _over(one_by_one, 1 - waits) / cluster.trainers)
    return Bound(
        min(_over(alone.eps, inner), one_by_one),
        _over(alone.eps, shared),
        min(_over(alone.eps, inner), _over(one_by_one, 1 - waits)),
        trainer,
        sum(sparse) / max(1, cluster.sparse_ps) / alone.eps,
    )


def most_peers(plan: Plan) -> int:
    """The most devices that a sparse PS exchanges messages with: another placement may leave it one of them."""
    nets = [net for device in plan.cluster.devices if _is_sparse(device) and (net := plan.step_net(device))]
    return max((len({op.attrs["peer"] for op in net.ops if "peer" in op.attrs}) for net in nets), default=1) or 1


def gain_of_sparse_ps(plan: Plan, found: Simulated) -> float:
    """How many times the EPS may be with more sparse PSs: without the time that a step spends on the busiest one, queue included."""
    contexts = plan.cluster.groups * plan.cluster.trainers * plan.options.net_replicas
    used = max((max(u.cpu, u.lock, u.received, u.sent) for u in found.devices if _is_sparse(u.device)), default=0.0)
    share = _over(_sparse_share(found, plan.cluster) / contexts, 1 - min(1.0, used))
    return _over(1.0, 1 - min(1.0, share))


def _sparse_share(found: Simulated, cluster: Cluster) -> float:
    """Seconds in a second that the busiest sparse PS would work, if it did one thing after the other."""
    cores = cluster.shared_cores or cluster.sparse_ps_cores
    uses = [use for use in found.devices if _is_sparse(use.device)]
    return max((use.cpu * cores + use.received + use.sent for use in uses), default=0.0)


def _is_sparse(device: str) -> bool:
    return role_of(device) == SPARSE_PS


def _over(value: float, share: float) -> float:
    return value / share if share > 0 else inf
