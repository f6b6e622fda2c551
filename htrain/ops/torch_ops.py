"""Ops that are PyTorch's own, under their names in ATen: kernel, operands and attributes are as its schema has them, and autograd differentiates the kernel.

Tensors of the schema are inputs, in order; optional ones may be missing at the end, and a list of tensors is the last. All else is an attribute of the same
name, left out where it is None. What the compiler gains from knowing more of an op than this (fusions, a cheaper gradient, ONNX's name) is written by hand, in
the families beside this one.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import torch

from htrain.net.net import Blob, Op, numel
from htrain.ops.base import Cost, OpDef, Signature, infer_by_kernel, no_cost
from htrain.ops.vjp import vjp_definition

_ELEMENTWISE = {
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atan2": "atan2", "Atanh": "atanh", "Celu": "celu", "Cosh": "cosh",
    "Digamma": "digamma", "Erfc": "erfc", "Erfinv": "erfinv", "Exp2": "exp2", "Expm1": "expm1", "Frac": "frac", "Hardshrink": "hardshrink",
    "Hardtanh": "hardtanh", "Hypot": "hypot", "Lgamma": "lgamma", "Log10": "log10", "Log2": "log2", "LogAddExp": "logaddexp", "LogSigmoid": "log_sigmoid",
    "NanToNum": "nan_to_num", "Relu6": "relu6", "Selu": "selu", "Sinh": "sinh", "Softshrink": "softshrink", "Tan": "tan", "Threshold": "threshold",
    "Addcmul": "addcmul", "Addcdiv": "addcdiv", "Fmod": "fmod.Tensor", "XLogY": "xlogy.Tensor", "Lerp": "lerp.Tensor", "LerpBy": "lerp.Scalar", "Sinc": "sinc",
    "BinaryCrossEntropy": "binary_cross_entropy",
}  # fmt: skip
_OTHERS = {
    "AdaptiveAvgPool1d": "adaptive_avg_pool1d", "AdaptiveAvgPool2d": "_adaptive_avg_pool2d", "AdaptiveMaxPool2d": "adaptive_max_pool2d",
    "AvgPool1d": "avg_pool1d", "AvgPool2d": "avg_pool2d", "Bilinear": "bilinear", "CDist": "cdist", "Convolution": "convolution", "CumMax": "cummax",
    "CumMin": "cummin", "CumProd": "cumprod", "DiagEmbed": "diag_embed", "Glu": "glu", "GroupNorm": "group_norm", "Gru": "gru.input",
    "InstanceNorm": "instance_norm", "KthValue": "kthvalue", "LogCumSumExp": "logcumsumexp", "Lstm": "lstm.input", "MaxAlong": "max.dim",
    "MaxPool2d": "max_pool2d_with_indices", "Median": "median.dim", "MinAlong": "min.dim", "Norm": "linalg_vector_norm", "Rnn": "rnn_tanh.input",
    "RnnRelu": "rnn_relu.input", "Roll": "roll", "Scatter": "scatter.src", "ScatterAdd": "scatter_add", "ScatterReduce": "scatter_reduce.two",
    "ScatterValue": "scatter.value", "SelectScatter": "select_scatter", "SliceScatter": "slice_scatter", "Sort": "sort", "LargestK": "topk",
    "SortStable": "sort.stable", "Variance": "var.correction", "RepeatInterleave": "repeat_interleave.self_int", "Deviation": "std.correction",
    "DiagonalScatter": "diagonal_scatter",
}  # fmt: skip
_WITHOUT_GRADIENT = {
    "All": "all", "AllAlong": "all.dim", "Any": "any", "AnyAlong": "any.dim", "ArgMin": "argmin", "ArgSort": "argsort", "Bucketize": "bucketize.Tensor",
    "IsInf": "isinf", "OneHot": "one_hot", "SearchSorted": "searchsorted.Tensor",
}  # fmt: skip
RECURRENT = ("Gru", "Lstm", "Rnn", "RnnRelu")
_VIEWS = {"Diagonal": "diagonal", "Unfold": "unfold"}
_NAMES = {**_ELEMENTWISE, **_OTHERS, **_WITHOUT_GRADIENT, **_VIEWS}
TORCH_OPS = {type: name if "." in name else f"{name}.default" for type, name in _NAMES.items()}
_KINDS: dict[str, type] = {
    "int": int, "SymInt": int, "float": float, "number": float, "Scalar": float, "bool": bool, "str": str, "List[int]": tuple,
}  # fmt: skip


@cache
def aten_op(type: str) -> Any:
    """The overload of ATen that an op of this family is. Raises KeyError for another."""
    packet, _, overload = TORCH_OPS[type].partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


@cache
def arguments_of(type: str) -> tuple[torch._C.Argument, ...]:
    """The arguments of an op of this family, as ATen declares them."""
    return tuple(aten_op(type)._schema.arguments)


def is_tensor(argument: torch._C.Argument) -> bool:
    """Whether an argument is an input: a tensor, one that may be missing, or a list of them."""
    return "Tensor" in str(argument.type)


def is_list(argument: torch._C.Argument) -> bool:
    """Whether an argument is a list of tensors."""
    return str(argument.type) == "List[Tensor]"


def kind_of(argument: torch._C.Argument) -> type | None:
    """The type of an attribute; None for what says where a result lies, or of which dtype it is, and for no attribute."""
    name = str(argument.type)
    name = name.removeprefix("Optional[").removesuffix("]") if name.startswith("Optional[") else name
    return None if argument.name in ("dtype", "layout", "device") else _KINDS.get(name)


def _kernel(type: str) -> Callable[..., Any]:
    arguments, op = arguments_of(type), aten_op(type)

    def run(*tensors: torch.Tensor, **attributes: Any) -> Any:
        left = iter(tensors)
        args, keywords = [], {}
        for argument in arguments:
            if is_list(argument):  # the last, but for the two states of an LSTM
                value: Any = list(islice(left, 2)) if argument.name == "hx" else list(left)
            elif is_tensor(argument):
                value = next(left, None)
            else:
                value = attributes.get(argument.name, argument.default_value)
                value = list(value) if isinstance(value, tuple) else value
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                args.append(value)
        return op(*args, **keywords)

    run.__signature__ = _signature(arguments)  # type: ignore[attr-defined]
    return run


def _signature(arguments: tuple[torch._C.Argument, ...]) -> inspect.Signature:
    """The tensors, and the attributes as keywords: what has a default, or may be None, may be left out."""
    tensors = [inspect.Parameter("tensors", inspect.Parameter.VAR_POSITIONAL)]
    attributes = [
        inspect.Parameter(
            a.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=kind,
            default=a.default_value if a.has_default_value() or "Optional" in str(a.type) else inspect.Parameter.empty,
        )
        for a in arguments
        if not is_tensor(a) and (kind := kind_of(a)) is not None
    ]
    return inspect.Signature([*tensors, *attributes])


def _convolution_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A product with each weight of an output's channel for each of its values."""
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    weight = inputs[1].shape
    channels = weight[1] if op.attrs["transposed"] else weight[0]
    assert isinstance(channels, int)
    made = numel(inputs[0].shape if op.attrs["transposed"] else outputs[0].shape, batch_size)
    return Cost(2.0 * made * numel(weight, 1) / max(channels, 1), float(moved))


