"""What becomes a table, a weight or a constant, and where its values come from."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from onnx.external_data_helper import set_external_data
from torch import nn

import htrain
from htrain.errors import ModelError
from htrain.frontend.onnx_model import capture_onnx
from htrain.spec.cluster import this_machine

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def saved(path: Path, signature: str, body: str, initializers: Mapping[str, NDArray]) -> Path:
    graph = parser.parse_graph(f"g {signature} {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


X = "(float[B,4] x) => (float[B,4] y)"


def kinds(path: Path) -> dict[str, str]:
    net = capture_onnx(path).net
    return {name: p.kind if p.trained else "frozen" for name, p in net.parameters.items()}


@pytest.mark.parametrize(
    ("body", "constant", "kind"),
    [
        ("y = Add(x, c)", floats(4), "weight"),
        ("y = Add(x, c)", floats(1), "weight"),
        ("y = Mul(x, c)", floats(4), "weight"),
        ("t = Reshape(c, s) y = Add(x, t)", floats(2, 2), "weight"),
        ("y = MatMul(x, c)", floats(4, 4), "weight"),
        ("y = Add(x, c)", np.float32(0.5), ""),
        ("y = Mul(x, c)", floats(1), ""),
        ("v = Add(x, c) y = Sqrt(v)", np.array([1e-6], np.float32), ""),
        ("v = Add(x, c) y = Div(x, v)", np.array([1e-6], np.float32), ""),
        ("y = Add(x, c)", np.array([0, -1e9, 0, 0], np.float32), ""),
        ("y = Add(x, c)", np.array([0, -np.inf, 0, 0], np.float32), ""),
        ("y = Mul(x, c)", np.array([[1, 0, 1, 0]], np.float32), ""),
        ("m = Greater(x, c) y = Where(m, x, c)", floats(4), ""),
    ],
)
def test_a_stored_tensor_is_a_weight_where_a_weight_stands(
    body: str, constant: NDArray, kind: str, tmp_path: Path
) -> None:
    initializers = {"c": constant, "s": np.array([4])} if "(c, s)" in body else {"c": constant}
    found = kinds(saved(tmp_path / "m.onnx", X, body, initializers))
    assert found == ({"c": kind} if kind else {})


LOOKUP = "(int64[B,3] i) => (float[B,3,2] y)"


def test_a_table_is_what_gather_alone_reads_by_ids_of_an_input(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", LOOKUP, "y = Gather(t, i)", {"t": floats(1000, 2)})
    assert kinds(path) == {"t": "table"}
    assert capture_onnx(path, table_rows=1001).net.parameters["t"].kind == "weight"


def test_a_table_is_what_gather_nd_reads_by_single_ids(tmp_path: Path) -> None:
    """As torch's exporter writes `table[ids]` of a module."""
    held = {"t": floats(1000, 2), "last": np.array([-1]), "pair": floats(1000, 2), "first": np.array([0])}
    path = saved(tmp_path / "m.onnx", LOOKUP, "u = Unsqueeze(i, last) y = GatherND(t, u)", held)
    assert kinds(path) == {"t": "table"}
    assert capture_onnx(path).net.ops[-1].type == "Embedding"
    two = "(int64[B,2] i) => (float[B] y)"
    assert kinds(saved(tmp_path / "n.onnx", two, "y = GatherND(pair, i)", held)) == {"pair": "weight"}


def test_a_table_that_a_product_reads_too_is_a_weight(tmp_path: Path) -> None:
    body = "r = Gather(t, i) u = Transpose(t) s = MatMul(r, u) y = MatMul(s, t)"
    assert kinds(saved(tmp_path / "m.onnx", LOOKUP, body, {"t": floats(1000, 2)})) == {"t": "weight"}


def test_a_gather_by_constant_ids_is_no_lookup(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "(float[B,2] x) => (float[B,2] y)", "r = Gather(t, k) y = Add(x, r)",
                 {"t": floats(1000, 2), "k": np.array(7)})  # fmt: skip
    assert kinds(path) == {"t": "weight"}


