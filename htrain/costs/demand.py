"""What one example asks of each device: the sums over its nets, of the background sync the share of a round, and of collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from htrain.costs.collectives import collectives_of, exchange_of, is_near
from htrain.costs.expected import expected, expected_blobs
from htrain.costs.seconds import PYTHON_SHARE, locked_seconds, message_seconds, op_seconds, tensor_seconds
from htrain.net.names import TRAINER, WORKERS, Device, NetName, net_name
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options


@dataclass(frozen=True)
class Demand:
    """Flops, and bytes moved in memory; CPU seconds, those of messages apart, too, and those under Python's lock; bytes received and sent over
    the network. Of an example where nothing else is said."""

    flops: float = 0.0
    bytes: float = 0.0
    cpu: float = 0.0
    message_cpu: float = 0.0
    lock: float = 0.0
    received: float = 0.0
    sent: float = 0.0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> "Demand":
        """`factor` times as much of everything."""
        return Demand(*(getattr(self, f.name) * factor for f in fields(self)))


def step_demands(
    nets: Mapping[str, Net], cluster: Cluster, options: Options, rates: Rates = NO_RATES
) -> dict[str, Demand]:
    """What an example asks of each device that has a net for steps. The collectives of `all_reduce` are the trainer's.

    Requires: a plan's nets by name, `train` among them.
    """
    batch = options.batch_size
    sizes = expected_blobs(nets["train"], cluster, batch, rates)
    found = {
        device: demand_of(expected(nets[net_name(device)], sizes), cluster, batch).times(1 / batch)
        for device in cluster.devices
        if net_name(device) in nets
    }
    if WORKERS in nets:
        ring = _ring(expected(nets[WORKERS], sizes), cluster, batch)
        found[TRAINER] = found[TRAINER] + ring.times(1 / batch)
    return found


def sync_demands(nets: Mapping[str, Net], cluster: Cluster, options: Options) -> dict[str, Demand]:
    """What a round of the sync of one group asks of each device: of the holders of weights, and of those who answer all of these."""
    found: dict[str, Demand] = {}
    crossing = (
        1.0 if options.dense_sync.uses_dense_ps else 1 - 1 / cluster.groups
    )  # a group has its own share of the centres at home
    of_rounds: dict[Device | None, list[Net]] = {}
    for name in sorted(map(NetName.parse, nets), key=lambda name: name.kind == "centre"):
        if name.is_of_rounds:
            of_rounds.setdefault(name.run_by, []).append(nets[str(name)])
    for device in cluster.devices:
        rounds = [demand_of(net, cluster, options.batch_size) for net in of_rounds.get(Device.parse(device), ())]
        if rounds:
            total = sum(rounds, Demand())
            found[device] = replace(total, received=crossing * total.received, sent=crossing * total.sent)
    return found


def demand_of(net: Net, cluster: Cluster, batch_size: int) -> Demand:
    """The demand of one run of a net, at the sizes that its blobs have. What stays within a role is on no network."""
    starts = num_messages(net) * message_seconds(cluster)
    total = Demand(cpu=starts, message_cpu=starts, lock=starts * PYTHON_SHARE)
    for op in net.ops:
        if OPS[op.type].place == "workers":  # an exchange
            continue
        inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
        cost = OPS[op.type].cost(op, inputs, outputs, batch_size)
        travels = OPS[op.type].work == "message"
        crosses = travels and not is_near(op)
        seconds = (
            tensor_seconds(0, cluster)
            if travels and not crosses
            else op_seconds(op, inputs, outputs, cluster, batch_size)
        )
        total += Demand(
            flops=cost.flops,
            bytes=cost.bytes,
            cpu=seconds,
            message_cpu=seconds if travels else 0.0,
            lock=locked_seconds(op, seconds, cluster),
            received=float(sum(b.num_bytes(batch_size) for b in outputs)) if crosses else 0.0,
            sent=float(sum(b.num_bytes(batch_size) for b in inputs)) if crosses else 0.0,
        )
    return total


def num_messages(net: Net) -> int:
    """Messages that a run of a net sends and receives: what goes one way under one number is one."""
    return len(
        {
            (op.type, op.attrs["peer"], op.attrs["message"])
            for op in net.ops
            if OPS[op.type].transfer in ("send", "receive")
        }
    )


def _ring(net: Net, cluster: Cluster, batch_size: int) -> Demand:
    """What the collectives of a step ask of each trainer: messages from and to its own thread, bytes around the ring, and the CPU that moves
    and adds them."""
    total = demand_of(net, cluster, batch_size)
    for op in collectives_of(net):
        each = exchange_of(op, net, cluster, batch_size)
        seconds = each.locked_seconds + each.free_seconds
        total += Demand(
            cpu=seconds, message_cpu=seconds, lock=each.locked_seconds, received=each.num_bytes, sent=each.num_bytes
        )
    return total
