"""Training out of look-ahead caches as processes: stopped, killed in the middle of a window, and resumed (cDLRM 5)."""

import signal
from pathlib import Path

import pytest
import torch
from joint import JOINT, joint_losses
from small_wide_deep import BATCH, small_plan
from whole_runs import WIDE_DEEP, kill, libfm, parameters, start_held, wait_until_held

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS = 6_000
WINDOW = 32  # batches of 16


@pytest.fixture(scope="module", params=["memory", "mapped"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """A plan with a cache that is too small for its windows, its data, and a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp(request.param)
    data = libfm(folder / "train.libfm", ROWS)
    options = with_flags(
        batch_size=16,
        cache="lookahead",
        cache_window=WINDOW,
        cache_sets=5,
        cache_ways=4,
        table_store=request.param,
        sparse_lr=0.05,
    )
    cluster = this_machine(group_ps=0, sparse_ps=2 if request.param == "memory" else 0)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "whole", deterministic=True, hosting="threads")
    return folder / "plan", data, folder / "whole"


def assert_same(run: Path, whole: Path) -> None:
    seen, wanted = parameters(run), parameters(whole)
    assert seen.keys() == wanted.keys()
    assert all(torch.equal(seen[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    "steps", [1, 3 * WINDOW, 5 * WINDOW + 17], ids=["first step", "end of a window", "in a window"]
)
def test_a_run_that_is_stopped_and_resumed_repeats_and_loses_no_update(
    small: tuple[Path, str, Path], tmp_path: Path, steps: int
) -> None:
    plan, data, whole = small
    process = start_held(str(steps), plan, data, "--deterministic", out=tmp_path / "cut")
    wait_until_held(tmp_path / "cut", process, str(steps))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    htrain.run(plan, data=data, resume=tmp_path / "cut", deterministic=True, hosting="threads")
    assert_same(tmp_path / "cut", whole)


def test_a_trainer_killed_in_a_window_leaves_tables_that_are_those_of_the_last_checkpoint(
    small: tuple[Path, str, Path], tmp_path: Path
) -> None:
    plan, data, whole = small
    run = tmp_path / "run"
    places = (2 * WINDOW + 5, f"{4 * WINDOW + 21}!")  # of its checkpoint, and of its end
    process = start_held("{},{}".format(*places), plan, data, "--deterministic", "--checkpoint-seconds", "0.5", out=run)
    wait_until_held(run, process, places[1])
    kill("trainer:0:0", run, process)
    assert not (run / "tables").exists() or not list((run / "tables").iterdir())
    htrain.run(plan, data=data, resume=run, deterministic=True, hosting="threads")
    assert_same(run, whole)


def test_two_trainers_killed_and_resumed_end_where_sgd_on_the_joint_batches_does(tmp_path: Path) -> None:
    """Through a cache that is too small, averaged in every step; the tables are those of PyTorch."""
    data = f"synthetic:?rows={BATCH * 400 + 1}&table_rows=40&communities=4"
    options = with_flags(JOINT, cache_sets=3, cache_ways=4, cache_window=16)
    model, plan = small_plan(options, groups=2, trainers=1, sparse_ps=2)
    plan.save(tmp_path / "plan")
    run = tmp_path / "run"
    process = start_held("70,123!", tmp_path / "plan", data, "--checkpoint-seconds", "0.3", out=run)
    wait_until_held(run, process, "123!", trainers=2)
    kill("trainer:1:0", run, process)
    htrain.run(tmp_path / "plan", data=data, resume=run, hosting="threads")
    _, trained = joint_losses(model, data, options, 2)
    found = {name.split()[-1]: tensor for name, tensor in parameters(run).items()}
    for name, wanted in trained.named_parameters():
        torch.testing.assert_close(found[name], wanted, rtol=1e-3, atol=1e-5)
