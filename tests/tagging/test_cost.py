"""The cost model against sums made by hand: seconds of an op by what bounds it, loads of devices, the EPS of the busiest."""

from dataclasses import replace

import pytest
from small_dlrm import small_plan

from htrain.cluster import Cluster
from htrain.net import B, Blob, Net, Op
from htrain.ops import OPS
from htrain.plan import Plan
from htrain.tagging.cost import op_seconds, predict

RATES = Cluster(
    core_flops=10**9, gemm_half_size=4, core_bandwidth=10**6, core_gather_bandwidth=10**5, core_scatter_bandwidth=10**4,
    op_nanoseconds=1000, message_nanoseconds=2000, message_bandwidth=10**6,
)  # fmt: skip


def fc(k: int, n: int) -> tuple[Op, list[Blob], list[Blob]]:
    op = Op("FC", ("x", "w"), ("y",), {}, "", "fc")
    return op, [Blob("x", (B, k), "float32"), Blob("w", (n, k), "float32")], [Blob("y", (B, n), "float32")]


def test_a_gemm_reaches_half_of_its_rate_at_the_half_size() -> None:
    cluster = replace(RATES, core_bandwidth=2**60)
    assert op_seconds(*fc(64, 4), cluster, 32) == pytest.approx(1e-6 + 2 * 32 * 64 * 4 / 0.5e9)
    assert op_seconds(*fc(64, 64), cluster, 12) == pytest.approx(1e-6 + 2 * 12 * 64 * 64 / 0.75e9)


def test_an_op_that_moves_more_than_it_computes_takes_the_time_of_its_bytes() -> None:
    assert op_seconds(*fc(8, 2), RATES, 16) == pytest.approx(1e-6 + 4 * (16 * 8 + 8 * 2 + 16 * 2) / 1e6)
    relu = Op("Relu", ("x",), ("y",), {}, "", "r")
    x, y = Blob("x", (B, 10), "float32"), Blob("y", (B, 10), "float32")
    assert op_seconds(relu, [x], [y], RATES, 5) == pytest.approx(1e-6 + 2 * 4 * 50 / 1e6)


def test_rows_are_read_and_updated_at_the_rates_of_random_access() -> None:
    table, ids, rows = Blob("t", (100, 5), "float32"), Blob("ids", (B,), "int64"), Blob("rows", (B, 5), "float32")
    lookup = Op("Lookup", ("t", "ids"), ("rows",), {"first_row": 0}, "", "t")
    assert op_seconds(lookup, [table, ids], [rows], RATES, 10) == pytest.approx(1e-6 + (2 * 200 + 80) / 1e5)
    step = Op("SparseSgd", ("t", "ids", "rows"), (), {"lr": 0.1, "first_row": 0}, "", "t")
    assert op_seconds(step, [table, ids, rows], [], RATES, 10) == pytest.approx(
        1e-6 + OPS["SparseSgd"].cost(step, [table, ids, rows], [], 10).bytes / 1e4
    )


def test_a_view_costs_its_start_only_and_a_message_its_bytes() -> None:
    x = Blob("x", (B, 10), "float32")
    assert op_seconds(Op("Reshape", ("x",), ("y",), {"shape": (-1,)}, "", ""), [x], [x], RATES, 5) == pytest.approx(
        1e-6
    )
    send = Op("Send", ("x",), (), {"peer": "group_ps:0", "message": 1}, "", "")
    tensor = RATES.message_tensor_nanoseconds * 1e-9
    assert op_seconds(send, [x], [], RATES, 5) == pytest.approx(tensor + 200 / 1e6)


def by_device(plan: Plan) -> dict[str, Net]:
    return {d: plan.net_of(d) for d in plan.cluster.devices if not d.startswith("dense_ps")}


def test_the_busiest_device_is_fully_used_at_the_predicted_eps_and_no_other_is_more() -> None:
    plan = small_plan()
    eps, loads = predict(by_device(plan), plan.cluster, 8)
    used = [use for load in loads.values() for use in (load.cpu, load.network)]
    assert max(used) == pytest.approx(1.0, abs=1e-5)
    trainer = loads["trainer"]
    trainers = plan.cluster.groups * plan.cluster.trainers
    assert trainer.cpu == pytest.approx(
        eps * trainer.cpu_seconds_per_example / plan.cluster.trainer_cores / trainers, rel=1e-3
    )


def test_what_one_device_sends_the_others_receive() -> None:
    plan = small_plan()
    _, loads = predict(by_device(plan), plan.cluster, 8)
    assert (
        sum(load.sent_per_example for load in loads.values())
        == sum(load.received_per_example for load in loads.values())
        > 0
    )
    assert sum(load.messages for load in loads.values()) % 2 == 0


def test_roles_of_one_host_share_its_cores() -> None:
    plan = small_plan()
    shared = replace(plan.cluster, host_cores=2)
    eps, loads = predict(by_device(plan), shared, 8)
    assert eps == pytest.approx(2 / sum(load.cpu_seconds_per_example for load in loads.values()), rel=1e-3)


def test_a_slow_network_is_the_bottleneck_and_twice_the_groups_are_twice_the_eps() -> None:
    plan = small_plan()
    slow = replace(plan.cluster, trainer_bandwidth=10_000)
    eps, loads = predict(by_device(plan), slow, 8)
    assert max(loads, key=lambda d: max(loads[d].cpu, loads[d].network)) == "trainer"
    assert loads["trainer"].network == pytest.approx(1.0, abs=1e-5)
    twice, _ = predict(by_device(plan), replace(slow, groups=4), 8)
    assert twice == pytest.approx(2 * eps, abs=1)
