"""Embedding bags of ONNX files are loops there: they compile to bags, and what is no bag is refused. Branches are taken where the batch does not decide."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.onnx_model import capture_onnx
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

WIDTH = 4
Bag = tuple[int, str, int | None, bool]  # rows, mode, padding_idx, whether it has weights
PLAIN: Sequence[Bag] = (
    (2000, "sum", None, False), (2000, "mean", None, False), (2000, "max", None, False), (2000, "sum", None, True), (20, "mean", None, False),
    (20, "sum", None, True), (20, "max", None, False),
)  # fmt: skip
PADDED: Sequence[Bag] = (
    (2000, "sum", 0, False), (2000, "mean", 3, False), (2000, "max", 5, False), (2000, "sum", 2, True), (20, "sum", 7, False), (20, "mean", 0, False),
    (20, "max", 3, False), (20, "sum", 1, True),
)  # fmt: skip


class Bags(nn.Module):
    """Bags of each kind over the same ids, of `width` an example."""

    def __init__(self, kinds: Sequence[Bag]) -> None:
        super().__init__()
        self.kinds = kinds
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, 3, mode=mode, padding_idx=padding) for rows, mode, padding, _ in kinds
        )
        self.top = nn.Linear(3 * len(kinds), 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        pooled = [
            bag(ids, per_sample_weights=dense[:, : ids.shape[1]] if weighted else None)
            for bag, (*_, weighted) in zip(self.bags, self.kinds, strict=True)
        ]
        return self.top(torch.cat(pooled, 1))[:, 0]


def exported(model: nn.Module, width: int, path: Path, *, dynamo: bool) -> None:
    given = torch.randn(6, 13), torch.randint(0, 20, (6, width))
    names = {"input_names": ["dense", "ids"], "output_names": ["logit"]}
    if dynamo:
        open_batch = tuple({0: torch.export.Dim.DYNAMIC} for _ in given)
        torch.onnx.export(model, given, path, dynamo=True, dynamic_shapes=open_batch, verbose=False, **names)
    else:
        axes = {name: {0: "batch"} for name in ("dense", "ids", "logit")}
        torch.onnx.export(model, given, path, dynamo=False, dynamic_axes=axes, **names)


@pytest.mark.filterwarnings("ignore")  # of the exporters
@pytest.mark.parametrize(
    ("kinds", "width", "dynamo"),
    [(PLAIN, WIDTH, True), (PADDED, WIDTH, True), (PADDED, 1, True), (PLAIN, WIDTH, False), (PLAIN, 1, False)],
)
def test_bags_of_both_exporters_pool_as_pytorch(
    kinds: Sequence[Bag], width: int, dynamo: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, path = Bags(kinds).eval(), tmp_path / "bags.onnx"
    exported(model, width, path, dynamo=dynamo)
    capsys.readouterr()
    captured = capture_onnx(path)
    types = [op.type for op in captured.net.ops]
    whole = sum(rows == 2000 and (mode != "max" or width == 1) for rows, mode, *_ in kinds)
    assert types.count("EmbeddingBag") == whole  # of one row each, all bags are sums
    for batch in (1, 5):
        ids = torch.randint(0, 9, (batch, width))
        ids[0] = 3  # which is all padding
        given = {"dense": torch.randn(batch, 13), "ids": ids}
        found = interpret(captured.net, parameters_of(captured), given, batch)
        torch.testing.assert_close(found, model(**given), rtol=1e-5, atol=1e-6)
    assert capsys.readouterr().err == ""
    asked = capture_model(str(path), schema=CRITEO, example_inputs={}, logit="", label="")
    assert asked.compare(Options()).notes == ()


def parameters_of(captured: Captured) -> dict[str, torch.Tensor]:
    return {name: value for name, value in captured.values.items() if name in captured.net.parameters}


# -- what is none


def file_of(
    nodes: Sequence[onnx.NodeProto], path: Path, *, shape: Sequence[str] | None = None, **weights: np.ndarray
) -> Path:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3] if shape is None else shape)]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def branch(name: str, *nodes: onnx.NodeProto, out: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["batch", 3])])


def test_a_loop_that_is_no_bag_is_refused(tmp_path: Path) -> None:
    """The running sums of a batch's rows."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"]),
            helper.make_node("Add", ["before", "row"], ["after"]),
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Identity", ["after"], ["kept"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, [3]),
        ],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["count"]),
        helper.make_node("Loop", ["count", "", "zeros"], ["last", "y"], name="sums", body=body),
    ]
    path = file_of(nodes, tmp_path / "loop.onnx", first=np.array(0), zeros=np.zeros(3, np.float32))
    with pytest.raises(ModelError, match=r"op Loop 'sums': htrain knows Loop as PyTorch exports nn\.EmbeddingBag"):
        capture_onnx(path)


def test_a_branch_is_the_one_that_every_batch_takes(tmp_path: Path) -> None:
    wide = branch("wide", helper.make_node("Add", ["x", "x"], ["double"]), out="double")
    narrow = branch("narrow", helper.make_node("Identity", ["x"], ["same"]), out="same")
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "second"], ["columns"]),
        helper.make_node("Equal", ["columns", "three"], ["is_three"]),
        helper.make_node("If", ["is_three"], ["picked"], then_branch=wide, else_branch=narrow),
        helper.make_node("ReduceSum", ["picked", "axes"], ["y"], keepdims=0),
    ]
    for three, times in ((3, 2), (4, 1)):
        held = {"second": np.array(1), "three": np.array(three), "axes": np.array([1])}
        net = capture_onnx(file_of(nodes, tmp_path / f"{three}.onnx", shape=["batch"], **held)).net
        x = torch.randn(5, 3)
        torch.testing.assert_close(interpret(net, {}, {"x": x}, 5), times * x.sum(1))


def test_branches_that_call_their_values_alike_are_told_apart(tmp_path: Path) -> None:
    def times(number: float) -> onnx.GraphProto:
        held = helper.make_tensor("held", TensorProto.FLOAT, [], [number])
        nodes = (
            helper.make_node("Constant", [], ["times"], value=held),
            helper.make_node("Mul", ["x", "times"], ["own"]),
        )
        return branch("times", *nodes, out="own")

    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "second"], ["columns"]),
        helper.make_node("Equal", ["columns", "three"], ["yes"]),
        helper.make_node("Not", ["yes"], ["no"]),
        helper.make_node("If", ["yes"], ["first"], then_branch=times(2), else_branch=times(3)),
        helper.make_node("If", ["no"], ["other"], then_branch=times(5), else_branch=times(7)),
        helper.make_node("Mul", ["first", "other"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axes"], ["y"], keepdims=0),
    ]
    held = {"second": np.array(1), "three": np.array(3), "axes": np.array([1])}
    x = torch.randn(5, 3)
    net = capture_onnx(file_of(nodes, tmp_path / "two.onnx", shape=["batch"], **held)).net
    torch.testing.assert_close(interpret(net, {}, {"x": x}, 5), (2 * x * 7 * x).sum(1))


def test_a_branch_that_a_batch_decides_is_refused(tmp_path: Path) -> None:
    wide = branch("wide", helper.make_node("Add", ["x", "x"], ["double"]), out="double")
    narrow = branch("narrow", helper.make_node("Identity", ["x"], ["same"]), out="same")
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_more"]),
        helper.make_node("If", ["is_more"], ["y"], name="pick", then_branch=wide, else_branch=narrow),
    ]
    path = file_of(nodes, tmp_path / "if.onnx", zero=np.array(0, np.float32))
    with pytest.raises(ModelError, match="op If 'pick': goes another way by the values or the size of a batch"):
        capture_onnx(path)
