"""Convolutions, pools and norms in ONNX, and products of two inputs with weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from htrain.exporting.attributes import ints, number
from htrain.exporting.graph import Graph
from htrain.exporting.native import no_form
from htrain.net.net import Attr, Op
from htrain.ops.base import dtype_of


def _convolution(graph: Graph, op: Op) -> None:
    """Padding is the same before and behind."""
    rank = len(graph.blob(op.inputs[1]).shape) - 2
    padding = ints(op, "padding", (0,) * rank)
    attrs: dict[str, Attr] = {
        "strides": ints(op, "stride", (1,) * rank), "pads": (*padding, *padding), "dilations": ints(op, "dilation", (1,) * rank),
        "group": int(number(op, "groups", 1)),
    }  # fmt: skip
    transposed = bool(op.attrs.get("transposed", False))
    if transposed:
        attrs["output_padding"] = ints(op, "output_padding", (0,) * rank)
    inputs = tuple(graph.value(name, op) for name in op.inputs)
    graph.add("ConvTranspose" if transposed else "Conv", *inputs, attrs=attrs, output=op.outputs[0])


def _pool(graph: Graph, op: Op, *, type: str, rank: int) -> None:
    """One size may stand for all dimensions."""

    def each(name: str, default: Sequence[int]) -> tuple[int, ...]:
        found = ints(op, name, default)
        return found * rank if len(found) == 1 else found

    size, padding = each("kernel_size", ()), each("padding", (0,))
    attrs: dict[str, Attr] = {
        "kernel_shape": size, "strides": each("stride", size), "pads": (*padding, *padding), "ceil_mode": int(bool(op.attrs.get("ceil_mode", False))),
    }  # fmt: skip
    x = graph.value(op.inputs[0], op)
    if type != "MaxPool":
        attrs["count_include_pad"] = int(bool(op.attrs.get("count_include_pad", True)))
        _average_pool(graph, op, x, attrs)
        return
    places = graph.fresh("places")  # in the whole tensor, where PyTorch has those in an image
    graph.add_many(type, (x,), (op.outputs[0], places), attrs={**attrs, "dilations": each("dilation", (1,))})
    image = graph.add("ReduceProd", graph.add("Shape", x, attrs={"start": -rank}), attrs={"keepdims": 0})
    graph.add("Mod", places, image, output=op.outputs[1])


def _average_pool(graph: Graph, op: Op, x: str, attrs: dict[str, Attr]) -> None:
    """By the number of places, or by another that the op names."""
    if "divisor_override" not in op.attrs:
        graph.add("AveragePool", x, attrs=attrs, output=op.outputs[0])
        return
    if attrs["ceil_mode"]:  # places beyond the padding count in ONNX, or not, by the version of the runtime
        raise no_form(op, [graph.blob(op.inputs[0])])
    mean = graph.add("AveragePool", x, attrs={**attrs, "count_include_pad": 1})
    size = attrs["kernel_shape"]
    assert isinstance(size, tuple)
    share = math.prod(size) / number(op, "divisor_override")
    graph.add("Mul", mean, graph.scalar(share, graph.blob(op.inputs[0]).dtype), output=op.outputs[0])


def _adaptive_average(graph: Graph, op: Op, *, rank: int) -> None:
    """A product with the share that each place has in each mean, one dimension after the other."""
    shape, sizes = graph.blob(op.inputs[0]).shape, ints(op, "output_size")
    x = graph.value(op.inputs[0], op)
    for place, made in enumerate(sizes):
        axis = len(shape) - rank + place
        given = shape[axis]
        if not isinstance(given, int):
            raise no_form(op, [graph.blob(op.inputs[0])])
        order = [d for d in range(len(shape)) if d != axis] + [axis]
        x = graph.add("Transpose", x, attrs={"perm": tuple(order)})
        x = graph.add("MatMul", x, graph.constant(_shares(given, made).to(dtype_of(graph.blob(op.inputs[0]).dtype))))
        back = tuple(order.index(d) for d in range(len(shape)))
        x = graph.add("Transpose", x, attrs={"perm": back}, output=op.outputs[0] if place == rank - 1 else "")


def _shares(given: int, made: int) -> torch.Tensor:
    """shares[given, made] of places in means, as PyTorch cuts them: from floor(m * given / made) to ceil((m + 1) * given / made)."""
    return torch.nn.functional.adaptive_avg_pool1d(torch.eye(given), made)


def _group_norm(graph: Graph, op: Op) -> None:
    """Groups as the channels of an instance norm, then a scale and a bias for each channel."""
    blobs = [graph.blob(name) for name in op.inputs]
    x, *affine = (graph.value(name, op) for name in op.inputs)
    groups = int(number(op, "num_groups"))
    joined = graph.add("Reshape", x, graph.ints(0, groups, -1))
    normed = _normed(graph, op, joined, groups)
    normed = graph.add("Reshape", normed, graph.add("Shape", x), output="" if affine else op.outputs[0])
    over = graph.ints(-1, *[1] * (len(blobs[0].shape) - 2))
    for value, type in zip(affine, ("Mul", "Add"), strict=False):
        last = op.outputs[0] if value is affine[-1] and (type == "Add" or len(affine) == 1) else ""
        normed = graph.add(type, normed, graph.add("Reshape", value, over), output=last)


def _normed(graph: Graph, op: Op, x: str, channels: int, affine: Sequence[str] = (), output: str = "") -> str:
    dtype = dtype_of(graph.blob(op.inputs[0]).dtype)
    missing = [graph.constant(torch.full((channels,), value, dtype=dtype)) for value in (1.0, 0.0)]
    inputs = (x, *affine, *missing[len(affine) :])
    return graph.add("InstanceNormalization", *inputs, attrs={"epsilon": number(op, "eps", 1e-5)}, output=output)


def _instance_norm(graph: Graph, op: Op) -> None:
    blobs = [graph.blob(name) for name in op.inputs]
    channels = blobs[0].shape[1]
    if not op.attrs["use_input_stats"] or len(blobs) > 3 or not isinstance(channels, int):
        raise no_form(op, blobs)
    x, *affine = (graph.value(name, op) for name in op.inputs)
    _normed(graph, op, x, channels, affine, op.outputs[0])


def _bilinear(graph: Graph, op: Op) -> None:
    x, y, w, *bias = (graph.value(name, op) for name in op.inputs)
    products = {"equation": "...i,oij,...j->...o"}
    found = graph.add("Einsum", x, w, y, attrs=products, output="" if bias else op.outputs[0])
    if bias:
        graph.add("Add", found, *bias, output=op.outputs[0])


def _batch_normalization(graph: Graph, op: Op) -> None:
    x, scale, bias, mean, variance = (graph.value(name, op) for name in op.inputs)
    least = graph.add("Max", variance, graph.scalar(0.0, graph.blob(op.inputs[4]).dtype))
    attrs = {"epsilon": float(number(op, "epsilon"))}
    graph.add("BatchNormalization", x, scale, bias, mean, least, attrs=attrs, output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "Convolution": _convolution,
    "FastConvolution": _convolution,
    "MaxPool2d": partial(_pool, type="MaxPool", rank=2),
    "AvgPool1d": partial(_pool, type="AveragePool", rank=1),
    "AvgPool2d": partial(_pool, type="AveragePool", rank=2),
    "AdaptiveAvgPool1d": partial(_adaptive_average, rank=1),
    "AdaptiveAvgPool2d": partial(_adaptive_average, rank=2),
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "Bilinear": _bilinear,
    "BatchNormalization": _batch_normalization,
}
