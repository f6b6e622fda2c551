"""Train nets of the zoo with some fusions, and what a step of one does to its parameters."""

from collections import Counter

import torch
from interpreter import run_net
from small_wide_deep import BATCH, model_of

from htrain.compiler.pipeline import compile_net
from htrain.net.net import Net
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

OFF = with_flags(
    batch_size=BATCH,
    fuse_relu=False,
    fuse_fields=False,
    fuse_tables=False,
    fuse_interaction=False,
    fuse_pairs=False,
    fuse_steps=False,
    fast_products=False,
)
PLAIN = with_flags(OFF, dense_optimizer="sgd", sparse_optimizer="sgd", sparse_lr=0.5, dense_lr=0.5)
SGD = with_flags(batch_size=BATCH, dense_optimizer="sgd", sparse_optimizer="sgd")


def train_net(model: str, options: Options, **counts: int) -> Net:
    _, captured = model_of(model)
    cluster = this_machine(**{"trainers": 1, "group_ps": 0, "sparse_ps": 0, **counts})
    return compile_net(captured, cluster, options, name="m", solver="rules").nets["train"]


def types(net: Net) -> Counter[str]:
    return Counter(op.type for op in net.ops)


def batch(net: Net) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = {n: [d if isinstance(d, int) else d.at(BATCH) for d in net.blobs[n].shape] for n in net.inputs}
    return {
        name: torch.randint(0, 40, size, generator=generator) if net.blobs[name].dtype == "int64"
        else torch.rand(size, generator=generator).round() if name == "label"
        else torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }  # fmt: skip


def stepped(net: Net) -> dict[str, torch.Tensor]:
    """Every parameter after a step, and the loss."""
    generator = torch.Generator().manual_seed(0)
    parameters = {
        n: torch.randn(p.shape, generator=generator) * 0.1
        for n, p in sorted(net.parameters.items())
        if p.kind != "state"
    }
    parameters |= {n: torch.zeros(p.shape) for n, p in net.parameters.items() if p.kind == "state"}
    values = run_net(net, parameters, batch(net))
    return {**parameters, "loss": values[net.outputs[0]]}
