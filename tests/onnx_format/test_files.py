"""Nets on disk: exact round trips, and what other readers of ONNX make of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from sample import Sample as OpSample
from torch_samples import OF_TORCH

from htrain.net.net import Attr, B, BatchDim, Blob, Init, Net, Op, Parameter, Tensor
from htrain.onnx_format.files import DOMAIN, from_model, read_net, to_model, write_net
from htrain.onnx_format.schemas import attributes_of, register_schemas
from htrain.ops import OPS, joint, joint_passes, transfer
from htrain.ops.accelerated import accelerated_type
from htrain.ops.base import constant_of
from htrain.ops.builder import NO_ATTRS, NetBuilder
from htrain.ops.torch_ops import TORCH_OPS

F32, F64, I64, BOOL = "float32", "float64", "int64", "bool"
X = ("x", (B, 6), F32)
Y = ("y", (B, 6), F32)
IDS = ("ids", (B, 3), I64)
MASK = ("mask", (B, 6), BOOL)
ROWS = ("rows", (BatchDim(3, bound=True), 4), F32)
TABLE = ("#table", (50, 4), F32)
UNIQUE = ("unique", (BatchDim(3, bound=True),), I64)
Operand = tuple[str, tuple, str]
Sample = tuple[str, tuple[Operand, ...], Mapping[str, Attr]]


def weight(name: str, *shape: int) -> Operand:
    return (f"={name}", shape, F32)


def each(types: str, *operands: Operand, attrs: Mapping[str, Attr] = NO_ATTRS) -> tuple[Sample, ...]:
    return tuple((type, operands, attrs) for type in types.split())


def as_float(sample: OpSample, place: int) -> Sample:
    """A sample of values, as one of a net on disk: names are its own, and numbers float32."""
    dtypes = [
        str(draw(torch.Generator(), tuple(d if isinstance(d, int) else d.at(2) for d in shape)).dtype)
        for shape, draw in sample.operands
    ]
    floats = [F32 if dtype == "torch.float64" else dtype.removeprefix("torch.") for dtype in dtypes]
    operands = (
        (f"t{place}_{i}", shape, dtype)
        for i, ((shape, _), dtype) in enumerate(zip(sample.operands, floats, strict=True))
    )
    return sample.type, tuple(operands), sample.attrs


REDUCE: Mapping[str, Attr] = {"axes": (1,), "keepdims": True}
HET = {"bounds": (0, 30, 60), "servers": (0, 1), "first_rows": (0, 5), "width": 4}
HET_STEP = {"staleness": -1, "optimizer": "sgd", "lr": 0.1, "eps": 1e-10}
HET_CACHE = {"first_keys": (0, 30), "capacity": 20, "policy": "light-lfu", **HET_STEP}
CLOCKS, CLOCKS_2 = (("clocks", UNIQUE[1], "int32"), ("stale", UNIQUE[1], "int32"))
REQUEST = (("counts", (3,), I64), ("keys", UNIQUE[1], "int32"), CLOCKS, ROWS)
GMP_STEP = {"staleness": 3, "optimizer": "adagrad", "lr": 0.1, "eps": 1e-10}
GMP_OF = {"partition": "ab12", "tables": "a\nb", "sources": "u\nv", "source_tables": (0, 1), "source_rows": (0, 4)}
GMP_HELD = {
    "num_tables": 2, "first_keys": (0, 30), "owners": (0, 2), "place_tables": (1,), "sources": "u\nv", "source_keys": (0, 34), "partition": "ab12",
    "intra": True, "inter": False, "deferred": True, "asked": (1500, 0), "replicated": (250, 0), "secondaries": 20,
}  # fmt: skip
STATES = ("states", (UNIQUE[1][0], 4), F32)
SAMPLES: tuple[Sample, ...] = (
    *each(
        "Abs Cos Erf Exp HardSigmoid HardSwish Log Log1p Mish Neg Reciprocal Rsqrt Sin Softplus Sqrt Swish Ceil Trunc",
        X,
    ),
    *each("Floor IsNaN Round Sign Identity Relu Sigmoid Tanh ZerosLike Detach", X),
    *each(
        "Div Max Min Pow Equal Greater GreaterOrEqual Less LessOrEqual NotEqual Add Sub Mul Mod FloorDiv PRelu", X, Y
    ),
    *each("ReluGradient SigmoidGradient TanhGradient SumLike ReshapeLike", X, Y),
    *each("Div Mod Equal Add Max", IDS, IDS),
    *each("And Or Xor Equal", MASK, MASK),
    *each("BitwiseAnd BitwiseOr BitwiseXor", IDS, IDS),
    *each("BitwiseNot", IDS),
    *each(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceVariance ReduceLogSumExp", X, attrs=REDUCE
    ),
    *each("ReduceSum ReduceMax", X, attrs={"axes": (), "keepdims": False}),
    ("ReduceSum", (MASK,), REDUCE),
    ("Not", (MASK,), {}),
    ("Not", (X,), {}),
    ("Add", (X, ("d", (B, 6), F64)), {}),
    ("Sum", (X, Y, X), {}),
    ("Where", (MASK, X, Y), {}),
    ("Cast", (X,), {"to": "bfloat16"}),
    ("Cast", (X,), {"to": "int64"}),
    ("Clip", (X,), {"min": -0.1, "max": float("inf")}),
    ("Clip", (IDS,), {"min": 0, "max": 5}),
    ("Elu", (X,), {"alpha": 0.1}),
    ("LeakyRelu", (X,), {"alpha": 1}),
    ("Gelu", (X,), {"approximate": "tanh"}),
    ("GeluGradient", (X, Y), {"approximate": "none"}),
    ("Softmax", (X,), {"axis": -1}),
    ("SoftmaxGradient", (X, Y), {"axis": -1}),
    ("LogSoftmax", (X,), {"axis": 1}),
    ("ArgMax", (X,), {"axis": 1, "keepdims": False}),
    ("CumSum", (X,), {"axis": 1}),
    ("LayerNormalization", (X, weight("scale", 6), weight("shift", 6)), {"axis": -1, "epsilon": 1e-5}),
    ("LayerNormalization", (X,), {"axis": 1, "epsilon": 1e-12}),
    ("FC", (X, weight("w", 4, 6), weight("b", 4)), {}),
    ("FC", (X, weight("v", 4, 6)), {}),
    ("FCGradient", (X, weight("w", 4, 6), ("dy", (B, 4), F32)), {"bias": True, "wants_x": False}),
    ("FastFC", (X, weight("w", 4, 6), weight("b", 4)), {}),
    ("FastFCGradient", (X, weight("w", 4, 6), ("dy", (B, 4), F32)), {"bias": True, "wants_x": True}),
    ("FCRelu", (X, weight("w", 4, 6), weight("b", 4)), {}),
    (
        "FastConvolution",
        (("image", (B, 4, 7), F32), weight("kernel", 6, 4, 1), weight("channels", 6)),
        {"stride": (1,), "padding": (0,), "dilation": (1,), "transposed": False, "output_padding": (0,), "groups": 1},
    ),
    ("FCInputGradient", (weight("w", 4, 6), ("dy", (B, 4), F32)), {}),
    ("FCSgd", (weight("w", 4, 6), weight("b", 4), X, ("dy", (B, 4), F32)), {"lr": 0.1}),
    ("PairwiseDots", (("q", (B, 3, 5), F32), ("pairs", (4,), I64)), {"kept": 1}),
    ("PairwiseDotsGradient", (("q", (B, 3, 5), F32), ("pairs", (4,), I64), ("dy", (B, 9), F32)), {"kept": 1}),
    ("MatMul", (("q", (B, 3, 5), F32), ("k", (B, 5, 3), F32)), {}),
    ("Einsum", (X, Y), {"equation": "bi,bi->b"}),
    ("Einsum", (X, Y), {"equation": "bI,bI->b"}),
    ("Reshape", (X,), {"shape": (-1, 2, 3)}),
    ("Transpose", (("t", (B, 3, 5), F32),), {"perm": (0, 2, 1)}),
    ("Concat", (X, Y), {"axis": 1}),
    ("Split", (X,), {"axis": 1, "split": (2, 4)}),
    ("Slice", (X,), {"axis": -1, "start": 1, "end": 2**62, "step": 2}),
    ("SliceGradient", (X, ("dy3", (B, 3), F32)), {"axis": 1, "start": 0, "end": 6, "step": 2}),
    ("Select", (X,), {"axis": 1, "index": -2}),
    ("SelectGradient", (X, ("dy1", (B,), F32)), {"axis": 1, "index": 0}),
    ("SelectsGradient", (X, ("dy1", (B,), F32), ("dy2", (B,), F32)), {"axis": 1, "indices": (0, -1)}),
    ("Stack", (X, Y), {"axis": 1}),
    ("Unstack", (X,), {"axis": 1}),
    ("GatherGradient", (X, ("i", (2,), I64), ("dyi", (B, 2), F32)), {"axis": 1}),
    ("Gather", (X, ("i", (2,), I64)), {"axis": 1}),
    ("GatherElements", (X, IDS), {"axis": 1}),
    ("BroadcastTo", (("row", (1, 6), F32),), {"shape": (-2, 6)}),
    ("BroadcastTo", (("row", (1, 6), F32),), {"shape": (5, 6)}),
    ("BroadcastTo", (("picked", (BatchDim(2, bound=True), 1), F32),), {"shape": (0, 6)}),
    ("FlatNonZero", (("mask", (B, 3), "bool"),), {}),
    ("Unique", (IDS,), {}),
    ("Fill", (), {"shape": (-1, 2), "value": 0.1, "dtype": F32}),
    ("Fill", (), {"shape": (3,), "value": 0.1, "dtype": F32}),
    ("Fill", (), {"shape": (3,), "value": 7.0, "dtype": I64}),
    ("Constant", (), {"value": constant_of(torch.tensor([[1.5, float("-inf")], [0.0, float("nan")]]))}),
    ("Constant", (), {"value": constant_of(torch.tensor([True, False]))}),
    ("Constant", (), {"value": Tensor("int8", (0,), b"")}),
    ("Pad", (X,), {"pads": (1, 2), "value": -1.5}),
    ("Pad", (X,), {"pads": (1, -2), "value": 0.1}),
    ("Tril", (("square", (4, 4), F32),), {"diagonal": -1}),
    ("Triu", (("square", (4, 4), F32),), {"diagonal": 1}),
    ("Flip", (X,), {"axes": (1,)}),
    ("Embedding", (TABLE, IDS), {"padding_idx": -1}),
    ("EmbeddingBag", (TABLE, IDS), {"mode": "mean", "padding_idx": 0, "weighted": False}),
    ("Dedupe", (IDS,), {"padding_idx": -1}),
    ("DedupeSharded", (IDS,), {"padding_idx": -1, "bounds": (0, 20, 50)}),
    ("MaskPlaces", (IDS, IDS), {"padding_idx": 0}),
    ("Lookup", (TABLE, UNIQUE), {"first_row": 0}),
    ("LookupShards", (TABLE, weight("rest", 20, 4), UNIQUE), {"bounds": (0, 50, 70)}),
    ("TakeRows", (ROWS, IDS), {}),
    ("TakeRowsGradient", (ROWS, IDS, ("dz", (B, 3, 4), F32)), {}),
    ("PoolRows", (ROWS, IDS), {"mode": "sum", "weighted": False}),
    ("PoolRowsGradient", (ROWS, IDS, ("dp", (B, 4), F32)), {"mode": "sum", "weighted": False, "wants_weights": False}),
    ("ConcatRows", (ROWS, ROWS), {}),
    ("SplitRows", (ROWS, UNIQUE), {}),
    ("BceWithLogits", (("logit", (B, 1), F32), ("label", (B,), F32)), {}),
    ("OwnLoss", (("seed", (), F32), ("label", (B,), F32)), {}),
    ("Bce", (("logit", (B, 1), F32), ("label", (B,), F32)), {}),
    ("BceGradient", (("logit", (B, 1), F32), ("label", (B,), F32), ("seed", (), F32)), {}),
    ("BceWithLogitsGradient", (("logit", (B, 1), F32), ("label", (B,), F32), ("seed", (), F32)), {}),
    ("MeanSquaredError", (("logit", (B, 1), F32), ("label", (B,), F32)), {}),
    ("MeanSquaredErrorGradient", (("logit", (B, 1), F32), ("label", (B,), F32), ("seed", (), F32)), {}),
    ("GradientSeed", (("loss", (), F32),), {}),
    ("Sgd", (weight("w", 4, 6), ("dw", (4, 6), F32)), {"lr": 0.1}),
    ("Adagrad", (weight("w", 4, 6), weight("a", 4, 6), ("dw", (4, 6), F32)), {"lr": 0.1, "eps": 1e-10}),
    (
        "Adam",
        (weight("w", 4, 6), weight("m", 4, 6), weight("s", 4, 6), weight("n"), ("dw", (4, 6), F32)),
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    ),
    (
        "CountedStep",
        (weight("w", 4, 6), weight("m", 4, 6), ("n", (), I64), ("dw", (4, 6), F32)),
        {
            "optimizer": "sgd",
            "lr": 0.1,
            "momentum": 0.9,
            "nesterov": True,
            "clip_norm": 1.0,
            "schedule": "steps",
            "milestones": (3, 9),
            "gamma": 0.1,
        },
    ),
    (
        "CountedRowStep",
        (TABLE, weight("m", 50, 4), weight("s", 50, 4), ("n", (), I64), IDS, ROWS),
        {
            "optimizer": "sparse_adam",
            "lr": 0.1,
            "first_row": 2,
            "beta1": 0.9,
            "beta2": 0.99,
            "schedule": "linear",
            "decay": 9,
        },
    ),
    (
        "CountedRowStep",
        (TABLE, weight("m", 50, 4), weight("s", 50), ("n", (), I64), IDS, ROWS),
        {"optimizer": "rowwise_adam", "lr": 0.1, "first_row": 2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8},
    ),
    (
        "CountedRowStep",
        (TABLE, weight("m", 50, 4), ("n", (), I64), IDS, ROWS),
        {"optimizer": "lazy_momentum", "lr": 0.1, "first_row": 2, "lazy_momentum": 0.9},
    ),
    ("BoundTable", (TABLE, IDS), {"max_norm": 0.5, "first_row": 2}),
    ("BoundRows", (ROWS,), {"max_norm": 0.5}),
    ("SparseSgd", (TABLE, IDS, ROWS), {"lr": 0.01, "first_row": 2**40}),
    ("SparseAdagrad", (TABLE, weight("acc", 50, 4), IDS, ROWS), {"lr": 0.01, "eps": 0.0, "first_row": 0}),
    ("SparseRowWiseAdagrad", (TABLE, weight("one", 50), IDS, ROWS), {"lr": 0.01, "eps": 0.0, "first_row": 0}),
    ("ClipTogether", (("dw", (4, 6), F32), ("db", (4,), F32)), {"max_norm": 0.5}),
    ("DecayedRows", (ROWS, ("more", ROWS[1], F32)), {"decay": 0.01}),
    (
        "SparseFtrl",
        (TABLE, weight("zn", 50, 8), IDS, ROWS),
        {"lr": 0.1, "beta": 1.0, "l1": 0.5, "l2": 0.0, "first_row": 2**40},
    ),
    ("LookupTables", (TABLE, weight("rest", 20, 4), UNIQUE, UNIQUE), {"first_rows": (0, 50)}),
    (
        "SparseStepTables",
        (TABLE, weight("acc", 50, 4), UNIQUE, ROWS),
        {"optimizer": "adagrad", "lr": 0.01, "eps": 1e-10, "first_rows": (2**40,)},
    ),
    ("SumRows", (UNIQUE, ROWS), {}),
    ("StackRows", (("row", (B, 4), F32), ROWS, ("place", (B,), I64)), {"dense": 1}),
    ("StackRowsGradient", (("row", (B, 4), F32), ROWS, ("place", (B,), I64), ("dy", (B, 2, 4), F32)), {"dense": 1}),
    ("TakeTables", (TABLE, ("fields", (B, 2), I64)), {"tables": (0,)}),
    ("StepTakenTables", (TABLE, ("fields", (B, 2), I64), ("dy", (B, 2, 4), F32)), {"tables": (0,), "lr": 0.1}),
    ("StackTables", (TABLE, ("fields", (B, 2), I64)), {"dense": 0, "columns": (1,)}),
    ("StepTables", (TABLE, ("fields", (B, 2), I64), ("dy", (B, 2, 4), F32)), {"dense": 1, "columns": (0,), "lr": 0.1}),
    (
        "PairwiseDotsSgd",
        (TABLE, ("fields", (B, 2), I64), ("q", (B, 2, 4), F32), ("pairs", (3,), I64), ("dy", (B, 3), F32)),
        {"dense": 1, "columns": (0,), "lr": 0.1},
    ),
    ("AllReduce", (X, ("bias_grad", (4,), F32)), {}),
    ("AllGather", (UNIQUE, ROWS), {}),
    ("LookaheadAnnounce", (weight("cache", 14), UNIQUE), {}),
    (
        "LookaheadSlots",
        (weight("cache", 14), weight("rows", 20, 4), weight("acc", 20), UNIQUE),
        {"num_rows": 50, "sets": 7, "ways": 2, "bounds": (0, 20, 50), "patch": True, "window": 9},
    ),
    ("FlushVictims", (weight("cache", 14), weight("rows", 20, 4), weight("acc", 20)), {}),
    ("LookaheadRequest", (weight("cache", 14),), {"shards": 2, "width": 5, "per_example": 3}),
    ("LookaheadAnswer", (weight("cache", 14), ROWS), {}),
    ("WriteBack", (TABLE, weight("acc", 50), UNIQUE, ("values", (UNIQUE[1][0], 5), F32)), {"first_row": 0}),
    ("Prefetch", (TABLE, weight("acc", 50), UNIQUE), {"first_row": 20}),
    ("HetAsk", (weight("cache", 20, 8), UNIQUE, ("other", UNIQUE[1], I64)), {**HET, **HET_CACHE}),
    ("HetAnnounce", (weight("cache", 20, 8), UNIQUE, ("other", UNIQUE[1], I64)), {"first_keys": (0, 30)}),
    ("HetFlush", (weight("cache", 20, 8),), HET),
    ("HetFlushed", (weight("cache", 20, 8), ROWS, CLOCKS, CLOCKS_2), {}),
    ("HetPush", (weight("clock", 50), TABLE, *REQUEST), {"num_tables": 1, **HET_STEP}),
    ("HetPull", (weight("clock", 50), TABLE, weight("acc", 50), *REQUEST), {"num_tables": 1, "barrier": True}),
    (
        "HetRead",
        (weight("cache", 20, 8), UNIQUE, ("o", UNIQUE[1], I64), ROWS, CLOCKS, CLOCKS_2),
        {"num_tables": 1, "width": 4},
    ),
    ("HetWrite", (weight("cache", 20, 8), UNIQUE, ROWS), {}),
    (
        "GmpAsk",
        (weight("cache", 20, 12), UNIQUE, ("other", UNIQUE[1], I64), ("places", (B, 3), I64)),
        {**HET, **GMP_STEP, **GMP_HELD},
    ),
    ("GmpFlush", (weight("cache", 20, 12),), HET),
    ("GmpFlushed", (weight("cache", 20, 12), ROWS, STATES, CLOCKS, CLOCKS_2), {}),
    ("GmpPush", (weight("clock", 50), TABLE, *REQUEST), {"num_tables": 1, **GMP_OF, **GMP_STEP}),
    ("GmpPull", (weight("clock", 50), TABLE, weight("acc", 50, 4), *REQUEST), {"num_tables": 1, "barrier": True}),
    (
        "GmpRead",
        (weight("cache", 20, 12), UNIQUE, ("o", UNIQUE[1], I64), ROWS, STATES, CLOCKS, CLOCKS_2),
        {"num_tables": 1, "width": 4},
    ),
    ("GmpWrite", (weight("cache", 20, 12), UNIQUE, ROWS), {}),
    ("IsRow", (IDS, ("row", (), I64)), {"original": constant_of(torch.tensor(3))}),
    ("FCBfloat16", (X, weight("w", 4, 6), weight("b", 4)), {}),
    ("FCInt8", (X, weight("v", 4, 6)), {}),
    ("QuantizeRows", (X,), {}),
    ("DequantizeRows", (("q", (B, 6), "uint8"), ("ranges", (B, 2), F32)), {}),
    ("TopK", (X,), {"share": 0.1}),
    ("TopKWithFeedback", (X, weight("residual", 8, 6)), {"share": 0.1}),
    ("SpreadWhole", (("kept", (5,), F32), ("places", (5,), "int32")), {"shape": (6, 4)}),
    ("SpreadTopK", (("kept", (UNIQUE[1][0],), F32), ("places", (UNIQUE[1][0],), "int32")), {"shape": (6,)}),
    ("Send", (X,), {"peer": "sparse_ps:0", "message": 3}),
    ("Ack", (), {}),
    ("Begin", (), {}),
    ("Snapshot", (weight("w", 4, 6),), {}),
    ("ElasticDifference", (weight("w", 4, 6), ("snap", (4, 6), F32)), {"alpha": 0.45}),
    ("Relax", (weight("w", 4, 6), ("diff", (4, 6), F32)), {}),
    ("Advance", (weight("w", 4, 6), ("diff", (4, 6), F32)), {}),
    ("AverageSnapshots", (weight("w", 4, 6), weight("t", 4, 6), weight("n", 1), ("snap", (4, 6), F32)), {"groups": 3}),
    (
        "BlockStep",
        (weight("w", 4, 6), weight("m", 4, 6), weight("t", 4, 6), weight("n", 1), ("snap", (4, 6), F32)),
        {"groups": 3, "decay": 0.5, "lr": 1.0, "nesterov": True},
    ),
    ("OffCentre", (weight("w", 4, 6), ("snap", (4, 6), F32)), {"alpha": 0.5, "barrier": True}),
    ("UniformFill", (weight("w", 4, 6),), {"seed": 2**55 + 1, "first_row": 0, "low": -0.1, "high": 0.1}),
    ("NormalFill", (weight("w", 4, 6),), {"seed": 1, "first_row": 9, "mean": 0, "std": 1e-300}),
    ("ConstantFill", (weight("w", 4, 6),), {"value": 0.1}),
    ("ZeroRows", (TABLE,), {"rows": (0, 3), "first_row": 0}),
    ("FileFill", (weight("w", 4, 6),), {"first_row": 0, "first_column": 3}),
    *each("BatchNorm", X, *(weight(f"norm_{name}", 6) for name in "abcd"), attrs={"eps": 1e-5, "momentum": 0.1}),
    *each(
        "BatchNormGradient", X, *(weight(f"norm_{name}", 6) for name in "abc"), Y, attrs={"eps": 1e-5, "wrt": (0, 1, 2)}
    ),
    *each(
        "GhostBatchNorm",
        X,
        *(weight(f"norm_{name}", 6) for name in "ab"),
        ("size", (), I64),
        *(weight(f"norm_{name}", 6) for name in "cd"),
        attrs={"eps": 1e-5, "momentum": 0.1},
    ),
    *each(
        "GhostBatchNormGradient", X, weight("norm_a", 6), ("size", (), I64), Y, attrs={"eps": 1e-5, "wrt": (0, 1, 2)}
    ),
    *each("BatchNormalization", X, *(weight(f"norm_{name}", 6) for name in "abcd"), attrs={"epsilon": 1e-5}),
    *each("Dropout", X, ("key", (1,), I64), attrs={"p": 0.3, "seed": 2**55 + 1}),
    *each(
        "NormalDraw",
        ("key", (1,), I64),
        attrs={"shape": (-1, 2), "mean": 0.0, "std": 0.1, "seed": 2**55 + 1, "always": False},
    ),
    *each(
        "UniformDraw", ("key", (1,), I64), attrs={"shape": (3,), "low": -1.0, "high": 1.0, "seed": 1, "always": True}
    ),
    *each("DropoutGradient", X, MASK, attrs={"p": 0.3}),
    *(as_float(sample, place) for place, sample in enumerate(OF_TORCH) if sample.type in TORCH_OPS),
)


def add_sample(builder: NetBuilder, sample: Sample, *, node_name: str = "", module: str = "") -> None:
    """Append the op of a sample, declaring the inputs and parameters that it needs and that are not there yet."""
    type, operands, attrs = sample
    names = []
    for marked, shape, dtype in operands:
        name = marked.lstrip("=#")
        names.append(name)
        if name in builder.blobs or name in builder.parameters:
            continue
        if marked.startswith("#"):
            init = Init("normal", (0.0, 0.1), zero_rows=(0, 7))
            builder.parameter(Parameter(name, shape, dtype, "table", init, of="whole", first_row=1200))
        elif marked.startswith("="):
            builder.parameter(Parameter(name, shape, dtype, "weight", Init("file"), trained=name != "v"))
        else:
            builder.input(Blob(name, shape, dtype))
    builder.add(type, names, attrs=attrs, node_name=node_name, module=module)


def net_of(*samples: Sample) -> Net:
    builder = NetBuilder("net")
    for sample in samples:
        add_sample(builder, sample)
    return builder.build([o for op in builder.ops[-1:] for o in op.outputs])


def with_received(net: Net) -> Net:
    op = Op("Recv", (), ("received",), {"peer": "trainer", "message": 0}, "dense_ps:0", "recv")
    return net.with_ops((*net.ops, op), [Blob("received", (BatchDim(26, bound=True), 4), F32)])


WORDS = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    builder = NetBuilder(draw(WORDS))
    for sample in draw(st.lists(st.sampled_from(SAMPLES), max_size=8)):
        add_sample(builder, sample, node_name=draw(WORDS), module=draw(WORDS))
    written = [name for op in builder.ops for name in op.outputs]
    outputs = draw(st.lists(st.sampled_from(written), unique=True)) if written else []
    return with_received(builder.build(outputs))


QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@QUICK
@given(net=nets())
def test_any_net_comes_back_from_disk_as_it_was(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_net(net, path)
    again = read_net(path)
    assert again == net
    assert repr([op.attrs for op in again.ops]) == repr(
        [{k: op.attrs[k] for k in again.ops[i].attrs} for i, op in enumerate(net.ops)]
    )
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@QUICK
@given(net=nets(), shuffle=st.randoms())
def test_equal_nets_give_equal_bytes(net: Net, shuffle: object, tmp_path: Path) -> None:
    def shuffled(mapping: Mapping) -> dict:
        items = list(mapping.items())
        shuffle.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    ops = tuple(replace(op, attrs=shuffled(op.attrs)) for op in net.ops)
    other = replace(net, ops=ops, blobs=shuffled(net.blobs), parameters=shuffled(net.parameters))
    write_net(net, tmp_path / "a.onnx")
    write_net(other, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample[0])
def test_onnx_checker_and_shape_inference_accept_each_op(sample: Sample) -> None:
    model = to_model(net_of(sample))
    onnx.checker.check_model(model, full_check=True)
    assert from_model(model, "here") == net_of(sample)


def test_samples_cover_every_op_but_recv_and_the_generic_gradients() -> None:
    generic = {type for type in OPS if "num_inputs" in attributes_of(type)}
    as_they_run = {
        *(d.type for family in (joint, joint_passes, transfer) for d in family.DEFINITIONS),
        *(accelerated_type(d.type) for d in OPS.values() if d.accelerated),
    }  # in no plan
    assert {sample[0] for sample in SAMPLES} == set(OPS) - generic - {"Recv"} - as_they_run


def test_generic_gradients_come_back_and_pass_the_checker() -> None:
    builder = NetBuilder("net")
    for sample in SAMPLES:
        if OPS[sample[0]].gradient is not None and sample[0] + "Gradient" in OPS:
            add_sample(builder, sample)
    for op in list(builder.ops):
        dys = [
            builder.input(Blob(builder.fresh(f"{o}_dy"), builder.blob(o).shape, builder.blob(o).dtype))
            for o in op.outputs
        ]
        gradient = OPS[op.type].gradient
        assert gradient is not None
        gradient(builder, op, dys, [True] * len(op.inputs))
    net = builder.build(())
    model = to_model(net)
    onnx.checker.check_model(model, full_check=True)
    assert from_model(model, "here") == net


def test_registering_the_schemas_twice_is_registering_them_once() -> None:
    register_schemas()
    register_schemas()
    assert all(onnx.defs.has(type, DOMAIN) for type in OPS)


STANDARD = [
    s
    for s in SAMPLES
    if s[1] and not any(m[0] in "=#" for m, _, _ in s[1]) and not to_model(net_of(s)).graph.node[0].domain
]


@pytest.mark.parametrize("sample", STANDARD, ids=lambda sample: sample[0])
def test_what_is_written_as_onnx_computes_what_onnx_says(sample: Sample) -> None:
    net = net_of(sample)
    torch.manual_seed(0)
    feeds = {name: random_tensor(net.blobs[name], batch_size=4) for name in net.inputs}
    (op,) = net.ops
    batch = {"batch": 4} if OPS[op.type].needs_batch else {}
    ours = OPS[op.type].kernel(*(feeds[name] for name in op.inputs), **op.attrs, **batch)
    ours = ours if isinstance(ours, tuple) else (ours,)
    model = to_model(replace(net, outputs=op.outputs))
    theirs = ReferenceEvaluator(model).run(None, {name: t.numpy() for name, t in feeds.items()})
    for mine, other in zip(ours, theirs, strict=True):
        assert str(mine.dtype).removeprefix("torch.") == other.dtype.name
        expected = torch.from_numpy(other.astype("float64"))
        torch.testing.assert_close(mine.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def random_tensor(blob: Blob, *, batch_size: int) -> torch.Tensor:
    shape = [d if isinstance(d, int) else d.at(batch_size) for d in blob.shape]
    if blob.dtype == BOOL:
        return torch.rand(shape) < 0.5
    if blob.dtype == I64:
        return torch.randint(1, 2 if blob.name == "i" else 6, shape)
    return torch.rand(shape, dtype=getattr(torch, blob.dtype)) + 0.1
