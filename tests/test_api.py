"""The Python API, as the README shows it."""

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_dlrm import small_plan
from torch import nn

import htrain
from htrain.errors import ModelError, UsageError
from htrain.spec.cluster import this_machine


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100, 4, mode="sum")
        self.top = nn.Linear(4 + 13, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([dense, self.table(sparse)], dim=1))


def inputs() -> dict[str, torch.Tensor]:
    return {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.int64)}


def test_module_with_values_is_compiled_run_and_evaluated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tiny()
    plan = htrain.compile(model, cluster=this_machine(group_ps=1, sparse_ps=2), example_inputs=inputs())
    plan.save(tmp_path / "plan")
    data = "synthetic:?rows=2000&table_rows=100"
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    found = htrain.evaluate(tmp_path / "run", data=data)
    assert result.totals.examples == 2000
    assert found.examples == 2000
    assert found.log_loss < result.totals.loss  # better on the data it has seen than while it was learning it


def test_a_plan_keeps_the_values_that_its_module_had_when_it_was_compiled() -> None:
    model = Tiny()
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    plan = htrain.compile(model, cluster=this_machine(), example_inputs=inputs())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
    assert plan.values.keys() == wanted.keys()
    assert all(torch.equal(plan.values[name], value) for name, value in wanted.items())


def test_roles_that_were_threads_leave_the_callers_own_settings(tmp_path: Path) -> None:
    htrain.compile(Tiny(), cluster=this_machine(), example_inputs=inputs()).save(tmp_path / "plan")
    num_threads, turn_seconds = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(3)
    sys.setswitchinterval(0.004)
    try:
        data = "synthetic:?rows=500&table_rows=100"
        htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
        assert (torch.get_num_threads(), round(sys.getswitchinterval(), 6)) == (3, 0.004)
    finally:
        torch.set_num_threads(num_threads)
        sys.setswitchinterval(turn_seconds)


def test_same_input_gives_byte_identical_plans(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tiny()
    for name in ("a", "b"):
        htrain.compile(model, cluster=this_machine(group_ps=2), example_inputs=inputs()).save(tmp_path / name)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) > 5
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_a_model_file_is_named_by_a_path_or_a_string() -> None:
    model, data = Path(__file__).parents[1] / "models" / "dlrm.py", "synthetic:?rows=100&table_rows=100"
    plans = [htrain.compile(named, cluster=this_machine(), data=data) for named in (model, str(model))]
    assert plans[0].digest == plans[1].digest


def test_module_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = Tiny()
    with pytest.raises(htrain.Error, match=r"parameter 'table.weight' is on the meta device and has no value"):
        htrain.compile(model, example_inputs=inputs())


def test_module_needs_example_inputs() -> None:
    with pytest.raises(htrain.Error, match=r"an nn\.Module needs example_inputs"):
        htrain.compile(Tiny())


DENSE, SPARSE = inputs().values()
BAD_EXAMPLES: dict[str, Mapping[Any, Any]] = {
    "'dense' is a ndarray, want a tensor of the CPU": {"dense": DENSE.numpy(), "sparse": SPARSE},
    "'sparse' is a NoneType, want a tensor of the CPU": {"dense": DENSE, "sparse": None},
    "'dense' is on the meta device, want a tensor": {"dense": DENSE.to("meta"), "sparse": SPARSE},
    "'dense': the first dimension is the batch, of at least 2 examples; this has 1": {
        "dense": DENSE[:1],
        "sparse": SPARSE,
    },
    "'dense': the first dimension is the batch, of at least 2 examples; this has no": {
        "dense": DENSE[0, 0],
        "sparse": SPARSE,
    },
    "'sparse' has 3 examples and 'dense' 4": {"dense": DENSE, "sparse": SPARSE[:3]},
    "1: want the names of forward": {1: DENSE, "sparse": SPARSE},
    "are dense, and forward\\(\\) of Tiny takes dense, sparse: give": {"dense": DENSE},
    "are dense, ids, and forward\\(\\) of Tiny takes dense, sparse: give": {"dense": DENSE, "ids": SPARSE},
}


@pytest.mark.parametrize("said", BAD_EXAMPLES)
def test_examples_that_forward_cannot_take_are_named(said: str) -> None:
    with pytest.raises(UsageError, match=rf"^compile: example_inputs:? {said}"):
        htrain.compile(Tiny(), example_inputs=BAD_EXAMPLES[said])


