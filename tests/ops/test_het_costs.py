"""What HET's ops cost: each row that goes through a cache is counted, at the sizes that are to be expected of a batch."""

from dataclasses import replace

import pytest
from cached_plans import cached_plan

from htrain.costs.seconds import op_seconds
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.base import Cost
from htrain.simulation.run import sized_nets

PARTS = ("HetAnnounce", "HetAsk", "HetRead", "HetWrite", "HetPush", "HetPull")


def costs(nets: dict[str, Net]) -> dict[str, Cost]:
    return {
        op.type: OPS[op.type].cost(op, [net.blob(n) for n in op.inputs], [net.blob(n) for n in op.outputs], 8)
        for net in nets.values()
        for op in net.ops
        if op.type in PARTS
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_part_counts_its_rows(optimizer: str) -> None:
    """Of 16 ids of 24 rows 12 are to be expected to be distinct; three quarters of these are in the cache."""
    found = costs(sized_nets(cached_plan("het", sparse_optimizer=optimizer)))
    assert set(found) == set(PARTS)
    assert all(cost.keys > 0 and cost.bytes > 0 for cost in found.values())
    assert found["HetAnnounce"].keys == 12
    assert found["HetWrite"].keys > found["HetPush"].keys


def test_without_staleness_all_rows_leave_and_the_server_sums_what_came_before_it_answers() -> None:
    found = costs(sized_nets(cached_plan("het", cache_staleness=0)))
    assert found["HetPush"] == Cost(0.0, 0.0)
    assert found["HetPull"].keys > costs(sized_nets(cached_plan("het")))["HetPull"].keys


def test_fewer_hits_cost_more_and_a_key_costs_what_the_cluster_says() -> None:
    plan = cached_plan("het")
    missing = replace(plan, cluster=replace(plan.cluster, cache_hit_percent=0))
    ours, theirs = costs(sized_nets(plan)), costs(sized_nets(missing))
    assert all(theirs[part].keys > ours[part].keys for part in ("HetAsk", "HetPush"))
    net = sized_nets(plan)["trainer"]
    op = next(op for op in net.ops if op.type == "HetWrite")
    inputs = [net.blob(name) for name in op.inputs]
    fast, slow = (op_seconds(op, inputs, [], replace(plan.cluster, core_key_nanoseconds=ns), 8) for ns in (10, 1010))
    assert slow - fast == pytest.approx(ours["HetWrite"].keys * 1e-6)
