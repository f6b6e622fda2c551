"""What HET-GMP's workers are counted to ask for: beside distinct rows counted with sets, and beside what workers of a run have counted."""

from collections import defaultdict
from pathlib import Path

import pytest
from gmp_data import BATCH, FieldNet, OneTable, Parts, drawn, examples_of, parts_of

import htrain
from htrain.data import START, Malformed, open_data
from htrain.errors import DataError, PlanError, UsageError
from htrain.ops.cache_rates import CacheRates, Rates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.counts import with_counts
from htrain.simulation.id_sources import Trace, Zipf
from htrain.simulation.run import sized_nets
from htrain.simulation.strategies.gmp import PlaysGmp
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

WORKERS, STEPS = 3, 160


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return parts_of(tmp_path_factory.mktemp("gmp"), WORKERS, count=WORKERS * BATCH * STEPS)


def plan_of(parts: Parts, kind: type = FieldNet, **flags: object) -> Plan:
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), **flags
    )
    wanted = ("sparse", "seen", "seen_length") if kind is FieldNet else ("sparse",)
    inputs = {name: value for name, value in examples_of(parts.source).items() if name in wanted}
    cluster = this_machine(groups=WORKERS, trainers=1, group_ps=0)
    return htrain.compile(drawn(kind), example_inputs=inputs, cluster=cluster, options=options)


def exchanged(rates: CacheRates) -> dict[str, float]:
    return {
        "fetched": rates.fetched - rates.stale,
        "pushed": rates.pushed,
        "checked": rates.checked,
        "stale": rates.stale,
    }


def needed_rows(parts: Parts) -> list[dict[int, float]]:
    """Of each worker, the rows of every other that its batches need, in the mean, all of which travel where there are no replicas."""
    bounds = {name: parts.numbering.bounds(name) for name in parts.numbering.facts.tables}
    found: list[dict[int, float]] = []
    for worker in range(WORKERS):
        read = open_data(parts.packed).batches(
            batch_size=BATCH, shard=worker, num_shards=WORKERS, epochs=1, start=START, malformed=Malformed()
        )
        counts: dict[int, float] = defaultdict(float)
        batches = 0
        for batch in read:
            columns = {"a": batch.columns["sparse"][:, 0], "d": batch.columns["sparse"][:, 1]}
            rows = {(table, int(row)) for table, values in columns.items() for row in values}
            for table, row in rows:
                owner = next(k for k in range(WORKERS) if row < bounds[table][k + 1])
                counts[owner] += owner != worker
            batches += 1
        found.append({owner: count / batches for owner, count in counts.items()})
    return found


def test_without_bounds_on_replicas_what_travels_are_the_distinct_rows_of_others(tmp_path: Path) -> None:
    """No replicas: each row of another comes for every batch that has it, also where it is still here from the batch before, and its gradient leaves."""
    parts = parts_of(tmp_path, WORKERS, count=WORKERS * BATCH * STEPS, replicas=0.0)
    (rates,) = rates_of(plan_of(parts, OneTable), Trace(parts.packed), most_batches=STEPS).caches.values()
    wanted = needed_rows(parts)
    for owner, shard in enumerate(rates.shards):
        mean = sum(needed.get(owner, 0.0) for needed in wanted) / WORKERS
        assert shard.fetched + shard.stale == pytest.approx(mean, rel=0.03)
        assert shard.pushed == pytest.approx(mean, rel=0.03)
        assert shard.checked == shard.stale


@pytest.mark.parametrize(
    ("staleness", "write"), [(0, "through"), (3, "through"), (3, "deferred"), ("unbounded", "deferred")]
)
def test_workers_of_a_run_ask_for_as_much(parts: Parts, tmp_path: Path, write: str, staleness: int | str) -> None:
    plan = plan_of(parts, gmp_staleness=staleness, gmp_write=write)
    plan.save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads")
    batches = result.totals.examples / BATCH
    (rates,) = rates_of(plan, Trace(parts.packed), most_batches=STEPS).caches.values()
    bytes_of = result.totals.caches.bytes
    row = 4 * 4  # a row of width 4
    counted = {
        "fetched": result.totals.caches.misses / batches, "pushed": bytes_of["gradients"] / row / batches,
        "stale": result.totals.caches.stale / batches,
    }  # fmt: skip
    found = exchanged(rates)
    for kind, count in counted.items():
        assert found[kind] == pytest.approx(count, rel=0.12, abs=0.4), (kind, found, counted)


