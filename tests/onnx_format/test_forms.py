"""Which ops stand on disk as ONNX's own, and what of an op is metadata."""

import struct
from collections.abc import Mapping
from dataclasses import replace

import onnx
import pytest

from htrain.errors import PlanError
from htrain.net.net import Attr, B, BatchDim, Blob, Init, Net, Parameter
from htrain.onnx_format.files import DOMAIN, to_model
from htrain.ops.builder import NetBuilder

X = Blob("x", (B, 6), "float32")
Y = Blob("y", (B, 6), "float32")
IDS = Blob("ids", (B, 3), "int64")
ROW = Blob("row", (1, 6), "float32")
W = Parameter("w", (4, 6), "float32", "weight", Init("file"))
BIAS = Parameter("b", (4,), "float32", "weight", Init("file"))
TABLE = Parameter("table", (50, 4), "float32", "table", Init("normal", (0.0, 0.1)), first_row=7, of="whole")
UNIQUE = Blob("unique", (BatchDim(3, bound=True),), "int64")
Sample = tuple[str, tuple[Blob | Parameter, ...], Mapping[str, Attr]]


def net_of(sample: Sample, *, node_name: str = "", module: str = "") -> Net:
    type, operands, attrs = sample
    builder = NetBuilder("net")
    for operand in {o.name: o for o in operands}.values():
        if isinstance(operand, Parameter):
            builder.parameter(operand)
        else:
            builder.input(operand)
    return builder.build(builder.add(type, [o.name for o in operands], attrs=attrs, node_name=node_name, module=module))


def node_of(sample: Sample) -> onnx.NodeProto:
    return to_model(net_of(sample)).graph.node[0]


@pytest.mark.parametrize(
    ("sample", "op_type"),
    [
        (("FC", (X, W, BIAS), {}), "Gemm"),
        (("Slice", (X,), {"axis": 1, "start": 0, "end": 2, "step": 1}), "Slice"),
        (("ReduceMean", (X,), {"axes": (1,), "keepdims": False}), "ReduceMean"),
        (("Select", (X,), {"axis": 1, "index": 2}), "Gather"),
        (("Tril", (X,), {"diagonal": 0}), "Trilu"),
        (("BroadcastTo", (ROW,), {"shape": (5, 6)}), "Expand"),
    ],
)
def test_forward_ops_carry_the_names_of_onnx(sample: Sample, op_type: str) -> None:
    node = node_of(sample)
    assert (node.op_type, node.domain) == (op_type, "")


@pytest.mark.parametrize(
    "sample",
    [
        ("FC", (Blob("wide", (B, 3, 6), "float32"), W), {}),  # Gemm is of matrices
        ("Div", (IDS, IDS), {}),  # torch's true division; ONNX's is of integers
        ("Add", (X, Blob("d", (B, 6), "float64")), {}),  # ONNX does not promote
        ("Mod", (X, Y), {}),  # of floats, ONNX has C's fmod alone
        ("Reshape", (Blob("none", (0, 6), "float32"),), {"shape": (0, 2, 3)}),  # ONNX copies a dimension for 0
        ("BroadcastTo", (ROW,), {"shape": (-1, 6)}),  # -1 is the batch
    ],
)
def test_what_onnx_would_compute_otherwise_is_an_op_of_htrain(sample: Sample) -> None:
    assert node_of(sample).domain == DOMAIN


def test_tags_and_parameters_are_metadata_that_other_readers_see() -> None:
    sample: Sample = ("Lookup", (TABLE, UNIQUE), {"first_row": 0})
    model = to_model(net_of(sample, node_name="sparse_ps:1", module="user_id"))
    (node,) = model.graph.node
    assert {p.key: p.value for p in node.metadata_props} == {"node_name": "sparse_ps:1", "module": "user_id"}
    ids, table = model.graph.input
    assert ids.type.tensor_type.shape.dim[0].dim_param == "<=3B"
    assert {p.key: p.value for p in table.metadata_props} == {
        "kind": "table",
        "init": '{"kind": "normal", "arguments": [0.0, 0.1], "zero_rows": []}',
        "of": "whole",
        "first_row": "7",
        "first_column": "0",
        "trained": "True",
    }
    assert not model.graph.initializer


def test_a_double_is_exact_on_disk_though_onnx_rounds_it() -> None:
    node = node_of(("Sgd", (W, Blob("dw", (4, 6), "float32")), {"lr": 0.1}))
    assert node.attribute[0].f == struct.unpack("f", struct.pack("f", 0.1))[0]
    assert {p.key: p.value for p in node.metadata_props}["exact"] == '{"lr": 0.1}'


def test_writing_refuses_an_attribute_that_reading_would() -> None:
    net = net_of(("LeakyRelu", (X,), {"alpha": 0.1}))
    odd = replace(net, ops=(replace(net.ops[0], attrs={"alpha": "0.1"}),))
    with pytest.raises(PlanError, match=r"net 'net': op 0, LeakyRelu: attribute 'alpha' is 0\.1, want float"):
        to_model(odd)
