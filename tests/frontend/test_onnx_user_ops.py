"""Nodes of a user's own ops in an ONNX file, against the kernels that the user has registered and PyTorch's gradients of them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from own_ops import ops_are_forgotten

from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO
from htrain.errors import Error
from htrain.own.registry import load_own
from htrain.plan.plan import Plan
from htrain.self_check.capture import capture_model
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

FILE = """
import torch
from htrain import OpDef, register
def sloped(x: torch.Tensor, *, slope: float = 0.5, twice: bool = False, how: str = "", shape: tuple[int, ...] = ()) -> torch.Tensor:
    return torch.where(x > 0, x, slope * x) * (2 if twice else 1) * (3 if how == "three" else 1) + sum(shape)
register(OpDef("Sloped", sloped, elementwise=True))
register(OpDef("Halves", lambda x: (x[:, :3] * 2, x[:, 3:] * 3), many=True))
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("my_ops.py").write_text(FILE)
    with ops_are_forgotten():
        load_own(["my_ops.py"])
        yield


def compiled(*nodes: onnx.NodeProto) -> Plan:
    """A file with a layer before `nodes`, which make y[B,6] of x[B,6], and one behind, compared with onnx's evaluator by the self-check."""
    draw = np.random.default_rng(3)
    weights = {"first": (13, 6), "top": (6, 1)}
    stored = [
        numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()
    ]
    ends = (helper.make_node("MatMul", ["dense", "first"], ["x"]), helper.make_node("MatMul", ["y", "top"], ["logit"]))
    inputs = [helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["B", 13])]
    outputs = [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["B", 1])]
    graph = helper.make_graph([ends[0], *nodes, ends[1]], "net", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "model.onnx")
    model = capture_model("model.onnx", schema=CRITEO, example_inputs={}, logit="", label="")
    captured = model.checked(Options())
    assert not captured.notes
    return compile_net(captured, this_machine(trainers=1, group_ps=1), Options(), name="m")


def sloped(**attributes: object) -> onnx.NodeProto:
    return helper.make_node("Sloped", ["x"], ["y"], domain="mine", **attributes)


@pytest.mark.parametrize(
    "attributes", [{}, {"slope": 0.25}, {"twice": 1}, {"how": "three"}, {"shape": [1, 2]}], ids=str
)
def test_a_node_is_the_op_of_its_type_with_its_attributes(attributes: dict[str, object]) -> None:
    """The self-check compares it with the kernel in onnx's evaluator, and gradients with autograd's."""
    plan = compiled(sloped(**attributes))
    (op,) = (op for op in plan.nets["train"].ops if op.type == "Sloped")
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in op.attrs.items()} == attributes
    assert set(plan.ops) == {"Sloped", "SlopedGradient"}


def test_a_node_may_have_several_outputs() -> None:
    cut = helper.make_node("Halves", ["x"], ["a", "b"], domain="mine")
    plan = compiled(cut, helper.make_node("Concat", ["b", "a"], ["y"], axis=1))
    assert "Halves" in {op.type for op in plan.nets["train"].ops}


REFUSED = {
    "an attribute that the op does not take": (sloped(rate=0.1), "rate = 0.1"),
    "an attribute of another type": (sloped(slope="a"), "Sloped"),
    "an op that nobody has registered": (
        helper.make_node("Slooped", ["x"], ["y"], domain="mine"),
        "htrain has no such op of mine",
    ),
    "a name of theirs in ONNX's own domain": (helper.make_node("Sloped", ["x"], ["y"]), "Sloped"),
    "too few outputs": (helper.make_node("Halves", ["x"], ["y"], domain="mine"), "gives 2 outputs, 1 are named"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_is_not_as_the_op_wants_it_is_refused(case: str) -> None:
    node, words = REFUSED[case]
    with pytest.raises(Error, match=words):
        compiled(node)
