"""ONNX files against onnx's own evaluator."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend import onnx_model
from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_model import capture_onnx
from htrain.frontend.onnx_operator import Operator
from htrain.self_check.capture import capture_model
from htrain.self_check.check import check
from htrain.self_check.onnx_reference import check_file
from htrain.self_check.ours import Ours
from htrain.self_check.outcome import Rows
from htrain.self_check.torch_reference import TorchReference
from htrain.self_check.values import Table, Values
from htrain.spec.options import Options

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)  # of torch's exporters
RANDOM = np.random.default_rng(0)
X = "(float[B,4] x) => (float[B] y)"


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def saved(path: Path, signature: str, body: str, initializers: Mapping[str, NDArray], *, opset: int = 20) -> Path:
    graph = parser.parse_graph(f"g {signature} {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def compare(path: Path, *, logit: str = "", options: Options = Options()) -> tuple[str, ...]:  # noqa: B008  frozen
    return check_file(capture_onnx(path, logit=logit), path, logit, options).notes


class Padded(nn.Module):
    """Lookups with padding rows, of tables that are large, that repeat in the self-check, and that are small, zeros or not."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.small = nn.Embedding(4000, 4, padding_idx=0), nn.Embedding(30, 4, padding_idx=2)
        self.kept, self.free = nn.Embedding(1100, 4, padding_idx=-1), nn.Embedding(1200, 4)
        nn.init.normal_(self.kept.weight)
        self.linear = nn.ModuleList(nn.Embedding(1300, 1, padding_idx=p) for p in (0, None))
        for table in self.linear:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        seen = [table(i) for table in (self.items, self.kept, self.free)] + [self.small(i % 30)]
        return torch.stack(seen).sum((0, 2)).tanh().sum(1) + sum(table(i).sum((1, 2)) for table in self.linear)


