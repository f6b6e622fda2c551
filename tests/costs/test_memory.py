"""What devices hold: counted on the tagged net, on the search's arrays and by hand; and refusals that say what takes the room."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dlrm import small_dlrm, small_plan

from htrain.compiler.lowering import lowered
from htrain.compiler.pipeline import compile_net
from htrain.costs.expected import expected, expected_blobs
from htrain.costs.loads import MemoryUse
from htrain.costs.memory import largest_made, memory_of_train, too_large_text
from htrain.errors import PlacementError, PlanError
from htrain.frontend.captured import Captured
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan
from htrain.spec import footprint
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.workload import Ints, Workload, workload_of

Case = tuple[Net, Workload, Ints, dict[int, str], Cluster, Options]


@cache
def _captured() -> Captured:
    return Captured(small_dlrm(), {})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """The small model on a random cluster, its units anywhere that they may be."""
    trainers, group_ps = draw(st.sampled_from([(1, 0), (1, 1), (2, 1), (3, 2)]))
    cluster = Cluster(
        groups=draw(st.integers(1, 3)), trainers=trainers, group_ps=group_ps, sparse_ps=draw(st.integers(1, 2))
    )
    optimizer = draw(st.sampled_from(["sgd", "adam"]))
    options = with_flags(
        batch_size=8, net_replicas=draw(st.integers(1, 3)), prefetch=draw(st.booleans()), dense_optimizer=optimizer
    )
    net, units, fixed, _ = lowered(_captured(), cluster, options)
    workload = workload_of(net, units, fixed, cluster, options)
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    places = np.array([chance.choice(np.flatnonzero(row).tolist()) for row in workload.allowed], np.int64)
    tags = fixed | {i: workload.devices[d] for unit, d in zip(units, places, strict=True) for i in unit.ops}
    return expected(net, expected_blobs(net, cluster, options.batch_size)), workload, places, tags, cluster, options


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_the_search_counts_what_the_tagged_net_holds(case: Case) -> None:
    net, workload, places, tags, cluster, options = case
    uses = memory_of_train(net, tags, cluster, options)
    assert dict(zip(workload.devices, workload.holds(places), strict=True)) == {d: uses[d] for d in workload.devices}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cases())
def test_parameters_values_and_messages_are_those_counted_by_hand(case: Case) -> None:
    net, _, _, tags, cluster, options = case
    uses, batch, replicas = memory_of_train(net, tags, cluster, options), options.batch_size, options.net_replicas
    for device, use in uses.items():
        mine = [op for i, op in enumerate(net.ops) if tags[i] == device]
        steps = {
            "t": replicas,
            "g": cluster.trainers * replicas,
            "s": cluster.groups * cluster.trainers * replicas,
        }.get(device[0], 0)
        held = {n for op in mine for n in op.inputs if n in net.parameters}
        made = sum(net.blobs[o].num_bytes(batch) for op in mine for o in op.outputs if not OPS[op.type].view)
        reader = (
            sum(net.blobs[n].num_bytes(batch) for n in net.inputs) * (3 * replicas + 1) if device == "trainer" else 0
        )
        assert use.own == ROLE_BYTES
        assert use.state == sum(net.parameters[n].num_bytes for n in held if net.parameters[n].kind == "state")
        assert use.values == made * steps + reader
        if device != "dense_ps:0":
            assert use.weights == sum(net.parameters[n].num_bytes for n in held if net.parameters[n].kind != "state")
        assert use.messages == (0 if device.startswith("dense") else _received(net, tags, device, mine, steps, options))


def _received(net: Net, tags: dict[int, str], device: str, mine: Sequence[object], steps: int, options: Options) -> int:
    home = dict.fromkeys(net.inputs, "trainer") | {o: tags[i] for i, op in enumerate(net.ops) for o in op.outputs}
    read = {n for op in mine for n in op.inputs if n in home} | (set(net.outputs) if device == "trainer" else set())  # type: ignore[attr-defined]
    ahead = 2 if options.prefetch and device == "trainer" else 1
    return sum(
        net.blobs[n].num_bytes(options.batch_size) * steps * (ahead if home[n].startswith("sparse") else 1)
        for n in read
        if home[n] != device
    )


def test_centres_and_their_rounds_are_on_dense_pss() -> None:
    plan = small_plan(groups=3, dense_ps=2)
    weights = sum(p.num_bytes for p in plan.nets["train"].parameters.values() if p.kind == "weight")
    dense = [plan.loads[f"dense_ps:{k}"].holds for k in range(2)]
    assert sum(use.weights for use in dense) == weights
    assert sum(use.sync for use in dense) == 2 * 3 * weights
    assert sum(plan.loads[f"group_ps:{k}"].holds.sync for k in range(2)) == 2 * weights


def test_a_centre_that_moves_by_blocks_has_two_numbers_more_for_each() -> None:
    held = {}
    for dense_sync in ("easgd", "bmuf"):
        cluster, options = Cluster(groups=3, dense_ps=1), with_flags(batch_size=8, dense_sync=dense_sync)
        held[dense_sync] = (
            compile_net(_captured(), cluster, options, name="small", solver="rules").loads["dense_ps:0"].holds.weights
        )
    assert held["bmuf"] == 3 * held["easgd"]  # the weights, their momentum, and the sum of a round


def test_mapped_tables_take_no_memory_and_caches_take_the_trainers() -> None:
    def holds(device: str, **options: object) -> MemoryUse:
        cluster = Cluster(groups=2, group_ps=0, sparse_ps=1)
        return (
            compile_net(_captured(), cluster, with_flags(batch_size=8, **options), name="small", solver="rules")
            .loads[device]
            .holds
        )  # type: ignore[arg-type]

    assert holds("sparse_ps:0").parameters == 2 * 90 * 4 * 4
    assert holds("sparse_ps:0", table_store="mapped").parameters == 0
    assert holds("trainer").caches == 0
    rows = 9  # a tenth of those of both tables
    assert holds("trainer", cache="het").caches == (rows + 1024) * (3 * 4 * 4 + 120)
    assert holds("sparse_ps:0", cache="het").caches == 90 * 4  # clocks


def test_a_refusal_says_what_takes_the_room_and_what_would_do() -> None:
    use = MemoryUse(own=ROLE_BYTES, weights=3 << 30, state=1 << 30, values=5 << 20)
    assert too_large_text("group_ps:1", use, 2 << 30) == (
        "'group_ps:1' needs 4.3 GiB of memory (3.0 GiB weights and rows, 1.0 GiB optimizer state, 320.0 MiB the process itself, 5.0 MiB values of the "
        "steps under way), group_ps_memory is 2.0 GiB: add group PSs, or raise group_ps_memory"
    )
    assert too_large_text("trainer", MemoryUse(own=ROLE_BYTES, values=9 << 30), 1 << 30).endswith(
        "trainer_memory is 1.0 GiB: a smaller --batch-size or --net-replicas, or raise trainer_memory"
    )


@pytest.mark.parametrize("role", ["trainer", "group_ps", "sparse_ps", "dense_ps"])
@pytest.mark.parametrize("memory", [1 << 10, ROLE_BYTES])
def test_a_role_whose_process_does_not_fit_is_refused_under_every_solver(role: str, memory: int) -> None:
    cluster = Cluster(groups=2, trainers=2, group_ps=2, **{f"{role}_memory": memory})  # type: ignore[arg-type]
    for solver in ("rules", "greedy", "ilp", "cbc"):
        with pytest.raises(PlacementError, match=rf"raise {role}_memory$"):
            compile_net(_captured(), cluster, Options(batch_size=8), name="small", solver=solver)  # type: ignore[arg-type]


def with_memory(plan: Plan, role: str, memory: int) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, **{f"{role}_memory": memory}))


@pytest.mark.parametrize("role", ["trainer", "group_ps", "sparse_ps", "dense_ps"])
def test_a_plan_whose_cluster_was_edited_is_judged_as_compiling_judges(role: str) -> None:
    plan = small_plan()
    need = max(load.holds.total for device, load in plan.loads.items() if device.startswith(role))
    with pytest.raises(
        PlanError, match=rf"'{role}.* needs .* of memory \(.*\), {role}_memory is .*: .*raise {role}_memory$"
    ):
        check_plan(with_memory(plan, role, need - 1))
    with pytest.raises(
        PlanError,
        match=r"^plan.yaml: the load of '.*' is not what its nets, cluster and options make: one was changed after compiling",
    ):
        check_plan(with_memory(plan, role, need * 2))  # what is told of its memory is of another one


def test_loads_that_were_edited_are_refused() -> None:
    plan = small_plan()
    trainer = plan.loads["trainer"]
    for change in (replace(trainer, cpu=0.5), replace(trainer, memory=0.0), replace(trainer, sent_per_example=1.0)):
        with pytest.raises(PlanError, match=r"^plan.yaml: the load of 'trainer' is not what its nets"):
            check_plan(replace(plan, loads={**plan.loads, "trainer": change}))
        assert check_plan(replace(plan, loads={**plan.loads, "trainer": change}, cost_model=1))  # counted before
    with pytest.raises(PlanError, match=r"^plan.yaml: loads are of trainer, the cluster has trainer, group_ps:0"):
        check_plan(replace(plan, loads={"trainer": trainer}))


@pytest.mark.parametrize(("processes", "store", "marks"), [(1, "memory", 90), (1, "mapped", 90), (2, "memory", 0)])
def test_rows_have_marks_of_a_byte_wherever_tables_lie(
    monkeypatch: pytest.MonkeyPatch, processes: int, store: str, marks: int
) -> None:
    options = with_flags(batch_size=8, table_store=store)
    held = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(footprint, "LEAST_MARKED_BYTES", least)
        cluster = Cluster(groups=2, group_ps=0, sparse_ps=1, sparse_ps_processes=processes, sparse_ps_cores=processes)
        plan = compile_net(_captured(), cluster, options, name="small", solver="rules")
        held.append(plan.loads["sparse_ps:0"].holds.weights)
    rows = sum(p.shape[0] for p in plan.nets["train"].parameters.values() if p.kind == "table")
    assert rows == 90
    assert held[0] - held[1] == marks


def test_the_largest_value_of_a_step_is_what_an_op_makes_and_no_view_of_what_is_there() -> None:
    builder, batch_size = NetBuilder("n"), 5
    builder.input(Blob("x", (B, 6), "float32"))
    builder.input(Blob("wide", (B, 50, 7), "float32"))
    builder.parameter(Parameter("w", (9, 6), "float32", "weight", Init("constant", (0.5,))))
    outputs = [*builder.add("FC", ("x", "w")), *builder.add("Transpose", ("wide",), attrs={"perm": (0, 2, 1)})]
    assert largest_made(builder.build(outputs), batch_size) == 4 * 9 * batch_size
    assert largest_made(None, batch_size) == 0


def test_what_travels_in_one_message_is_one_value() -> None:
    builder, batch_size = NetBuilder("n"), 5
    for name in ("x", "y", "z"):
        builder.input(Blob(name, (B, 6), "float32"))
    for name, peer, message in (("x", "sparse_ps:0", 3), ("y", "sparse_ps:0", 3), ("z", "sparse_ps:1", 3)):
        builder.add("Send", (name,), attrs={"peer": peer, "message": message})
    assert largest_made(builder.build([]), batch_size) == 2 * 4 * 6 * batch_size
