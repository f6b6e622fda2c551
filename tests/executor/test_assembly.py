"""Which nets a role fills its parameters from: those of its step, its rounds, and the centres that it hosts, in this order."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_dlrm import small_dlrm

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.executor.assembly import Assembly
from htrain.frontend.captured import Captured
from htrain.plan.plan import Plan, load_part, load_plan
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.dense_sync import Bmuf, DenseSync, Easgd
from htrain.spec.optimizers import SPARSE_OPTIMIZERS
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[2] / "models"
DATA = "synthetic:?table_rows=20000"
ALONE, SERVED = this_machine(trainers=1, group_ps=0, sparse_ps=0), this_machine(trainers=1, group_ps=1, sparse_ps=1)


def planned(sync: DenseSync, *, dense_ps: int) -> Plan:
    cluster = Cluster(groups=3, group_ps=12, sparse_ps=2, dense_ps=dense_ps)
    options = replace(with_flags(batch_size=8), dense_sync=sync)
    return compile_net(Captured(small_dlrm(), {}), cluster, options, name="small_dlrm", solver="rules")


def filled(plan: Plan, role: str) -> list[str]:
    return [str(name) for name in Assembly(plan, role, replicas=1).init_nets()]


def from_names(plan: Plan, role: str) -> list[str]:
    """By the names as text, independent of `NetName`: a group hosts centres by the role that holds their weights there."""
    kind, *numbers = role.split(":")
    plain = kind if kind == "trainer" else f"{kind}_{numbers[-1]}"
    if kind in ("trainer", "group_ps"):
        centres = [f"init_center_group_{numbers[0]}_{plain}"]
    else:
        centres = [f"init_center_{plain}_{holder}" for holder in ("trainer", *(f"group_ps_{k}" for k in range(12)))]
    return [name for name in (f"init_{plain}", f"init_sync_{plain}", *centres) if name in plan.nets]


@pytest.mark.parametrize(
    ("sync", "dense_ps"), [(Easgd(), 2), (Easgd(through="groups"), 0), (Bmuf(), 1), (Bmuf(through="groups"), 0)]
)
def test_a_role_fills_what_it_has_and_the_centres_of_its_own_group(
    sync: DenseSync, dense_ps: int, tmp_path: Path
) -> None:
    plan = planned(sync, dense_ps=dense_ps)
    plan.save(tmp_path / "plan")
    loaded = load_plan(tmp_path / "plan")
    for role in plan.cluster.roles:
        part = load_part(tmp_path / "plan", Assembly(plan, role, replicas=1).device)
        assert filled(plan, role) == filled(loaded, role) == filled(part, role) == from_names(plan, role)


def test_a_group_does_not_fill_the_centres_of_another() -> None:
    plan = planned(Easgd(through="groups"), dense_ps=0)
    hosts = {
        name.partition("_group_ps")[0] for role in plan.cluster.roles for name in filled(plan, role) if "center" in name
    }
    assert len(hosts) > 1
    assert not any("center_group_1_" in name for name in filled(plan, "group_ps:0:0") + filled(plan, "group_ps:2:0"))


@pytest.mark.parametrize("cluster", [ALONE, SERVED], ids=["alone", "served"])
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [*(("dlrm.py", kind) for kind in SPARSE_OPTIMIZERS), ("deepfm.py", "sgd"), ("deepfm.py", "ftrl")],
)
def test_all_rows_have_marks_where_no_cache_is(model: str, cluster: Cluster, optimizer: str) -> None:
    plan = htrain.compile(
        str(MODELS / model), data=DATA, cluster=cluster, options=with_flags(batch_size=64, sparse_optimizer=optimizer)
    )
    (role,) = [role for role in plan.cluster.roles if role.startswith("sparse_ps" if cluster is SERVED else "trainer")]
    parts = Assembly(plan, role, replicas=2)
    assert parts.marks
    held = plan.net_of(parts.device).parameters
    rows = {name for name, each in held.items() if each.kind == "table"}
    rows |= {
        name
        for name, each in held.items()
        if each.kind == "state" and each.of in rows and each.shape and each.shape[0] == held[each.of].shape[0]
    }
    assert rows
    assert rows - parts.marks.told().keys() == set()


@pytest.mark.parametrize(("cache", "are_told"), [("lookahead", True), ("het", False)])
def test_rows_that_look_ahead_caches_bring_back_have_marks_and_those_that_het_caches_push_have_none(
    cache: str, are_told: bool
) -> None:
    options = with_flags(batch_size=64, cache=cache, sparse_optimizer="rowwise_adagrad")
    plan = htrain.compile(str(MODELS / "dlrm.py"), data=DATA, cluster=SERVED, options=options)
    parts = Assembly(plan, "sparse_ps:0", replicas=1)
    assert parts.marks
    held = plan.net_of(parts.device).parameters.values()
    rows = {each.name for each in held if each.kind in ("table", "state")}
    assert parts.marks.told().keys() == (rows if are_told else set())
