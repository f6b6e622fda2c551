"""Ids of traces, against the columns of the data; and of the Zipf law, against the law."""

from itertools import islice

import numpy as np
import pytest
from cached_plans import cached_plan
from small_wide_deep import BATCH, DATA, ROWS, small_plan

from htrain.data import START, Malformed, open_data
from htrain.errors import DataError, PlanError
from htrain.simulation.id_sources import Trace, Zipf, spread
from htrain.spec.tree import with_flags

OPTIONS = with_flags(batch_size=BATCH, cache="het", dense_sync="allreduce")


def test_a_trace_brings_the_distinct_ids_of_each_trainers_batches() -> None:
    _, plan = small_plan(OPTIONS, groups=2)
    ids = [name for op in plan.nets["train"].ops if op.type == "HetAsk" for name in op.inputs[1:]]
    first = [op.inputs[1] for op in plan.nets["train"].ops if op.type == "HetAsk"]
    assert len(ids) == 2 * 26
    for trainer in (0, 1):
        data = open_data(DATA).batches(
            batch_size=BATCH, shard=trainer, num_shards=2, epochs=2, start=START, malformed=Malformed()
        )
        found = list(Trace(DATA, epochs=2).batches(plan, dict.fromkeys(ids, ROWS), trainer))
        wanted = list(data)
        assert len(found) == len(wanted) > 40
        for batch, known in zip(wanted, found, strict=True):
            assert [sorted(known[name]) for name in first] == [sorted(set(batch.columns["sparse"][:, 0]))] * 2


def test_data_that_the_plan_does_not_take_is_refused() -> None:
    with pytest.raises(DataError, match=r"the plan wants input 'ids' as int64\[B,2\], the data has no such input"):
        next(iter(Trace(DATA).batches(cached_plan("het"), {"x": 1}, 0)))


def test_ids_that_parameters_come_into_are_refused() -> None:
    _, plan = small_plan(OPTIONS)
    read = next(op for op in plan.nets["train"].ops if op.type == "HetRead")
    with pytest.raises(
        PlanError,
        match=r"^the rows that a cache is asked for depend on 'cache_\d+' \(HetAsk .*: give --zipf, or neither$",
    ):
        next(iter(Trace(DATA).batches(plan, {read.outputs[0]: ROWS}, 0)))


def test_frequencies_fall_as_the_law_says_and_are_those_of_the_seed() -> None:
    plan = cached_plan("het")
    (ids,) = (op.inputs[1] for op in plan.nets["train"].ops if op.type == "HetAsk")
    drawn = [batch[ids] for batch in islice(Zipf(1.2).batches(plan, {ids: 1000}, 0), 20_000)]
    assert all(len(batch) == len(set(batch)) <= 16 for batch in drawn[:100])
    there = np.bincount(np.concatenate(drawn), minlength=1000) / len(drawn)  # the chance to be in a batch of 16 ids
    frequencies = 1 - (1 - np.sort(there)[::-1]) ** (1 / 16)
    ranks = np.arange(1, 1001.0)
    wanted = (ranks**-0.2 - (ranks + 1) ** -0.2) / (1 - 1001**-0.2)  # the integral of the density over [k, k + 1)
    assert frequencies[:20] == pytest.approx(wanted[:20], rel=0.06)
    again, others = (next(Zipf(1.2, seed).batches(plan, {ids: 1000}, 0))[ids] for seed in (0, 1))
    assert again.tolist() == drawn[0].tolist() != others.tolist()


@pytest.mark.parametrize("rows", [1, 2, 24, 1000, 99_991])
def test_every_rank_has_a_row_of_its_own(rows: int) -> None:
    assert np.array_equal(np.sort(spread(np.arange(rows), rows)), np.arange(rows))


def test_ranks_of_the_largest_tables_are_multiplied_without_overflow() -> None:
    rows = 4 * 10**12 + 7
    ranks = np.array([0, 1, 2, rows // 3, rows - 1])
    step = int(spread(np.array([1]), rows)[0])
    assert spread(ranks, rows).tolist() == [int(rank) * step % rows for rank in ranks]
