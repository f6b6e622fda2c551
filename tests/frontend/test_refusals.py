"""What is refused says where it is and what to do; what forward() keeps is gone afterwards."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.captured import Captured, check_finite
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

X = {"x": torch.zeros(4, 4)}
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """A layer, what a test makes of it, and another layer."""

    def __init__(self, between: Forward, **attributes: object) -> None:
        super().__init__()
        self.first, self.top = nn.Linear(4, 4), nn.Linear(4, 1)
        self._between = between
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) and name.startswith("buffer"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self._between(self, self.first(x))).squeeze(1)


def count(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.buffer += 1
    return x + model.buffer


def clamp(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.first.weight.data.clamp_(-1, 1)
    return x


def overwrite_weight(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.first.weight.clamp_(-1, 1)
    return model.first(x)


def overwrite(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    with torch.no_grad():
        y.clamp_(0)
    return y


def noisy(model: nn.Module, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """With noise in training, and what htrain has no op of in evaluation."""
    return x + noise if model.training else torch.special.erfcx(x)


def left(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.top, x, use_reentrant=True) + x


ONES = nn.Parameter(torch.ones(4))
IMAGINARY = nn.Parameter(torch.ones(4) * 1j)
TRACKING = nn.InstanceNorm1d(1, track_running_stats=True)
ROOT = r"in forward\(\) of Model cannot be compiled: "
COMPUTED = r"in forward\(\) of Model cannot be computed: "
CASES: dict[str, tuple[nn.Module, str]] = {
    "an op of the model itself": (Model(lambda m, x: torch.special.erfcx(x)), r"^aten.special_erfcx.default " + ROOT + "htrain has no such op"),
    "whole numbers in training": (Model(lambda m, x: noisy(m, x, torch.randint(9, (4,)))), r"^aten.randint.default .*drawn in training alone.*erfcx"),
    "none drawn twice": (Model(lambda m, x: x + torch.multinomial(torch.ones(9), len(x)).sum()), r"multinomial.*: how many it draws, .* replacement=True"),
    "an instance norm's statistics": (Model(lambda m, x: m.norm(x[:, None])[:, 0], norm=TRACKING), "module 'norm' .*: build it with track_running_stats=False"),
    "an average of all batches": (Model(lambda m, x: m.norm(x), norm=nn.BatchNorm1d(4, momentum=None)), "module 'norm' has momentum=None"),
    "draws": (Model(lambda m, x: noisy(m, x, torch.bernoulli(torch.full_like(x, 0.5)))), r"drawn in training alone, .* nn.Dropout1d"),
    "random numbers of a batch": (Model(lambda m, x: x + torch.poisson(x.abs())), "it draws random numbers"),
    "max_norm": (Model(lambda m, x: x + m.e((x[:, 0] > 0).long()), e=nn.Embedding(9, 4, max_norm=1.0, norm_type=1)), "max_norm and norm_type=1"),
    "max_norm of a weight": (Model(lambda m, x: x + m.e(torch.tensor(1)), e=nn.Embedding(9, 4, max_norm=1.0)), "an embedding with max_norm that is no table"),
    "a division by zero": (Model(lambda m, x: x + (torch.arange(4) % 0)), r"^aten.remainder.Scalar " + COMPUTED + "Zero"),
    "a division of an attribute": (Model(lambda m, x: x + m.t % 0, t=torch.arange(4)), r"^aten.remainder.Scalar " + COMPUTED + "Zero"),
    "no axis": (Model(lambda m, x: x + torch.argmax(x)), ROOT + "the place among the values of all examples"),
    "a running count": (Model(count, buffer=torch.zeros(4)), r"^forward\(\) changes 'buffer', which would stay as it is here"),
    "a clamped weight": (Model(clamp), r"^forward\(\) changes 'first.weight'"),
    "a weight that is overwritten": (Model(overwrite_weight), r"^forward\(\) changes 'first.weight'"),
    "a value that is overwritten": (Model(overwrite), r"^forward\(\) calls clamp_\(\) under torch.no_grad\(\), on a value that has a gradient"),
    "detach_": (Model(lambda m, x: (2 * x).detach_()), r"^forward\(\) calls detach_\(\): write x = x.detach\(\)"),
    "a reentrant checkpoint": (Model(left), "give it use_reentrant=False"),
    "a name of torch's own": (Model(lambda m, x: F.mse_loss(x, x * m.meta) + x, meta=ONES), "of the name 'meta', which torch keeps for its own"),
    "an op that checks": (Model(lambda m, x: x @ torch.linalg.inv(m.first.weight)), r"^aten._linalg_check_errors.default " + ROOT + "it has effects"),
    "a lazy layer": (Model(lambda m, x: m.lazy(x), lazy=nn.LazyLinear(2)), r"^parameter 'lazy.weight' is of a lazy module and has no shape yet: give"),
    "as many classes as there are": (Model(lambda m, x: x + F.one_hot(x[:, 0].long()).sum()), r"^forward\(\) calls F.one_hot\(\) without num_classes, "),
    "complex weights": (Model(lambda m, x: x + (m.w * x).real, w=IMAGINARY), "^parameter 'w' is complex64: keep its parts, .*view_as_real"),
    "complex numbers": (Model(lambda m, x: torch.complex(x, x).roll(1, 1).real), r"^aten.roll.default .*: htrain has no such op of complex numbers"),
    "a trained sparse matrix": (Model(lambda m, x: x @ m.w, w=nn.Parameter(torch.eye(4).to_sparse())), "^parameter .w. is a sparse tensor that is trained"),
    "a storage of numpy": (Model(lambda m, x: x + torch.LongTensor(x.detach().numpy()).float()), "makes a numpy array of what depends on its inputs"),
    "an array of numpy": (Model(lambda m, x: x + torch.from_numpy(np.array(x))), "makes a numpy array of .*: use torch.s functions for it"),
    "wrong widths": (Model(lambda m, x: x @ torch.ones(3, 3)), r"cannot capture Model: RuntimeError: .* \(in its forward\(\), \S+test_refusals.py:\d+\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_is_named_with_its_place_and_the_cure(name: str) -> None:
    model, message = CASES[name]
    with pytest.raises(ModelError, match=message) as raised:
        capture(model, X)
    assert "\n" not in str(raised.value)
    assert "Translation" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_torch_jit_is_named_beside_what_torch_says() -> None:
    message = "; module 'act' is of torch.jit: give the nn.Module that it was made of$"
    with pytest.raises(ModelError, match=message):
        capture(Model(lambda m, x: m.act(x), act=torch.jit.script(nn.ReLU())), X)


def of_no_batch(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    return {
        "another way": lambda: y if len(y) > 8 else -y,
        "a loop": lambda: torch.stack([2 * each for each in y]),
        "a fixed shape": lambda: y.view(4, 2, 2).flatten(1),
        "weights of examples": lambda: y * torch.ones(4, 1),
        "the first few": lambda: y + y[:3].sum(0),
    }[model.way]()


@pytest.mark.parametrize("way", ["another way", "a loop", "a fixed shape", "weights of examples", "the first few"])
def test_a_line_that_holds_for_one_batch_size_is_named(way: str) -> None:
    lines, first = inspect.getsourcelines(of_no_batch)
    line = first + next(number for number, text in enumerate(lines) if way in text)
    with pytest.raises(
        ModelError, match=rf"the model's code fixes the batch dimension: .* \(\S+test_refusals.py:{line}\)$"
    ):
        capture(Model(of_no_batch, way=way), X)


def caught(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    try:
        return x if x.sum() > 0 else -x
    except Exception:
        return 3 * x


def caught_int(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * int(x.max())
    except Exception:
        return 3 * x


BY_VALUES: dict[str, Forward] = {
    "if": lambda m, x: x if x.sum() > 0 else -x,
    "bool": lambda m, x: x * bool((x > 0).any()),
    "float": lambda m, x: x * float(x.sum()),
    "int": lambda m, x: x * int(x.max()),
    "an if whose error is caught": caught,
    "an int whose error is caught": caught_int,
}


@pytest.mark.parametrize("name", BY_VALUES)
def test_what_depends_on_the_values_of_a_batch_is_named_with_its_line(name: str) -> None:
    with pytest.raises(
        ModelError,
        match=r"goes another way by the values of a batch: an if, .* \((in its forward\(\), )?\S+test_refusals.py:\d+\)$",
    ):
        capture(Model(BY_VALUES[name]), X)


COUNTED: dict[str, tuple[Forward, str]] = {
    "unique rows": (
        lambda m, x: x + torch.unique(x, dim=0).sum(),
        "how many it finds depends on the values of a batch",
    ),
    "repeated": (
        lambda m, x: x + torch.repeat_interleave(x[:, 0], x[:, 1].long().abs()).sum(),
        "how many it finds depends on the values of a batch",
    ),
    "bincount": (lambda m, x: x + torch.bincount(x[:, 0].long(), minlength=4), "write it as F.one_hot"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_no_net_can_do_says_what_to_do_instead(name: str) -> None:
    forward, message = COUNTED[name]
    with pytest.raises(ModelError, match=message):
        capture(Model(forward), X)


def test_parameters_over_one_memory_are_refused_unless_they_are_one() -> None:
    model = Model(lambda m, x: m.again(x), again=nn.Linear(4, 4))
    model.again.weight = model.first.weight
    assert "again.weight" not in capture(model, X).net.parameters
    model.again.weight = nn.Parameter(model.first.weight)
    with pytest.raises(
        ModelError,
        match=r"parameters 'first.weight' and 'again.weight' share memory but are two: to tie them, assign the one nn.Parameter",
    ):
        capture(model, X)


def test_an_argument_of_the_name_of_a_parameter_is_refused_by_it() -> None:
    model = Model(lambda m, x: x)
    model.x = nn.Parameter(torch.zeros(4))
    with pytest.raises(ModelError, match=r"an argument 'x', and the model has a parameter of that name: rename one"):
        capture(model, X)


def test_hooks_of_the_forward_pass_are_part_of_the_net() -> None:
    model = Model(lambda m, x: x)
    model.register_forward_hook(lambda module, args, output: 2 * output)
    model.first.register_forward_pre_hook(lambda module, args: (3 * args[0],))
    assert [op.type for op in capture(model, X).net.ops if op.type == "Mul"] == ["Mul", "Mul"]


def test_weights_that_no_gradient_reaches_are_not_trained() -> None:
    def blind(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model.second(x)

    captured = capture(Model(blind, second=nn.Linear(4, 4)), X)
    assert [name for name, p in captured.net.parameters.items() if p.trained] == ["top.weight", "top.bias"]
    names = "second.weight, second.bias, first.weight, first.bias"
    (note,) = captured.notes
    assert set(re.findall(r"[a-z]+\.[a-z]+", note)) >= set(names.split(", "))
    assert "no gradient reaches" in note


FILE = """
import torch
from torch import nn

