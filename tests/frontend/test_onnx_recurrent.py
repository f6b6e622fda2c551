"""ONNX's GRU, LSTM and RNN, captured: what onnx's evaluator computes, and as they train in PyTorch."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from htrain.errors import ModelError
from htrain.frontend.onnx_model import capture_onnx
from htrain.ops import OPS
from htrain.self_check.onnx_reference import check_file
from htrain.spec.options import Options
from tests.support.onnx_training import check_trains_alike, exported

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
RANDOM = np.random.default_rng(0)
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
STEPS, WIDTH, HIDDEN, EXAMPLES = 4, 3, 2, 6
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def saved(
    path: Path,
    type: str,
    *,
    output: int = 0,
    bias: bool = True,
    lengths: bool = False,
    begins: bool = False,
    **attrs: object,
) -> onnx.ModelProto:
    """A file of one layer over x[B,STEPS,WIDTH], and lengths[B] and states[B,D,HIDDEN], which gives one of its outputs, the batch first."""
    directions, batch_first = DIRECTIONS[str(attrs.get("direction", "forward"))], bool(attrs.get("layout", 0))
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {"x": (TensorProto.FLOAT, (STEPS, WIDTH))}
    shapes |= {"lengths": (TensorProto.INT32, ())} if lengths else {}
    states = ["h", "c"][: (1 + (type == "LSTM")) if begins else 0]
    shapes |= dict.fromkeys(states, (TensorProto.FLOAT, (directions, HIDDEN)))
    inputs = [helper.make_tensor_value_info(name, kind, ["B", *shape]) for name, (kind, shape) in shapes.items()]
    first = "x" if batch_first else "x_t"
    operands = [first, "W", "R", "bias" if bias else "", "lengths" if lengths else ""]
    operands += states if batch_first else [f"{name}_t" for name in states]
    names = ["out" if i == output else "" for i in range(3 if type == "LSTM" else 2)]
    orders = {0: [2, 0, 1, 3]} if not batch_first else {0: [0, 1, 2, 3]}
    nodes = [helper.make_node("Transpose", [name], [f"{name}_t"], perm=[1, 0, 2]) for name in ("x", *states)]
    nodes.append(helper.make_node(type, operands, names, **{"hidden_size": HIDDEN, **attrs}))
    perm = orders.get(output, [0, 1, 2] if batch_first else [1, 0, 2])
    nodes.append(helper.make_node("Transpose", ["out"], ["y"], perm=perm))
    gates = GATES[type] * HIDDEN
    weights = {"W": floats(directions, gates, WIDTH), "R": floats(directions, gates, HIDDEN)}
    weights |= {"bias": floats(directions, 2 * gates)} if bias else {}
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", *"pqr"[: len(perm) - 1]])
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [out], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return model


def feeds_of(model: onnx.ModelProto, lengths: NDArray | None = None) -> dict[str, NDArray]:
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim[1:]] for v in model.graph.input}
    found = {name: floats(EXAMPLES, *shape) for name, shape in shapes.items() if name != "lengths"}
    return {name: lengths if name == "lengths" and lengths is not None else found[name] for name in shapes}


def run(path: Path, feeds: Mapping[str, NDArray]) -> NDArray:
    captured = capture_onnx(path)
    values = {name: torch.from_numpy(array) for name, array in feeds.items()} | dict(captured.values)
    for op in captured.net.ops:
        values.update(
            zip(op.outputs, OPS[op.type].run(op, [values[name] for name in op.inputs], EXAMPLES), strict=True)
        )
    return values[captured.net.outputs[0]].numpy()


def _expected(model: onnx.ModelProto, feeds: Mapping[str, NDArray], *, by_runtime: bool) -> NDArray:
    if by_runtime:
        return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layers_of_every_form_compute_what_onnx_says(type: str, direction: str, tmp_path: Path) -> None:
    own = {
        "GRU": [{"linear_before_reset": 0}, {"linear_before_reset": 1}],
        "RNN": [{}, {"activations": ["Relu", "Relu"]}],
    }
    for attrs, layout, begins, output in product(own.get(type, [{}]), (0, 1), (False, True), range(3)):
        if output == 2 and type != "LSTM":
            continue
        given = {
            name: value[: DIRECTIONS[direction]] if isinstance(value, list) else value for name, value in attrs.items()
        }
        bias = begins == bool(layout)
        model = saved(
            tmp_path / "m.onnx", type, output=output, bias=bias, begins=begins, direction=direction, layout=layout, **given
        )  # fmt: skip
        feeds = feeds_of(model)
        if given.get("activations") and layout:
            continue  # neither evaluator takes both
        expected = _expected(model, feeds, by_runtime="activations" in given)
        label = f"{given} {layout} {begins} {output}"
        np.testing.assert_allclose(run(tmp_path / "m.onnx", feeds), expected, rtol=1e-5, atol=1e-5, err_msg=label)


@pytest.mark.parametrize("type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_examples_of_several_lengths_are_each_as_by_themselves(type: str, direction: str, tmp_path: Path) -> None:
    """Behind its last step an example's output is zeros, and all of one without any, as in ONNX Runtime."""
    lengths = np.array([1, 4, 2, 3, 4, 0], np.int32)
    for output, reset in product(range(2), (0, 1) if type == "GRU" else (None,)):
        attrs = {"direction": direction, **({} if reset is None else {"linear_before_reset": reset})}
        model = saved(tmp_path / "m.onnx", type, output=output, lengths=True, begins=True, **attrs)
        feeds = feeds_of(model, lengths)
        found = run(tmp_path / "m.onnx", feeds)
        for i, length in enumerate(lengths):
            alone = {name: array[i : i + 1] for name, array in feeds.items()}
            alone["x"] = alone["x"][:, : max(length, 1)]
            (expected,) = ReferenceEvaluator(model).run(None, alone)
            row = expected[0] if length else np.zeros_like(expected[0])
            if output == 0:
                np.testing.assert_allclose(found[i, length:], 0)
            np.testing.assert_allclose(
                found[i, :length] if output == 0 else found[i],
                row[:length] if output == 0 else row,
                rtol=1e-5,
                atol=1e-5,
            )


