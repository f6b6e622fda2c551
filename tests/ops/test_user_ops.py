"""Ops of the user's own: what is refused when they are registered or captured, and what PyTorch computes of those that are not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from own_ops import ops_are_forgotten

from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO
from htrain.errors import Error, ModelError, PlanError
from htrain.ops import OPS, user_ops
from htrain.own import registry as own
from htrain.own.registry import load_own, places_of, sources_of
from htrain.plan.plan import Plan, load_plan
from htrain.self_check.capture import capture_model
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

HEADER = "import torch\nfrom htrain import OpDef, register\n"
SLOPED = """
def kernel(x: torch.Tensor, *, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, slope * x)
"""
MODEL = """
import torch
from torch import nn
import my_ops
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(13, 6)
        self.top = nn.Linear(6, 1)
    def forward(self, dense):
        return self.top(CALL)
def build():
    return Model()
"""


@pytest.fixture(autouse=True)
def others_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with ops_are_forgotten():
        yield


def register(text: str, name: str = "my_ops.py") -> None:
    Path(name).write_text(HEADER + text)
    load_own([name])


def compiled(text: str, call: str) -> Plan:
    """A model that calls an op of `my_ops.py`, captured, compared with PyTorch by the self-check, and compiled."""
    Path("my_ops.py").write_text(HEADER + text)
    Path("model.py").write_text(MODEL.replace("CALL", call))
    model = capture_model("model.py", schema=CRITEO, example_inputs={}, logit="", label="")
    captured = model.checked(Options())
    return compile_net(captured, this_machine(trainers=1, group_ps=1), Options(), name="m")


CALLS = {
    "with an attribute": (SLOPED + 'f = register(OpDef("Sloped", kernel, elementwise=True))', "my_ops.f(self.first(dense), slope=0.1)"),
    "with an attribute that it may go without": (
        SLOPED.replace("slope: float", "slope: float = 0.3") + 'f = register(OpDef("Sloped", kernel))', "my_ops.f(self.first(dense))",
    ),
    "with two outputs": (
        'f = register(OpDef("Halves", lambda x: (x[:, :3] * 2, x[:, 3:] * 3), many=True))', "torch.cat(my_ops.f(self.first(dense)), 1)",
    ),
    "of which one output is read": ('f = register(OpDef("Halves", lambda x: (x * 2, x * 3), many=True))', "my_ops.f(self.first(dense))[1]"),
    "with one output of many": ('f = register(OpDef("Only", lambda x: (x * 2,), many=True))', "my_ops.f(self.first(dense))[0]"),
    "which gives what it takes": ('f = register(OpDef("Same", lambda x: x))', "my_ops.f(self.first(dense))"),
    "of integers and texts": (
        "def kernel(x: torch.Tensor, *, times: tuple[int, ...], how: str, on: bool) -> torch.Tensor:\n"
        "    return x.repeat_interleave(times[0], 1)[:, ::times[0]] * (3 if how == 'three' and on else 1)\n"
        'f = register(OpDef("Thrice", kernel))',
        "my_ops.f(self.first(dense), times=(2,), how='three', on=True)",
    ),
    "of two tensors": ('f = register(OpDef("Product", lambda x, y: x * y))', "my_ops.f(self.first(dense), self.first(dense).sigmoid())"),
    "with a rule of its own": (
        "def rule(builder, op, dys, wanted):\n"
        "    return builder.add('DoubledGradient', (dys[0],), module=op.module)\n"
        'register(OpDef("DoubledGradient", lambda dy: 2 * dy, gradient=None))\n'
        'f = register(OpDef("Doubled", lambda x: 2 * x, gradient=rule))',
        "my_ops.f(self.first(dense))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_an_op_has_the_loss_and_the_gradients_of_pytorch_and_survives_a_plan(case: str) -> None:
    """The self-check compares both; a plan is read only with the op loaded."""
    plan = compiled(*CALLS[case])
    mine = {op.type for op in plan.nets["train"].ops} & own._known.keys()
    assert mine
    assert plan.ops.keys() == mine
    plan.save(Path("plan"))
    assert load_plan(Path("plan")).nets == plan.nets


def test_a_rule_that_gives_another_gradient_is_found() -> None:
    text, call = CALLS["with a rule of its own"]
    with pytest.raises(ModelError, match="gradient"):
        compiled(text.replace("2 * dy", "3 * dy"), call)


def test_a_plan_is_read_only_with_its_ops_as_they_were() -> None:
    text, call = CALLS["with an attribute"]
    plan = compiled(text, call)
    plan.save(Path("plan"))
    register(text.replace("slope * x", "slope + x"))
    with pytest.raises(
        PlanError,
        match=r"plan\.yaml: op Sloped was of another my_ops\.py when the plan was made, .*my_ops\.py has changed: compile",
    ):
        load_plan(Path("plan"))
    for table in (OPS, own._known):
        for name in ("Sloped", "SlopedGradient"):
            table.pop(name)  # type: ignore[attr-defined]
    with pytest.raises(
        PlanError,
        match=r"plan\.yaml: op Sloped is one of a user's own, of my_ops\.py: name that file, --ops my_ops\.py",
    ):
        load_plan(Path("plan"))


def test_a_plan_whose_own_ops_have_been_struck_out_is_refused() -> None:
    compiled(*CALLS["with an attribute"]).save(Path("plan"))
    header = yaml.safe_load(Path("plan/plan.yaml").read_text())
    del header["ops"]["Sloped"]
    Path("plan/plan.yaml").write_text(yaml.safe_dump(header))
    with pytest.raises(
        PlanError,
        match=r"plan\.yaml: its nets have op Sloped, one of a user's own, and it names no file of that: compile",
    ):
        load_plan(Path("plan"))
    header["ops"]["Sloped"] = {"file": "my_ops.py", "digest": "0", "trust": "me"}
    Path("plan/plan.yaml").write_text(yaml.safe_dump(header))
    with pytest.raises(PlanError, match=r"plan\.yaml: 'ops\.Sloped\.trust' is no entry"):
        load_plan(Path("plan"))


REFUSED = {
    'register("Sloped")': r"my_ops\.py: register\(\) takes an htrain\.OpDef, not a str",
    'register(OpDef("sloped", torch.abs))': "op 'sloped': want a name such as Sloped",
    'register(OpDef("FC", torch.abs))': "op FC: htrain has an op of this name: choose another name",
    'register(OpDef("Relu", torch.abs, gradient=None))': "op Relu: htrain has an op of this name",
    'register(OpDef("Odd", 3))': "op Odd: the kernel is a int, want a function of tensors",
    'register(OpDef("Odd", lambda x, **rest: x))': "op Odd: the kernel takes any keywords: name its attributes",
    "def k(x, *, slope): return x\nregister(OpDef('Odd', k))": "op Odd: attribute 'slope' is of type _empty, want one of int, float",
    "def k(x, *, slope: dict): return x\nregister(OpDef('Odd', k))": "op Odd: attribute 'slope' is of type dict, want one of int, float",
    "register(OpDef('Odd', torch.abs, needs_batch=True))": "op Odd: needs_batch is for htrain's own ops",
    "register(OpDef('Odd', torch.abs, phase='push'))": "op Odd: phase is for htrain's own ops",
    "register(OpDef('Odd', torch.abs, aten=('abs',)))": "op Odd: aten is for htrain's own ops",
    "register(OpDef('Odd', torch.abs, view=True))": "op Odd: view is for htrain's own ops",
    "register(OpDef('Odd', torch.abs, exclusive=True))": "op Odd: exclusive is for htrain's own ops",
    "register(OpDef('Odd', torch.abs, place='workers'))": "op Odd: place is 'workers', want module or reader",
    "register(OpDef('Odd', torch.abs, work='hard'))": "op Odd: work is 'hard', want one of gemm",
    "x = 1": "my_ops.py: registers no op and no strategy: call htrain.register",
    "1 / 0": "my_ops.py: cannot be imported: ZeroDivisionError",
    "exec(compile(\"register(OpDef('Odd', torch.abs))\", '<cell>', 'exec'))": "op Odd: roles load it from its file, and this is none",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_not_run_is_refused_when_it_is_registered(text: str) -> None:
    before = set(OPS)
    with pytest.raises(ModelError, match=REFUSED[text]):
        register(text)
    assert set(OPS) == before


def test_a_name_belongs_to_one_file() -> None:
    text = 'register(OpDef("Mine", torch.abs))'
    register(text)
    register(text)  # again
    with pytest.raises(ModelError, match=r"other\.py: op Mine: .*my_ops\.py has registered it: choose another name"):
        register(text, "other.py")


def test_another_process_loads_a_file_by_its_path_and_a_module_of_a_package_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    Path("own/__init__.py").write_text("")
    Path("own/kernels.py").write_text("import torch\nkernel = torch.abs\n")
    Path("own/ops.py").write_text(
        "from htrain import OpDef, register\nfrom .kernels import kernel\nregister(OpDef('Packaged', kernel))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    load_own(["own.ops"])
    register('register(OpDef("Filed", torch.abs))')
    assert places_of(sources_of(["Packaged", "PackagedGradient", "Filed", "FC"])) == (
        str(tmp_path / "my_ops.py"),
        "own.ops",
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        monkeypatch.delitem(sys.modules, name)


CAPTURED = {
    (
        "f = register(OpDef('Odd', lambda x: x.add_(1)))",
        "my_ops.f(self.first(dense))",
    ): "Odd .* of .*: its kernel changes an input in place",
    (
        "f = register(OpDef('Odd', lambda x: (x, x)))",
        "my_ops.f(self.first(dense))",
    ): "op Odd: its kernel gave a tuple of tensor, tensor; want one tensor",
    (
        "f = register(OpDef('Odd', lambda x: x * 2, many=True))",
        "my_ops.f(self.first(dense))[0]",
    ): "op Odd: its kernel gave tensor; many=True: want a tuple",
    (
        "f = register(OpDef('Odd', lambda x: None))",
        "my_ops.f(self.first(dense))",
    ): "op Odd: its kernel gave NoneType; want one tensor",
    (
        "f = register(OpDef('Odd', lambda x: x.softmax(-1), elementwise=True))",
        "my_ops.f(self.first(dense))",
    ): "op Odd: .* elementwise=True, and",
    (
        "f = register(OpDef('Odd', lambda x: x - x.mean(), elementwise=True))",
        "my_ops.f(self.first(dense))",
    ): "op Odd: .* elementwise=True, and",
    (SLOPED + "f = register(OpDef('Odd', kernel))", "my_ops.f(self.first(dense), slope='a')"): "Model: TypeError",
    (SLOPED + "f = register(OpDef('Odd', kernel))", "my_ops.f(self.first(dense), slope=None)"): "slope|NoneType",
    (SLOPED + "f = register(OpDef('Odd', kernel))", "my_ops.f(self.first(dense))"): "slope",
    (
        SLOPED + "f = register(OpDef('Odd', kernel))",
        "my_ops.f(self.first(dense), slope=dense)",
    ): "Model: TypeError: .*not JSON serializable",
    (
        "f = register(OpDef('Odd', lambda x: torch.from_numpy(x.numpy() * 2)))",
        "my_ops.f(self.first(dense))",
    ): "torch.export cannot capture Model",
}


@pytest.mark.parametrize("case", CAPTURED)
def test_a_kernel_that_does_not_keep_to_its_definition_is_refused(case: tuple[str, str]) -> None:
    with pytest.raises(Error, match=CAPTURED[case]):
        compiled(*case)


def test_an_op_that_writes_is_for_the_nets_of_a_strategy() -> None:
    register('register(OpDef("Written", torch.relu_, gradient=None, effects=True, writes=(0,)))')
    with pytest.raises(
        ModelError, match="op Written: writes to its inputs: it is for the nets of a strategy, and no model can call it"
    ):
        user_ops.UserOp(OPS["Written"])(torch.ones(2))


def test_in_a_program_of_ones_own_an_op_is_a_function() -> None:
    register(SLOPED + 'f = register(OpDef("Sloped", kernel))')
    op = user_ops.UserOp(OPS["Sloped"])
    x = torch.tensor([-2.0, 3.0], requires_grad=True)
    op(x, slope=0.5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 1.0]