def _convolution_gradient(
    *tensors: torch.Tensor, num_inputs: int, wrt: tuple[int, ...], given: tuple[int, ...], **attrs: Any
) -> tuple[torch.Tensor, ...]:
    """What autograd gives, without the convolution that it would make first."""
    x, weight, *bias = tensors[:num_inputs]
    sizes, mask = [b.numel() for b in bias] or None, [place in wrt for place in range(3)]
    numbers = (attrs[name] for name in ("stride", "padding", "dilation", "transposed", "output_padding", "groups"))
    found = torch.ops.aten.convolution_backward(tensors[-1], x, weight, sizes, *numbers, mask)
    return tuple(found[place] for place in wrt)


def _recurrent_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A product with each weight for each step of each example."""
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    steps = numel(inputs[0].shape[:-1], batch_size)
    states = 3 if op.type == "Lstm" else 2
    return Cost(2.0 * steps * sum(numel(b.shape, 1) for b in inputs[states:]), float(moved))


def _recurrent_shapes(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """Those of two steps, with as many steps as there are: torch goes through each, on the meta device, too."""
    along = 1 if op.attrs.get("batch_first") else 0
    x, *others = inputs
    steps = x.shape[along] if len(x.shape) == 3 else 1
    if not isinstance(steps, int) or steps <= 2:
        return infer_by_kernel(definition, op, inputs)
    short = replace(x, shape=(*x.shape[:along], 2, *x.shape[along + 1 :]))
    (shape, dtype), *states = infer_by_kernel(definition, op, [short, *others])
    return [((*shape[:along], steps, *shape[along + 1 :]), dtype), *states]


_WRITTEN = ("Convolution", *RECURRENT)


def _definition(type: str, **traits: Any) -> OpDef:
    return OpDef(type, _kernel(type), many=len(aten_op(type)._schema.returns) > 1, **traits)


_CONVOLUTION = _definition("Convolution", cost=_convolution_cost, work="batched")
DEFINITIONS = (
    _CONVOLUTION,
    replace(vjp_definition(_CONVOLUTION), kernel=_convolution_gradient),
    *(_definition(type, elementwise=True) for type in _ELEMENTWISE),
    *(_definition(type) for type in _OTHERS if type not in _WRITTEN),
    *(_definition(type, cost=_recurrent_cost, work="batched", infer=_recurrent_shapes) for type in RECURRENT),
    *(_definition(type, gradient=None) for type in _WITHOUT_GRADIENT),
    *(_definition(type, cost=no_cost, work="none", view=True) for type in _VIEWS),
)
