"""Strategies of a user's own: what can be one, what a plan says of it, and where it is read."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_ops import ops_are_forgotten
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.errors import ClusterError, Error, ModelError, PlanError, UsageError
from htrain.executor.assembly import Assembly
from htrain.executor.host.parameter_memory import ParameterMemory
from htrain.frontend.captured import Captured
from htrain.own.registry import load_own, places_of
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.compatibility import compatible
from htrain.spec.effects import require_effect
from htrain.spec.tree import document_of, given, options_of, with_flags

HALFWAY = (Path(__file__).parents[1] / "support" / "halfway.py").read_text()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with ops_are_forgotten():
        yield


def load(text: str) -> None:
    Path("mine.py").write_text(text)
    load_own(["mine.py"])


def compiled(**values: Any) -> Plan:
    options = with_flags(batch_size=8, dense_sync="halfway", **values)
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1, dense_ps=2)
    return compile_net(Captured(small_dlrm(), {}), cluster, options, name="small", solver="rules")


def test_a_strategy_of_ones_own_has_its_nets_its_note_and_its_check() -> None:
    load(HALFWAY)
    plan = compiled(sync_share=0.25)
    assert {op.type for name, net in plan.nets.items() if name.startswith("center_") for op in net.ops} == {
        "Recv",
        "Meet",
        "Send",
    }
    assert "groups meet halfway, 25% of it" in plan.notes
    assert plan.strategies.keys() == {"dense_sync.halfway"}
    assert plan.ops.keys() == {"Meet", "Follow"}
    plan.save(Path("plan"))
    loaded = check_plan(load_plan(Path("plan")))
    assert (loaded.options, loaded.nets) == (plan.options, plan.nets)
    assert options_of(document_of(plan.options), "options", whole=True) == plan.options


def sent_to_dense_pss(plan: Plan) -> float:
    """Bytes of an example, in shares of a second of the link."""
    found = simulate(plan, steps=80, python_lock=False)
    return sum(use.received for use in found.devices if use.device.startswith("dense_ps")) / found.eps


def test_its_rounds_are_simulated_as_its_run_half_has_them() -> None:
    load(HALFWAY)
    often, seldom = (sent_to_dense_pss(compiled(sync_period=period)) for period in (2, 16))
    assert often > 4 * seldom > 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
def test_its_rounds_go_on_where_those_of_another_process_were() -> None:
    load(HALFWAY)
    kept = ParameterMemory("group_ps:0:0")
    kept.begins_round(6)
    kept.ends_round()
    sync = Assembly(compiled(sync_period=4), "group_ps:0:0", replicas=1, kept=kept).sync()
    assert sync
    sync.steps_done(1)
    assert not sync.is_due
    sync.steps_done(2)
    next(sync.rounds())
    assert kept.next_round == 8
    kept.close()


def test_a_plan_is_read_only_with_its_strategies_as_they_were() -> None:
    with ops_are_forgotten():
        load(HALFWAY)
        compiled().save(Path("plan"))
    with pytest.raises(
        PlanError, match=r"plan\.yaml: op Follow is one of a user's own, of mine\.py: name that file, --ops mine\.py"
    ):
        load_plan(Path("plan"))
    load(HALFWAY.replace("lerp_(snapshot, share)", "lerp_(snapshot, 1 - share)"))
    with pytest.raises(
        PlanError, match=r"op Follow was of another mine\.py when the plan was made, .*mine\.py has changed"
    ):
        load_plan(Path("plan"))
    header = yaml.safe_load(Path("plan/plan.yaml").read_text())
    for entry in ("ops", "strategies"):
        del header[entry]
    Path("plan/plan.yaml").write_text(yaml.safe_dump(header))
    with pytest.raises(
        PlanError,
        match=r"strategy dense_sync\.halfway is one of a user's own, and it names no file of that: compile the model again",
    ):
        load_plan(Path("plan"))


def test_a_strategy_without_ops_of_its_own_is_named_in_the_plan_too() -> None:
    meet, elastic = ('"Meet", (weight, snapshot), {"share":', '"ElasticDifference", (weight, snapshot), {"alpha":')
    text = HALFWAY.replace(meet, elastic)
    with ops_are_forgotten():
        load(text.replace('"Follow", (weight, answer)', '"Relax", (weight, answer)'))
        plan = compiled()
        plan.save(Path("plan"))
        assert (plan.ops.keys(), plan.strategies.keys()) == (set(), {"dense_sync.halfway"})
        assert places_of(plan.strategies) == (str(Path("mine.py").resolve()),)
    with pytest.raises(
        PlanError,
        match=r"plan\.yaml: strategy dense_sync\.halfway is one of a user's own, of mine\.py: name that file, --ops mine\.py",
    ):
        load_plan(Path("plan"))


def test_what_is_idle_or_does_not_fit_is_refused_as_for_ours() -> None:
    load(HALFWAY)
    options = with_flags(dense_sync="halfway", sync_share=0.25)
    with pytest.raises(
        UsageError, match=r"--sync-share 0\.25 has no effect: one group has nothing to synchronise with"
    ):
        require_effect(options, Cluster(), given(options))
    with pytest.raises(ClusterError, match="2 groups are synchronised through dense PSs: dense_ps must be at least 1"):
        compatible(Cluster(groups=2, dense_ps=0), options)


def test_what_its_fields_do_not_take_is_refused_as_ours_is() -> None:
    load(HALFWAY)
    with pytest.raises(UsageError, match=r"--sync-share: 1\.5 is not a finite number above 0 and at most 1"):
        compiled(sync_share=1.5)
    with pytest.raises(
        UsageError,
        match=r"--sync-alpha 0\.5 has no effect: it belongs to --dense-sync easgd or .*, and dense sync is halfway",
    ):
        compiled(sync_alpha=0.5)


REFUSED = {
    "no section": (
        "register_strategy(Halfway, compile",
        "register_strategy(int, compile",
        "takes a subclass of DenseSync, SparseSync or Cache, not <class",
    ),
    "not frozen": (
        "@dataclass(frozen=True)",
        "@dataclass",
        "non-frozen dataclass from a frozen one|want a frozen dataclass",
    ),
    "no dataclass": ("@dataclass(frozen=True)\n", "", "want a frozen dataclass"),
    "a kind that is taken": (
        'kind = "halfway"',
        'kind = "easgd"',
        "kind 'easgd' of dense_sync: htrain has one: choose another",
    ),
    "a kind that is no word": ('kind = "halfway"', 'kind = "half way"', "kind is 'half way', want a word"),
    "no sentence": (
        'Annotated[Annotated[float, Meta(gt=0, le=1)], about("How far the centre moves.")]',
        "float",
        "field 'share' has no sentence",
    ),
    "no default": (" = 0.5", "", "field 'share' has no default"),
    "a default out of bounds": (
        "] = 0.5",
        "] = 3.0",
        "field 'share': its default 3.0 is not a finite number above 0 and at most 1",
    ),
    "a number without bounds": (
        "Annotated[float, Meta(gt=0, le=1)]",
        "Annotated[int, Meta(ge=1)]",
        "field 'share' is a whole number without bounds",
    ),
    "another half": (
        "compile=Compiled",
        "compile=Runs",
        "compile is <class .*Runs'>, want a subclass of htrain.strategies.strategy.Strategy",
    ),
    "a half that lacks something": ("def take(", "def taken(", "compile: Compiled lacks take()"),
    "a run half for compile": (
        "run=Runs",
        "run=Compiled",
        "run is <class .*Compiled'>, want a subclass of htrain.executor.strategies.strategy.RunsSync",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_strategy_is_refused_when_it_is_registered(case: str) -> None:
    old, new, says = REFUSED[case]
    assert old in HALFWAY
    with pytest.raises(ModelError, match=says) as refusal:
        load(HALFWAY.replace(old, new))
    assert "mine.py" in str(refusal.value)


def test_a_strategy_that_leaves_a_weight_out_is_found() -> None:
    text = HALFWAY.replace('return "Follow", (weight, answer), {}', 'return "Discard", (answer,), {}')
    load(text + '\nregister(OpDef("Discard", lambda off: None, no_outputs, gradient=None, effects=True))\n')
    with pytest.raises(Error, match="is not synchronised with one centre on a dense PS"):
        compiled()
