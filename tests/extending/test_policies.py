"""Cache policies of a user's own: what can be one, and what a plan says of it."""

from pathlib import Path

import pytest
from own_ops import ops_are_forgotten
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.errors import ModelError, PlanError, UsageError
from htrain.frontend.captured import Captured
from htrain.own.registry import load_own, places_of
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

PATIENT = """
import htrain

def patient(uses: int, idle: int, age: int) -> float:
    return uses / (1 + idle)

htrain.register_policy("patient", patient)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with ops_are_forgotten():
        yield


def load(text: str) -> None:
    Path("mine.py").write_text(text)
    load_own(["mine.py"])


def compiled() -> Plan:
    options = with_flags(batch_size=8, cache="het", cache_policy="patient", net_replicas=1)
    return compile_net(
        Captured(small_dlrm(), {}),
        this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=1),
        options,
        name="small",
        solver="rules",
    )


def test_a_plan_names_the_policy_and_its_file() -> None:
    load(PATIENT)
    plan = compiled()
    assert plan.strategies.keys() == {"cache.policy.patient"}
    assert {op.attrs["policy"] for op in plan.nets["trainer"].ops if op.type == "HetAsk"} == {"patient"}
    assert places_of(plan.strategies) == (str(Path("mine.py").resolve()),)
    plan.save(Path("plan"))
    assert check_plan(load_plan(Path("plan"))).options == plan.options


def test_a_plan_is_read_where_its_policy_is_loaded_as_it_was() -> None:
    load(PATIENT)
    compiled().save(Path("plan"))
    load(PATIENT.replace("1 + idle", "2 + idle"))
    with pytest.raises(
        PlanError, match=r"strategy cache\.policy\.patient was of another mine\.py when the plan was made"
    ):
        load_plan(Path("plan"))


def test_without_its_file_the_policy_is_no_choice_and_the_plan_says_which_file() -> None:
    with ops_are_forgotten():
        load(PATIENT)
        compiled().save(Path("plan"))
    with pytest.raises(UsageError, match="--cache-policy: 'patient' is not light-lfu, lfu or lru"):
        with_flags(cache="het", cache_policy="patient")
    with pytest.raises(
        PlanError,
        match=r"strategy cache.policy.patient is one of a user's own, of mine.py: name that file, --ops mine.py",
    ):
        load_plan(Path("plan"))


REFUSED = {
    "a name that is taken": ('"patient"', '"lru"', "htrain has one: choose another name"),
    "a name that is no word": ('"patient"', '"very patient"', "want a word such as 'patient'"),
    "no function": ("patient)", "3)", "score is 3, want a function of three numbers"),
    "a function of something else": (", age: int", "", "want a function of three numbers: score"),
    "what Numba cannot compile": ("uses / (1 + idle)", "open(uses).read()", "Numba cannot compile patient"),
    "a text for a score": ("uses / (1 + idle)", "'much'", "Numba cannot compile patient"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_policy_is_refused_when_it_is_registered(case: str) -> None:
    old, new, says = REFUSED[case]
    with pytest.raises(ModelError, match=says) as refusal:
        load(PATIENT.replace(old, new))
    assert "mine.py" in str(refusal.value)
    assert "\n" not in str(refusal.value)
