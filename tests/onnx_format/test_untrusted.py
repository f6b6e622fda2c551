"""Nets on disk that nobody should trust: everything that `write_net` did not write is refused in one line."""

from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htrain.errors import PlanError
from htrain.net.net import B, BatchDim, Blob, Init, Net, Parameter
from htrain.onnx_format.files import read_net, to_model, write_net
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder


def small_net() -> Net:
    builder = NetBuilder("net")
    builder.input(Blob("unique", (BatchDim(3, bound=True),), "int64"))
    builder.input(Blob("x", (B, 6), "float32"))
    builder.input(Blob("dw", (4, 6), "float32"))
    builder.parameter(Parameter("user_id", (50, 4), "float32", "table", Init("normal", (0.0, 0.1), zero_rows=(0,))))
    for name, shape in (("w", (4, 6)), ("mean", (4, 6)), ("square", (4, 6)), ("step", ())):
        builder.parameter(Parameter(name, shape, "float32", "weight", Init("constant", (0.5,))))
    builder.add("Lookup", ("user_id", "unique"), attrs={"first_row": 0}, module="user_id")
    (y,) = builder.add("FC", ("x", "w"), module="top")
    builder.add("Slice", (y,), attrs={"axis": 1, "start": 0, "end": 2, "step": 1})
    builder.add("Constant", (), attrs={"value": constant_of(torch.arange(5.0))})
    attrs = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    builder.add("Adam", ("w", "mean", "square", "step", "dw"), attrs=attrs, module="top")
    return builder.build((y,))


GOOD = small_net()


def refuse(tmp_path: Path, model: onnx.ModelProto, match: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(PlanError, match=match) as caught:
        read_net(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def damage_op_type(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Conv"


def damage_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


def damage_attribute_type(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Adam")
    node.attribute[0].type = onnx.AttributeProto.GRAPHS


def damage_attribute_name(model: onnx.ModelProto) -> None:
    next(n for n in model.graph.node if n.op_type == "Adam").attribute[0].name = "gamma"


def damage_missing_attribute(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Adam")
    del node.attribute[:]
    del node.metadata_props[:]


def damage_metadata(model: onnx.ModelProto) -> None:
    model.graph.node[0].metadata_props.add(key="colour", value="red")


def damage_exact(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Adam")
    next(p for p in node.metadata_props if p.key == "exact").value = '{"lr": 1e9}'


def damage_deep_json(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Adam")
    next(p for p in node.metadata_props if p.key == "exact").value = "[" * 100_000


def damage_dtype(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING


def damage_dim(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"


def damage_negative_dim(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -4


def damage_twice_written(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def damage_unknown_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"


def damage_huge_constant(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [2**62]


def damage_external_data(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def damage_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 9


def damage_init(model: onnx.ModelProto) -> None:
    parameter = next(v for v in model.graph.input if v.metadata_props)
    next(
        p for p in parameter.metadata_props if p.key == "init"
    ).value = '{"kind": "normal", "arguments": [0.0, Infinity], "zero_rows": []}'


def damage_table_as_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="extra", data_type=1, dims=[1], raw_data=b"\0\0\0\0")


def damage_function(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="d")


def damage_subgraph(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (damage_op_type, r"node 0, Conv '.*': op Conv of domain 'ai\.htrain' is not one that htrain runs"),
        (damage_domain, r"of domain 'com\.example' is not one that htrain runs"),
        (damage_attribute_type, r"Adam 'w': attribute 'beta1' is of kind 10, which htrain does not write"),
        (damage_attribute_name, r"Adam 'w': attribute 'gamma' is not one of Adam's: lr, beta1, beta2, eps"),
        (damage_missing_attribute, r"Adam 'w': attribute 'lr' is missing"),
        (damage_metadata, r"node 0, .* is not as htrain writes it"),
        (damage_exact, r"Adam 'w': is not as htrain writes it"),
        (damage_deep_json, r"Adam 'w': metadata '\[\[.*' is not JSON"),
        (damage_dtype, r"blob '.*' has a dtype that htrain does not know \(8\)"),
        (damage_dim, r"blob '.*': dimension 'N' is no number"),
        (damage_negative_dim, r"blob '.*': dimension '-4' is no number"),
        (damage_twice_written, r"which is already written"),
        (damage_unknown_input, r"reads 'nowhere' before anything writes it"),
        (damage_huge_constant, r"initializer '.*': constant .* holds 8 bytes, want 36893488147419103232"),
        (damage_external_data, r"initializer '.*': a constant with external data"),
        (damage_opset, r"is not a net of this htrain: IR version 10, opsets"),
        (damage_init, r"parameter '.*': init .* wants 2 finite arguments"),
        (damage_table_as_initializer, r"GraphProto\.initializer is not as htrain writes it"),
        (damage_function, r"ModelProto\.functions is not as htrain writes it"),
        (damage_subgraph, r"attribute 'body' is of kind 5, which htrain does not write"),
    ],
)
def test_a_file_that_htrain_did_not_write_is_refused_in_one_line(damage: object, match: str, tmp_path: Path) -> None:
    model = to_model(GOOD)
    damage(model)  # type: ignore[operator]
    refuse(tmp_path, model, match)


@pytest.mark.parametrize(
    ("data", "match"), [(b"", "has 0 bytes"), (b"\x08\x0a\xff", "not an ONNX file"), (b"hello", "not an ONNX")]
)
def test_a_file_that_is_no_protobuf_is_refused(data: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    with pytest.raises(PlanError, match=match):
        read_net(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.onnx: No such file"):
        read_net(tmp_path / "none.onnx")
    with pytest.raises(PlanError, match="Is a directory"):
        read_net(tmp_path)
    with pytest.raises(PlanError, match=r"cannot be written: No such file"):
        write_net(GOOD, tmp_path / "none" / "net.onnx")


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    data = to_model(GOOD).SerializeToString(deterministic=True)
    path = tmp_path / "cut.onnx"
    for end in range(0, len(data), 97):
        path.write_bytes(data[:end])
        with pytest.raises(PlanError, match=r"cut\.onnx"):
            read_net(path)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=3))
def test_flipped_bytes_give_a_plan_error_or_a_net_that_is_written_back_as_it_was_read(
    flips: list, tmp_path: Path
) -> None:
    data = bytearray(to_model(GOOD).SerializeToString(deterministic=True))
    for position, mask in flips:
        data[position % len(data)] ^= mask
    path = tmp_path / "flipped.onnx"
    path.write_bytes(data)
    try:
        net = read_net(path)
    except PlanError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert to_model(net) == onnx.ModelProto.FromString(bytes(data))
