"""A small model in the manner of DLRM: its forward net, written by hand, and the same model in plain PyTorch."""

from collections.abc import Mapping
from functools import cache

import torch
from torch.nn import functional as F

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

USERS, ITEMS, DIM = 40, 50, 4
Values = Mapping[str, torch.Tensor]


@cache
def small_dlrm() -> Net:
    """dense[B,3], user[B], history[B,3] padded with 0, last[B] -> logit[B]; the item table is looked up twice."""
    builder = NetBuilder("small_dlrm")
    builder.input(Blob("dense", (B, 3), "float32"))
    for name, shape in (("user", (B,)), ("history", (B, 3)), ("last", (B,))):
        builder.input(Blob(name, shape, "int64"))
    uniform, zero = Init("uniform", (-0.5, 0.5)), Init("constant", (0.0,))
    for table, rows, init in (
        ("user.weight", USERS, uniform),
        ("item.weight", ITEMS, Init("normal", (0.0, 0.3), (0,))),
    ):
        builder.parameter(Parameter(table, (rows, DIM), "float32", "table", init))
    for layer, n, k in (("bottom", DIM, 3), ("hidden", 3, DIM + 9), ("top", 1, 3)):
        builder.parameter(Parameter(f"{layer}.weight", (n, k), "float32", "weight", uniform))
        builder.parameter(Parameter(f"{layer}.bias", (n,), "float32", "weight", zero))
    bag = {"mode": "mean", "padding_idx": 0, "weighted": False}
    builder.add("FC", ("dense", "bottom.weight", "bottom.bias"), module="bottom", outputs=("bottom_fc",))
    builder.add("Relu", ("bottom_fc",), outputs=("x",))
    builder.add("Embedding", ("user.weight", "user"), attrs={"padding_idx": -1}, module="user", outputs=("u",))
    builder.add("EmbeddingBag", ("item.weight", "history"), attrs=bag, module="item", outputs=("h",))
    builder.add("Embedding", ("item.weight", "last"), attrs={"padding_idx": -1}, module="item", outputs=("l",))
    builder.add("Stack", ("x", "u", "h"), attrs={"axis": 1}, module="dots", outputs=("features",))
    builder.add("Transpose", ("features",), attrs={"perm": (0, 2, 1)}, module="dots", outputs=("across",))
    builder.add("MatMul", ("features", "across"), module="dots", outputs=("products",))
    builder.add("Reshape", ("products",), attrs={"shape": (-1, 9)}, module="dots", outputs=("dots",))
    builder.add("Concat", ("l", "dots"), attrs={"axis": 1}, outputs=("joined",))
    builder.add("FC", ("joined", "hidden.weight", "hidden.bias"), module="hidden", outputs=("hidden_fc",))
    builder.add("Sigmoid", ("hidden_fc",), outputs=("y",))
    builder.add("FC", ("y", "top.weight", "top.bias"), module="top", outputs=("top_fc",))
    builder.add("Reshape", ("top_fc",), attrs={"shape": (-1,)}, outputs=("logit",))
    return builder.build(("logit",))


def loss_by_torch(p: Values, batch: Values) -> torch.Tensor:
    """The mean binary cross entropy of the same model."""
    x = F.linear(batch["dense"], p["bottom.weight"], p["bottom.bias"]).relu()
    history = batch["history"]
    seen = (history > 0).unsqueeze(-1).float()
    h = (p["item.weight"][history] * seen).sum(1) / seen.sum(1).clamp(min=1)
    features = torch.stack([x, p["user.weight"][batch["user"]], h], 1)
    joined = torch.cat([p["item.weight"][batch["last"]], (features @ features.mT).flatten(1)], 1)
    y = F.linear(joined, p["hidden.weight"], p["hidden.bias"]).sigmoid()
    logit = F.linear(y, p["top.weight"], p["top.bias"]).flatten()
    return F.binary_cross_entropy_with_logits(logit, batch["label"])


def small_batch(seed: int, size: int) -> dict[str, torch.Tensor]:
    """A batch with padding, repeated ids and labels."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "dense": torch.randn(size, 3, generator=generator),
        "user": torch.randint(USERS, (size,), generator=generator),
        "history": torch.randint(12, (size, 3), generator=generator) * 4,
        "last": torch.randint(ITEMS, (size,), generator=generator),
        "label": torch.randint(2, (size,), generator=generator).float(),
    }


def small_plan(**changes: int) -> Plan:
    """The model on 2 groups of a trainer and 2 group PSs, 2 sparse PSs and a dense PS; the item table in 2 shards; replicas by EASGD."""
    cluster = Cluster(**{"groups": 2, "group_ps": 2, "sparse_ps": 2, "dense_ps": 1, **changes})
    captured = Captured(small_dlrm(), {})
    return compile_net(
        captured,
        cluster,
        with_flags(batch_size=8, dense_sync="easgd"),
        name="small_dlrm",
        solver="rules",
        table_splits={"item.weight": 2},
    )
