"""Samples of every op, written by hand: a type, its inputs as (shape, draw), a reference in plain PyTorch, attributes."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from sample import (
    Operand,
    Sample,
    below,
    distinct,
    flags,
    half,
    labels,
    moments,
    normal,
    positive,
    short,
    single,
    starts,
    wide,
)
from torch.nn import functional as F
from torch_samples import OF_TORCH

from htrain.net.net import Attr, B, BatchDim, Shape
from htrain.ops import OPS, joint, joint_passes, transfer
from htrain.ops.accelerated import accelerated_type
from htrain.ops.base import constant_of


def selects_gradient(x: torch.Tensor, *dys: torch.Tensor) -> torch.Tensor:
    """Of x[B,W,D] at 1, 0 and the last: what the gradients of three Selects come to."""
    dx = torch.zeros_like(x)
    for dy, index in zip(dys, (1, 0, -1), strict=True):
        dx[:, index] += dy
    return dx


def nothing(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ()


def each(operands: tuple[Operand, ...], **references: Callable[..., Any]) -> Iterator[Sample]:
    return (Sample(type, operands, reference) for type, reference in references.items())


def over(shape: Shape, attrs: Mapping[str, Attr], **references: Callable[..., Any]) -> Iterator[Sample]:
    return (Sample(type, ((shape, normal),), reference, attrs) for type, reference in references.items())


def distinct_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In ascending order; where each is among them, and how often it comes."""
    numbers = x.flatten().tolist()
    found = sorted(set(numbers))
    places = torch.tensor([found.index(number) for number in numbers]).reshape(x.shape)
    return torch.tensor(found), places, torch.tensor([numbers.count(number) for number in found])


def first_seen(*ids: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(dict.fromkeys(i for blob in ids for i in blob.flatten().tolist())))


