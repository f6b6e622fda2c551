"""Samples of PyTorch's own ops, and of norms and dropouts."""

import math
from typing import Any

import torch
from sample import Operand, Sample, below, moments, normal, positive
from torch.nn import functional as F

from htrain.net.net import B
from htrain.ops.dropout_loops import kept
from htrain.ops.torch_ops import aten_op


def aten(type: str, *operands: Operand, held: tuple[int, ...] = (), **attrs: Any) -> Sample:
    """An op that is PyTorch's own: its reference is what autograd makes of ATen."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in attrs.items()}
    lists = {"Gru": (2,), "Rnn": (2,), "RnnRelu": (2,), "Lstm": (1, 3)}.get(type, ())

    def reference(*tensors: torch.Tensor) -> Any:
        parts = [list(tensors[a:b]) for a, b in zip(lists, (*lists[1:], None), strict=False)]
        return aten_op(type)(*tensors[: lists[0] if lists else None], *parts, **given)

    return Sample(type, operands, reference, attrs, held)


ROW, VECTOR, IMAGE = ((B, 5), normal), ((5,), normal), ((B, 4, 7), normal)
UNIT: Operand = ((B, 5), lambda g, s: normal(g, s).tanh() * 0.9)
SHARE: Operand = ((B, 5), lambda g, s: normal(g, s).sigmoid())
ABOVE_ONE: Operand = ((B, 5), lambda g, s: 1 + positive(g, s))
CHUNK: Operand = ((), lambda g, s: torch.tensor(2))
RECURRENT = {
    "has_biases": True,
    "num_layers": 1,
    "dropout": 0.0,
    "train": True,
    "bidirectional": False,
    "batch_first": True,
}


def cells(gates: int) -> tuple[Operand, ...]:
    return (((gates * 3, 4), normal), ((gates * 3, 3), normal), ((gates * 3,), normal), ((gates * 3,), normal))


def batch_norm(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *statistics: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """By the formula; the statistics are compared in tests/system/test_norms_and_dropouts.py."""
    mean, variance = (part.flatten() for part in moments(x, tuple(d for d in range(x.dim()) if d != 1)))
    shape = (1, -1, *(1,) * (x.dim() - 2))
    deviation = (variance + 1e-5) ** 0.5
    y = (x - mean.view(shape)) / deviation.view(shape) * scale.view(shape) + bias.view(shape)
    return y, mean.detach(), 1 / deviation.detach()


def ghost_batch_norm(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, size: torch.Tensor, *statistics: torch.Tensor
) -> torch.Tensor:
    """The statistics are compared in tests/frontend/test_ghost_batches.py."""
    return torch.cat([batch_norm(part, scale, bias)[0] for part in x.split(int(size))])


def dropout(x: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which values are kept is told; how often, in tests/system/test_norms_and_dropouts.py."""
    mask = torch.from_numpy(kept(x.numel(), 5, int(key), 0.3)).view(x.shape)
    return torch.where(mask, x / 0.7, 0.0), mask


