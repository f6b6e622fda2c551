"""CPU seconds of ops and messages on one core.

An op takes the time to start it, the longer of its flops at the rate of its kind of GEMM and its bytes at the bandwidth of its
kind of access, and the time to find its keys in an index. A message costs its sender and its receiver CPU, for itself, each tensor
in it and its bytes, and bytes on the network of both. Python holds its lock while it starts an op and for its part of a message;
kernels and the thread that moves bytes to and from sockets run without it.
"""

from collections.abc import Sequence

from htrain.net.net import Blob, Op, numel
from htrain.ops import OPS
from htrain.ops.base import Work
from htrain.spec.cluster import Cluster

PYTHON_SHARE = 0.5  # of a message's CPU seconds, which are spent under Python's lock


def op_seconds(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], cluster: Cluster, batch_size: int) -> float:
    """CPU seconds of one run of an op on a core; of a Send or Recv those of its tensor, but not the message's fixed cost."""
    definition = OPS[op.type]
    cost = definition.cost(op, inputs, outputs, batch_size)
    if definition.work == "message":
        return tensor_seconds(cost.bytes, cluster)
    compute = cost.flops / _flops(definition.work, inputs, cluster, batch_size)
    moved = cost.bytes / _bandwidth(definition.work, cluster)
    return 1e-9 * (cluster.op_nanoseconds + cost.keys * cluster.core_key_nanoseconds) + max(compute, moved)


def locked_seconds(op: Op, seconds: float, cluster: Cluster) -> float:
    """The part of an op's `seconds` that is spent under Python's lock."""
    if OPS[op.type].work == "message":
        return seconds * PYTHON_SHARE
    return min(seconds, cluster.op_nanoseconds * 1e-9)


def tensor_seconds(num_bytes: float, cluster: Cluster) -> float:
    """CPU seconds of one tensor of a message, at its sender and its receiver each."""
    return cluster.message_tensor_nanoseconds * 1e-9 + num_bytes / cluster.message_bandwidth


def message_seconds(cluster: Cluster) -> float:
    """The fixed cost of a message, at its sender and its receiver each."""
    return cluster.message_nanoseconds * 1e-9


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
