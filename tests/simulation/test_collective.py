"""Simulated AllReduce and AllGather: against the bytes of a ring counted by hand, against a run's order, and as trainers that wait for each other."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

import htrain
from htrain.executor.engine.context import Context
from htrain.net.names import WORKERS
from htrain.plan.plan import Plan
from htrain.simulation.collective import Meeting, Reducing, reductions_of
from htrain.simulation.costs import Packet
from htrain.simulation.counts import with_counts
from htrain.simulation.machine import Host, Process
from htrain.simulation.predicted import with_steady_state
from htrain.simulation.result import Simulated
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce
from htrain.spec.options import Options
from htrain.spec.sparse_sync import AllGather

DLRM = str(Path(__file__).parents[2] / "models" / "dlrm.py")
_FRAMING = 1514 / 1448
SLOW = 1_000_000  # bytes per second: all else is as good as nothing


@cache
def compiled(sparse: bool, groups: int, *, bucket_bytes: int = 25 << 20, **rates: int) -> Plan:
    cluster = Cluster(groups=groups, trainers=1, group_ps=0, sparse_ps=0 if sparse else 1, **rates)
    options = Options(batch_size=256, net_replicas=1, dense_sync=AllReduce(bucket_bytes=bucket_bytes))
    if sparse:
        options = replace(options, sparse_sync=AllGather())
    return htrain.compile(
        DLRM, cluster=cluster, options=options, data="synthetic:?rows=2000&table_rows=100", solver="rules"
    )


def seconds_of_a_step(found: Simulated, plan: Plan) -> float:
    return plan.cluster.groups * plan.options.batch_size / found.eps


@pytest.mark.parametrize("groups", [2, 3, 8])
@pytest.mark.parametrize("bucket_bytes", [1, 25 << 20])
def test_on_a_slow_link_a_step_takes_as_long_as_the_bytes_of_the_ring(groups: int, bucket_bytes: int) -> None:
    """Every weight's gradient goes round twice but for a trainer's own part, in however many buckets."""
    plan = compiled(False, groups, bucket_bytes=bucket_bytes, trainer_bandwidth=SLOW, sparse_ps_bandwidth=10**12)
    weights = plan.nets["train"].parameters.values()
    ring = (
        2
        * (groups - 1)
        / groups
        * sum(4 * size(parameter.shape) for parameter in weights if parameter.kind == "weight")
    )
    load = plan.loads["trainer"]
    rows = max(load.sent_per_example, load.received_per_example) * 256 - ring
    found = seconds_of_a_step(simulate(plan, steps=8, jitter=0.0), plan)
    assert ring * _FRAMING / SLOW * 0.99 < found < (ring + 2 * rows) * _FRAMING / SLOW * 1.1


def size(shape: tuple[int, ...]) -> int:
    return size(shape[1:]) * shape[0] if shape else 1


def test_allgather_takes_as_long_as_everybody_elses_rows() -> None:
    plan = compiled(True, 4, trainer_bandwidth=SLOW)
    found = seconds_of_a_step(simulate(plan, steps=8, jitter=0.0), plan)
    ring = sum(each.exchange.num_bytes for each in reductions_of(plan))
    gathered = next(each for each in reductions_of(plan) if len(each.inputs) == 52)  # ids and rows of 26 tables
    own = sum(
        100 * (1 - 0.99**256) * (8 + 4 * 16) for _ in range(26)
    )  # distinct ids of 256 drawn from 100, if all were alike
    assert gathered.exchange.num_bytes <= 3 * 26 * 256 * (8 + 4 * 16)
    assert gathered.exchange.num_bytes >= 0.5 * 3 * own
    assert found == pytest.approx(ring * _FRAMING / SLOW, rel=0.1)


def test_more_workers_take_longer_for_a_step_and_one_has_nobody_to_wait_for() -> None:
    plan = compiled(False, 2)
    alone, two, many = (simulate(with_counts(plan, groups=n), steps=8).eps / n for n in (1, 2, 40))
    assert alone > two > many


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("rates", [{}, {"trainer_bandwidth": 12_500_000}, {"host_cores": 2}])
def test_plans_are_predicted_to_be_as_fast_as_they_are_simulated(
    groups: int, sparse: bool, rates: dict[str, int]
) -> None:
    plan = with_steady_state(compiled(sparse, groups, **rates))
    assert plan.predicted_eps == pytest.approx(simulate(plan, steps=20, jitter=0.0).eps, rel=0.2)


def test_of_many_workers_a_few_stand_for_all_and_the_ring_is_as_long_as_it_is() -> None:
    """Rows of all others go round: the step of 200 workers is as much longer than that of 60 as there are more of them."""
    plan = compiled(True, 2, trainer_bandwidth=SLOW)
    for groups in (60, 200):
        larger = with_counts(plan, groups=groups)
        ring = sum(each.exchange.num_bytes for each in reductions_of(larger))
        assert seconds_of_a_step(simulate(larger, steps=6, jitter=0.0), larger) == pytest.approx(
            ring * _FRAMING / SLOW, rel=0.1
        )


class _World:
    """A simulation of nothing but threads for collectives, which notes what leaves them."""

    def __init__(self, trainers: int) -> None:
        self.env = simpy.Environment()
        self.meeting = Meeting(self.env, trainers)
        self.inboxes: dict[str, simpy.Store] = {}
        self.answers: list[tuple[float, str, int, tuple[str, ...]]] = []

    varied: Callable[[float], float] = staticmethod(lambda seconds: seconds)

    def inbox(self, endpoint: str) -> simpy.Store:
        return self.inboxes.setdefault(endpoint, simpy.Store(self.env))

    def deliver(self, source: str, endpoint: str, context: Context, packet: Packet) -> None:
        assert endpoint == "a replica"
        self.answers.append((self.env.now, source, context.step, packet.names))


@given(
    st.lists(st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), min_size=4, max_size=4), min_size=2, max_size=3)
)
def test_whenever_trainers_give_their_buckets_all_have_the_sums_in_one_order_and_none_before_the_last_has_given(
    delays: list[list[tuple[float, bool]]],
) -> None:
    """Two steps of two buckets; each trainer gives its own at times and in an order of its own."""
    plan = compiled(False, 2, bucket_bytes=1)
    reductions = reductions_of(plan)[:2]
    world = _World(len(delays))
    hosts = [Host(world.env, simpy.Resource(world.env, 4), 1e9) for _ in delays]
    given_at: dict[tuple[int, int], float] = {}
    packet = next(each.answer for each in reductions)

    def gives(inbox: simpy.Store, waits: list[tuple[float, bool]]) -> Process:
        orders = [(step, bucket) for step in range(2) for bucket in ((0, 1) if waits[step][1] else (1, 0))]
        for (step, bucket), (seconds, _) in zip(orders, waits, strict=True):
            yield world.env.timeout(seconds)
            given_at[step, bucket] = max(given_at.get((step, bucket), 0.0), world.env.now)
            given = replace(packet, peer=WORKERS, names=reductions[bucket].inputs)
            inbox.put((Context(0, 0, 0, step), "a replica", given))

    for number, waits in enumerate(delays):
        Reducing(world, f"trainer:{number}:0", reductions, hosts[number], hosts[(number + 1) % len(hosts)])
        world.env.process(gives(world.inbox(f"trainer:{number}:0"), waits))
    world.env.run(until=60)
    wanted = [(step, each.answer.names) for step in range(2) for each in reductions]
    for number in range(len(delays)):
        assert [(step, names) for _, source, step, names in world.answers if source == f"trainer:{number}:0"] == wanted
    buckets = {each.answer.names: bucket for bucket, each in enumerate(reductions)}
    assert all(when >= given_at[step, buckets[names]] for when, _, step, names in world.answers)