CONVOLUTION = {
    "stride": (1,),
    "padding": (1,),
    "dilation": (1,),
    "transposed": False,
    "output_padding": (0,),
    "groups": 1,
}
POINTWISE = {**CONVOLUTION, "padding": (0,)}
OF_TORCH = (
    *(
        Sample("FastConvolution", (IMAGE, ((6, 4, 1), normal), *bias), F.conv1d, POINTWISE)
        for bias in ((), (((6,), normal),))
    ),
    Sample(
        "FastConvolutionGradient", (IMAGE, ((6, 4, 1), normal), ((6,), normal), ((B, 6, 7), normal)),
        lambda x, w, b, dy: torch.ops.aten.convolution_backward(dy, x, w, [6], [1], [0], [1], False, [0], 1, [True, True, True]),
        {**POINTWISE, "num_inputs": 3, "wrt": (0, 1, 2), "given": (0,)},
    ),
    Sample("GroupNorm", (IMAGE, ((4,), normal), ((4,), normal)), lambda x, w, b: F.group_norm(x, 2, w, b), {"num_groups": 2}),
    Sample("InstanceNorm", (IMAGE,), F.instance_norm, {"use_input_stats": True, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}),
    Sample("Scatter", (ROW, ((B, 1), below(5)), ((B, 1), normal)), lambda x, i, y: x.scatter(1, i, y), {"dim": 1}),
    Sample("ScatterAdd", (ROW, ((B, 2), below(5)), ((B, 2), normal)), lambda x, i, y: x.scatter_add(1, i, y), {"dim": 1}),
    Sample("ScatterReduce", (ROW, ((B, 2), below(5)), ((B, 2), normal)), lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), {"dim": 1, "reduce": "amax"}),
    Sample(
        "ScatterReduce", (ROW, ((B, 2), below(5)), ((B, 2), normal)), lambda x, i, y: x.scatter_reduce(1, i, y, "mean", include_self=False),
        {"dim": 1, "reduce": "mean", "include_self": False},
    ),
    Sample("ScatterValue", (ROW, ((B, 1), below(5))), lambda x, i: x.scatter(1, i, 2.0), {"dim": 1, "value": 2.0}),
    Sample("BatchNorm", (((B, 4, 3), normal), *[((4,), normal)] * 2, *[((4,), positive)] * 2), batch_norm, {"eps": 1e-5, "momentum": 0.1}, (3, 4)),
    Sample("BatchNorm", (ROW, VECTOR, VECTOR), batch_norm, {"eps": 1e-5, "momentum": 0.1}),
    Sample(
        "GhostBatchNorm", (((B, 4, 3), normal), *[((4,), normal)] * 2, CHUNK, *[((4,), positive)] * 2), ghost_batch_norm,
        {"eps": 1e-5, "momentum": 0.1}, (3, 4, 5),
    ),
    Sample("GhostBatchNorm", (ROW, VECTOR, VECTOR, CHUNK), ghost_batch_norm, {"eps": 1e-5, "momentum": 0.1}, (3,)),
    Sample("BatchNormalization", (ROW, VECTOR, VECTOR, VECTOR, ((5,), positive)), lambda x, w, b, m, v: (x - m) / (v + 1e-5) ** 0.5 * w + b, {"epsilon": 1e-5}),
    Sample("Dropout", (ROW, ((1,), below(9))), dropout, {"p": 0.3, "seed": 5}),
    *(aten(type, ROW) for type in ("Asinh", "Atan", "Celu", "Cosh", "Erfc", "Exp2", "Expm1", "Frac", "Hardshrink", "Hardtanh", "LogSigmoid", "Relu6", "Selu",
                                   "Sinh", "Softshrink", "Tan", "NanToNum", "IsInf", "All", "Any")),
    *(aten(type, UNIT) for type in ("Acos", "Asin", "Atanh", "Erfinv")),
    *(aten(type, ABOVE_ONE) for type in ("Acosh", "Digamma", "Lgamma", "Log10", "Log2")),
    *(aten(type, ROW, ROW) for type in ("Atan2", "Hypot", "LogAddExp")),
    aten("BinaryCrossEntropy", SHARE, SHARE, reduction=0), aten("BinaryCrossEntropy", SHARE, SHARE, ABOVE_ONE, held=(2,), reduction=0),
    aten("Threshold", ROW, threshold=0.1, value=2.0), aten("Fmod", ROW, ABOVE_ONE, held=(1,)), aten("XLogY", ROW, ABOVE_ONE),
    aten("Addcmul", ROW, ROW, VECTOR, value=0.5), aten("Addcdiv", ROW, ROW, ABOVE_ONE), aten("Lerp", ROW, ROW, VECTOR), aten("LerpBy", ROW, ROW, weight=0.3),
    aten("AdaptiveAvgPool1d", IMAGE, output_size=(3,)), aten("AvgPool1d", IMAGE, kernel_size=(2,)),
    aten("AdaptiveAvgPool2d", ((B, 2, 4, 6), normal), output_size=(2, 3)), aten("AvgPool2d", ((B, 2, 4, 6), normal), kernel_size=(2, 2)),
    aten("AdaptiveMaxPool2d", ((B, 2, 4, 6), normal), output_size=(2, 3)), aten("KthValue", ROW, k=2, dim=1), aten("Median", ROW, dim=1, keepdim=True),
    aten("MaxPool2d", ((B, 2, 4, 6), normal), kernel_size=(2, 2)), aten("Bilinear", ROW, ((B, 3), normal), ((2, 5, 3), normal), ((2,), normal)),
    aten("CDist", ((B, 3, 5), normal), ((B, 2, 5), normal), p=2.0), aten("Convolution", IMAGE, ((6, 4, 3), normal), ((6,), normal), **CONVOLUTION),
    aten("Convolution", IMAGE, ((6, 4, 3), normal), ((6,), normal), **CONVOLUTION), aten("CumMax", ROW, dim=1), aten("CumMin", ROW, dim=1),
    aten("CumProd", ROW, dim=1), aten("LogCumSumExp", ROW, dim=1), aten("DiagEmbed", ROW), aten("Glu", ((B, 6), normal), dim=1),


    aten("Gru", ((B, 5, 4), normal), ((1, B, 3), normal), *cells(3), **RECURRENT),
    aten("Rnn", ((B, 5, 4), normal), ((1, B, 3), normal), *cells(1), **RECURRENT),
    aten("RnnRelu", ((B, 5, 4), normal), ((1, B, 3), normal), *cells(1), **RECURRENT),
    aten("Lstm", ((B, 5, 4), normal), ((1, B, 3), normal), ((1, B, 3), normal), *cells(4), **RECURRENT),
    *(aten(type, ROW, dim=1, keepdim=True) for type in ("MaxAlong", "MinAlong", "AllAlong", "AnyAlong", "ArgMin")),
    *(aten("Norm", ROW, ord=power, dim=(1,), keepdim=False) for power in (1.0, 2.0, 3.0, 0.5, math.inf, -math.inf)),
    aten("Norm", ROW, ord=0.0, dim=(1,), keepdim=True), aten("Roll", ROW, shifts=(2,), dims=(1,)), aten("Sinc", ROW),
    aten("AvgPool2d", ((B, 2, 4, 6), normal), kernel_size=(2, 2), padding=(1, 1), divisor_override=3), aten("CDist", IMAGE, IMAGE, p=1.0),


    aten("SelectScatter", ROW, ((B,), normal), dim=1, index=2), aten("SliceScatter", ROW, ((B, 2), normal), dim=1, start=1, end=3),
    aten("Sort", ROW, dim=1, descending=True), aten("SortStable", ROW, stable=True, dim=1), aten("ArgSort", ROW, dim=1), aten("LargestK", ROW, k=2, dim=1),
    aten("Variance", ROW, dim=(1,), correction=1.0), aten("Deviation", ROW, dim=(1,), correction=1.0), aten("RepeatInterleave", ROW, repeats=2, dim=1),
    aten("Bucketize", ROW, ((3,), lambda g, s: torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64))), aten("OneHot", ((B,), below(5)), num_classes=5),
    aten("SearchSorted", ((3,), lambda g, s: torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)), ROW), aten("Diagonal", ((B, 3, 3), normal), dim1=1, dim2=2),
    aten("Unfold", ROW, dimension=1, size=2, step=1), aten("DiagonalScatter", ((B, 3, 4), normal), ((B, 3), normal), offset=1, dim1=1, dim2=2),
    aten("DiagonalScatter", ((3, B, 4), normal), ((B, 3), normal), dim1=0, dim2=2),
)  # fmt: skip
