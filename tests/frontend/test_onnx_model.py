"""Whole ONNX files: what their nets compute, where these end, and which files are refused."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from torch import nn

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.onnx_model import capture_onnx
from htrain.net.net import B, BatchDim
from htrain.ops import OPS
from htrain.transform.loss import add_loss

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of torch's exporter
Arrays = Mapping[str, NDArray]
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def saved(path: Path, signature: str, body: str, initializers: Arrays, *, opset: int = 20) -> Path:
    graph = parser.parse_graph(f"g {signature} {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def run(captured: Captured, feeds: Arrays, batch_size: int) -> NDArray:
    values = {name: torch.from_numpy(array) for name, array in feeds.items()} | dict(captured.values)
    for op in captured.net.ops:
        definition = OPS[op.type]
        batch = {"batch": batch_size} if definition.needs_batch else {}
        results = definition.kernel(*(values[name] for name in op.inputs), **op.attrs, **batch)
        values.update(zip(op.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    return values[captured.net.outputs[0]].numpy()


# -- models as other frameworks export them --------------------------------------------------------------------------


class Interest(nn.Module):
    """Attention over a padded behaviour sequence, as in DIN, with an interaction layer as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 8)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.query = nn.Linear(8, 8, bias=False)
        self.dense = nn.Linear(5, 8)
        self.top = nn.Sequential(nn.Linear(19, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, history: torch.Tensor, target: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        rows, wanted = self.items(history) + self.positions, self.query(self.items(target))
        scores = torch.einsum("bd,btd->bt", wanted, rows) / 8**0.5
        weights = scores.masked_fill(history == 0, -1e9).softmax(-1)
        interest = (weights.unsqueeze(-1) * rows).sum(1)
        stacked = torch.stack([interest, wanted, self.dense(dense)], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        low = torch.tril_indices(3, 3, -1)
        features = torch.cat([interest, wanted, products[:, low[0], low[1]]], dim=1)
        return torch.sigmoid(self.top(features).squeeze(-1))


def test_a_model_that_torch_exports_computes_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Interest().eval(), tmp_path / "interest.onnx"
    example = (torch.ones(4, 6, dtype=torch.int64), torch.ones(4, dtype=torch.int64), torch.rand(4, 5))
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=({0: batch},) * 3, verbose=False)
    assert program is not None
    program.save(path)
    captured = capture_onnx(path)
    for size in (3, 7):
        feeds = {
            "history": torch.randint(0, 2000, (size, 6)),
            "target": torch.randint(0, 2000, (size,)),
            "dense": torch.rand(size, 5),
        }
        arrays = {name: tensor.numpy() for name, tensor in feeds.items()}
        output = run(captured, arrays, size)
        (probability,) = ReferenceEvaluator(str(path)).run(None, arrays)
        np.testing.assert_allclose(output, probability, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(probability, model(*feeds.values()).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert {name: p.kind for name, p in captured.net.parameters.items()} == {
        name: "table" if name == "items.weight" else "weight" for name, _ in model.named_parameters()
    }
    assert {op.module for op in captured.net.ops if op.type == "FC"} == {"query", "dense", "top.0", "top.3"}


KERAS = """
    g (int32[unk__1,1] user, int32[unk__2,1] item, float[unk__3,3] price) => (float[unk__4,1] out) {
        user_rows = Gather <axis = 0> ("user/embeddings:0", user)
        user_flat = Squeeze <axes = [1]> (user_rows)
        item_rows = Gather <axis = 0> ("item/embeddings:0", item)
        item_shape = Shape (item_rows)
        item_batch = Slice (item_shape, start, stop, start)
        item_size = Concat <axis = 0> (item_batch, width)
        item_flat = Reshape (item_rows, item_size)
        joined = Concat <axis = 1> (user_flat, item_flat, price)
        h = MatMul (joined, "dense/MatMul/ReadVariableOp:0")
        hb = Add (h, "dense/BiasAdd/ReadVariableOp:0")
        r = Relu (hb)
        o = MatMul (r, "out/MatMul/ReadVariableOp:0")
        logit = Add (o, "out/BiasAdd/ReadVariableOp:0")
        out = Sigmoid (logit)
    }"""


def keras_file(path: Path) -> onnx.ModelProto:
    names = {
        "user/embeddings:0": floats(3000, 4), "item/embeddings:0": floats(1500, 4), "dense/MatMul/ReadVariableOp:0": floats(11, 6),
        "dense/BiasAdd/ReadVariableOp:0": floats(6), "out/MatMul/ReadVariableOp:0": floats(6, 1), "out/BiasAdd/ReadVariableOp:0": floats(1),
        "start": np.array([0]), "stop": np.array([1]), "width": np.array([4]),
    }  # fmt: skip
    text, quoted = KERAS, {name: f"v{i}" for i, name in enumerate(names)}
    for name, plain in quoted.items():
        text = text.replace(f'"{name}"', plain) if f'"{name}"' in text else text.replace(name, plain)
    graph = parser.parse_graph(text)
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = next((long for long, plain in quoted.items() if plain == name), name)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in names.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7, producer_name="tf2onnx")
    onnx.save(model, path)
    return model


def test_a_model_as_tf2onnx_writes_it_computes_the_same(tmp_path: Path) -> None:
    model = keras_file(tmp_path / "keras.onnx")
    captured = capture_onnx(tmp_path / "keras.onnx", logit="out")
    for size in (2, 5):
        feeds = {
            "user": RANDOM.integers(0, 3000, (size, 1)).astype(np.int32),
            "item": RANDOM.integers(0, 1500, (size, 1)).astype(np.int32),
            "price": floats(size, 3),
        }
        (probability,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(run(captured, feeds, size), probability, rtol=1e-5, atol=1e-5)
    net = captured.net
    assert [op.type for op in net.ops].count("FC") == 2
    assert [op.module for op in net.ops if op.type == "FC"] == ["dense/MatMul", "out/MatMul"]
    assert [p.kind for p in net.parameters.values()] == ["table", "table", "weight", "weight", "weight", "weight"]
    assert net.blobs[net.outputs[0]].shape == (B, 1)
    assert captured.notes == ()


# -- where the net ends, and the batch -------------------------------------------------------------------------------


def test_the_bce_loss_takes_the_logit_before_a_sigmoid_that_only_views_follow(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "(float[B,4] x) => (float[B] y)", "h = MatMul(x, w) p = Sigmoid(h) y = Squeeze(p, a)",
                 {"w": floats(4, 1), "a": np.array([1])})  # fmt: skip
    net = capture_onnx(path).net
    assert [op.type for op in add_loss(net, "bce").ops] == ["FC", "Reshape", "BceWithLogits"]
    assert [op.type for op in add_loss(net, "mse").ops] == ["FC", "Sigmoid", "Reshape", "MeanSquaredError"]
    assert net.blobs[net.outputs[0]].shape == (B,)


TWO_OUTPUTS = "(float[B,4] x, float[B,4] label) => (float[B,4] y, float[B,4] loss)"


def test_what_the_logit_does_not_need_is_left_out(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "m.onnx",
        TWO_OUTPUTS,
        "y = Mul(x, w) d = Sub(y, label) loss = Mul(d, v)",
        {"w": floats(4), "v": floats(4)},
    )
    captured = capture_onnx(path, logit="y")
    assert captured.net.inputs == ("x",)
    assert set(captured.net.parameters) == {"w"}
    assert captured.notes == ("input 'label' is not used: the logit does not depend on it",)
    with pytest.raises(ModelError, match=r"has 2 outputs \(y, loss\): say which is the logit \(--logit y\)"):
        capture_onnx(path)
    with pytest.raises(ModelError, match=r"has no value 'score'; its outputs are y, loss"):
        capture_onnx(path, logit="score")


def test_a_fixed_batch_becomes_symbolic_when_all_inputs_agree(tmp_path: Path) -> None:
    body = "j = Concat <axis = 1> (x, z) r = Reshape(j, s) t = Tanh(r) y = Reshape(t, e)"
    shapes = {"s": np.array([1, 2, -1]), "e": np.array([1, -1])}
    path = saved(tmp_path / "m.onnx", "(float[1,4] x, float[1,4] z) => (float[1,8] y)", body, shapes)
    captured = capture_onnx(path)
    assert captured.net.blobs["x"].shape == (B, 4)
    assert captured.net.blobs[captured.net.outputs[0]].shape == (BatchDim(), 8)
    feeds = {"x": floats(5, 4), "z": floats(5, 4)}
    np.testing.assert_allclose(run(captured, feeds, 5), np.tanh(np.concatenate([feeds["x"], feeds["z"]], 1)), rtol=1e-5)


def test_a_fixed_batch_whose_examples_mix_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "(float[4,3] x) => (float[4,3] y)", "y = Softmax <axis = 0> (x)", {})
    with pytest.raises(
        ModelError, match=r"cannot tell which of its numbers stand for the batch \(the file fixes .* at 4: export it"
    ):
        capture_onnx(path)


class Heads(nn.Module):
    """Attention over a sequence, whose export moves the batch through several dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attention(x, x, x)[0].flatten(1)).squeeze(1)


@pytest.mark.parametrize("fixed_batch", [1, 4])
def test_attention_exported_with_a_fixed_batch_takes_any_batch(fixed_batch: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Heads().eval(), tmp_path / "heads.onnx"
    program = torch.onnx.export(model, (torch.rand(fixed_batch, 3, 8),), dynamo=True, verbose=False)
    assert program is not None
    program.save(path)
    x = torch.rand(5, 3, 8)
    expected = model(x).detach().numpy()
    np.testing.assert_allclose(run(capture_onnx(path), {"x": x.numpy()}, 5), expected, rtol=1e-5, atol=1e-5)


def test_functions_of_the_file_are_inlined(tmp_path: Path) -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        g (float[B,4] x) => (float[B,4] y) { y = mine.twice(x) }
        <opset_import: ["" : 20], domain: "mine">
        twice (a) => (b) { b = Add(a, a) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert [op.type for op in capture_onnx(tmp_path / "m.onnx").net.ops] == ["Add"]


# -- files that are refused ------------------------------------------------------------------------------------------

OUT = "=> (float y)"


@pytest.mark.parametrize(
    ("signature", "body", "match"),
    [
        (f"(float[B,3,8] x) {OUT}", "y = InstanceNormalization(x, w, w)", r"htrain has no such op: give htrain the PyTorch module"),
        (f"(float[B,4] x) {OUT}", "y = Hardmax(x)", r"op Hardmax 'y': htrain has no such op: express it by other ops"),
        (f"(float[B,4] x) {OUT}", "l = ArgMax <axis = 1, keepdims = 0> (x) y = SoftmaxCrossEntropyLoss(x, l)",
         r"op SoftmaxCrossEntropyLoss 'y': is a loss: name the value before it, the logit \(--logit NAME\)"),
        (f"(float[B,T] x) {OUT}", "y = Relu(x)", r"input 'x' has the size '.*T.*' in dimension 1: export it with a fixed size"),
        (f"(float[2,4] x, float[3,4] z) {OUT}", "y = Add(x, z)", r"the inputs disagree on the batch size, .* \(x: 2, z: 3\)"),
        (f"(float[2,4] x, float[N,4] z) {OUT}", "y = Add(x, z)", r"the inputs disagree on the batch size, .* \(x: 2, z: symbolic\)"),
        (f"(float x) {OUT}", "y = Relu(x)", r"input 'x' has no batch dimension"),
        (f"(uint64[B,2] x) {OUT}", "y = Cast <to = 1> (x)", r"input 'x' has dtype UINT64, which htrain does not know"),
        (f"(float[B,4] x) {OUT}", "n = Size(x) f = Cast <to = 1> (n) y = Div(x, f)", r"op Div 'y': reads 'f', whose values depend on the batch size"),
        (f"(float[7,4] x) {OUT}", "y = Add(x, c)", r"fixes the batch size at 7: export it with a dynamic batch"),
        (f"(float[B,4] x) {OUT}", "z = Constant <value_float = 1.0> () y = Relu(z)", r"the logit depends on no input"),
        (f"(float[B,4] x, int64[B,1] k) {OUT}", "y = Reshape(x, k)", r"op Reshape 'y': input 1 \('k'\) must be a constant"),
        (f"(float[B,4] x) {OUT}", "y = Relu(k)", r"is not an ONNX model that can be read: Nodes in a graph must be topologically sorted"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_by_name(signature: str, body: str, match: str, tmp_path: Path) -> None:
    used = {"Instance": {"w": floats(3)}, "Add(x, c)": {"c": floats(7, 4)}}
    initializers = next((arrays for key, arrays in used.items() if key in body), {})
    path = saved(tmp_path / "m.onnx", signature, body, initializers)
    with pytest.raises(ModelError, match=match) as caught:
        capture_onnx(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_loop_whose_body_reads_what_is_outside_is_refused_with_the_cure(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["went"]), onnx.helper.make_node("Add", ["x", "before"], ["after"])],
        "body",
        [value("i", 7, []), value("go", 9, []), value("before", 1, None)],
        [value("went", 9, []), value("after", 1, None)],
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Loop", ["times", "", "zero"], ["y"], body=body)],
        "g",
        [value("x", 1, ["B", 4])],
        [value("y", 1, ["B", 4])],
        [onnx.numpy_helper.from_array(np.array(3), "times"), onnx.numpy_helper.from_array(np.float32(0), "zero")],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"op Loop 'y': htrain knows Loop as PyTorch exports nn\.EmbeddingBag"):
        capture_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not a model"])
def test_a_file_that_is_no_onnx_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match="is not an ONNX model that can be read"):
        capture_onnx(tmp_path / "m.onnx")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx: no such file"):
        capture_onnx(tmp_path / "none.onnx")


def test_a_damaged_file_gives_a_model_error_or_a_net(tmp_path: Path) -> None:
    model, path = keras_file(tmp_path / "keras.onnx"), tmp_path / "damaged.onnx"
    for table in model.graph.initializer[:2]:
        table.dims[0], table.raw_data = 20, table.raw_data[: 20 * 16]
    whole, random = model.SerializeToString(), np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        data[random.integers(len(data))] ^= 1 << random.integers(8)
        path.write_bytes(data)
        try:
            capture_onnx(path, table_rows=20)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
    assert 0 < refused < 150
