"""Gradients among trainers: dense ones summed, in buckets, while the backward pass goes on (HET 3, 4.1); sparse ones gathered."""

from collections.abc import Mapping, Sequence

from htrain.net import Attr, Net, numel
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder


def all_reduce_gradients(net: Net, gradients: Mapping[str, str], bucket_bytes: int, *, mean: bool) -> tuple[Net, dict[str, str]]:
    """Append an AllReduce per bucket of weight gradients, in the order in which the backward pass makes them; it sums, or takes the mean.

    Requires: `gradients` as `add_gradients` gave them; no optimizer steps yet.
    Ensures:  the second result names, for each weight, its gradient over all trainers; the gradients of rows stay as they are.
    """
    builder = NetBuilder.of(net)
    summed = dict(gradients)
    attrs: dict[str, Attr] = {"mean": True} if mean else {}
    made = {output: place for place, op in enumerate(net.ops) for output in op.outputs}
    weights = sorted(
        (n for n, p in net.parameters.items() if p.kind == "weight" and n in gradients),
        key=lambda n: made[gradients[n]],
    )
    for number, bucket in enumerate(_buckets(net, weights, bucket_bytes)):
        names = [builder.fresh(f"{gradients[weight]}_sum") for weight in bucket]
        module = f"all_reduce_{number}"
        outputs = builder.add("AllReduce", [gradients[w] for w in bucket], attrs=attrs, module=module, outputs=names)
        summed.update(zip(bucket, outputs, strict=True))
    return builder.build(net.outputs), summed


def _buckets(net: Net, weights: Sequence[str], bucket_bytes: int) -> list[list[str]]:
    """Weights in order, cut where a bucket is full."""
    buckets: list[list[str]] = []
    used = bucket_bytes
    for name in weights:
        size = 4 * numel(net.parameters[name].shape, 1)
        if used + size > bucket_bytes and used:
            buckets.append([])
            used = 0
        buckets[-1].append(name)
        used += size
    return buckets


def all_gather_rows(net: Net) -> Net:
    """Every trainer has all tables, and steps them with the gradients of all trainers: what AllReduce comes to where gradients are sparse.

    Requires: optimizer steps.  Ensures: one AllGather for all tables; a row has one step, with the sum of all trainers' gradients.
    """
    builder = NetBuilder(net.name)
    for name in net.inputs:
        builder.input(net.blobs[name])
    for parameter in net.parameters.values():
        builder.parameter(parameter)
    steps = [op for op in net.ops if OPS[op.type].steps_rows]
    for op in net.ops:
        if op not in steps:
            builder.add(op.type, op.inputs, attrs=op.attrs, module=op.module, outputs=op.outputs)
    sparse = [name for op in steps for name in op.inputs[-2:]]
    names = [builder.fresh(f"{name}_all") for name in sparse]
    everybody = builder.add("AllGather", sparse, module="all_gather", outputs=names) if steps else ()
    for number, op in enumerate(steps):
        summed = builder.add("SumRows", everybody[2 * number : 2 * number + 2], module=op.module)
        builder.add(op.type, (*op.inputs[:-2], *summed), attrs=op.attrs, module=op.module)
    return builder.build(net.outputs)