class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(13, 4)
        self.scale = torch.linspace(1, 2, 4)
        self.shifts = [torch.ones(4), torch.zeros(4)]
        self.named = {"a": torch.full((4,), 3.0)}
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, dense):
        return (self.linear(dense) * self.scale + self.shifts[0] + self.named["a"] + self.offset).sum(1)

def build():
    return Kept()

def loose():
    model = Kept()
    model.shifts = [nn.Parameter(torch.ones(4))]
    return model
"""


def test_tensors_of_attributes_have_their_values_though_the_model_is_built_without_memory(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(FILE)
    loaded = load_model(f"{tmp_path}/kept.py", CRITEO)
    assert loaded.inits["linear.weight"].kind == "uniform"
    assert loaded.module.scale.tolist() == torch.linspace(1, 2, 4).tolist()
    assert [shift.tolist() for shift in loaded.module.shifts] == [[1.0] * 4, [0.0] * 4]
    assert loaded.module.named["a"].tolist() == [3.0] * 4
    model = capture_model(f"{tmp_path}/kept.py", schema=CRITEO, example_inputs={}, logit="", label="")
    assert sum(op.type == "Constant" for op in model.captured.net.ops) == 4


def test_a_parameter_of_a_plain_list_is_a_constant_as_no_optimizer_is_given_it(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(FILE)
    model = capture_model(f"{tmp_path}/kept.py:loose", schema=CRITEO, example_inputs={}, logit="", label="")
    net = model.checked(Options()).net
    assert set(net.parameters) == {"linear.weight", "linear.bias"}
    assert sum(op.type == "Constant" for op in net.ops) == 4


def test_a_lazy_layer_of_a_models_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.LazyLinear(1))\n")
    with pytest.raises(ModelError, match=r"^parameter '0.weight' is of a lazy module"):
        load_model(f"{tmp_path}/m.py", CRITEO)


def finite(model: nn.Module) -> Captured:
    return check_finite(capture(model, X))


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "holds nan"), (float("inf"), "holds an infinity")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, said: str) -> None:
    model = Model(lambda m, x: x)
    with torch.no_grad():
        model.first.weight[2, 1] = value
    with pytest.raises(ModelError, match=f"^parameter 'first.weight' {said}: give it finite values before compiling"):
        finite(model)


def test_a_mask_may_hold_infinities_and_no_nan() -> None:
    mask = nn.Parameter(torch.full((4,), float("-inf")), requires_grad=False)
    model = Model(lambda m, x: torch.softmax(x + m.mask, 1), mask=mask)
    finite(model)
    mask.data[0] = float("nan")
    with pytest.raises(ModelError, match="parameter 'mask' holds nan"):
        finite(model)


def test_an_init_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    body = "import torch\nfrom torch import nn\ndef build():\n    m = nn.Sequential(nn.Linear(13, 1))\n    nn.init.constant_(m[0].weight, float('nan'))\n"
    (tmp_path / "m.py").write_text(body + "    m.forward = lambda dense: m[0](dense)\n    return m\n")
    with pytest.raises(ModelError, match=r"^parameter '0.weight' starts from constant\(nan\): give it finite values"):
        capture_model(f"{tmp_path}/m.py", schema=CRITEO, example_inputs={}, logit="", label="")


def test_the_line_is_the_users_where_numpy_has_asked_for_the_size() -> None:
    def tiled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.tile(np.ones(4, np.float32), [x.shape[0], 1]))

    line = inspect.getsourcelines(tiled)[1] + 1
    with pytest.raises(ModelError, match=rf"fixes the batch dimension: .*\({re.escape(__file__)}:{line}\)$"):
        capture(Model(tiled), X)
