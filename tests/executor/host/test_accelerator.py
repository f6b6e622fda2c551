"""Whole runs whose trainers compute on an accelerator: the host in its place, and a CUDA device where there is one (cDLRM 5)."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerators import DEVICES
from drawn_plans import Drawn, data_of
from harness import relative_differences, run_roles, torch_losses
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from joint import JOINT, joint_losses, joint_losses_of
from small_wide_deep import BATCH, DATA, small_plan

from htrain.data.identity import DataIdentity
from htrain.errors import ModelError, RunError
from htrain.executor.launch.role import RunningRole
from htrain.executor.record.checkpoint import VERSION, Manifest
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.role_file import load_role_into, save_role
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.lookahead.slot_rows import DeviceRows
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

ON_DEVICE = with_flags(batch_size=BATCH, cache="lookahead", cache_device="cuda", sparse_lr=0.05)
IDENTITY = Identity(PlanIdentity("abc", {}, {}), DataIdentity(1, "criteo", {}, ()))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What trainers take for their CUDA device."""
    monkeypatch.setattr("htrain.executor.host.accelerator.cuda_device", lambda turn: torch.device(request.param))
    return str(request.param)


def trained(folder: Path, options: Options, **counts: int) -> tuple[dict[str, RunningRole], list[float]]:
    """The roles of a whole run, and PyTorch's losses."""
    model, plan = small_plan(options, **counts)
    run = RunSettings(folder / "plan", DATA, folder / "run", deadline_seconds=10)
    return run_roles(plan, folder / "plan", run), torch_losses(model, DATA, options)


def losses_of(roles: dict[str, RunningRole]) -> list[float]:
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    return trainer.losses


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]),
    sets=st.sampled_from(["auto", 1, 7, 40]),
    ways=st.integers(1, 4),
    window=st.sampled_from(["auto", 1, 10]),
    counts=st.sampled_from([{"sparse_ps": 0}, {"sparse_ps": 2}, {"sparse_ps": 1, "group_ps": 1}]),
)
def test_losses_are_those_of_training_on_the_tables(
    device: str, optimizer: str, sets: int | str, ways: int, window: int | str, counts: dict[str, int]
) -> None:
    options = with_flags(
        ON_DEVICE, sparse_optimizer=optimizer, cache_sets=sets, cache_ways=ways, cache_window=window,  # type: ignore[arg-type]
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        roles, wanted = trained(Path(folder), options, **counts)
    assert max(relative_differences(losses_of(roles), wanted)) < 1e-5


@pytest.mark.parametrize(
    "unlike",
    [{"rate": (("*C1.*", 0.0), ("*C2.*", 0.1))}, {"sparse_lazy_weight_decay": 0.01}, {"cache_table": (("*C3.*", "none"),)}],
)  # fmt: skip
def test_tables_that_are_stepped_or_held_otherwise_train_as_on_the_host(
    device: str, unlike: dict[str, Any], tmp_path: Path
) -> None:
    losses = []
    for place in ("cpu", "cuda"):
        options = with_flags(ON_DEVICE, cache_device=place, cache_sets=7, cache_ways=4, **unlike)  # type: ignore[arg-type]
        losses.append(losses_of(trained(tmp_path / place, options, sparse_ps=1)[0]))
    assert max(relative_differences(losses[1], losses[0])) < 1e-5


def _lookaheads() -> st.SearchStrategy[int]:
    """The seeds of such plans, looked for where they are drawn: every worker collects this test, and one runs it."""
    drawn = {seed: Drawn.of(seed) for seed in range(400)}
    return st.sampled_from([seed for seed, plan in drawn.items() if plan.options.cache.kind == "lookahead" and plan.cluster.groups == 1])  # fmt: skip


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(seed=st.deferred(_lookaheads))
def test_models_of_all_kinds_train_as_on_the_host(device: str, seed: int) -> None:
    """Lists of items, attention, rows that nothing else meets: what of them is read together is an accelerator's matter."""
    drawn = Drawn.of(seed)
    drawn = replace(drawn, options=with_flags(drawn.options, fc_dtype="float32", activation_dtype="float32"))
    losses = []
    for place in ("cpu", "cuda"):
        try:
            plan = replace(drawn, options=with_flags(drawn.options, cache_device=place)).plan()  # type: ignore[arg-type]
        except ModelError:
            reject()  # an older PyTorch captures fewer models
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run = RunSettings(folder / "plan", data_of(drawn.model, folder, 80), folder / "run", deadline_seconds=10)
            losses.append(losses_of(run_roles(plan, folder / "plan", run)))
    assert max(relative_differences(losses[1], losses[0])) < 1e-4, drawn


def test_what_a_step_needs_is_on_the_device_and_nothing_else(device: str, tmp_path: Path) -> None:
    roles, _ = trained(tmp_path, ON_DEVICE, sparse_ps=0)
    trainer = roles["trainer:0:0"]
    caches = [cache for cache in trainer.caches.values() if isinstance(cache, TableCache)]
    assert len(caches) == 52
    assert all(isinstance(cache.rows, DeviceRows) for cache in caches)
    places = {name: tensor.device.type for name, tensor in trainer.store.items()}
    assert {kind for name, kind in places.items() if ".tables." in name} == {"cpu"}
    assert {kind for name, kind in places.items() if ".tables." not in name} == {device}
    slots = [tensor for name, tensor in trainer.caches.items() if isinstance(tensor, torch.Tensor)]
    assert {tensor.device.type for tensor in slots} == {device}
    assert len(slots) == 4  # rows and states, for the tables of each of two widths


def test_a_device_repeats_nothing_bit_for_bit_and_says_so(device: str, tmp_path: Path) -> None:
    _, plan = small_plan(ON_DEVICE)
    run = RunSettings(tmp_path, DATA, tmp_path / "run", deadline_seconds=10, deterministic=True)
    with pytest.raises(RunError, match=r"--deterministic: a CUDA device sums gradients in the order"):
        run_roles(plan, tmp_path, run)


def test_two_trainers_average_their_caches_to_the_joint_batch(device: str, tmp_path: Path) -> None:
    options = with_flags(JOINT, cache_device="cuda", cache_sets=3, cache_ways=4)
    model, plan = small_plan(options, groups=2, trainers=1, sparse_ps=1)
    roles = run_roles(plan, tmp_path, RunSettings(tmp_path, DATA, tmp_path / "run", deadline_seconds=10))
    assert max(relative_differences(joint_losses_of(roles, 2), joint_losses(model, DATA, options, 2)[0])) < 1e-4


def test_what_is_on_the_device_is_saved_and_loaded_again(device: str, tmp_path: Path) -> None:
    tensors = {"w": torch.randn(4, 3, device=device), "on_host": torch.randn(5)}
    saved = save_role(tmp_path, "trainer:0:0", tensors)
    again = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load_role_into(
        tmp_path, "trainer:0:0", Manifest(VERSION, tmp_path.name, 1, IDENTITY, 0, {}, {"trainer:0:0": saved}), again
    )
    assert all(
        torch.equal(again[name], tensor) and again[name].device == tensor.device for name, tensor in tensors.items()
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_machine_without_a_device_says_so(tmp_path: Path) -> None:
    _, plan = small_plan(ON_DEVICE)
    with pytest.raises(RunError, match=r"and torch .* finds none here: compile it with --cache-device cpu"):
        run_roles(plan, tmp_path, RunSettings(tmp_path, DATA, tmp_path / "run", deadline_seconds=10))
