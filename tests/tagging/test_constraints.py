"""Pins, modules that stay together, and rules of the user's own: kept by every solver, or named as what cannot be."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.errors import ClusterError, Error, PlacementError, UsageError
from htrain.extending.rules import load_tagger
from htrain.frontend.captured import Captured
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan
from htrain.spec.cluster import Cluster, load_cluster
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.tagging.explain import explain

SOLVERS = ("rules", "greedy", "ilp")


def placed(cluster: Cluster, *, solver: str = "greedy", **more: object) -> Plan:
    return compile_net(Captured(small_dlrm(), {}), cluster, Options(batch_size=8), name="small", solver=solver, **more)


def devices(plan: Plan) -> Mapping[str, str]:
    return {op.module: op.node_name for op in plan.nets["train"].ops}


def cluster(**values: object) -> Cluster:
    return Cluster(**{"trainers": 2, "group_ps": 3, "sparse_ps": 2, **values})


@pytest.mark.parametrize("solver", SOLVERS)
def test_pins_hold_for_modules_and_tables_whatever_the_solver(solver: str) -> None:
    pins = (
        ("hidden", "group_ps:2"),
        ("dots/dots", "group_ps:1"),
        ("item*", "sparse_ps:1"),
        ("user.weight", "sparse_ps:1"),
    )
    plan = placed(cluster(pin=pins), solver=solver)
    found = devices(plan)
    assert (found["hidden"], found["dots/dots"]) == ("group_ps:2", "group_ps:1")
    assert {shard.device for shards in plan.tables.values() for shard in shards} == {"sparse_ps:1"}
    reason = {d.module: (d.rule, d.reason) for d in plan.decisions}["hidden"]
    assert reason == ("pin", "pinned by 'hidden: group_ps:2' of the cluster file")


@pytest.mark.parametrize("solver", SOLVERS)
def test_modules_that_belong_together_share_a_device(solver: str) -> None:
    found = devices(placed(cluster(together=(("bottom", "top"),), pin=(("top", "group_ps:1"),)), solver=solver))
    assert found["bottom"] == found["top"] == "group_ps:1"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pin": (("nothing", "group_ps:0"),)}, r"pin 'nothing': no module or table has that name"),
        ({"pin": (("bottom", "trainer"),)}, r"pin 'bottom: trainer': module 'bottom' holds weights, of which the 2 trainers"),
        ({"pin": (("bottom", "sparse_ps:0"),)}, r"'bottom' can be on the trainer or a group PS only"),
        ({"pin": (("user.weight", "group_ps:0"),)}, r"table 'user.weight' can be on a sparse PS only"),
        ({"pin": (("bottom", "group_ps:0"), ("b*m", "group_ps:1"))}, r"module 'bottom' is pinned by 'bottom: group_ps:0'"),
        ({"pin": (("user*", "sparse_ps:0"), ("*.weight", "sparse_ps:1"))}, r"pinned to sparse_ps:0 and to sparse_ps:1"),
        ({"together": (("bottom", "nowhere"),)}, r"together 'nowhere': no module"),
        (
            {"together": (("bottom", "top"),), "pin": (("bottom", "group_ps:0"), ("top", "group_ps:1"))},
            r"pin 'top: group_ps:1': module 'bottom' is pinned by 'bottom: group_ps:0'",
        ),
        ({"pin": (("*.weight", "sparse_ps:0"),), "sparse_ps_memory": ROLE_BYTES + 6_000}, r"of table '.*' need .* \(sparse_ps:0\) has"),
    ],
)  # fmt: skip
def test_constraint_that_cannot_hold_is_named(values: Mapping[str, object], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        placed(cluster(**values))


def test_constraints_are_read_from_the_cluster_file_and_kept_in_the_plan(tmp_path: Path) -> None:
    text = "trainers: 2\ngroup_ps: 2\nsparse_ps: 2\npin: {hidden: 'group_ps:1'}\ntogether: [[bottom, top]]\n"
    (tmp_path / "cluster.yaml").write_text(text)
    loaded = load_cluster(tmp_path / "cluster.yaml", {})
    assert (loaded.pin, loaded.together) == ((("hidden", "group_ps:1"),), (("bottom", "top"),))
    placed(loaded).save(tmp_path / "plan")
    assert check_plan(load_plan(tmp_path / "plan")).cluster == loaded


@pytest.mark.parametrize(
    "line", ["pin: 3", "pin: [a]", "pin: {a: [b]}", "together: {a: b}", "together: [a]", "together: [[1]]"]
)
def test_constraint_of_another_form_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(f"trainers: 2\n{line}\n")
    with pytest.raises(ClusterError, match=r"cluster\.yaml:2: (pin|together): want a"):
        load_cluster(tmp_path / "cluster.yaml", {})


RULES = """
from htrain.net.placement import Decision

