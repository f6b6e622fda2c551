"""ONNX's convolutions and pools, captured: what ONNX Runtime computes, and as they train in PyTorch."""

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from torch import nn
from torch.nn import functional as F

from htrain.errors import ModelError
from htrain.frontend.onnx_model import capture_onnx
from htrain.ops import OPS
from tests.support.onnx_training import check_trains_alike, exported

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def saved(path: Path, body: str, sizes: tuple[int, ...], weights: dict[str, NDArray]) -> Path:
    text = ", ".join(map(str, sizes))
    graph = parser.parse_graph(
        f"g (float[B,4,{text}] x) => (float[N,C,{', '.join('pqr'[: len(sizes)])}] y) {{ {body} }}"
    )
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def agree(path: Path, sizes: tuple[int, ...], *, label: str) -> None:
    """The captured net computes what ONNX Runtime computes of the file."""
    captured, x = capture_onnx(path), floats(3, 4, *sizes)
    values = {"x": torch.from_numpy(x), **captured.values}
    for op in captured.net.ops:
        values.update(zip(op.outputs, OPS[op.type].run(op, [values[name] for name in op.inputs], 3), strict=True))
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_allclose(values[captured.net.outputs[0]], expected, rtol=1e-4, atol=1e-5, err_msg=label)


PADS = (
    "pads = [2, 1]",
    "pads = [1, 1]",
    "pads = [0, 3]",
    'auto_pad = "SAME_UPPER"',
    'auto_pad = "SAME_LOWER"',
    'auto_pad = "VALID"',
)


def test_convolutions_of_every_kind(tmp_path: Path) -> None:
    for pads, stride, dilation, group in product(PADS, (1, 2), (1, 2), (1, 2)):
        if "SAME" in pads and dilation > 1:
            continue  # ONNX Runtime does not take it
        body = f"y = Conv <{pads}, strides = [{stride}], dilations = [{dilation}], group = {group}> (x, w, b)"
        path = saved(tmp_path / "m.onnx", body, (9,), {"w": floats(6, 4 // group, 2), "b": floats(6)})
        agree(path, (9,), label=body)
    for attrs in (
        "group = 1",
        "pads = [0, 1, 2, 1], strides = [2, 1]",
        'auto_pad = "SAME_UPPER", kernel_shape = [2, 3]',
    ):
        agree(
            saved(tmp_path / "m.onnx", f"y = Conv <{attrs}> (x, w)", (5, 6), {"w": floats(3, 4, 2, 3)}),
            (5, 6),
            label=attrs,
        )


def test_transposed_convolutions_of_every_kind(tmp_path: Path) -> None:
    for pads, stride, more, group in product((*PADS, "output_shape = [11]"), (1, 2), (0, 1), (1, 2)):
        if more >= stride or ("output_shape" in pads and stride == 1):
            continue
        body = f"y = ConvTranspose <{pads}, strides = [{stride}], output_padding = [{more}], group = {group}> (x, w, b)"
        path = saved(tmp_path / "m.onnx", body, (5,), {"w": floats(4, 6 // group, 3), "b": floats(6)})
        agree(path, (5,), label=body)


def test_pools_of_every_kind(tmp_path: Path) -> None:
    for pads, stride, ceil in product(PADS, (1, 2, 3), (0, 1)):
        attrs = f"kernel_shape = [4], {pads}, strides = [{stride}], ceil_mode = {ceil}"
        for body in (
            f"y = MaxPool <{attrs}> (x)",
            f"y = AveragePool <{attrs}> (x)",
            f"y = AveragePool <{attrs}, count_include_pad = 1> (x)",
        ):
            if not (ceil and ("auto_pad" in pads or "[0, 3]" in pads)):
                agree(saved(tmp_path / "m.onnx", body, (9,), {}), (9,), label=body)
    attrs = "kernel_shape = [2, 3], pads = [1, 0, 0, 2], strides = [2, 1]"
    for body in (
        f"y = MaxPool <{attrs}, dilations = [2, 1]> (x)",
        f"y = AveragePool <{attrs}> (x)",
        "y = GlobalMaxPool(x)",
        "y = GlobalAveragePool(x)",
    ):
        agree(saved(tmp_path / "m.onnx", body, (5, 6), {}), (5, 6), label=body)
    for body in ("y = GlobalMaxPool(x)", "y = GlobalAveragePool(x)"):
        agree(saved(tmp_path / "m.onnx", body, (7,), {}), (7,), label=body)


@pytest.mark.parametrize(
    ("body", "sizes", "said"),
    [
        ("y = AveragePool <kernel_shape = [2], dilations = [2]> (x)", (9,), r"has windows with gaps \(dilations\)"),
        ("y = MaxPool <kernel_shape = [2, 2, 2]> (x)", (4, 4, 4), "moves over more than two dimensions"),
        ("y = Conv <kernel_shape = [3]> (x, w)", (9,), r"has a kernel_shape that is not that of its weight, \[2\]"),
        ("t = Transpose <perm = [1, 2, 0]> (x) y = MaxPool <kernel_shape = [2]> (t)", (9,), "moves over the batch"),
    ],
)  # fmt: skip
def test_windows_that_pytorch_has_not_are_refused(body: str, sizes: tuple[int, ...], said: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", body, sizes, {"w": floats(6, 4, 2)} if "Conv" in body else {})
    with pytest.raises(ModelError, match=said):
        capture_onnx(path)


class Caser(nn.Module):
    """Horizontal and vertical convolutions over a sequence; biases begin as zeros, which one exporter leaves out and the other stores once."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 8)
        self.across = nn.ModuleList(nn.Conv2d(1, 4, (height, 8)) for height in (1, 2))
        self.down, self.out = nn.Conv2d(1, 2, (6, 1)), nn.Linear(24, 1)
        for convolution in (*self.across, self.down):
            nn.init.zeros_(convolution.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        image = self.items(ids).unsqueeze(1)
        rows = [F.relu(convolution(image).squeeze(3)) for convolution in self.across]
        pooled = [F.max_pool1d(row, row.shape[2]).squeeze(2) for row in rows]
        return self.out(torch.cat([self.down(image).flatten(1), *pooled], 1))


class Dilated(nn.Module):
    """Causal convolutions with gaps as in NextItNet, one of several groups, one transposed, and pools of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 8)
        self.causal = nn.ModuleList(nn.Conv1d(8, 8, 3, dilation=dilation, groups=2) for dilation in (1, 2))
        self.wide = nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.items(ids).transpose(1, 2)
        for convolution in self.causal:
            x = x + F.relu(convolution(F.pad(x, (2 * convolution.dilation[0], 0))))
        x = torch.tanh(self.wide(x))
        pooled = [
            F.max_pool1d(x, 3, 2, 1, ceil_mode=True).mean(2),
            F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False).mean(2),
            F.adaptive_avg_pool1d(x, 1).flatten(1),
            F.adaptive_max_pool1d(x, 1).flatten(1),
        ]
        return self.out(torch.cat(pooled, 1))


@pytest.mark.parametrize("build", [Caser, Dilated])
@pytest.mark.parametrize("dynamo", [True, False])
def test_a_model_with_convolutions_trains_as_its_original(build: type[nn.Module], dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    path = exported(model, (torch.ones(4, 6, dtype=torch.int64),), tmp_path / "m.onnx", dynamo=dynamo)
    captured = check_trains_alike(model, capture_onnx(path), lambda size: (torch.randint(0, 2000, (size, 6)),))
    assert sum(op.type == "Convolution" for op in captured.net.ops) == 3
