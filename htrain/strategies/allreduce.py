"""AllReduce: dense gradients summed among all trainers, in buckets, while the backward pass goes on (HET 3, 4.1)."""

from collections.abc import Mapping, Sequence

from htrain.net.net import Attr, Net, numel
from htrain.net.slices import makers
from htrain.ops.builder import NetBuilder
from htrain.spec.dense_sync import AllReduce
from htrain.strategies.strategy import Gradients, Strategy


class AllReduced(Strategy[AllReduce]):
    """Dense weights are on every trainer. Where rows are averaged, dense gradients are, too: each trainer's own gradient is of its own mean."""

    def gradients(self, net: Net, gradients: Gradients) -> tuple[Net, Gradients]:
        return all_reduce_gradients(net, gradients, self.section.bucket_bytes, mean=self.options.holder.averages_rows)


def all_reduce_gradients(
    net: Net, gradients: Mapping[str, str], bucket_bytes: int, *, mean: bool
) -> tuple[Net, dict[str, str]]:
    """Append an AllReduce per bucket of weight gradients, in the order in which the backward pass makes them; it sums, or takes the mean.

    Requires: `gradients` as `add_gradients` gave them; no optimizer steps yet.
    Ensures:  the second result names, for each weight, its gradient over all trainers; the gradients of rows stay as they are.
    """
    builder = NetBuilder.of(net)
    attrs: dict[str, Attr] = {"mean": True} if mean else {}
    made = makers(net.ops)
    weights = [n for n, p in net.parameters.items() if p.kind == "weight" and n in gradients]
    firsts: dict[str, str] = {}  # weights that are added to each other have one gradient: it is reduced once
    for weight in sorted(weights, key=lambda n: made[gradients[n]]):
        firsts.setdefault(gradients[weight], weight)
    sums: dict[str, str] = {}
    for number, bucket in enumerate(_buckets(net, list(firsts.values()), bucket_bytes)):
        own = [gradients[weight] for weight in bucket]
        names = [builder.fresh(f"{gradient}_sum") for gradient in own]
        outputs = builder.add("AllReduce", own, attrs=attrs, module=f"all_reduce_{number}", outputs=names)
        sums.update(zip(own, outputs, strict=True))
    return builder.build(net.outputs), {**gradients, **{weight: sums[gradients[weight]] for weight in weights}}


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


COMPILE = AllReduced