def test_a_padding_row_that_torchs_exporter_tells_of_gets_no_gradient(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, path = Padded(), tmp_path / "m.onnx"
    ids = torch.tensor([[0, 1, 1099, 2], [5, 0, 32, 1099], [2, 2, 1009, 0]])
    torch.onnx.export(module, (ids,), path, dynamo=True, verbose=False, input_names=["i"], dynamic_shapes=({0: torch.export.Dim("batch")},))  # fmt: skip
    captured = capture_onnx(path)
    check_file(captured, path, "", Options())
    values = Values(
        {n: v for n, v in captured.values.items() if captured.net.parameters[n].kind != "table"},
        {n: Table(len(v), v) for n, v in captured.values.items() if captured.net.parameters[n].kind == "table"},
    )
    label = torch.tensor([0.0, 1.0, 1.0])
    seen = Ours(captured, Options()).run(values, {"i": ids}, label)
    nn.functional.binary_cross_entropy_with_logits(module(ids), label).backward()
    for name, parameter in module.named_parameters():
        found = seen.gradients.get(name, seen.gradients.get(f"linear.0.weight@p_{name.replace('.', '_')}"))
        dense = torch.zeros_like(parameter).index_add_(0, found.ids, found.rows) if isinstance(found, Rows) else found
        assert parameter.grad is not None
        torch.testing.assert_close(dense, parameter.grad)


class Mix(nn.Module):
    """Tables of two sizes, a shared layer, equal experts, and parameters that start alike."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.users = nn.Embedding(1200, 8), nn.Embedding(30_000, 8)
        self.shared, self.experts = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.biases = nn.ParameterList(torch.zeros(8, 1) for _ in range(2))
        self.top = nn.Linear(8, 1)
        self.experts[1].load_state_dict(self.experts[0].state_dict())
        for layer in (self.shared, *self.experts):
            nn.init.zeros_(layer.bias)

    def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.users(user)) * self.shared(self.items(items)).mean(1)
        for norm, expert, bias in zip(self.norms, self.experts, self.biases, strict=True):
            x = x + torch.tanh(expert(norm(x))) * (x.unsqueeze(2) + bias).squeeze(2)
        return self.top(x).squeeze(1)


@pytest.fixture(params=[True, False], ids=["exported program", "traced"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    inputs = (torch.zeros(4, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64))
    path, batch = tmp_path / "mix.onnx", torch.export.Dim("batch", min=2)
    if request.param:
        torch.onnx.export(Mix(), inputs, path, dynamo=True, dynamic_shapes=({0: batch}, {0: batch}), verbose=False)
    else:
        axes = {"user": {0: "batch"}, "items": {0: "batch"}}
        torch.onnx.export(Mix(), inputs, path, dynamo=False, input_names=list(axes), dynamic_axes=axes)
    return path


def test_weights_that_start_alike_stay_as_many_as_the_module_has(exported: Path) -> None:
    captured = capture_onnx(exported)
    wanted = sorted(tuple(p.shape) for p in Mix().parameters())
    assert sorted(p.shape for p in captured.net.parameters.values()) == wanted
    assert all(p.trained for p in captured.net.parameters.values())
    assert any("once, as they start alike" in note for note in captured.notes)
    assert check_file(captured, exported, "", Options()).notes == ()


def test_a_layer_that_is_called_with_matrices_and_sequences_stays_one(exported: Path) -> None:
    net = capture_onnx(exported).net
    assert {name for name in net.parameters if sum(name in op.inputs for op in net.ops) > 1} == {
        "shared.weight",
        "shared.bias",
    }


def test_what_a_traced_file_trains_is_what_pytorch_trains(tmp_path: Path) -> None:
    """The file has the names of the module's parameters, so that their gradients can be compared."""
    torch.manual_seed(0)
    module, inputs = Mix(), {"user": torch.zeros(4, dtype=torch.int64), "items": torch.zeros(4, 3, dtype=torch.int64)}
    axes = {name: {0: "batch"} for name in inputs}
    torch.onnx.export(
        module, tuple(inputs.values()), tmp_path / "m.onnx", dynamo=False, input_names=list(inputs), dynamic_axes=axes
    )
    captured = replace(capture_onnx(tmp_path / "m.onnx"), origins={})
    assert check(captured, TorchReference(module, captured, ""), inputs, Options()).notes == ()


WINDOW = """h = Reshape(x, four) k = MatMul(h, w) a = Attention <left_window_size = 1> (h, k, k) m = Reshape(a, flat) n = MatMul(m, v) y = Squeeze(n, one)"""
ATTENTION = {
    "w": floats(1, 1),
    "v": floats(4, 1),
    "four": np.array([0, 1, 4, 1]),
    "flat": np.array([0, 4]),
    "one": np.array([1]),
}
needs_windows = pytest.mark.skipif(onnx.defs.onnx_opset_version() < 25, reason="Attention has no window in this onnx")


@needs_windows
def test_an_attribute_that_nobody_reads_refuses_the_op(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", X, WINDOW, ATTENTION, opset=25)
    with pytest.raises(
        ModelError,
        match=r"op Attention 'a': htrain does not know its attribute left_window_size = 1: express it by other ops",
    ):
        capture_onnx(path)


@needs_windows
def test_without_that_refusal_the_self_check_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(operator: Operator, opset: int) -> Iterator[str]:
        return iter(())

    monkeypatch.setattr(Operator, "overlooked", nothing)
    with pytest.raises(
        ModelError, match=r"^the self-check found that this model would not be trained as by onnx's evaluator: the lo"
    ):
        compare(saved(tmp_path / "m.onnx", X, WINDOW, ATTENTION, opset=25))


def test_two_weights_that_the_reader_takes_for_one_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = floats(4, 4)
    body = "a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = MatMul(c, u) y = Squeeze(d, one)"
    path = saved(tmp_path / "m.onnx", X, body, {"w": equal, "v": equal, "u": floats(4, 1), "one": np.array([1])})
    assert compare(path) == ()
    blob_of = Graph.blob_of

    def merged(graph: Graph, node, value) -> str:
        graph.names.setdefault("v", graph.names.get("w", "w"))
        return blob_of(graph, node, value)

    monkeypatch.setattr(Graph, "blob_of", merged)
    with pytest.raises(ModelError, match="the self-check found"):
        compare(path)


def test_a_probability_is_compared_as_one(tmp_path: Path) -> None:
    body = "h = MatMul(x, w) p = Sigmoid(h) y = Squeeze(p, one)"
    path = saved(tmp_path / "m.onnx", X, body, {"w": floats(4, 1), "one": np.array([1])})
    assert compare(path) == ()
    assert compare(path, options=Options(loss="mse")) == ()


@pytest.mark.parametrize("opset", [6, 999])
def test_an_opset_that_is_not_known_is_refused(opset: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "(float[B,4] x) => (float[B,4] y)", "y = Relu(x)", {}, opset=20)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        ModelError,
        match=rf"m\.onnx: is of opset {opset}; htrain reads opsets 7 to \d+: export it with opset_version=20",
    ):
        capture_onnx(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("t = Dropout(x, half, yes) y = ReduceSum <keepdims = 0> (t, one)", "op Dropout 't': drops out while training: export the model in eval mode"),
        ("t, mean = LayerNormalization (x, w) s = Add(t, mean) y = ReduceSum <keepdims = 0> (s, one)", "gives 1 outputs, 2 are named"),
        ("t = LayerNormalization <stash_type = 11> (x, w) y = ReduceSum <keepdims = 0> (t, one)", "attribute stash_type = 11"),
    ],
)  # fmt: skip
def test_inputs_and_outputs_of_an_op_are_not_forgotten_either(body: str, said: str, tmp_path: Path) -> None:
    values = {"half": np.float32(0.5), "yes": np.array(True), "one": np.array([1]), "w": floats(4)}
    with pytest.raises(ModelError, match=said):
        capture_onnx(saved(tmp_path / "m.onnx", X, body, {n: v for n, v in values.items() if n in body}))


def test_a_file_of_nan_is_refused_by_name(tmp_path: Path) -> None:
    weight = floats(4, 1)
    weight[2] = np.nan
    path = saved(tmp_path / "m.onnx", X, "h = MatMul(x, w) y = Squeeze(h, one)", {"w": weight, "one": np.array([1])})
    with pytest.raises(ModelError, match=r"m\.onnx: parameter 'w' holds nan: give it finite values before compiling"):
        capture_model(path, schema=CRITEO, example_inputs={}, logit="", label="")


def test_equal_elements_that_belong_to_nobody_are_refused(tmp_path: Path) -> None:
    body = "a = Add(x, c) b = Tanh(a) d = Add(b, c) y = ReduceSum <keepdims = 0> (d, one)"
    path = saved(tmp_path / "m.onnx", X, body, {"c": np.zeros(4, np.float32), "one": np.array([1])})
    with pytest.raises(
        ModelError,
        match=r"'c', all of whose elements are equal, is read by 2 ops, and the file does not say whether it is one weight",
    ):
        onnx_model.capture_onnx(path)
