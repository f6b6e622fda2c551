"""Whole runs of plans that nobody chose: every one ends with all its examples trained, within its bound on dense staleness (docs/guarantees.md)."""

import pytest
import torch
from drawn_plans import Drawn, data_of
from harness import run_roles

from htrain.executor.settings import RunSettings

STEPS = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many plans as --drawn-plans says."""
    metafunc.parametrize("seed", range(metafunc.config.getoption("--drawn-plans")))


def test_a_drawn_plan_trains_every_example_within_its_bound_on_staleness(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = Drawn.of(seed)
    folder = tmp_path_factory.mktemp("drawn")
    examples = STEPS * drawn.options.batch_size * drawn.num_trainers * drawn.options.net_replicas
    examples = -(-examples // 20) * 20
    data = data_of(drawn.model, folder, examples)
    try:
        roles = run_roles(
            drawn.plan(),
            folder / "plan",
            RunSettings(folder / "plan", data, folder / "run", deadline_seconds=40),
            seconds=120,
        )
    except Exception as error:
        raise AssertionError(f"{drawn}: {type(error).__name__}: {error}") from error
    trainers = [role.trainer for role in roles.values() if role.trainer]
    assert sum(trainer.totals.examples for trainer in trainers) == examples, drawn
    assert min(trainer.totals.steps for trainer in trainers) >= STEPS, drawn
    workers = [role.server or role.trainer for name, role in roles.items() if name.startswith(("trainer", "group_ps"))]
    staleness = [max(worker.staleness, default=0) for worker in workers if worker]
    assert max(staleness) <= drawn.bound, drawn
    assert all(
        torch.isfinite(tensor).all()
        for role in roles.values()
        for tensor in role.store.values()
        if tensor.is_floating_point()
    ), drawn