@pytest.mark.parametrize(
    ("wrapped", "said"),
    [
        (torch.compile, r"OptimizedModule takes .*its \._orig_mod$"),
        (nn.DataParallel, r"DataParallel takes .*its \.module$"),
    ],
    ids=["compiled", "data parallel"],
)
def test_a_module_around_the_model_is_refused_with_the_name_of_the_model(
    wrapped: Callable[[nn.Module], nn.Module], said: str
) -> None:
    with pytest.raises(ModelError, match=rf"^forward\(\) of {said}"):
        htrain.compile(wrapped(Tiny()), example_inputs=inputs())


def test_a_frame_as_data_is_one_short_line_with_the_cure() -> None:
    frame = pd.DataFrame({"a": range(1000), "b": range(1000)})
    with pytest.raises(UsageError, match="run: a DataFrame needs schema=: a schema file, or what one holds") as raised:
        htrain.run("p", data=frame, out="y")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_run_wants_either_a_new_folder_or_one_to_resume(tmp_path: Path) -> None:
    with pytest.raises(htrain.Error, match="either out=, a new run folder, or resume="):
        htrain.run(tmp_path, data="synthetic:")


BAD_CALLS = {
    "NONE.ONNX: no such file": lambda: htrain.compile("NONE.ONNX"),
    "compile: model: is 3, want an nn.Module": lambda: htrain.compile(3),
    "compile: model: is '', want an nn.Module": lambda: htrain.compile(""),
    "compile: cluster: is a str, want a Cluster": lambda: htrain.compile("m.py", cluster="c.yaml"),
    "compile: options: is a dict, want a Options": lambda: htrain.compile("m.py", options={"seed": 3}),
    "compile: time_limit_seconds: nan is not a finite number": lambda: htrain.compile(
        "m.py", time_limit_seconds=float("nan")
    ),
    "compile: solver: Invalid enum value 'magic', got 'magic': want rules, greedy, ilp or cbc": lambda: htrain.compile(
        "m.py", solver="magic"
    ),
    "evaluate: workers: Invalid enum value '2', got '2': want a number or auto": lambda: htrain.evaluate(
        "r", data="x", workers="2"
    ),
    "compile: data: '\\ud800' holds what no name can": lambda: htrain.compile("m.py", data="\ud800"),
    "run: plan: is a NoneType, want a Plan, or a str or Path": lambda: htrain.run(None, data="x", out="y"),
    "evaluate: plan: is a Plan, want a str or Path, where plan.save(FOLDER) has put it": lambda: htrain.evaluate(
        "r", plan=small_plan(), data="x"
    ),
    "run: epochs: Expected `int` >= 1, got 0": lambda: htrain.run("p", data="x", out="y", epochs=0),
    "run: checkpoint_seconds: nan is not a finite number": lambda: htrain.run(
        "p", data="x", out="y", checkpoint_seconds=float("nan")
    ),
    "run: malformed_share: Expected `float` <= 1.0": lambda: htrain.run("p", data="x", out="y", malformed_share=2.0),
    "run: plan: 'a\\x00' holds what no name can": lambda: htrain.run("a\0", data="x", out="y"),
    "simulate: steps: Expected `int` >= 4": lambda: htrain.simulate("p", steps=1),
    "evaluate: run_folder: is a int": lambda: htrain.evaluate(3, data="x"),
    "size: eps: Expected `float` >= 1.0": lambda: htrain.size("m.py", eps=0.0),
}


FUNCTIONS: Mapping[Callable[..., object], Mapping[str, object]] = {
    htrain.compile: {"model": "m.py"}, htrain.size: {"model": "m.py", "eps": 1000.0}, htrain.simulate: {"plan": "p"},
    htrain.run: {"plan": "p", "data": "x", "out": "y"}, htrain.evaluate: {"run_folder": "r", "data": "x"},
    htrain.predict: {"run_folder": "r", "data": "x", "out": "y.npy"}, htrain.export: {"run_folder": "r", "to": "torch", "out": "y"},
}  # fmt: skip
OBJECTS = ("console", "on_try", "on_rates")  # for who has the class at hand


@pytest.mark.parametrize("nonsense", [object(), float("nan"), -1], ids=["an object", "nan", "-1"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(f, name) for f in FUNCTIONS for name in inspect.signature(f).parameters if name not in OBJECTS],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_argument_is_looked_at(function: Callable[..., object], name: str, nonsense: object) -> None:
    if name == "logit" and nonsense == -1:
        return  # the last output
    with pytest.raises(htrain.Error, match=rf"^{function.__name__}: {name}: "):
        function(**{**FUNCTIONS[function], name: nonsense})


@pytest.mark.parametrize("says", BAD_CALLS)
def test_arguments_of_another_kind_are_refused_by_name(says: str) -> None:
    with pytest.raises(htrain.Error) as refusal:
        BAD_CALLS[says]()
    assert str(refusal.value).startswith(says)
