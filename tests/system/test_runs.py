"""Whole runs, as processes: interrupted, resumed, killed, and held within their bounds."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from whole_runs import (
    ENDLESS,
    WIDE_DEEP,
    kill,
    libfm,
    parameters,
    start,
    start_anew,
    start_held,
    train,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until_held,
)

import htrain
from htrain.executor.engine.context import Context
from htrain.executor.engine.gate import WriteGates
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

ROWS = 6_000
STEPS = ROWS // 32


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A plan of one trainer, a group PS and a sparse PS, and its data."""
    folder = tmp_path_factory.mktemp("small")
    data = libfm(folder / "train.libfm", ROWS)
    options = with_flags(batch_size=32, dense_optimizer="adam")
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(), options=options).save(folder / "plan")
    return folder / "plan", data


@pytest.fixture(scope="module")
def whole(small: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The parameters after an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    htrain.run(small[0], data=small[1], out=folder, deterministic=True, hosting="threads")
    return parameters(folder)


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGINT, 1), (signal.SIGTERM, STEPS // 2)])
def test_interrupted_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    small: tuple[Path, str], whole: dict[str, torch.Tensor], tmp_path: Path, number: signal.Signals, steps: int
) -> None:
    plan, data = small
    process = start_held(str(steps), plan, data, "--deterministic", out=tmp_path / "cut")
    wait_until_held(tmp_path / "cut", process, str(steps))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume" in said.splitlines()[-1]
    done = int(max((tmp_path / "cut" / "checkpoints").iterdir()).name.removeprefix("examples_"))
    assert done == 32 * steps, "it stops behind the step that it is in"
    train(plan, data, "--resume", str(tmp_path / "cut"), "--deterministic")
    resumed = parameters(tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_killed_role_ends_the_run_with_an_error_that_names_it(small: tuple[Path, str], tmp_path: Path) -> None:
    """A trainer and a sparse PS are killed in test_het_processes."""
    plan, data = small
    process = start_anew(plan, data, "--out", str(tmp_path / "run"), *ENDLESS, "--checkpoint-seconds", "1")
    wait_for_examples(tmp_path / "run", process, 1)
    kill("group_ps:0:0", tmp_path / "run", process)


def test_killed_launcher_leaves_no_process_behind(small: tuple[Path, str], tmp_path: Path) -> None:
    plan, data = small
    process = start_anew(plan, data, "--out", str(tmp_path / "run"), *ENDLESS)
    wait_for_examples(tmp_path / "run", process, 1)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_run_killed_between_checkpoints_resumes_from_the_last_one(small: tuple[Path, str], tmp_path: Path) -> None:
    plan, data = small
    process = start(plan, data, "--out", str(tmp_path / "run"), *ENDLESS, "--checkpoint-seconds", "0.5")
    wait_for_a_checkpoint(tmp_path / "run", process)
    process.kill()
    process.communicate()
    result = htrain.run(plan, data=data, resume=tmp_path / "run", epochs=1, hosting="threads")
    assert result.totals.examples >= ROWS


NARROW = f"""
import sys
sys.path.insert(0, {str(Path(WIDE_DEEP).parent)!r})
from wide_deep import WideDeep

def build(schema):
    return WideDeep(schema, dim=4, hidden=[16])
"""


def three_replicas(folder: Path, rows: int) -> tuple[Path, str]:
    """A plan of two trainers of three replicas beside two group PSs, and its data: it is the order of updates that counts, and there are many."""
    data = libfm(folder / "train.libfm", rows, fields=1)
    (folder / "narrow.py").write_text(NARROW)
    cluster, options = this_machine(trainers=2, group_ps=2, sparse_ps=1), with_flags(batch_size=4, net_replicas=3)
    htrain.compile(str(folder / "narrow.py"), data=data, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan", data


def test_dense_staleness_never_exceeds_trainers_times_replicas_over_ten_thousand_updates(tmp_path: Path) -> None:
    plan, data = three_replicas(tmp_path, 42_000)
    totals = htrain.run(plan, data=data, out=tmp_path / "run").totals
    assert sum(totals.staleness.values()) >= 2 * 10_000  # of each group PS
    assert 1 <= totals.max_staleness <= 2 * 3


def test_the_bound_holds_where_a_server_is_slow_to_count_its_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = WriteGates.end

    def slow_end(gates: WriteGates[Any], clock: int, context: Context) -> list[Any]:
        time.sleep(0.003)
        return end(gates, clock, context)

    monkeypatch.setattr(WriteGates, "end", slow_end)
    plan, data = three_replicas(tmp_path, 1_000)
    assert 1 <= htrain.run(plan, data=data, out=tmp_path / "run", hosting="threads").totals.max_staleness <= 2 * 3


def test_every_example_is_trained_once_per_epoch_over_trainers_and_replicas(tmp_path: Path) -> None:
    data = libfm(tmp_path / "train.libfm", 5_003)
    cluster = this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=2)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=7)).save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", epochs=2, hosting="threads")
    assert result.totals.examples == 2 * 5_003


def test_diverged_run_ends_with_an_error_that_says_what_to_change(tmp_path: Path) -> None:
    data = libfm(tmp_path / "train.libfm", 4_000)
    options = with_flags(
        batch_size=16, dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=1e9, sparse_lr=1e9, loss="mse"
    )
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(), options=options).save(tmp_path / "plan")
    with pytest.raises(
        htrain.Error, match=r"the loss is (nan|inf) at step .* compile with smaller --dense-lr and --sparse-lr"
    ):
        htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