def test_frozen_weights_are_not_trained(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", X, "a = Mul(x, w) y = Add(a, c)", {"w": floats(4), "c": floats(4)})
    parameters = capture_onnx(path, frozen={"c"}).net.parameters
    assert {name: p.trained for name, p in parameters.items()} == {"w": True, "c": False}
    with pytest.raises(
        ModelError, match=r"m\.onnx: 'v' cannot be frozen: it is not a weight that the logit depends on"
    ):
        capture_onnx(path, frozen={"v"})


def test_a_weight_of_two_products_is_one_parameter(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", X, "a = MatMul(x, w) b = Relu(a) y = MatMul(b, w)", {"w": floats(4, 4)})
    net = capture_onnx(path).net
    assert [op.inputs[1] for op in net.ops if op.type == "FC"] == ["w", "w"]


def external(path: Path, rows: int, *, size: int) -> Path:
    """A model whose table stands in a file of its own of `size` bytes, all zeros and sparse on disk."""
    saved(path, LOOKUP, "y = Gather(t, i)", {"t": np.zeros((1, 2), np.float32)})
    model = onnx.load(path)
    table = model.graph.initializer[0]
    table.dims[:] = [rows, 2]
    set_external_data(table, "table.bin", length=rows * 8)
    table.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    with (path.parent / "table.bin").open("wb") as file:
        file.truncate(size)
    return path


def test_a_table_in_a_file_of_its_own_is_mapped_not_read(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", 100_000_000, size=800_000_000)
    captured = capture_onnx(path)
    assert captured.values["t"].shape == (100_000_000, 2)
    assert captured.notes == ()
    assert captured.values["t"][99_999_999].tolist() == [0.0, 0.0]


def test_a_table_of_several_gigabytes_starts_from_the_spread_of_its_values(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", 1_000_000_000, size=8_000_000_000)
    with (tmp_path / "table.bin").open("r+b") as file:
        file.write(np.array([1024.0, 1024.0], np.float32).tobytes())
    captured = capture_onnx(path)
    table = captured.net.parameters["t"]
    assert (table.init.kind, captured.values) == ("normal", {})
    np.testing.assert_allclose(table.init.arguments, (1.0, np.sqrt(1023)), rtol=1e-6)
    assert captured.notes == (
        "table 't' has 7.5 GiB, which a plan does not carry: it starts from normal(1, 32), measured on 1024 of its rows",
    )


@pytest.mark.parametrize(
    ("location", "match"), [("../secret", "outside|invalid|escape|'\\.\\.'"), ("missing.bin", "missing")]
)
def test_external_data_elsewhere_is_refused(location: str, match: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16_000))
    path = external(folder / "m.onnx", 2000, size=16_000)
    model = onnx.load(path, load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=match):
        capture_onnx(path)


def test_truncated_external_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m\.onnx: .*'?t'?.*"):
        capture_onnx(external(tmp_path / "m.onnx", 2000, size=100))


def test_equal_biases_that_an_exporter_has_merged_are_taken_apart(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) b = Add(a, zero) r = Relu(b) c = MatMul(r, v) y = Add(c, zero)"
    zero = {"w": floats(4, 4), "v": floats(4, 4), "zero": np.zeros(4, np.float32)}
    net = capture_onnx(saved(tmp_path / "m.onnx", X, body, zero)).net
    assert [op.inputs for op in net.ops if op.type == "FC"] == [("x", "w", "zero"), ("r", "v", "zero@y:1")]


class Mixed(nn.Module):
    """Parameters and buffers that a file shows alike: of the same values, without dimensions, folded into others."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)
        self.scale, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.5))
        self.gate, self.ones = nn.Parameter(torch.full((4,), 0.3)), nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.full((4,), 0.3))
        self.register_buffer("std", torch.rand(4) + 0.5)
        self.register_buffer("part", torch.tensor(0.5))
        assert self.norm.running_mean is not None
        self.norm.running_mean.uniform_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc((x - self.mean) / self.std * self.gate)
        return (self.norm(x).sum(1) * self.scale + self.shift * x[:, 0] + self.part * x[:, 1]) * self.ones


def exported(module: nn.Module, path: Path, *, optimize: bool) -> Path:
    torch.onnx.export(
        module.eval(), (torch.randn(6, 4),), path, dynamo=True, optimize=optimize, verbose=False,
        input_names=["x"], dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    return path


@pytest.mark.parametrize("optimize", [True, False])
def test_what_a_module_has_as_buffers_stays_and_its_parameters_are_trained(optimize: bool, tmp_path: Path) -> None:
    module = Mixed()
    path = exported(module, tmp_path / "m.onnx", optimize=optimize)
    found = {
        name.partition("@p_")[2].replace("_", ".") or name for name, kind in kinds(path).items() if kind == "weight"
    }
    assert found == {name for name, _ in module.named_parameters()}
    htrain.compile(path, cluster=this_machine())  # the self-check knows which of equal values may differ


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gate = nn.Linear(4, 1), nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x * torch.sigmoid(self.gate))[:, 0]


@pytest.mark.parametrize("optimize", [True, False])
def test_a_parameter_that_the_exporter_has_computed_with_is_told_of(optimize: bool, tmp_path: Path) -> None:
    notes = capture_onnx(exported(Gated(), tmp_path / "m.onnx", optimize=optimize)).notes
    told = [note for note in notes if note.startswith("no op of the file reads gate of the module")]
    assert len(told) == optimize
