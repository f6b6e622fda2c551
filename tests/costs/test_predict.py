"""The cost model against sums made by hand: seconds of an op by what bounds it, loads of devices, the EPS of the busiest."""

from dataclasses import replace

import pytest
from small_dlrm import small_dlrm, small_plan

from htrain.compiler.pipeline import compile_net
from htrain.costs.expected import expected, expected_blobs
from htrain.costs.loads import DeviceLoad
from htrain.costs.memory import memory_of_train
from htrain.costs.predict import demands_of, device_loads, seconds_of
from htrain.costs.seconds import op_seconds
from htrain.frontend.captured import Captured
from htrain.net.net import B, Blob, Op
from htrain.ops import OPS
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

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


def predicted(
    plan: Plan, cluster: Cluster | None = None, options: Options | None = None
) -> tuple[float, dict[str, DeviceLoad]]:
    """The EPS that devices allow, and their loads at it, with another cluster or other options than the plan's."""
    cluster, options = cluster or plan.cluster, options or plan.options
    demands = demands_of(plan.nets, cluster, options)
    eps = 1 / seconds_of(demands, cluster, options, options.dense_sync.round_steps)
    train = plan.nets["train"]
    holds = memory_of_train(train, {i: op.node_name for i, op in enumerate(train.ops)}, cluster, options)
    return eps, device_loads(plan.nets, holds, demands, cluster, options, eps=eps)


def test_the_busiest_device_is_fully_used_at_what_devices_allow_and_no_other_is_more() -> None:
    plan = small_plan()
    eps, loads = predicted(plan)
    assert max(use for load in loads.values() for use in (load.cpu, load.network, load.lock)) == pytest.approx(
        1.0, abs=1e-5
    )
    trainer, trainers = loads["trainer"], plan.cluster.groups * plan.cluster.trainers
    threads = plan.options.net_replicas + 1  # and the one that moves bytes
    assert trainer.cpu == pytest.approx(eps * trainer.cpu_seconds_per_example / threads / trainers, rel=1e-3)
    assert trainer.lock == pytest.approx(eps * trainer.lock_seconds_per_example / trainers, rel=1e-3)


def test_what_one_device_sends_the_others_receive() -> None:
    _, loads = predicted(small_plan())
    sent, received = (
        sum(getattr(load, f"{way}_per_example") for load in loads.values()) for way in ("sent", "received")
    )
    assert sent == pytest.approx(received)
    assert sent > 0
    assert sum(load.messages for load in loads.values()) % 2 == 0


def test_roles_of_one_host_share_its_cores() -> None:
    plan = small_plan()
    eps, loads = predicted(plan, replace(plan.cluster, host_cores=1))
    assert eps == pytest.approx(1 / sum(load.cpu_seconds_per_example for load in loads.values()), rel=1e-3)


def test_a_slow_network_is_the_bottleneck_and_twice_the_groups_are_twice_the_eps() -> None:
    plan = small_plan()
    slow = replace(plan.cluster, trainer_bandwidth=10_000)
    eps, loads = predicted(plan, slow)
    assert max(loads, key=lambda d: max(loads[d].cpu, loads[d].network, loads[d].lock)) == "trainer"
    assert loads["trainer"].network == pytest.approx(1.0, abs=1e-5)
    twice, _ = predicted(plan, replace(slow, groups=4))
    assert twice == pytest.approx(2 * eps, rel=1e-6)


def test_a_server_of_all_trainers_is_held_up_by_its_lock_before_its_cores() -> None:
    plan = small_plan()
    many = replace(plan.cluster, groups=200)
    eps, loads = predicted(plan, many)
    busiest = max(loads, key=lambda d: loads[d].lock)
    assert busiest.startswith("sparse_ps")
    assert loads[busiest].lock == pytest.approx(1.0, abs=1e-5)
    assert loads[busiest].cpu < 0.5
    free, loads = predicted(plan, replace(many, python_lock=False))
    assert free > 2 * eps
    assert all(load.lock == 0 for load in loads.values())


def test_the_sync_asks_of_holders_and_dense_pss_what_its_weights_weigh_and_less_the_rarer_it_is() -> None:
    plan = small_plan()
    weights = sum(p.num_bytes for p in plan.nets["train"].parameters.values() if p.kind == "weight")
    for period in (1, 8):
        options = with_flags(plan.options, sync_period=period)
        _, often = predicted(plan, options=options)
        _, never = predicted(plan, options=with_flags(options, sync_period=10**9))
        for roles in (("dense_ps:0",), ("group_ps:0", "group_ps:1")):
            for way in ("sent_per_example", "received_per_example"):
                more = sum(getattr(often[d], way) - getattr(never[d], way) for d in roles)
                assert more == pytest.approx(weights / (8 * period), rel=1e-6)


def test_all_reduce_passes_its_gradients_around_a_ring() -> None:
    cluster = Cluster(groups=4, group_ps=0, dense_ps=0, sparse_ps=2)
    options = with_flags(batch_size=8, dense_sync="allreduce")
    plan = compile_net(Captured(small_dlrm(), {}), cluster, options, name="small", solver="rules")
    weights = sum(p.num_bytes for p in plan.nets["train"].parameters.values() if p.kind == "weight")
    trainer = expected(plan.net_of("trainer"), expected_blobs(plan.nets["train"], cluster, 8))
    parts = [op for op in trainer.ops if op.type == "Send" and op.attrs["peer"] != "all_reduce"]
    sent = sum(trainer.blobs[op.inputs[0]].num_bytes(8) for op in parts)
    assert plan.loads["trainer"].sent_per_example == pytest.approx((sent + 2 * 3 / 4 * weights) / 8)