def test_the_self_check_knows_lengths_and_relu(tmp_path: Path) -> None:
    """Both of which onnx's evaluator leaves out, or refuses."""
    path = tmp_path / "m.onnx"
    for type, lengths, attrs in (
        ("LSTM", True, {"direction": "bidirectional"}),
        ("GRU", True, {"direction": "reverse", "layout": 1, "linear_before_reset": 1}),
        ("RNN", False, {"activations": ["Relu"]}),
    ):
        model = saved(path, type, lengths=lengths, begins=True, **attrs)
        model.graph.node.append(helper.make_node("ReduceMean", ["y", "axes"], ["logit"], keepdims=0))
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3]), "axes"))
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["B"]))
        onnx.save(model, path)
        assert check_file(capture_onnx(path), path, "", Options()).notes == ()


def test_lengths_that_are_the_number_of_steps_are_no_lengths(tmp_path: Path) -> None:
    """tf2onnx writes them for every layer."""
    model = saved(tmp_path / "m.onnx", "LSTM", lengths=True, output=2)
    full = [
        helper.make_node("Shape", ["x"], ["batch"], end=1),
        helper.make_node("Expand", ["steps", "batch"], ["lengths"]),
    ]
    model.graph.initializer.append(numpy_helper.from_array(np.array([STEPS], np.int32), "steps"))
    nodes = [*full, *model.graph.node]
    del model.graph.node[:], model.graph.input[1:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "m.onnx")
    assert [op.type for op in capture_onnx(tmp_path / "m.onnx").net.ops].count("Lstm") == 1
    feeds = feeds_of(model)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(run(tmp_path / "m.onnx", feeds), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("type", "given", "said"),
    [
        ("GRU", {"activations": ["HardSigmoid", "Tanh"]}, r"op GRU 'out': has other activations than sigmoid, tanh: HardSigmoid, Tanh"),
        ("GRU", {"clip": 3.0}, r"op GRU 'out': htrain does not know its attribute clip = 3\.0: express it by other ops"),
        ("LSTM", {"input_forget": 1}, "htrain does not know its attribute input_forget = 1"),
        ("LSTM", {"lengths": True, "output": 2}, "gives the cells of sequences of several lengths, which htrain does not know"),
        ("RNN", {"hidden_size": 5}, "has a hidden_size that is not that of its weights, 2"),
    ],
)  # fmt: skip
def test_what_pytorchs_layers_have_not_is_refused(type: str, given: dict, said: str, tmp_path: Path) -> None:
    saved(tmp_path / "m.onnx", type, **given)
    with pytest.raises(ModelError, match=said):
        capture_onnx(tmp_path / "m.onnx")


class Sequences(nn.Module):
    """Layers of two levels and directions, whose biases begin alike, and one that is called twice: exporters merge the one, and copy the other."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 8)
        self.shared = kind(8, 6, batch_first=True)  # type: ignore[call-arg]
        self.deep = kind(6, 4, batch_first=True, num_layers=2, bidirectional=True)  # type: ignore[call-arg]
        self.out = nn.Linear(14, 1)
        for name, weight in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(weight)

    def forward(self, clicked: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        first = self.shared(self.items(clicked))[0]
        second = self.shared(self.items(seen))[0]
        return self.out(torch.cat([first[:, -1], self.deep(first * second)[0].mean(1)], 1))


@pytest.mark.parametrize(("kind", "dynamo"), [(nn.GRU, True), (nn.GRU, False), (nn.LSTM, True), (nn.RNN, False)])
def test_a_model_with_recurrent_layers_trains_as_its_original(
    kind: type[nn.RNNBase], dynamo: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, example = Sequences(kind).eval(), tuple(torch.ones(2, 4, 5, dtype=torch.int64))
    captured = capture_onnx(exported(model, example, tmp_path / "m.onnx", dynamo=dynamo))
    check_trains_alike(model, captured, lambda size: tuple(torch.randint(0, 2000, (2, size, 5))))
    assert sum(op.type in ("Gru", "Lstm", "Rnn") for op in captured.net.ops) == 4
    assert sum("_W" in name or "::" in name or name.startswith("val_") for name in captured.net.parameters) == 9
