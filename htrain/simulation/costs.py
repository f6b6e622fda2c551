"""What every stage and message of a plan costs, for the simulation: the cost model of placement, at the grain of the engine's stages."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from htrain.cluster import Cluster
from htrain.executor.program import Program, Stage, build_program
from htrain.net import Net, Op
from htrain.tagging.cost import op_seconds


@dataclass(frozen=True)
class Packet:
    """One message: the device it goes to, the blobs in it, its bytes, and the CPU seconds that each end spends on it."""

    peer: str
    names: tuple[str, ...]
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class StageCost:
    """CPU seconds of a stage: what Python spends under its lock, and what kernels spend without it; then its messages leave."""

    locked_seconds: float
    free_seconds: float
    packets: tuple[Packet, ...]


@dataclass(frozen=True)
class DeviceModel:
    """A device's program, whose stages do nothing but say that they ran, and their costs by index."""

    program: Program
    costs: tuple[StageCost, ...]


def device_model(net: Net, cluster: Cluster, batch_size: int) -> DeviceModel:
    """The program that the engine would run, with costs in place of kernels."""
    program = build_program(net, dict.fromkeys(net.parameters))  # type: ignore[arg-type]
    stages = tuple(replace(stage, run=_NOTHING) for stage in program.stages)
    costs = tuple(_cost(net, stage, cluster, batch_size) for stage in stages)
    return DeviceModel(replace(program, stages=stages), costs)


def _nothing(*arguments: object) -> None:
    """A stage that has run."""


_NOTHING: Callable[..., None] = _nothing


def _cost(net: Net, stage: Stage, cluster: Cluster, batch_size: int) -> StageCost:
    start = cluster.op_nanoseconds * 1e-9
    locked = free = 0.0
    sends: dict[tuple[str, object], list[str]] = {}
    for op in stage.ops:
        if op.type == "Send":
            sends.setdefault((str(op.attrs["peer"]), op.attrs["message"]), []).append(op.inputs[0])
        elif op.type != "Recv":
            seconds = _seconds(net, op, cluster, batch_size)
            locked += min(start, seconds)
            free += max(0.0, seconds - start)
    packets = tuple(_packet(net, peer, names, cluster, batch_size) for (peer, _), names in sends.items())
    return StageCost(locked, free, packets)


def _seconds(net: Net, op: Op, cluster: Cluster, batch_size: int) -> float:
    inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
    return op_seconds(op, inputs, outputs, cluster, batch_size)


def _packet(net: Net, peer: str, names: list[str], cluster: Cluster, batch_size: int) -> Packet:
    num_bytes = sum(net.blob(name).num_bytes(batch_size) for name in names)
    seconds = cluster.message_nanoseconds * 1e-9 + num_bytes / cluster.message_bandwidth
    return Packet(peer, tuple(names), num_bytes, seconds)