def places_in(unique: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (ids.unsqueeze(-1) == unique).int().argmax(-1)


def bound(rows: torch.Tensor) -> torch.Tensor:
    """As nn.Embedding with max_norm reads them; the gradient is that of the rows that it leaves in its table."""
    weight = rows.detach().reshape(-1, rows.shape[-1]).clone()
    if len(weight):
        torch.embedding_renorm_(weight, torch.arange(len(weight)), 1.5, 2.0)
    return rows + (weight.view_as(rows) - rows).detach()


def dedupe(*ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    unique = first_seen(*ids)
    return (unique, *(places_in(unique, i) for i in ids))


def sum_rows(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    unique, places = dedupe(ids)
    return unique, torch.zeros(len(unique), rows.shape[1]).index_add(0, places, rows)


def pairs_gradient(
    table: torch.Tensor, ids: torch.Tensor, f: torch.Tensor, k: torch.Tensor, dy: torch.Tensor
) -> torch.Tensor:
    """That of the first feature, which is given out before the products."""
    weights = torch.zeros(len(f), 2, 2)
    for column, place in enumerate(k.tolist(), 4):
        weights[:, place // 2, place % 2] += dy[:, column]
    return ((weights + weights.mT) @ f)[:, 0] + dy[:, :4]


def dedupe_two_shards(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    unique = first_seen(ids)
    parts = (unique[unique < 3], unique[unique >= 3])
    return (*parts, places_in(torch.cat(parts), ids))


def padded(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return rows[places.clamp(min=0)] * (places >= 0).unsqueeze(-1)


def pooled(rows: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sum of each bag, padding left out."""
    ends = [*offsets[1:].tolist(), len(places)]
    bags = zip(offsets.tolist(), ends, strict=True)
    return torch.stack([padded(rows, places[start:end]).sum(0) for start, end in bags])


def normalized(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    mean, variance = moments(x, dims)
    return (x - mean) / (variance + 1e-5) ** 0.5


def binary_cross_entropy(logit: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    p, y = 1 / (1 + torch.exp(-logit.flatten())), label
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


ROWS: Shape = (BatchDim(2, bound=True), 4)
UNIQUE: Shape = (BatchDim(2, bound=True),)
MEAN: Mapping[str, Attr] = {"axes": (1,), "keepdims": False}
KEPT: Mapping[str, Attr] = {"axes": (1, -1), "keepdims": True}
ALL: Mapping[str, Attr] = {"axes": (), "keepdims": False}
RATE: Mapping[str, Attr] = {"lr": 0.1}
EPS: Mapping[str, Attr] = {"lr": 0.1, "eps": 1e-10}
FTRL: Mapping[str, Attr] = {"lr": 0.1, "beta": 1.0, "l1": 0.3, "l2": 0.1}
PLAIN_SUM: Mapping[str, Attr] = {"mode": "sum", "weighted": False}
SQUARE: Operand = ((3, 3), normal)
TABLE: Operand = ((5, 4), single)
IDS: Operand = (UNIQUE, distinct(5))

UNARY = (
    *each(
        (((B, 3), wide),),
        Abs=lambda x: x * x.sign(), Cos=lambda x: torch.sin(x + math.pi / 2), Sin=lambda x: torch.cos(x - math.pi / 2),
        Erf=lambda x: 1 - torch.erfc(x), Exp=lambda x: math.e**x, Neg=lambda x: 0 - x,
        HardSigmoid=lambda x: (x / 6 + 0.5).clamp(0, 1), HardSwish=lambda x: x * (x / 6 + 0.5).clamp(0, 1),
        Mish=lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), Softplus=lambda x: torch.log(1 + torch.exp(x)),
        Swish=lambda x: x / (1 + torch.exp(-x)), Sigmoid=lambda x: 1 / (1 + torch.exp(-x)), Relu=lambda x: x * (x > 0),
        Tanh=lambda x: 1 - 2 / (torch.exp(2 * x) + 1), Identity=lambda x: 1 * x, Detach=lambda x: 1 * x.detach(),
        Ceil=lambda x: 0 * x - (-x.detach()) // 1, Floor=lambda x: 0 * x + x.detach() // 1, Round=lambda x: 0 * x + (x.detach() + 0.5) // 1,
        Trunc=lambda x: 0 * x + x.sign().detach() * (x.detach().abs() // 1), IsNaN=lambda x: x != x,
        Sign=lambda x: 0 * x + (x > 0).double() - (x < 0).double(), ZerosLike=lambda x: 0 * x, GradientSeed=lambda x: 0 * x + 1,
    ),
    *each(
        (((B, 3), positive),),
        Log=lambda x: torch.log2(x) * math.log(2), Log1p=lambda x: torch.log(1 + x), Reciprocal=lambda x: 1 / x,
        Rsqrt=lambda x: x**-0.5, Sqrt=lambda x: x**0.5,
    ),
    *each((((B, 3), flags),), Not=lambda x: x ^ True),
    Sample("Elu", (((B, 3), normal),), lambda x: torch.where(x > 0, x, 0.7 * (torch.exp(x) - 1)), {"alpha": 0.7}),
    Sample("LeakyRelu", (((B, 3), normal),), lambda x: torch.where(x > 0, x, 0.1 * x), {"alpha": 0.1}),
    Sample("Clip", (((B, 3), wide),), lambda x: torch.where(x > 2, 2.0, torch.where(x < -1, -1.0, x)), {"min": -1, "max": 2}),
    Sample("Gelu", (((B, 3), normal),), lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2, {"approximate": "none"}),
    Sample("Gelu", (((B, 3), normal),), gelu_tanh, {"approximate": "tanh"}),
    Sample("Cast", (((B, 3), normal),), lambda x: x.float(), {"to": "float32"}),
    Sample("Cast", (((B, 3), normal),), lambda x: x.long(), {"to": "int64"}),
)  # fmt: skip

BROADCASTS: tuple[tuple[Shape, Shape], ...] = (((B, 3), (B, 3)), ((B, 3), (3,)), ((B, 1, 3), (2, 1)))
BINARY = (
    *chain.from_iterable(
        each(
            ((left, positive), (right, positive)),
            Add=lambda x, y: x + y, Sub=lambda x, y: x - y, Mul=lambda x, y: x * y, Div=lambda x, y: x / y,
            Max=lambda x, y: torch.where(x > y, x, y), Min=lambda x, y: torch.where(x < y, x, y),
            Pow=lambda x, y: torch.exp(y * x.log()),
        )
        for left, right in BROADCASTS
    ),
    *each((((B, 3), normal), ((3,), normal)), PRelu=lambda x, y: torch.where(x > 0, x, x * y), SumLike=lambda x, y: x.sum(0)),
    *each(
        (((B, 3), wide), ((3,), positive)),
        Mod=lambda x, y: x - y * torch.floor(x / y), FloorDiv=lambda x, y: 0 * (x + y) + torch.floor(x / y),
    ),
    *each(
        (((B, 3), below(3)), ((B, 1), below(3))),
        Equal=lambda x, y: x == y, NotEqual=lambda x, y: x != y, Greater=lambda x, y: x > y, Less=lambda x, y: x < y,
        GreaterOrEqual=lambda x, y: x >= y, LessOrEqual=lambda x, y: x <= y,
    ),
    *each(
        (((B, 3), flags), ((B, 3), flags)), And=lambda x, y: x & y, Or=lambda x, y: x | y, Xor=lambda x, y: x ^ y
    ),
    *each(
        (((B, 3), below(30)), ((B, 3), below(30))),
        BitwiseAnd=lambda x, y: sum((x >> k) % 2 * ((y >> k) % 2) << k for k in range(5)),
        BitwiseOr=lambda x, y: x + y - (x & y), BitwiseXor=lambda x, y: x + y - 2 * (x & y),
    ),
    Sample("BitwiseNot", (((B, 3), below(30)),), lambda x: -x - 1),
    Sample("Sum", (((B, 3), normal), ((3,), normal), ((B, 1), normal)), lambda x, y, z: x + y + z),
    Sample("Where", (((B, 3), flags), ((B, 3), normal), ((3,), normal)), lambda c, x, y: c * x + ~c * y),
)  # fmt: skip

MATRIX = (
    Sample("FC", (((B, 3), normal), ((5, 3), normal), ((5,), normal)), lambda x, w, b: (x[:, None] * w).sum(-1) + b),
    Sample("FC", (((B, 3), normal), ((5, 3), normal)), lambda x, w: (x[:, None] * w).sum(-1)),
    Sample("FastFC", (((B, 3), normal), ((5, 3), normal), ((5,), normal)), lambda x, w, b: (x[:, None] * w).sum(-1) + b),
    Sample("FCRelu", (((B, 3), normal), ((5, 3), normal), ((5,), normal)), lambda x, w, b: ((x[:, None] * w).sum(-1) + b).clamp(min=0)),
    Sample("FCRelu", (((B, 3), single), ((5, 3), single)), lambda x, w: (x[:, None] * w).sum(-1).clamp(min=0)),
    Sample("FCInputGradient", (((5, 3), normal), ((B, 5), normal)), lambda w, dy: (dy[:, :, None] * w).sum(1)),
    Sample("PairwiseDots", (((B, 5, 3), single), ((7,), below(25))), lambda f, k: (f[:, k // 5] * f[:, k % 5]).sum(-1)),
    Sample(
        "PairwiseDots", (((B, 5, 3), single), ((7,), below(25))),
        lambda f, k: torch.cat([f[:, 0], f[:, 1], (f[:, k // 5] * f[:, k % 5]).sum(-1)], 1), {"kept": 2},
    ),
    Sample("MatMul", (((B, 3), normal), ((3, 5), normal)), lambda x, y: (x[:, :, None] * y).sum(1)),
    Sample("MatMul", (((B, 2, 3), normal), ((B, 3, 4), normal)), lambda x, y: torch.einsum("bij,bjk->bik", x, y)),
    Sample("MatMul", (((B, 2, 3), normal), ((3, 4), normal)), lambda x, y: torch.einsum("bij,jk->bik", x, y)),
    Sample("MatMul", (((B, 3), normal), ((3,), normal)), lambda x, y: (x * y).sum(1)),
    Sample("MatMul", (((3,), normal), ((3,), normal)), lambda x, y: (x * y).sum()),
    Sample(
        "Einsum", (((B, 2), normal), ((2, 3), normal), ((B, 3), normal)),
        lambda x, w, y: ((x @ w) * y).sum(1), {"equation": "bi,ij,bj->b"},
    ),
    Sample("Einsum", (((B, 3, 2), normal), ((2, 4), normal)), lambda x, w: x @ w, {"equation": "...i,ij->...j"}),
)  # fmt: skip

REDUCTIONS = (
    *over(
        (B, 3, 4), MEAN,
        ReduceSum=lambda x: x[:, 0] + x[:, 1] + x[:, 2], ReduceMean=lambda x: (x[:, 0] + x[:, 1] + x[:, 2]) / 3,
        ReduceMax=lambda x: x.max(1).values, ReduceMin=lambda x: -((-x).max(1).values), ReduceProd=lambda x: x[:, 0] * x[:, 1] * x[:, 2],
        ReduceL2=lambda x: (x * x).sum(1) ** 0.5, ReduceVariance=lambda x: moments(x, (1,))[1].squeeze(1),
        ReduceLogSumExp=lambda x: x.exp().sum(1).log(),
    ),
    *over(
        (B, 3, 4), KEPT,
        ReduceSum=lambda x: x.sum((1, 2), True), ReduceMean=lambda x: x.sum((1, 2), True) / 12,
        ReduceProd=lambda x: x.flatten(1).prod(1)[:, None, None], ReduceL2=lambda x: (x * x).sum((1, 2), True) ** 0.5,
    ),
    *over((B, 3), ALL, ReduceSum=lambda x: x.flatten().sum(), ReduceMean=lambda x: x.sum() / x.numel(), ReduceMax=lambda x: x.max()),
    Sample("ArgMax", (((B, 3), normal),), lambda x: x.max(1).indices, {"axis": 1, "keepdims": False}),
    Sample("CumSum", (((B, 3), normal),), lambda x: x @ torch.ones(3, 3).double().triu(), {"axis": 1}),
    Sample("Softmax", (((B, 3), normal),), lambda x: x.exp() / x.exp().sum(1, True), {"axis": -1}),
    Sample("Softmax", (((B, 3, 4), normal),), lambda x: x.exp() / x.exp().sum(1, True), {"axis": 1}),
    Sample("LogSoftmax", (((B, 3), normal),), lambda x: x - x.exp().sum(1, True).log(), {"axis": 1}),
    Sample("LayerNormalization", (((B, 2, 3), normal),), lambda x: normalized(x, (1, 2)), {"axis": 1, "epsilon": 1e-5}),
    Sample(
        "LayerNormalization", (((B, 3), normal), ((3,), normal), ((3,), normal)),
        lambda x, w, b: normalized(x, (1,)) * w + b, {"axis": -1, "epsilon": 1e-5},
    ),
    Sample("BceWithLogits", (((B,), single), ((B,), labels)), binary_cross_entropy, held=(1,)),
    Sample("BceWithLogits", (((B, 1), single), ((B,), labels)), binary_cross_entropy, held=(1,)),
    Sample("OwnLoss", (((), single), ((B,), single)), lambda loss, score: loss + 0 * score.sum(), held=(1,)),
    Sample("Bce", (((B, 1), lambda g, s: single(g, s).sigmoid()), ((B,), labels)), lambda p, y: binary_cross_entropy((p / (1 - p)).log(), y), held=(1,)),
    Sample("MeanSquaredError", (((B, 1), single), ((B,), labels)), lambda x, y: ((x[:, 0] - y) ** 2).mean(), held=(1,)),
)  # fmt: skip

SHAPES = (
    Sample("Reshape", (((B, 2, 3), normal),), lambda x: x.flatten(1), {"shape": (-1, 6)}),
    Sample("Reshape", (((B, 6), normal),), lambda x: x.flatten().unflatten(0, (-1, 2)), {"shape": (-1, 2)}),
    Sample("ReshapeLike", (((B, 6), normal), ((B, 2, 3), normal)), lambda x, like: x.unflatten(1, (2, 3))),
    Sample("Transpose", (((B, 2, 3, 4), normal),), lambda x: x.movedim(1, 3), {"perm": (0, 2, 3, 1)}),
    Sample("Concat", (((B, 2), normal), ((B, 1), normal)), lambda x, y: torch.hstack([x, y]), {"axis": 1}),
    Sample("Concat", (((B, 2), normal), ((B, 1), normal)), lambda x, y: torch.hstack([x, y]), {"axis": -1}),
    Sample("Concat", (((B, 2), normal), ((BatchDim(2), 2), normal)), lambda x, y: torch.vstack([x, y]), {"axis": 0}),
    Sample("Split", (((B, 3), normal),), lambda x: (x[:, :2], x[:, 2:]), {"axis": 1, "split": (2, 1)}),
    Sample("Slice", (((B, 7), normal),), lambda x: x[:, 1:6:2], {"axis": -1, "start": 1, "end": 6, "step": 2}),
    Sample("Select", (((B, 3, 2), normal),), lambda x: x[:, -1], {"axis": 1, "index": -1}),
    *(
        Sample(
            "SelectsGradient", (((B, width, 2), normal), ((B, 2), normal), ((B, 2), normal), ((B, 2), normal)), selects_gradient,
            {"axis": 1, "indices": (1, 0, -1)},
        )
        for width in (2, 3, 9)
    ),
    Sample("Stack", (((B, 2), normal), ((B, 2), normal)), lambda x, y: torch.cat([x[:, None], y[:, None]], 1), {"axis": 1}),
    Sample("Unstack", (((B, 2, 3), normal),), lambda x: (x[:, 0], x[:, 1]), {"axis": 1}),
    Sample("Gather", (((B, 5, 2), normal), ((2, 3), below(5))), lambda x, i: x[:, i], {"axis": 1}),
    Sample("Gather", (((5, 2), normal), ((B, 3), below(5))), lambda x, i: x[i], {"axis": 0}),
    Sample("GatherElements", (((B, 5), normal), ((B, 2), below(5))), lambda x, i: torch.stack([r[k] for r, k in zip(x, i, strict=True)]), {"axis": 1}),
    Sample("FlatNonZero", (((B, 3), flags),), lambda x: torch.tensor([i for i, on in enumerate(x.flatten().tolist()) if on], dtype=torch.int64)),
    Sample("FlatNonZero", (((BatchDim(2, bound=True),), below(2)),), lambda x: torch.tensor([i for i, v in enumerate(x.tolist()) if v], dtype=torch.int64)),
    Sample("Unique", (((B, 3), below(6)),), distinct_of),
    Sample("Unique", (((B,), below(3)),), distinct_of),
    Sample("BroadcastTo", (((BatchDim(2, bound=True), 1), normal),), lambda x: torch.cat([x, x], 1), {"shape": (0, 2)}),
    Sample("BoundRows", (((B, 2, 4), normal),), bound, {"max_norm": 1.5}),
    Sample("BroadcastTo", (((B, 1, 3), normal),), lambda x: torch.cat([x, x], 1), {"shape": (-1, 2, 3)}),
    Sample("Pad", (((B, 3), normal),), lambda x: F.pad(x - 1.5, (1, 2)) + 1.5, {"pads": (1, 2), "value": 1.5}),
    Sample("Tril", (SQUARE,), lambda x: x * (torch.arange(3)[:, None] > torch.arange(3)), {"diagonal": -1}),
    Sample("Triu", (SQUARE,), lambda x: x * (torch.arange(3)[:, None] <= torch.arange(3)), {"diagonal": 0}),
    Sample("Flip", (((B, 3), normal),), lambda x: x[:, [2, 1, 0]], {"axes": (1,)}),
    Sample("Constant", (), lambda: torch.tensor([[1.5, 2.0]]), {"value": constant_of(torch.tensor([[1.5, 2.0]]))}),
)  # fmt: skip

EMBEDDINGS = (
    Sample("BoundTable", (TABLE, IDS), nothing, {"max_norm": 1.0, "first_row": 0}),
    Sample("Embedding", (TABLE, ((B, 2), below(5))), lambda table, ids: table[ids], {"padding_idx": -1}),
    Sample(
        "EmbeddingBag", (TABLE, ((B, 2), below(5))), lambda table, ids: table[ids].sum(1), {**PLAIN_SUM, "padding_idx": -1}
    ),
    Sample("Dedupe", (((B, 2), below(5)),), dedupe, {"padding_idx": -1}),
    Sample("Dedupe", (((B, 2), below(5)), ((B,), below(9))), dedupe, {"padding_idx": -1}),
    Sample("DedupeSharded", (((B, 2), below(5)),), dedupe_two_shards, {"padding_idx": -1, "bounds": (0, 3, 5)}),
    Sample("MaskPlaces", (((B, 2), below(5)), ((B, 2), below(2))), lambda p, ids: p * (ids != 1) - 1 * (ids == 1), {"padding_idx": 1}),
    Sample("IsRow", (((B, 3), below(3)), ((3,), below(3))), lambda ids, row: ids == row, {"original": constant_of(torch.tensor([0, 1, 2]))}),
    Sample("Lookup", (TABLE, ((BatchDim(2, bound=True),), below(9, least=4))), lambda table, ids: table[ids - 4], {"first_row": 4}),
    Sample(
        "Prefetch", (TABLE, ((5,), single), ((BatchDim(2, bound=True),), below(9, least=4))),
        lambda table, acc, ids: torch.cat([table[ids - 4], acc[ids - 4, None]], 1), {"first_row": 4},
    ),
    Sample(
        "LookupTables", (TABLE, ((7, 2), single), (UNIQUE, below(5)), (UNIQUE, below(9, least=4))),
        lambda table, other, ids, more: (table[ids], other[more - 4]), {"first_rows": (0, 4)},
    ),
    Sample("SumRows", (((BatchDim(2, bound=True),), below(3)), (ROWS, single)), sum_rows),
    Sample(
        "LookupShards", (TABLE, ((3, 4), single), ((BatchDim(2, bound=True),), below(8))),
        lambda table, rest, ids: torch.cat([table, rest])[ids], {"bounds": (0, 5, 8)},
    ),
    Sample("TakeRows", ((ROWS, single), ((B, 2), below(4, least=-1))), padded),
    Sample(
        "StackRows", (((B, 4), single), (ROWS, single), (ROWS, single), ((B,), below(4, least=-1)), ((B,), below(4, least=-1))),
        lambda x, r, s, p, q: torch.stack([x, padded(r, p), padded(s, q)], 1), {"dense": 1},
    ),
    Sample(
        "StackTables", (((B, 4), single), TABLE, TABLE, ((B, 3), below(5))),
        lambda x, t, u, ids: torch.stack([x, t[ids[:, 2]], u[ids[:, 0]]], 1), {"dense": 1, "columns": (2, 0)},
    ),
    Sample(
        "TakeTables", (TABLE, ((6, 2), single), ((B, 3), below(5)), ((B,), below(6)), ((B,), below(5))),
        lambda t, u, i, j, k: (t[i], u[j], t[k]), {"tables": (0, 1, 0)},
    ),
    Sample("PoolRows", ((ROWS, single), ((B, 3), below(4, least=-1))), lambda rows, p: padded(rows, p).sum(1), PLAIN_SUM),
    Sample(
        "PoolRows", ((ROWS, single), ((B, 3), below(4, least=-1))),
        lambda rows, p: padded(rows, p).sum(1) / (p >= 0).sum(1).clamp(min=1)[:, None], {"mode": "mean", "weighted": False},
    ),
    Sample("PoolRows", ((ROWS, single), (UNIQUE, below(4, least=-1)), ((B,), starts)), pooled, PLAIN_SUM),
    Sample(
        "PoolRows", ((ROWS, single), ((B, 3), below(4, least=-1)), ((B, 3), single)),
        lambda rows, p, w: (padded(rows, p) * w[:, :, None]).sum(1), {"mode": "sum", "weighted": True},
    ),
    Sample("DecayedRows", ((ROWS, single), (ROWS, single)), lambda drows, rows: drows + 0.1 * rows, {"decay": 0.1}),
    Sample(
        "ClipTogether", (((3, 2), normal), ((4,), normal)),
        lambda x, y: tuple(0.5 * dw / (torch.cat([x.flatten(), y]).norm() + 1e-6) for dw in (x, y)), {"max_norm": 0.5},
    ),
    Sample("ConcatRows", ((ROWS, half(single)), (ROWS, half(single))), lambda x, y: torch.vstack([x, y])),
    Sample("SplitRows", ((ROWS, single), (UNIQUE, half(below(5))), (UNIQUE, half(below(5)))), lambda rows, i, j: (rows[: len(i)], rows[len(i) :])),
)  # fmt: skip

EFFECTS = (
    Sample("Sgd", (SQUARE, SQUARE), nothing, RATE),
    Sample("FCSgd", (((5, 3), normal), ((5,), normal), ((B, 3), normal), ((B, 5), normal)), nothing, RATE),
    Sample("FCSgd", (((5, 3), single), ((5,), single), ((B, 3), short), ((B, 5), short)), nothing, RATE),
    Sample("Adagrad", (SQUARE, ((3, 3), positive), SQUARE), nothing, EPS),
    Sample(
        "Adam", (SQUARE, SQUARE, ((3, 3), positive), ((1,), positive), SQUARE), nothing, {**EPS, "beta1": 0.9, "beta2": 0.99}
    ),
    Sample("CountedStep", (SQUARE, ((), below(9)), SQUARE), nothing, {**RATE, "optimizer": "sgd", "weight_decay": 0.1, "clip_norm": 1.0}),
    Sample(
        "CountedStep", (SQUARE, SQUARE, ((), below(9)), SQUARE), nothing,
        {**RATE, "optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    ),
    Sample("CountedStep", (SQUARE, ((3, 3), positive), ((), below(9)), SQUARE), nothing, {**EPS, "optimizer": "adagrad", "weight_decay": 0.1}),
    Sample(
        "CountedStep", (SQUARE, SQUARE, ((3, 3), positive), ((1,), positive), ((), below(9)), SQUARE), nothing,
        {**EPS, "optimizer": "adamw", "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
    ),
    Sample(
        "CountedRowStep", (TABLE, ((), below(9)), IDS, (ROWS, single)), nothing,
        {**RATE, "optimizer": "sgd", "first_row": 0, "schedule": "cosine", "warmup": 3, "decay": 9},
    ),
    Sample(
        "CountedRowStep", (TABLE, TABLE, TABLE, ((), below(9)), IDS, (ROWS, single)), nothing,
        {**EPS, "optimizer": "sparse_adam", "first_row": 0, "beta1": 0.9, "beta2": 0.99},
    ),
    Sample(
        "CountedRowStep", (TABLE, TABLE, ((5,), single), ((), below(9)), IDS, (ROWS, single)), nothing,
        {**EPS, "optimizer": "rowwise_adam", "first_row": 0, "beta1": 0.9, "beta2": 0.99},
    ),
    Sample(
        "CountedRowStep", (TABLE, TABLE, ((), below(9)), IDS, (ROWS, single)), nothing,
        {**RATE, "optimizer": "lazy_momentum", "first_row": 0, "lazy_momentum": 0.9},
    ),
    Sample("SparseSgd", (TABLE, IDS, (ROWS, single)), nothing, {**RATE, "first_row": 0}),
    Sample("SparseAdagrad", (TABLE, TABLE, IDS, (ROWS, single)), nothing, {**EPS, "first_row": 0}),
    Sample("SparseRowWiseAdagrad", (TABLE, ((5,), single), IDS, (ROWS, single)), nothing, {**EPS, "first_row": 0}),
    Sample("SparseFtrl", (TABLE, ((5, 8), single), IDS, (ROWS, single)), nothing, {**FTRL, "first_row": 0}),
    Sample("CountedStep", (SQUARE, SQUARE, ((3, 3), positive), ((), below(9)), SQUARE), nothing, {**FTRL, "optimizer": "ftrl"}),
    Sample(
        "CountedRowStep", (TABLE, ((5, 8), single), ((), below(9)), IDS, (ROWS, single)), nothing,
        {**FTRL, "optimizer": "ftrl", "first_row": 0, "warmup": 3},
    ),
    Sample("SparseStepTables", (TABLE, IDS, (ROWS, single)), nothing, {**EPS, "optimizer": "sgd", "first_rows": (0,)}),
    Sample(
        "SparseStepTables", (TABLE, ((5, 8), single), IDS, (ROWS, single)), nothing,
        {**FTRL, "eps": 0.0, "optimizer": "ftrl", "first_rows": (0,)},
    ),
    Sample(
        "SparseStepTables", (TABLE, TABLE, ((5,), single), ((5,), single), IDS, IDS, (ROWS, single), (ROWS, single)), nothing,
        {**EPS, "optimizer": "rowwise_adagrad", "first_rows": (0, 0)},
    ),
    Sample("StepTakenTables", (TABLE, ((B, 2), below(5)), ((B, 2, 4), single)), nothing, {**RATE, "tables": (0,)}),
    Sample("StepTables", (TABLE, ((B, 2), below(5)), ((B, 2, 4), single)), nothing, {**RATE, "dense": 1, "columns": (1,)}),
    Sample(
        "PairwiseDotsSgd", (TABLE, ((B, 2), below(5)), ((B, 2, 4), single), ((3,), below(4)), ((B, 7), single)), pairs_gradient,
        {**RATE, "dense": 1, "columns": (1,), "kept": 1},
    ),
    Sample("WriteBack", (TABLE, ((5,), single), IDS, ((BatchDim(2, bound=True), 5), single)), nothing, {"first_row": 0}),
    Sample("Ack", (), lambda: torch.zeros(0, dtype=torch.int8)),
    Sample("Begin", (), lambda: torch.zeros(0, dtype=torch.int8)),
    Sample("Snapshot", (SQUARE,), lambda w: 1 * w),
    Sample("ElasticDifference", (SQUARE, SQUARE), lambda center, group: 0.4 * group - 0.4 * center, {"alpha": 0.4}),
    Sample("Relax", (SQUARE, SQUARE), nothing),
    Sample("Advance", (SQUARE, SQUARE), nothing),
    Sample("AverageSnapshots", (SQUARE, SQUARE, ((1,), normal), SQUARE), nothing, {"groups": 2}),
    Sample(
        "BlockStep", (SQUARE, SQUARE, SQUARE, ((1,), normal), SQUARE), nothing, {"groups": 2, "decay": 0.5, "lr": 1.0, "nesterov": False},
    ),
    Sample("OffCentre", (SQUARE, SQUARE), lambda centre, group: 0.4 * group - 0.4 * centre, {"alpha": 0.4, "barrier": False}),
    Sample("UniformFill", (TABLE,), nothing, {"seed": 1, "first_row": 0, "low": 0.0, "high": 1.0}),
    Sample("NormalFill", (TABLE,), nothing, {"seed": 1, "first_row": 0, "mean": 0.0, "std": 1.0}),
    Sample("ConstantFill", (TABLE,), nothing, {"value": 1.0}),
    Sample("ZeroRows", (TABLE,), nothing, {"rows": (0,), "first_row": 0}),
)  # fmt: skip


SAMPLES = (*UNARY, *BINARY, *MATRIX, *REDUCTIONS, *SHAPES, *EMBEDDINGS, *EFFECTS, *OF_TORCH)
NOT_SAMPLED = {
    "Send": "the engine carries it out; tests/transform/test_split.py",
    "Recv": "the engine carries it out; tests/transform/test_split.py",
    "FileFill": "needs a plan's folder; tests/system",
    **dict.fromkeys(("AllReduce", "AllGather"), "among trainers: tests/executor/transport/test_collective.py"),
    **dict.fromkeys(
        ("HetAnnounce", "HetAsk", "HetFlush", "HetFlushed", "HetPush", "HetPull", "HetRead", "HetWrite"),
        "over a cache, no tensor: tests/sync/het, tests/system/test_het.py",
    ),
    **dict.fromkeys(
        ("GmpAsk", "GmpFlush", "GmpFlushed", "GmpPush", "GmpPull", "GmpRead", "GmpWrite"),
        "over a cache, no tensor: tests/sync/gmp, tests/system/test_gmp.py",
    ),
    **dict.fromkeys(
        ("LookaheadAnnounce", "LookaheadSlots", "FlushVictims", "LookaheadRequest", "LookaheadAnswer"),
        "over a cache, no tensor: tests/sync/lookahead, tests/executor/loops/test_lookahead.py",
    ),
    **dict.fromkeys(
        (
            *(d.type for family in (joint, joint_passes, transfer) for d in family.DEFINITIONS),
            *(accelerated_type(d.type) for d in OPS.values() if d.accelerated),
        ),
        "only as a net runs: tests/ops/test_accelerated.py, tests/ops/test_joint.py, tests/transform/test_accelerate.py, tests/executor/strategies/lookahead",
    ),
    **dict.fromkeys(
        ("QuantizeRows", "DequantizeRows", "TopK", "TopKWithFeedback", "SpreadTopK", "SpreadWhole"),
        "lossy: tests/ops/test_compress.py",
    ),
    "FastFCGradient": "several outputs, those of FCGradient: tests/ops/test_fc.py",
    **dict.fromkeys(("FCBfloat16", "FCInt8"), "lossy: tests/ops/test_low_precision.py"),
    **dict.fromkeys(("NormalDraw", "UniformDraw"), "no input tells the batch: tests/ops/test_draw.py"),
    "Fill": "has no input, so its batch shows in its output alone: a test of its own below",
}
