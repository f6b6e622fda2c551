"""What a placement asks of each device, and the EPS that its busiest device allows."""

from collections.abc import Mapping

from htrain.cluster import Cluster
from htrain.net import Net
from htrain.ops import OPS
from htrain.ops.base import Cost
from htrain.plan import DeviceLoad


def predict(nets: Mapping[str, Net], cluster: Cluster, batch_size: int) -> tuple[float, dict[str, DeviceLoad]]:
    """Predicted EPS of the whole run, and each device's load and utilization (0 to 1) at it.

    A device is busy for the larger of its flops over its cores' rate and its bytes over its memory's bandwidth; messages add
    what they carry, in and out, over the network's bandwidth. A group PS serves the trainers of its group, a sparse PS all trainers.
    """
    raw = {device: _load(net, batch_size) for device, net in nets.items()}
    seconds = {device: _seconds(device, load, cluster) for device, load in raw.items()}
    eps = min((1 / max(s) for s in seconds.values() if max(s) > 0), default=0.0)
    loads = {}
    for device, (ops, cost, received, sent, stored) in raw.items():
        cpu, network = (round(s * eps, 6) for s in seconds[device])
        memory = round(stored / cluster.memory_of(device), 6)
        loads[device] = DeviceLoad(ops, cost.flops, cost.bytes, received, sent, stored, cpu, network, memory)
    return float(round(eps)), loads


def _load(net: Net, batch_size: int) -> tuple[int, Cost, float, float, int]:
    """Ops, cost per example, bytes received and sent per example, bytes of parameters."""
    total, received, sent = Cost(0.0, 0.0), 0.0, 0.0
    for op in net.ops:
        inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
        cost = OPS[op.type].cost(op, inputs, outputs, batch_size)
        total += Cost(cost.flops / batch_size, cost.bytes / batch_size)
        received += sum(b.num_bytes(batch_size) for b in outputs) / batch_size if op.type == "Recv" else 0.0
        sent += sum(b.num_bytes(batch_size) for b in inputs) / batch_size if op.type == "Send" else 0.0
    stored = sum(p.num_bytes for p in net.parameters.values())
    return len(net.ops), total, received, sent, stored


def _seconds(device: str, load: tuple[int, Cost, float, float, int], cluster: Cluster) -> tuple[float, float]:
    """CPU and network seconds of one device for one example of the whole run, which reaches 1 in n devices of its role."""
    _, cost, received, sent, _ = load
    peers = {"trainer": cluster.groups * cluster.trainers, "group_ps": cluster.groups}.get(device.split(":")[0], 1)
    cpu = max(cost.flops / (cluster.cores_of(device) * cluster.core_flops), cost.bytes / cluster.memory_bandwidth)
    return cpu / peers, max(received, sent) / cluster.bandwidth_of(device) / peers