def test_rows_by_pair_of_workers_add_up(parts: Parts) -> None:
    plays = PlaysGmp(plan_of(parts, gmp_staleness=3), Trace(parts.packed), STEPS)
    rounds = [found.rates for found in plays.rounds()]
    (tables,) = plays.tables
    assert not tables.pairs[range(WORKERS), range(WORKERS)].any()
    for kind, name in enumerate(("pushed", "fetched", "checked", "stale")):
        wanted = [
            sum(getattr(rates[tables.name].shards[k], name) for rates in rounds) * WORKERS for k in range(WORKERS)
        ]
        assert tables.pairs[:, :, kind].sum(axis=0).tolist() == pytest.approx(wanted)


def test_messages_of_the_simulation_are_of_that_size(parts: Parts) -> None:
    plan = plan_of(parts, gmp_staleness=3)
    rates = rates_of(plan, Trace(parts.packed), most_batches=STEPS)
    nets = sized_nets(plan, rates)
    (cache,) = rates.caches.values()
    sent = [op for op in nets["trainer"].ops if op.type == "Send" and str(op.attrs["peer"]).startswith("sparse_ps")]
    gradients = sum(
        nets["trainer"].blob(name).shape[0]
        for op in sent
        for name in op.inputs
        if "gradients" in name  # type: ignore[misc]
    )
    assert gradients == pytest.approx(cache.pushed, abs=WORKERS)
    assert htrain.simulate(plan, trace=parts.packed, steps=8).eps > 0


@pytest.mark.parametrize(
    ("staleness", "write"), [(3, "through"), (3, "deferred"), (8, "deferred"), ("unbounded", "deferred")]
)
def test_without_a_trace_the_partition_tells_what_bounds_leave(parts: Parts, staleness: int | str, write: str) -> None:
    """By the partition alone, and the bounds: gradients within a quarter of what workers ask for."""
    inter = {} if staleness == "unbounded" else {"gmp_inter": False}
    plan = plan_of(parts, gmp_staleness=staleness, gmp_write=write, **inter)
    (cache,) = rates_of(plan, Trace(parts.packed), most_batches=STEPS).caches.values()
    nets = sized_nets(plan, Rates())
    names = [name for op in nets["trainer"].ops if op.type == "GmpAsk" for name in op.outputs[1:]]
    sizes = {
        part: sum(float(nets["trainer"].blob(n).shape[0]) for n in names[place::4])
        for place, part in enumerate(("counts", "keys", "clocks", "gradients"))
    }
    assert sizes["gradients"] == pytest.approx(cache.pushed, rel=0.25, abs=WORKERS)


def test_ids_that_are_drawn_tell_nothing_of_a_partition(parts: Parts) -> None:
    with pytest.raises(
        UsageError, match=r"--zipf 1: ids that are drawn are not those of the partition of .*--trace packed:FILE"
    ):
        rates_of(plan_of(parts), Zipf(1.0))


def test_a_trace_is_of_data_that_was_packed_by_the_partition(parts: Parts) -> None:
    with pytest.raises(DataError, match="is not packed"):
        rates_of(plan_of(parts), Trace(parts.source))


def test_other_workers_and_batches_than_the_partition_tells_of_are_refused(parts: Parts) -> None:
    """Rows are where the partition has them; what a larger batch asks for, only its data says."""
    plan = plan_of(parts)
    with pytest.raises(
        PlanError, match=r"a partition among 3 workers has them: for 4, make one with htrain partition --workers 4"
    ):
        with_counts(plan, groups=4)
    with pytest.raises(
        PlanError,
        match=r"tells what rows a batch of 16 asks for, not one of 32: count them in its data, --trace packed:FILE",
    ):
        with_counts(plan, batch_size=2 * BATCH)
    assert with_counts(plan, groups=WORKERS, batch_size=BATCH) == plan
    larger = with_counts(plan, batch_size=2 * BATCH, is_played=True)
    few, many = (rates_of(each, Trace(parts.packed), most_batches=40) for each in (plan, larger))
    asked = [sum(sum(each.ids.values()) for each in found.caches.values()) for found in (few, many)]
    assert asked[1] > 1.2 * asked[0]