def on_trainer(view, unit):
    return "because I say so" if view.units[unit].name == "hidden/sigmoid" else ""

def all_on_last(net, workload):
    last = workload.devices[workload.num_places - 1]
    return [Decision(unit.name, last, "mine", "all on the last") for unit in workload.units]

def half(net, workload):
    return all_on_last(net, workload)[:1]

def elsewhere(net, workload):
    return [Decision(unit.name, "moon", "mine", "") for unit in workload.units]

def broken(net, workload):
    return 1 / 0

RULES = [("mine", on_trainer)]
NOT_RULES = 3
BAD = [("mine", 3)]
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "own_rules.py"
    path.write_text(RULES)
    return str(path)


def test_own_tagger_decides_and_its_name_is_in_the_plan(rules: str) -> None:
    plan = placed(cluster(), solver="rules", tagger=load_tagger(f"{rules}:all_on_last"))
    assert {d.device for d in plan.decisions} == {"group_ps:2"}
    assert {d.rule for d in plan.decisions} == {"mine"}


def test_own_rules_come_before_the_stock_ones(rules: str) -> None:
    plan = placed(cluster(), solver="rules", tagger=load_tagger(f"{rules}:RULES"))
    assert {d.rule for d in plan.decisions} >= {"component"}
    assert {d.module for d in plan.decisions if d.rule == "mine"} <= {"hidden/sigmoid"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "the rules put module '.*' on nowhere; it may be on"),
        ("elsewhere", "the rules put module 'bottom' on moon; it may be on group_ps:0, group_ps:1, group_ps:2"),
        ("broken", "failed: ZeroDivisionError: division by zero"),
        ("NOT_RULES", "is a int, want a function, or a list"),
        ("BAD", "rule 'mine' is not a function"),
        ("MISSING", "is a NoneType"),
    ],
)
def test_own_rules_that_do_not_work_are_told_in_a_line(name: str, message: str, rules: str) -> None:
    with pytest.raises((PlacementError, UsageError), match=message):
        placed(cluster(), tagger=load_tagger(f"{rules}:{name}"))


@pytest.mark.parametrize("spec", ["nowhere.py:x", "no_such_module_at_all:x", "plain"])
def test_rules_that_are_not_there_are_told_in_a_line(spec: str) -> None:
    with pytest.raises(Error, match=spec.partition(":")[0]):
        load_tagger(spec)


def test_explain_says_who_decided_what_binds_and_what_a_move_costs() -> None:
    plan = placed(cluster(pin=(("hidden", "group_ps:2"),)))
    text = explain(plan, "hidden")
    assert "module 'hidden' is on group_ps:2" in text
    assert "by rule 'pin': pinned by 'hidden: group_ps:2'" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith(("trainer", "group_ps"))}
    assert "may not: pinned by 'hidden: group_ps:2' of the cluster file" in lines["group_ps:0"]
    assert "here" in lines["group_ps:2"]
    assert explain(plan, "hidden.weight") == text
    assert "touches table 'user.weight' (40 rows" in explain(plan, "user.weight")
    with pytest.raises(PlacementError, match="no module, value or parameter 'hiden'; near it are hidden"):
        explain(plan, "hiden")


def test_what_explain_says_of_the_present_place_is_what_the_search_found() -> None:
    plan = placed(cluster(), solver="greedy")
    here = next(line for line in explain(plan, "top").splitlines() if " here " in line)
    # Behind the search, what two ops of a device compute alike became one op: the plan is a little faster than what was searched.
    assert float(here.split()[1].replace(",", "")) == pytest.approx(1 / plan.search.seconds, rel=1e-2)
