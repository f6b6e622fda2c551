"""What a collective asks of each trainer: AllReduce and AllGather go around a ring, as gloo has them (HET 3, 4.1)."""

from dataclasses import dataclass

from htrain.costs.seconds import message_seconds
from htrain.net.names import WORKERS
from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.collective import ring_bytes
from htrain.spec.cluster import Cluster

_HANDED_OVER = 2  # times from thread to thread: to the one that runs the collective, and back


@dataclass(frozen=True)
class Exchange:
    """One collective of a step. Each trainer sends `num_bytes` to the next one and receives as many; it spends CPU seconds, those under Python's lock and
    those without it, and waits for `latency_seconds` beside, in which parts of no size go round."""

    num_bytes: float
    locked_seconds: float
    free_seconds: float
    latency_seconds: float


def exchange_of(op: Op, net: Net, cluster: Cluster, batch_size: int) -> Exchange:
    """The exchange of a collective whose blobs in `net` have the sizes that one trainer gives."""
    workers = cluster.groups * cluster.trainers
    own = float(sum(net.blob(name).num_bytes(batch_size) for name in op.inputs))
    travels = ring_bytes(op, own, workers)
    hops = max(0, workers - 1) * (_gathers(net, op) if op.type == "AllGather" else 2)
    return exchange_among(own, travels, hops, len(op.inputs) + len(op.outputs), cluster)


def exchange_among(own: float, travels: float, hops: int, tensors: int, cluster: Cluster) -> Exchange:
    """The exchange of `own` bytes of each trainer, in so many `tensors`, of which each sends what `travels` and `hops` parts follow each other."""
    joined = own + travels  # what is put together before and taken apart afterwards
    wakings = (hops + _HANDED_OVER) * message_seconds(cluster)  # gloo's threads sleep until a part has come
    seconds = wakings + 2 * travels / cluster.message_bandwidth + (travels + 2 * joined) / cluster.core_bandwidth
    python = 1e-9 * cluster.op_nanoseconds * (1 + tensors)
    return Exchange(travels, python, seconds, hops * message_seconds(cluster))


def _gathers(net: Net, op: Op) -> int:
    """Times that an AllGather goes round: with the numbers of ids, the ids, and the rows of each width."""
    return 2 + len({net.blob(name).shape[-1] for name in op.inputs[1::2]})


def is_near(op: Op) -> bool:
    """Whether a Send or Recv is between a trainer and its collectives, which are a thread of it: its bytes stay where they are."""
    return WORKERS in (op.node_name, op.attrs.get("peer"))


def collectives_of(net: Net) -> list[Op]:
    """The collectives of a step, in their order."""
    return [op for op in net.ops if OPS[op.type].place == "workers"]
