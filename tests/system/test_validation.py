"""Validation while training, by the command: a process per role, two groups, a cache, and what Ctrl-C and a damaged file come to."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from forked import Started, shared_commands
from whole_runs import ENDLESS, WIDE_DEEP, libfm, start, wait_until

import htrain
from htrain.executor.record.validations import VALIDATIONS, read_validations
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A plan of two groups with a HET cache, its data, and validation data of the opposite labels: training makes it worse."""
    folder = tmp_path_factory.mktemp("validated")
    data = libfm(folder / "train.libfm", 400)
    lines = (folder / "train.libfm").read_text().splitlines()
    turned = (f"{-int(label)} {rest}" for label, _, rest in (line.partition(" ") for line in lines))
    (folder / "worse.libfm").write_text("\n".join(turned) + "\n")
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1)
    options = with_flags(batch_size=16, cache="het", dense_sync="allreduce")
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options, solver="rules").save(folder / "plan")
    return folder / "plan", data, data.replace("train.libfm", "worse.libfm")


def ended(process: Started) -> tuple[str, str]:
    said, told = process.communicate(timeout=90)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    return said, told


def test_a_run_of_processes_that_gets_no_better_ends_early_with_status_0_and_says_so(
    small: tuple[Path, str, str], tmp_path: Path
) -> None:
    plan, data, worse = small
    run = str(tmp_path / "run")
    wanted = ("--valid", worse, "--valid-every", "400", "--early-stop", "2", "--keep-best", *ENDLESS)
    said, told = ended(start(plan, data, "--out", run, *wanted))
    last = said.splitlines()[-1]
    assert "; ended early: " in last
    assert " validations in a row without a better log loss than " in last
    assert last.endswith(f"; go on with --resume {run}")
    assert "validation at " in told
    before = read_validations(tmp_path / "run")
    charts = b"".join(path.read_bytes() for path in (tmp_path / "run" / "tensorboard").rglob("events*"))
    assert charts.count(b"validation/auc") >= len(before)
    said, _ = ended(start(plan, data, "--resume", run, *wanted, "--json"))
    document: dict[str, Any] = json.loads(said)
    assert document["stopped"]
    assert document["eps"] == document["train_examples"] / document["train_seconds"]
    lines = (tmp_path / "run" / VALIDATIONS).read_text().splitlines()
    assert document["validations"] == [json.loads(line) for line in lines]
    assert len(before) < len(lines) <= len(before) + 2
    evaluated = shared_commands().run(
        ["eval", run, "--data", worse, "--checkpoint", "best", "--json"], tmp_path, timeout=60
    )
    assert json.loads(evaluated.stdout)["log_loss"] == min(each["log_loss"] for each in document["validations"])


def test_ctrl_c_ends_a_run_that_is_validated_as_any_other(small: tuple[Path, str, str], tmp_path: Path) -> None:
    plan, data, worse = small
    process = start(plan, data, "--out", str(tmp_path / "run"), "--valid", worse, "--valid-every", "100", *ENDLESS)
    wait_until((tmp_path / "run" / VALIDATIONS).exists, process, "a validation")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert f"examples; go on with --resume {tmp_path / 'run'}" in told.splitlines()[-1]


@pytest.mark.parametrize("flags", [["--valid-every", "5"], ["--early-stop", "5"], ["--keep-best"]], ids=lambda f: f[0])
def test_flags_of_validations_without_data_are_usage_errors(
    small: tuple[Path, str, str], tmp_path: Path, flags: list[str]
) -> None:
    plan, data, _ = small
    refused = shared_commands().run(["run", str(plan), "--data", data, "--out", "run", *flags], tmp_path, timeout=60)
    assert refused.returncode == 2
    assert f"{flags[0]} has no effect without --valid: it is about" in refused.stderr


def test_validations_that_are_damaged_are_refused_by_a_run_that_would_go_on(
    small: tuple[Path, str, str], tmp_path: Path
) -> None:
    plan, data, _ = small
    run = tmp_path / "run"
    htrain.run(plan, data=data, out=run, hosting="threads")
    (run / VALIDATIONS).write_text("{}\n")
    with pytest.raises(htrain.Error, match=r"validations\.jsonl: damaged: .*: remove it to go on without"):
        htrain.run(plan, data=data, resume=run, hosting="threads")
