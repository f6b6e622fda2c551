"""What a placement asks of each device, and the EPS that its busiest device allows (HT 3.2.1).

An op takes the time to start it, and the longer of its flops at the rate of its kind of GEMM and its bytes at the bandwidth of its
kind of access. A message costs its sender and its receiver CPU, for itself, each tensor in it and its bytes, and bytes on the network of
both.
"""

from collections.abc import Mapping, Sequence

from htrain.cluster import Cluster, role_of
from htrain.net import Blob, Net, Op, numel
from htrain.ops import OPS
from htrain.ops.base import Cost, Work
from htrain.plan import DeviceLoad


def op_seconds(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], cluster: Cluster, batch_size: int) -> float:
    """CPU seconds of one run of an op on a core; of a Send or Recv those of its tensor, but not the message's fixed cost."""
    definition = OPS[op.type]
    cost = definition.cost(op, inputs, outputs, batch_size)
    if definition.work == "message":
        return tensor_seconds(cost.bytes, cluster)
    compute = cost.flops / _flops(definition.work, inputs, cluster, batch_size)
    return cluster.op_nanoseconds * 1e-9 + max(compute, cost.bytes / _bandwidth(definition.work, cluster))


def tensor_seconds(num_bytes: float, cluster: Cluster) -> float:
    """CPU seconds of one tensor of a message, at its sender and its receiver each."""
    return cluster.message_tensor_nanoseconds * 1e-9 + num_bytes / cluster.message_bandwidth


def _flops(work: Work, inputs: Sequence[Blob], cluster: Cluster, batch_size: int) -> float:
    if work == "batched":
        return float(cluster.core_batched_flops)
    rate = {
        "gemm": cluster.core_flops,
        "gemm_bf16": cluster.core_bf16_flops,
        "gemm_int8": cluster.core_int8_flops,
    }.get("gemm_bf16" if work == "gemm" and inputs[0].dtype == "bfloat16" else work, 0)
    if not rate:
        return float(cluster.core_flops)
    sides = [
        numel((dim,), batch_size)
        for blob in inputs[:2]
        for dim in (*blob.shape[-1:], numel(blob.shape[:-1], batch_size))
    ]
    smallest = max(1, min(sides))
    return rate * smallest / (smallest + cluster.gemm_half_size)


def _bandwidth(work: Work, cluster: Cluster) -> int:
    return {
        "gather": cluster.core_gather_bandwidth,
        "scatter": cluster.core_scatter_bandwidth,
        "quantize": cluster.core_quantize_bandwidth,
    }.get(work, cluster.core_bandwidth)


def predict(nets: Mapping[str, Net], cluster: Cluster, batch_size: int) -> tuple[float, dict[str, DeviceLoad]]:
    """Predicted EPS of the whole run, and each device's load and utilization (0 to 1) at it.

    A group PS serves the trainers of its group, a sparse PS all trainers. Where roles share a host, all of them share its cores.
    """
    raw = {device: _Load(net, cluster, batch_size) for device, net in nets.items()}
    limits = [limit for device, load in raw.items() for limit in _seconds(device, load, cluster)]
    if cluster.host_cores:
        limits.append(sum(load.cpu for load in raw.values()) / cluster.host_cores)
    eps = 1 / max(limits) if max(limits, default=0.0) > 0 else 0.0
    loads = {}
    for device, load in raw.items():
        cpu, network = (round(seconds * eps, 6) for seconds in _seconds(device, load, cluster))
        memory = round(load.memory / cluster.memory_of(device), 6)
        loads[device] = DeviceLoad(
            load.ops, load.cost.flops, load.cost.bytes, round(load.cpu, 12), round(load.message_cpu, 12), load.received, load.sent, load.messages, load.memory,
            cpu, network, memory,
        )  # fmt: skip
    return float(round(eps)), loads


class _Load:
    """The sums of one device's net, per example; `memory` in all."""

    def __init__(self, net: Net, cluster: Cluster, batch_size: int) -> None:
        self.ops = len(net.ops)
        self.cost = Cost(0.0, 0.0)
        self.received = self.sent = 0.0
        self.memory = sum(p.num_bytes for p in net.parameters.values())
        messages = {(op.type, op.attrs["peer"], op.attrs["message"]) for op in net.ops if op.type in ("Send", "Recv")}
        self.messages = len(messages)
        messages_seconds = self.messages * cluster.message_nanoseconds * 1e-9
        seconds = 0.0
        for op in net.ops:
            inputs, outputs = [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs]
            cost = OPS[op.type].cost(op, inputs, outputs, batch_size)
            self.cost += Cost(cost.flops / batch_size, cost.bytes / batch_size)
            if OPS[op.type].work == "message":
                messages_seconds += op_seconds(op, inputs, outputs, cluster, batch_size)
            else:
                seconds += op_seconds(op, inputs, outputs, cluster, batch_size)
            self.received += sum(b.num_bytes(batch_size) for b in outputs) / batch_size if op.type == "Recv" else 0.0
            self.sent += sum(b.num_bytes(batch_size) for b in inputs) / batch_size if op.type == "Send" else 0.0
        self.message_cpu = messages_seconds / batch_size
        self.cpu = seconds / batch_size + self.message_cpu


def _seconds(device: str, load: _Load, cluster: Cluster) -> tuple[float, float]:
    """CPU and network seconds of one device for one example of the whole run, which reaches 1 in n devices of its role."""
    peers = {"trainer": cluster.groups * cluster.trainers, "group_ps": cluster.groups}.get(role_of(device), 1)
    cpu = load.cpu / cluster.cores_of(device)
    return cpu / peers, max(load.received, load.sent) / cluster.bandwidth_of(device) / peers
