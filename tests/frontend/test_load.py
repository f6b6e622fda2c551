"""A factory runs as it is written: what is small has its values, and what is large the law by which they were drawn."""

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.load import LoadedModel, load_model
from htrain.frontend.recorded_inits import Recorder
from htrain.frontend.torch_model import capture
from htrain.net.net import Init
from tests.frontend.test_torch_model import interpret

HEAD = """
import torch
from torch import nn

class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(13, 1)
        {line}

    def forward(self, dense):
        return self.out(dense).squeeze(1) + {read}

def build():
    return Made()
"""


def loaded(folder: Path, line: str, read: str = "0") -> LoadedModel:
    (folder / "made.py").write_text(HEAD.format(line=line, read=read))
    return load_model(f"{folder}/made.py", CRITEO)


WITH_VALUES = {
    "a number": ("self.w = nn.Parameter(torch.tensor(0.5))", [0.5]),
    "a list": ("self.w = nn.Parameter(torch.tensor([1.0, 2.0]))", [1.0, 2.0]),
    "a range": ("self.w = nn.Parameter(torch.linspace(0, 1, 3))", [0.0, 0.5, 1.0]),
    "one of several": ("self.w = nn.Parameter(torch.ones(3)); self.w.data[1] = 4.0", [1.0, 4.0, 1.0]),
    "an item": ("self.w = nn.Parameter(torch.full((2,), 1.0) + torch.ones(3).sum().item())", [4.0, 4.0]),
    "a product of two": ("self.w = nn.Parameter(torch.ones(2) * torch.tensor([2.0, 3.0]))", [2.0, 3.0]),
    "the identity": ("self.w = nn.Parameter(torch.empty(2, 2)); nn.init.eye_(self.w)", [1.0, 0.0, 0.0, 1.0]),
    "numpy": ("import numpy; self.w = nn.Parameter(torch.from_numpy(numpy.arange(2.0)).float())", [0.0, 1.0]),
}


@pytest.mark.parametrize("case", WITH_VALUES)
def test_a_small_parameter_has_the_values_that_the_factory_gives_it(case: str, tmp_path: Path) -> None:
    line, values = WITH_VALUES[case]
    model = loaded(tmp_path, line, "self.w.sum()")
    captured = model.initialised(capture(model.module, model.example_inputs))
    init = captured.net.parameters["w"].init
    known = captured.values["w"].flatten().tolist() if init.kind == "file" else [init.arguments[0]] * len(values)
    assert known == pytest.approx(values)
    assert captured.net.parameters["out.weight"].init.kind == "uniform"
    assert "out.weight" not in captured.values


LAWS = {
    "torch.randn(N, 8) * 0.02": Init("normal", (0.0, 0.02)),
    "0.02 * torch.randn(N, 8) + 1": Init("normal", (1.0, 0.02)),
    "torch.rand(N, 8) * 2 - 1": Init("uniform", (-1.0, 1.0)),
    "torch.rand(N, 8) / -4": Init("uniform", (-0.25, 0.0)),
    "torch.zeros(N, 8).normal_(0, 0.1).mul_(3)": Init("normal", (0.0, pytest.approx(0.3))),
    "torch.full((N, 8), 3.0) - 1": Init("constant", (2.0,)),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_large_one_has_the_law_that_it_was_drawn_by(law: str, tmp_path: Path) -> None:
    began = time.monotonic()
    model = loaded(tmp_path, f"N = 10**11; self.w = nn.Parameter({law})")
    assert model.inits["w"].kind == LAWS[law].kind
    assert model.inits["w"].arguments == LAWS[law].arguments
    assert model.module.w.is_meta
    assert time.monotonic() - began < 20


def test_beside_what_needs_values_large_tables_still_take_no_memory(tmp_path: Path) -> None:
    line = "self.e = nn.Embedding(10**11, 8, padding_idx=0); self.w = nn.Parameter(torch.tensor(0.5))"
    model = loaded(tmp_path, line, "self.w")
    assert model.module.e.weight.is_meta
    assert model.inits["e.weight"] == Init("normal", (0.0, 1.0), zero_rows=(0,))
    assert float(model.module.w) == 0.5


@pytest.mark.parametrize(
    "line",
    [
        "self.g = torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (13, 13)).coalesce()",
        "self.register_buffer('g', (torch.eye(13) * torch.arange(13)).to_sparse_csr())",
        "self.g = nn.Parameter(torch.zeros(13, 13).to_sparse(), requires_grad=False)",
        "self.g = torch.sparse.FloatTensor(torch.zeros(2, 1).long(), torch.ones(1), (13, 13)).mul(2).t()",
    ],
)
def test_a_factory_may_make_a_sparse_matrix(line: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, line, "(self.g @ dense.T).sum(0)")
    x = torch.rand(4, 13)
    net = capture(model.module, model.example_inputs).net
    values = {name: value.detach() for name, value in model.module.named_parameters()}
    torch.testing.assert_close(interpret(net, values, {"dense": x}, 4).flatten(), model.module(x).detach().flatten())


def test_a_large_parameter_that_is_set_in_an_unknown_way_is_refused_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(
        ModelError, match=r"'w' is too large to be built in memory \(3,200,000 MB\), and is not set by uniform_"
    ):
        loaded(tmp_path, "self.w = nn.Parameter(torch.randn(10**11, 8).exp())")
    assert time.monotonic() - began < 20


def test_a_factory_that_fails_says_so_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"building the model failed: ValueError: no such width"):
        loaded(tmp_path, "raise ValueError('no such width')")


def test_values_are_the_same_each_time(tmp_path: Path) -> None:
    line = "self.w = nn.Parameter(torch.empty(4, 4)); nn.init.orthogonal_(self.w)"
    before = torch.get_rng_state()
    first, second = (loaded(tmp_path, line).module.w.detach().clone() for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first @ first.T, torch.eye(4)) or torch.allclose(first @ first.T, torch.eye(4), atol=1e-5)
    assert torch.equal(before, torch.get_rng_state())


CHANGES = st.sampled_from(["mul", "add", "sub", "div", "neg", "square", "mul_", "add_"])
STEPS = st.lists(st.tuples(CHANGES, st.sampled_from([0.5, -2.0, 3.0])), max_size=5)


@settings(max_examples=60, deadline=None)
@given(start=st.sampled_from(["rand", "randn", "ones", "zeros"]), steps=STEPS)
def test_a_law_that_is_recorded_is_the_law_of_the_values(start: str, steps: list[tuple[str, float]]) -> None:
    torch.manual_seed(0)
    recorder = Recorder()
    with recorder:
        x = getattr(torch, start)(400, 50)
        for name, number in steps:
            x = getattr(x, name)() if name in ("neg", "square") else getattr(x, name)(number)
        init = recorder.init_of(nn.Parameter(x))
    if init is None:
        assert any(name in ("neg", "square") for name, _ in steps)
    elif init.kind == "constant":
        assert x.unique().tolist() == pytest.approx([init.arguments[0]])
    elif init.kind == "uniform":
        width = init.arguments[1] - init.arguments[0]
        assert float(x.min()) == pytest.approx(init.arguments[0], abs=1e-3 * width + 1e-6)
        assert float(x.max()) == pytest.approx(init.arguments[1], abs=1e-3 * width + 1e-6)
    else:
        mean, deviation = init.arguments
        assert float(x.mean()) == pytest.approx(mean, abs=0.05 * deviation)
        assert float(x.std()) == pytest.approx(deviation, rel=0.05)
