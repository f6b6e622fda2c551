"""Which nets a role fills its parameters from: those of its step, its rounds, and the centres that it hosts, in this order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
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
from htrain.sync.het.server import HetServer

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


@pytest.mark.parametrize("cache", ["lookahead", "het"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_rows_that_caches_bring_back_or_push_have_marks(cache: str, optimizer: str) -> None:
    options = with_flags(batch_size=64, cache=cache, sparse_optimizer=optimizer)
    plan = htrain.compile(str(MODELS / "dlrm.py"), data=DATA, cluster=SERVED, options=options)
    parts = Assembly(plan, "sparse_ps:0", replicas=1)
    assert parts.marks
    held = plan.net_of(parts.device).parameters.values()
    assert parts.marks.told().keys() == {each.name for each in held if each.kind in ("table", "state")}


def test_rows_that_a_het_server_steps_are_those_of_a_snapshot() -> None:
    options = with_flags(batch_size=64, cache="het", sparse_optimizer="rowwise_adagrad")
    plan = htrain.compile(str(MODELS / "dlrm.py"), data=DATA, cluster=SERVED, options=options)
    parts = Assembly(plan, "sparse_ps:0", replicas=1)
    assert parts.marks
    for tensor in parts.store.values():
        tensor.fill_(1)
    parts.marks.cut("whole").close()
    (server,) = {id(each): each for each in parts.caches.values() if isinstance(each, HetServer)}.values()
    generator, rows = np.random.default_rng(1), 26 * 20_000
    for number in range(2):
        keys = np.unique(generator.integers(0, rows, 300))
        counts = np.array([keys.size, 0, 0], np.int64)
        server.push_arrays(counts, keys, np.ones(keys.size, np.int32), np.ones((keys.size, server.width), np.float32))
        if number == 0:
            now = {name: tensor.clone() for name, tensor in parts.store.items()}
            snapshot = parts.marks.cut("changed", "whole")
            first = keys
    found = 0
    for name in snapshot.tensors:
        numbers: list[memoryview] = []
        data = b"".join(bytes(piece) for piece in snapshot.changed(name, numbers))
        at = torch.from_numpy(np.frombuffer(b"".join(map(bytes, numbers)), np.int32).astype(np.int64))
        values = torch.from_numpy(np.frombuffer(data, np.float32).copy()).reshape(len(at), *now[name].shape[1:])
        assert torch.equal(torch.ones_like(now[name]).index_copy(0, at, values), now[name])
        found += len(at)
    assert found == 2 * first.size, "rows and states"
