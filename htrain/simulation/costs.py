"""What every stage and message of a plan costs, for the simulation: the cost model of placement, at the grain of the engine's stages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from htrain.costs.collectives import is_near
from htrain.costs.seconds import PYTHON_SHARE, locked_seconds, message_seconds, op_seconds, tensor_seconds
from htrain.executor.engine.program import Program, Stage, build_program
from htrain.net.net import Net, Op
from htrain.spec.cluster import Cluster


@dataclass(frozen=True)
class Packet:
    """One message: the device it goes to, the blobs in it, its bytes, and the CPU seconds that each end spends on it: in Python, under its
    lock, and in the thread that moves bytes to and from sockets."""

    peer: str
    names: tuple[str, ...]
    num_bytes: int
    locked_seconds: float
    transport_seconds: float


@dataclass(frozen=True)
class Work:
    """A part of a stage: CPU seconds, what Python spends under its lock and what kernels spend without it; then messages leave."""

    locked_seconds: float
    free_seconds: float
    packets: tuple[Packet, ...]


@dataclass(frozen=True)
class DeviceModel:
    """A device's program, whose stages do nothing but say that they ran, and the work of each by index."""

    program: Program
    works: tuple[tuple[Work, ...], ...]


def device_model(net: Net, cluster: Cluster, batch_size: int) -> DeviceModel:
    """The program that the engine would run, with costs in place of kernels."""
    program = build_program(net, dict.fromkeys(net.parameters))
    stages = tuple(replace(stage, run=_NOTHING) for stage in program.stages)
    return DeviceModel(
        replace(program, stages=stages),
        tuple(tuple(_works(net, stage, cluster, batch_size)) for stage in program.stages),
    )


def _nothing(*arguments: object) -> None:
    """A stage that has run."""


_NOTHING: Callable[..., None] = _nothing


def _works(net: Net, stage: Stage, cluster: Cluster, batch_size: int) -> Iterator[Work]:
    """The ops of a stage up to each op that completes messages: these leave when their last value is made, as in the executor."""
    sends = [op for op in stage.ops if op.type == "Send"]
    last = {(op.attrs["peer"], op.attrs["message"]): op for op in sends}
    locked, free = 0.0, 0.0
    packets: list[Packet] = []
    for op in stage.ops:
        if op.type == "Send":
            key = op.attrs["peer"], op.attrs["message"]
            if last[key] is op:
                names = [o.inputs[0] for o in sends if (o.attrs["peer"], o.attrs["message"]) == key]
                packets.append(packet_of(net, str(key[0]), names, cluster, batch_size, near=is_near(op)))
        elif op.type != "Recv":
            if packets:
                yield Work(locked, free, tuple(packets))
                locked, free, packets = 0.0, 0.0, []
            seconds = _seconds(net, op, cluster, batch_size)
            under_lock = locked_seconds(op, seconds, cluster)
            locked += under_lock
            free += seconds - under_lock
    yield Work(locked, free, tuple(packets))


def _seconds(net: Net, op: Op, cluster: Cluster, batch_size: int) -> float:
    inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
    return op_seconds(op, inputs, outputs, cluster, batch_size)


def invitation(cluster: Cluster) -> Packet:
    """The message that asks a holder of weights to a round: it brings nothing."""
    seconds = message_seconds(cluster)
    return Packet("sync", (), 0, seconds * PYTHON_SHARE, seconds * (1 - PYTHON_SHARE))


def packet_of(
    net: Net, peer: str, names: Sequence[str], cluster: Cluster, batch_size: int, *, near: bool = False
) -> Packet:
    """A message with these blobs; `near` is one between threads of a role, which hand its bytes over."""
    sizes = [0 if near else net.blob(name).num_bytes(batch_size) for name in names]
    seconds = message_seconds(cluster) + sum(tensor_seconds(size, cluster) for size in sizes)
    return Packet(peer, tuple(names), sum(sizes), seconds * PYTHON_SHARE, 0.0 if near else seconds * (1 - PYTHON_SHARE))
