"""Files that store half precision compile as those of float32 with the same numbers."""

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from htrain.data import CRITEO
from htrain.frontend.captured import Captured
from htrain.frontend.onnx_model import capture_onnx
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporters


class Tower(nn.Module):
    """A table, a matrix that is none, a norm and a product, of numbers that halves of both kinds have."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.few = nn.Embedding(2000, 4), nn.Embedding(20, 4)
        self.norm, self.top = nn.LayerNorm(21), nn.Linear(21, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-8, 9, parameter.shape) / 8)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        looked_up = [self.rows(ids[:, 0]), self.few(ids[:, 1])]
        known = torch.where(dense > -1, dense, torch.zeros_like(dense))
        return self.top(self.norm(torch.cat([*looked_up, known], 1))).squeeze(1)


def exported(path: Path, model: nn.Module, *, dynamo: bool = False) -> None:
    given = torch.randn(6, 13).to(model.top.weight.dtype), torch.randint(0, 20, (6, 2))
    names = {"input_names": ["dense", "ids"], "output_names": ["logit"]}
    if dynamo:
        sizes = ({0: torch.export.Dim.DYNAMIC},) * 2
        torch.onnx.export(
            model, given, path, dynamo=True, dynamic_shapes=sizes, verbose=False, external_data=True, **names
        )
    else:
        axes = {name: {0: "batch"} for name in ("dense", "ids", "logit")}
        torch.onnx.export(model, given, path, dynamo=False, opset_version=17, dynamic_axes=axes, **names)


def cast_weights(path: Path, half: int) -> None:
    """Each floating initializer is stored as halves, and cast before it is used."""
    model = onnx.load(path)
    graph = model.graph
    for tensor in [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]:
        values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(half))
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(values, f"{tensor.name}.half"))
        graph.node.insert(0, helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=TensorProto.FLOAT))
    onnx.save(model, path)


def check_is(model: nn.Module, path: Path) -> Captured:
    """The file compiles to what `model`, of float32, computes; its self-check agrees."""
    captured = capture_onnx(path)
    parameters = captured.net.parameters.values()
    assert {parameter.dtype for parameter in parameters} == {"float32"}
    assert all(p.trained for p in parameters)
    assert [parameter.shape for parameter in parameters if parameter.kind == "table"] == [(2000, 4)]
    given = {"dense": torch.randn(5, 13), "ids": torch.randint(0, 20, (5, 2))}
    values = {name: captured.values[name] for name in captured.net.parameters}
    torch.testing.assert_close(interpret(captured.net, values, given, 5), model(**given), rtol=1e-5, atol=1e-6)
    asked = capture_model(str(path), schema=CRITEO, example_inputs={}, logit="", label="")
    assert asked.compare(Options()).notes == ()
    return captured


@pytest.mark.parametrize("half", HALVES)
def test_weights_that_are_cast_before_they_are_used_are_of_float32(half: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Tower(), tmp_path / "cast.onnx"
    exported(path, model)
    cast_weights(path, HALVES[half])
    captured = check_is(model, path)
    assert "Cast" not in {op.type for op in captured.net.ops}
    (note,) = (note for note in captured.notes if "float32" in note)
    assert note.endswith(f" and 1 more: stored as {half}, read and trained as float32")
    assert "rows.weight.half" in note


@pytest.mark.parametrize(("half", "dynamo"), [("float16", False), ("float16", True), ("bfloat16", True)])
def test_a_file_that_is_of_halves_throughout_is_of_float32(half: str, dynamo: bool, tmp_path: Path) -> None:
    """By the newer exporter with its weights in a file beside it."""
    torch.manual_seed(0)
    model, path = Tower(), tmp_path / "half.onnx"
    exported(path, copy.deepcopy(model).to(getattr(torch, half)), dynamo=dynamo)
    captured = check_is(model, path)
    assert {captured.net.blobs[name].dtype for op in captured.net.ops for name in op.outputs} <= {
        "float32",
        "int64",
        "bool",
    }


def test_halves_inside_of_a_branch_are_widened(tmp_path: Path) -> None:
    """A constant of halves, one that is filled, and a cast, all in a branch of an If that no batch changes."""
    half, ids = TensorProto.FLOAT16, helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 2])
    filled = numpy_helper.from_array(np.array([0.25], np.float16))
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([1]))),
        helper.make_node("ConstantOfShape", ["shape"], ["quarter"], value=filled),
        helper.make_node("Gather", ["outer", "ids"], ["picked"], axis=0),
        helper.make_node("ReduceSum", ["picked", "axes"], ["pooled"], keepdims=0),
        helper.make_node("Add", ["pooled", "quarter"], ["more"]),
        helper.make_node("Cast", ["more"], ["y_half"], to=half),
        helper.make_node("Cast", ["y_half"], ["y"], to=TensorProto.FLOAT),
    ]
    branch = helper.make_graph(
        nodes, "taken", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["always"], ["logit"], then_branch=branch, else_branch=branch)],
        "model",
        [ids],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch", 1])],
        [
            numpy_helper.from_array(np.array([[1.5], [2.0], [-0.5]], np.float16), "outer"),
            numpy_helper.from_array(np.array(True), "always"),
            numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )
    path = tmp_path / "branch.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    captured = capture_onnx(path)
    given = {"ids": torch.tensor([[0, 1], [2, 2], [1, 2]])}
    values = {name: captured.values[name] for name in captured.net.parameters}
    assert {value.dtype for value in values.values()} == {torch.float32}
    assert interpret(captured.net, values, given, 3).reshape(-1).tolist() == [3.75, -0.75, 1.75]


def test_a_file_that_stores_no_halves_keeps_its_casts(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["rounded"], to=TensorProto.FLOAT16),
            helper.make_node("Cast", ["rounded"], ["again"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["again", "w"], ["logit"]),
        ],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.ones((3, 1), np.float32), "w")],
    )
    path = tmp_path / "casts.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    captured = capture_onnx(path)
    assert [op.attrs["to"] for op in captured.net.ops if op.type == "Cast"] == ["float16", "float32"]
    assert captured.notes == ()
