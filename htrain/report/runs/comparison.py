"""Predicted against measured, device by device: EPS, CPU, network, Python's lock and memory, as shares of what the cluster has."""

from collections.abc import Iterator
from dataclasses import dataclass

from htrain.costs.loads import DeviceLoad
from htrain.executor.record.measured import Edge, Measured, MeasuredDevice
from htrain.net.names import device_of
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster

_MORE = 1.05  # than the edges of a device: what else it sends


@dataclass(frozen=True)
class Pair:
    """A figure as the plan has it, and as the run had it."""

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """How many times the predicted figure was measured; 1 where both are 0, infinite where nothing was predicted."""
        if self.predicted:
            return self.measured / self.predicted
        return float("inf") if self.measured else 1.0


@dataclass(frozen=True)
class DeviceComparison:
    """One of the `count` roles of a device: examples a second, CPU seconds and bytes of an example, in and out, and shares of cores, of the busier link
    and of memory. Of `lock`, the share of the time for which Python's lock was held, a run tells the most that it can have been: the
    cores that its threads kept busy. `has_unmeasured`: the plan counts bytes, those of collectives, that no figure here has.
    """

    name: str
    count: int
    load: DeviceLoad
    eps: Pair
    cpu_seconds: Pair
    message_share: float
    received: Pair
    sent: Pair
    cpu: Pair
    network: Pair
    lock: Pair
    memory: Pair
    memory_bytes: Pair
    has_unmeasured: bool

    @property
    def moved(self) -> Pair:
        """Bytes of an example, in and out together."""
        return Pair(self.received.predicted + self.sent.predicted, self.received.measured + self.sent.measured)


@dataclass(frozen=True)
class Comparison:
    """A run's steady part, of so many seconds and examples, beside its plan. `shared` is the use of the cores that all roles share, where
    they do; `num_shared` counts these."""

    seconds: float
    examples: int
    eps: Pair
    devices: tuple[DeviceComparison, ...]
    edges: tuple[Edge, ...]
    shared: Pair | None
    num_shared: int


def compare(plan: Plan, measured: Measured) -> Comparison:
    """Predicted against measured, device by device; devices that the plan does not have are left out.

    Requires: `measured` is of a run of `plan`.
    """
    known = [device for device in measured.devices if device.name in plan.loads]
    devices = tuple(_device(device, plan.loads[device.name], plan.cluster, measured) for device in known)
    num_shared = plan.cluster.shared_cores or 0
    return Comparison(
        measured.seconds,
        measured.examples,
        eps=Pair(plan.predicted_eps, measured.eps),
        devices=devices,
        edges=measured.edges,
        shared=_shared(plan, measured, num_shared) if num_shared else None,
        num_shared=num_shared,
    )


def _device(device: MeasuredDevice, load: DeviceLoad, cluster: Cluster, measured: Measured) -> DeviceComparison:
    name = device.name
    cores, bandwidth, memory = cluster.cores_of(name), cluster.bandwidth_of(name), cluster.memory_of(name)
    received = _summed(edge for edge in measured.edges if edge.target == name)
    sent = _summed(edge for edge in measured.edges if edge.source == name)
    return DeviceComparison(
        name,
        count=sum(device_of(role) == name for role in cluster.roles),
        load=load,
        eps=Pair(device.predicted_eps, device.eps),
        cpu_seconds=Pair(device.predicted_cpu_seconds, device.cpu_seconds),
        message_share=device.predicted_message_seconds / device.predicted_cpu_seconds
        if device.predicted_cpu_seconds
        else 0.0,
        received=received,
        sent=sent,
        cpu=Pair(device.predicted_cores / cores, device.cores / cores),
        network=Pair(
            max(received.predicted, sent.predicted) * device.predicted_eps / bandwidth,
            max(received.measured, sent.measured) * device.eps / bandwidth,
        ),
        lock=Pair(load.lock, min(1.0, device.cores)),
        memory=Pair(device.predicted_memory / memory, device.memory / memory),
        memory_bytes=Pair(device.predicted_memory, device.memory),
        has_unmeasured=load.sent_per_example > _MORE * sent.predicted + 1,
    )


def _summed(edges: Iterator[Edge]) -> Pair:
    predicted = measured = 0.0
    for edge in edges:
        predicted, measured = predicted + edge.predicted_bytes, measured + edge.measured_bytes
    return Pair(predicted, measured)


def _shared(plan: Plan, measured: Measured, num_shared: int) -> Pair:
    """Predicted and measured use of the cores that all roles share."""
    predicted = sum(device.predicted_cpu_seconds for device in measured.devices)
    seen = sum(device.cpu_seconds for device in measured.devices)
    return Pair(predicted * plan.predicted_eps / num_shared, seen * measured.eps / num_shared)
