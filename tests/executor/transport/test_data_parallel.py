"""Several trainers with replicas of the same look-ahead caches, against PyTorch on the joint batches (cDLRM 6, Algorithm 3)."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import relative_differences, run_roles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joint import JOINT, joint_losses, joint_losses_of
from small_wide_deep import BATCH, DATA, small_plan
from torch import nn

from htrain.errors import ClusterError
from htrain.executor.launch.role import RunningRole
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.transport.peers import Ids, Rows
from htrain.spec.options import Options
from htrain.spec.tree import with_flags


def trained(
    folder: Path, options: Options, trainers: int, data: str = DATA
) -> tuple[nn.Module, dict[str, RunningRole]]:
    model, plan = small_plan(options, groups=trainers, trainers=1, sparse_ps=1)
    roles = run_roles(plan, folder / "plan", RunSettings(folder / "plan", data, folder / "run", deadline_seconds=10))
    return model, roles


def stored(roles: Mapping[str, RunningRole], table: str, keys: Ids) -> Rows:
    """rows[n,W] of a table and its optimizer's state on the sparse PSs."""
    stores = {
        name: tensor for role in roles.values() if role.name.startswith("sparse") for name, tensor in role.store.items()
    }
    parts = [tensor for name, tensor in stores.items() if name == table or name.startswith(table + ":")]
    return np.concatenate([part.numpy()[keys].reshape(keys.size, -1) for part in parts], axis=1)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    trainers=st.integers(2, 3),
    rows=st.integers(1, 12 * BATCH),
    sets=st.sampled_from(["auto", 1, 3, 40]),
    ways=st.integers(1, 4),
    window=st.sampled_from(["auto", 1, 3, 10]),
)
def test_sgd_on_rows_averaged_in_every_step_is_sgd_on_the_joint_batch(
    trainers: int, rows: int, sets: int | str, ways: int, window: int | str
) -> None:
    options = with_flags(JOINT, cache_sets=sets, cache_ways=ways, cache_window=window)
    data = f"synthetic:?rows={rows * trainers + 1}&table_rows=40&communities=4"
    with tempfile.TemporaryDirectory() as folder:
        model, roles = trained(Path(folder), options, trainers, data)
    assert (
        max(relative_differences(joint_losses_of(roles, trainers), joint_losses(model, data, options, trainers)[0]))
        < 1e-4
    )


def test_a_trainer_without_data_goes_along_to_the_end(tmp_path: Path) -> None:
    data = f"synthetic:?rows={BATCH * 20 + 1}&table_rows=40&communities=4"
    _, roles = trained(tmp_path, with_flags(JOINT, cache_window=4), 2, data)
    totals = [role.trainer.totals for role in roles.values() if role.trainer]
    assert sum(each.examples for each in totals) == BATCH * 20 + 1
    assert sorted(each.steps for each in totals) == [10, 11]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_after_the_run_all_trainers_and_the_store_have_the_same_rows(optimizer: str, tmp_path: Path) -> None:
    average = 5 if optimizer == "sgd" else "300%"
    options = with_flags(
        JOINT, sparse_optimizer=optimizer, cache_sets=3, cache_ways=4, cache_window=4, cache_average=average
    )
    _, plan = small_plan(options, groups=2, trainers=1, sparse_ps=2)
    roles = run_roles(plan, tmp_path, RunSettings(tmp_path, DATA, tmp_path / "run", deadline_seconds=10))
    trainers = [roles[f"trainer:{k}:0"] for k in range(2)]
    for name, cache in trainers[0].caches.items():
        if isinstance(cache, TableCache):
            other = trainers[1].caches[name]
            keys, slots = cache.residents()
            assert (keys == other.residents()[0]).all()
            rows = cache.rows_at(slots)
            assert (rows == other.rows_at(slots)).all()
            assert (rows == stored(roles, name.removeprefix("cached_"), keys)).all()
    weights = [n for n, p in plan.net_of("trainer").parameters.items() if p.kind == "weight" and p.trained]
    assert all(torch.equal(trainers[0].store[n], trainers[1].store[n]) for n in weights)


def test_rows_that_are_averaged_less_often_are_further_from_the_joint_batch(tmp_path: Path) -> None:
    errors = []
    for every in (1, 10):
        options = with_flags(JOINT, cache_average=every)
        model, roles = trained(tmp_path / str(every), options, 2)
        errors.append(max(relative_differences(joint_losses_of(roles, 2), joint_losses(model, DATA, options, 2)[0])))
    assert errors[0] < 1e-4 < errors[1]


def averages(folder: Path, average: int | str) -> tuple[int, float]:
    """Bytes that two trainers have averaged, and how far their losses are from those of the joint batch."""
    options = with_flags(JOINT, cache_average=average)
    model, roles = trained(folder, options, 2)
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    assert trainer.upcoming
    losses = joint_losses(model, DATA, options, 2)[0]
    return trainer.upcoming.report["bytes"]["averages"], max(relative_differences(joint_losses_of(roles, 2), losses))


def test_rows_are_averaged_when_their_share_has_been_updated(tmp_path: Path) -> None:
    """A share that every step updates is an average in every step, and exact; the larger the share, the fewer bytes."""
    (always, exact), (small, near), (smallest, far) = (
        averages(tmp_path / f"{k}", share) for k, share in enumerate(("0.001%", "100%", "400%"))
    )
    assert always == averages(tmp_path / "steps", 1)[0]
    assert always > small > smallest > 0
    assert exact < 1e-4 < min(near, far)


def test_trainers_that_do_not_step_together_cannot_keep_caches_alike() -> None:
    with pytest.raises(
        ClusterError, match="2 of them want dense sync allreduce, and groups: 2, trainers: 1, group_ps: 0"
    ):
        small_plan(with_flags(JOINT, dense_sync="easgd"), groups=2, trainers=1, sparse_ps=1, dense_ps=1)
    with pytest.raises(ClusterError, match="share the tables: sparse_ps must be at least 1"):
        small_plan(JOINT, groups=2, trainers=1, sparse_ps=0)
