"""How busy devices are: the seconds that each of their resources takes for an example, and the EPS that the busiest one allows (HT 3.2.1)."""

from collections.abc import Mapping
from dataclasses import dataclass

from htrain.costs.demand import Demand, num_messages, step_demands, sync_demands
from htrain.costs.loads import DeviceLoad, MemoryUse
from htrain.costs.roles import busy_cores, roles_of
from htrain.net.names import net_name
from htrain.net.net import Net
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

_LEAST_LEFT = 0.05  # of a resource for rounds of the sync, whatever steps take


@dataclass(frozen=True)
class Demands:
    """What an example asks of each device of a plan: in its step, and in a round of the background sync of its group."""

    step: Mapping[str, Demand]
    sync: Mapping[str, Demand]

    def at(self, device: str, options: Options, sync_steps: float) -> Demand:
        """All that an example asks of a device, with a round every `sync_steps` steps of a group."""
        own = self.step.get(device, Demand())
        share = self.sync.get(device)
        return own + share.times(1 / (options.batch_size * sync_steps)) if share else own


@dataclass(frozen=True)
class Rounds:
    """Steps of a group between two rounds of its background sync, and the device and its resource that allow no more, where there is one."""

    steps: float
    device: str
    resource: str


def demands_of(nets: Mapping[str, Net], cluster: Cluster, options: Options, rates: Rates = NO_RATES) -> Demands:
    """The demands of a plan with these nets, by name; its caches ask for rows at `rates`, where these are known."""
    return Demands(step_demands(nets, cluster, options, rates), sync_demands(nets, cluster, options))


def resource_seconds(device: str, demand: Demand, cluster: Cluster, options: Options) -> dict[str, float]:
    """Seconds of each resource of a device for one example of the whole run, which reaches 1 in n roles of the device."""
    roles = roles_of(device, cluster)
    return {
        "cpu": demand.cpu / busy_cores(device, cluster, options) / roles,
        "network": max(demand.received, demand.sent) / cluster.bandwidth_of(device) / roles,
        "lock": demand.lock * cluster.python_lock / cluster.processes_of(device) / roles,
    }


def seconds_of(demands: Demands, cluster: Cluster, options: Options, sync_steps: float) -> float:
    """Seconds that the busiest resource of all takes for an example: one over the EPS that devices allow."""
    found = {device: demands.at(device, options, sync_steps) for device in cluster.devices}
    busiest = max(max(resource_seconds(device, d, cluster, options).values()) for device, d in found.items())
    shared = sum(d.cpu for d in found.values()) / cluster.shared_cores if cluster.shared_cores else 0.0
    return max(busiest, shared)


def rounds_at(demands: Demands, cluster: Cluster, options: Options, eps: float) -> Rounds:
    """The rounds of the background sync at `eps`: as often as was asked for, or rarer where devices have no time for that many beside their steps.
    Rounds wait; steps do not."""
    rarest = Rounds(float(options.dense_sync.round_steps), "", "")
    for device, demand in demands.sync.items():
        own = resource_seconds(device, demands.step.get(device, Demand()), cluster, options)
        for name, seconds in resource_seconds(device, demand, cluster, options).items():
            steps = seconds * eps / options.batch_size / max(_LEAST_LEFT, 1 - own[name] * eps)
            if steps > rarest.steps:
                rarest = Rounds(steps, device, name)
    return rarest


def device_loads(
    nets: Mapping[str, Net], holds: Mapping[str, MemoryUse], demands: Demands, cluster: Cluster, options: Options, *, eps: float
) -> dict[str, DeviceLoad]:  # fmt: skip
    """Every device's load at `eps`, with what it `holds`."""
    found, sync_steps = {}, rounds_at(demands, cluster, options, eps).steps
    for device in cluster.devices:
        net = nets.get(net_name(device))
        demand = demands.at(device, options, sync_steps)
        shares = {
            name: round(seconds * eps, 6)
            for name, seconds in resource_seconds(device, demand, cluster, options).items()
        }
        found[device] = DeviceLoad(
            ops=len(net.ops) if net else 0,
            flops_per_example=demand.flops,
            bytes_per_example=demand.bytes,
            cpu_seconds_per_example=round(demand.cpu, 12),
            message_seconds_per_example=round(demand.message_cpu, 12),
            lock_seconds_per_example=round(demand.lock, 12),
            received_per_example=demand.received,
            sent_per_example=demand.sent,
            messages=num_messages(net) if net else 0,
            holds=holds[device],
            memory=round(holds[device].total / cluster.memory_of(device), 6),
            **shares,
        )
    return found
