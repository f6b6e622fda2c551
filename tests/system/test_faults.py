"""Runs to which something happens: what was trained is kept, who failed is named, and nothing is left behind (docs/guarantees.md)."""

import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from forked import Started
from whole_runs import (
    ENDLESS,
    WIDE_DEEP,
    Process,
    held_command,
    let_go,
    libfm,
    num_trained,
    start,
    start_anew,
    start_held,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
    wait_until_all_train,
    wait_until_held,
)

import htrain
from htrain.errors import CheckpointError
from htrain.executor.record.kept import find_checkpoints, latest_checkpoint
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

ROWS = 6_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A plan of two groups, and its data."""
    folder = tmp_path_factory.mktemp("faults")
    data = libfm(folder / "train.libfm", ROWS)
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=32)).save(folder / "plan")
    return folder / "plan", data


@pytest.fixture
def run(small: tuple[Path, str], tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a long run of the small plan in tmp_path/run; whatever is left of it goes when the test ends."""
    started: list[Started] = []

    def begin(*arguments: str, data: str = "") -> Started:
        process = start(small[0], data or small[1], *(arguments or ("--out", str(tmp_path / "run"), *ENDLESS)))
        started.append(process)
        return process

    yield begin
    for process in started:
        for each in family_of(process):
            each.kill()
        process.kill()
        process.communicate()


def family_of(process: Process) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def last_line(process: Process, seconds: float = 60) -> str:
    """How a run ended, in its own words."""
    _, said = process.communicate(timeout=seconds)
    assert "Traceback" not in said, said
    return said.splitlines()[-1]


class Told:
    """What a process writes to its standard error, as it comes."""

    def __init__(self, process: Process) -> None:
        self.text = ""
        self._process = process
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.text += line

    def until_the_end(self) -> str:
        self._process.wait(60)
        self._thread.join(60)
        return self.text


def roles_of(folder: Path) -> dict[str, int]:
    return {role: place["pid"] for role, place in json.loads((folder / "roles.json").read_text()).items()}


# -- one owner at a time


def test_a_folder_in_which_a_run_trains_is_refused_to_all_others_and_left_alone(
    run: Callable[..., Started], small: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = run("--out", str(folder), *ENDLESS, "--checkpoint-seconds", "1")
    wait_for_a_checkpoint(folder, first)
    for arguments in (("--resume", str(folder)), ("--out", str(folder))):
        other = start(*small, *arguments)
        assert last_line(other).startswith(f"htrain: {folder}: process {first.pid} on ")
        assert other.returncode == 1
    seen = {path.name for path in folder.iterdir()}
    first.send_signal(signal.SIGINT)
    last_line(first)
    assert first.returncode == 130
    assert seen - {path.name for path in folder.iterdir()} == {"owner.json"}
    htrain.run(small[0], data=small[1], resume=folder, epochs=1, hosting="threads")


def test_a_run_in_whose_place_another_has_come_ends_and_writes_nothing_there(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    process = run("--out", str(tmp_path / "run"), "--checkpoint-seconds", "1", *ENDLESS)
    wait_for_a_checkpoint(tmp_path / "run", process)
    other = tmp_path / "other"
    (other / "checkpoints" / "examples_000000000001").mkdir(parents=True)  # as of a write that was interrupted
    part = other / "checkpoints" / "examples_000000000001" / "sparse_ps_0.safetensors"
    part.write_text("the other's")
    far = {"process": ["far", "", 7, 1.0], "since": 1.0}
    (other / "owner.json").write_text(json.dumps(far))
    (tmp_path / "run").rename(tmp_path / "away")
    other.rename(tmp_path / "run")
    wanted = "was removed, or renamed, while its run went on, and is another run's now (process 7 on far)"
    assert last_line(process).startswith(f"htrain: {tmp_path}/run: {wanted}: ")
    assert process.returncode == 1
    assert json.loads((tmp_path / "run" / "owner.json").read_text()) == far
    held = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*"))
    part = part.relative_to(other)
    assert held == ["checkpoints", str(part.parent), str(part), "owner.json"]


def test_a_run_whose_folder_is_removed_ends_and_makes_no_other(run: Callable[..., Started], tmp_path: Path) -> None:
    process = run("--out", str(tmp_path / "run"), "--checkpoint-seconds", "0.5", *ENDLESS)
    wait_for_a_checkpoint(tmp_path / "run", process)
    (tmp_path / "run").rename(tmp_path / "renamed")
    said = last_line(process)
    assert said.startswith(f"htrain: {tmp_path}/run: was removed, or renamed, while its run went on, which ends: ")
    assert process.returncode == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_no_checkpoint_yet_is_not_taken_for_one_that_has_ended(
    run: Callable[..., Started], small: tuple[Path, str], tmp_path: Path
) -> None:
    """Whoever is told to remove its folder removes a run that trains."""
    folder = tmp_path / "run"
    first = run("--out", str(folder), *ENDLESS, "--checkpoint-seconds", "end")
    wait_until((folder / "run.json").exists, first, "a run in its folder")
    for folders in ({"out": folder}, {"out": folder, "or_resume": True}, {"resume": folder}):
        with pytest.raises(CheckpointError, match=f"run: process {first.pid} on .* works in it: wait for its end"):
            htrain.run(small[0], data=small[1], **folders, hosting="threads")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint yet: its run goes on: wait for the first"):
        htrain.evaluate(folder, data=small[1])


# -- signals


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_end_of_the_terminal_or_of_the_service_writes_a_checkpoint(
    run: Callable[..., Started], tmp_path: Path, number: signal.Signals
) -> None:
    process = run()
    wait_for_examples(tmp_path / "run", process, 1)
    for each in [process, *family_of(process)]:  # a service manager tells all of them
        each.send_signal(number)
    assert "go on with --resume" in last_line(process)
    assert process.returncode == 130
    assert latest_checkpoint(tmp_path / "run")[1].examples > 0


def test_what_ignores_the_end_of_its_terminal_goes_on(small: tuple[Path, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        held_command("5", *small, out=tmp_path / "run"),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_until_held(tmp_path / "run", process, "5", trainers=2)
    process.send_signal(signal.SIGHUP)
    let_go(tmp_path / "run")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert latest_checkpoint(tmp_path / "run")[1].finished


@pytest.mark.parametrize("opened", [os.openpty, os.pipe], ids=["terminal", "pipe"])
def test_a_run_whose_news_nobody_reads_any_more_trains_to_the_end(
    opened: Callable[[], tuple[int, int]], small: tuple[Path, str], tmp_path: Path
) -> None:
    """A terminal that was closed, or `2>&1 | tee log` whose tee has ended."""
    ours, its = opened()
    process = subprocess.Popen(
        held_command("5", *small, out=tmp_path / "run"),
        stdout=subprocess.PIPE,
        stderr=its,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(its)
    wait_until_held(tmp_path / "run", process, "5", trainers=2)
    os.close(ours)
    let_go(tmp_path / "run")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"{ROWS:,} examples" in said
    assert latest_checkpoint(tmp_path / "run")[1].finished


def test_ctrl_c_that_ends_who_reads_the_news_too_writes_a_checkpoint(small: tuple[Path, str], tmp_path: Path) -> None:
    """`htrain run ... 2>&1 | tee log`: a terminal sends Ctrl-C to both."""
    ours, its = os.pipe()
    process = subprocess.Popen(
        held_command("5", *small, out=tmp_path / "run"), stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    wait_until_held(tmp_path / "run", process, "5", trainers=2)
    os.close(ours)
    process.send_signal(signal.SIGINT)
    let_go(tmp_path / "run")
    assert process.wait(timeout=120) == 130
    assert latest_checkpoint(tmp_path / "run")[1].examples > 0


def test_a_second_ctrl_c_ends_a_run_that_cannot_save_there_and_then(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    process = run()
    wait_for_examples(tmp_path / "run", process, 1)
    family = family_of(process)
    os.kill(roles_of(tmp_path / "run")["sparse_ps:0"], signal.SIGSTOP)  # it will never answer the order to pause
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert last_line(process) == "htrain: interrupted"
    assert time.monotonic() - began < 10
    assert process.returncode == 130
    assert not psutil.wait_procs(family, timeout=5)[1]


# -- the dead and the slow


@pytest.mark.parametrize(
    "victims",
    [
        ("launcher", "supervisor"),
        ("supervisor",),
        ("launcher", "supervisor", "trainer:0:0"),
        ("supervisor", "group_ps:1:0"),
    ],
    ids=str,
)
def test_whoever_is_killed_no_process_is_left(
    run: Callable[..., Started], tmp_path: Path, victims: tuple[str, ...]
) -> None:
    process = run()
    wait_for_examples(tmp_path / "run", process, 1)
    family = family_of(process)
    (supervisor,) = psutil.Process(process.pid).children()
    pids = {"launcher": process.pid, "supervisor": supervisor.pid, **roles_of(tmp_path / "run")}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive
    if "launcher" not in victims:
        said = last_line(process)
        assert process.returncode == 1
        assert "was killed by signal 9" in said
        assert f"remove {tmp_path / 'run'} and start again" in said, "there is no checkpoint to go on from"


def test_a_role_that_is_stopped_is_told_of_as_slow_and_then_given_up_by_name(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    process = run("--out", str(tmp_path / "run"), *ENDLESS, "--liveness-seconds", "6", "--deadline-seconds", "60")
    wait_until_all_train(tmp_path / "run", process, "trainer:0:0", "trainer:1:0")
    family = family_of(process)
    os.kill(roles_of(tmp_path / "run")["trainer:1:0"], signal.SIGSTOP)
    _, said = process.communicate(timeout=60)
    lines = said.splitlines()
    assert any(
        line.startswith("trainer:1:0 has been silent for ") and line.endswith(", though its process lives")
        for line in lines
    ), said
    assert lines[-1].startswith(
        "htrain: trainer:1:0 has been silent for 6 s, though its process lives (its last step: "
    )
    assert "--liveness-seconds gives it longer" in lines[-1]
    assert not psutil.wait_procs(family, timeout=5)[1]


def test_a_trainer_that_has_waited_for_too_long_says_for_whom(small: tuple[Path, str], tmp_path: Path) -> None:
    """In a run that a shell has started: its end was that of a process with status 1, which could not say why."""
    folder = tmp_path / "run"
    process = start_anew(*small, "--out", str(folder), *ENDLESS, "--deadline-seconds", "2")
    try:
        wait_until_all_train(folder, process, "trainer:0:0", "trainer:1:0")
        os.kill(roles_of(folder)["sparse_ps:0"], signal.SIGSTOP)
        ended = last_line(process)
    finally:
        process.kill()
        process.communicate()
    assert re.match(r"htrain: trainer:\d:0/\d: nothing from sparse_ps:0 for 2 s at step \d+; ", ended), ended


def test_a_launcher_that_sleeps_finds_its_roles_where_they_were(small: tuple[Path, str], tmp_path: Path) -> None:
    process = start_held("5", *small, "--liveness-seconds", "3", out=tmp_path / "run")
    wait_until_held(tmp_path / "run", process, "5", trainers=2)
    process.send_signal(signal.SIGSTOP)
    time.sleep(6)
    process.send_signal(signal.SIGCONT)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "stopped after" in last_line(process)


def test_a_run_that_is_frozen_as_a_whole_goes_on_where_it_was(run: Callable[..., Started], tmp_path: Path) -> None:
    """As where a container is paused, a batch system suspends a job, or a host sleeps: nobody has waited meanwhile."""
    folder = tmp_path / "run"
    process = run("--out", str(folder), *ENDLESS, "--deadline-seconds", "2")
    wait_until_all_train(folder, process, "trainer:0:0", "trainer:1:0")
    roles = roles_of(folder)
    servers = [roles[role] for role in roles if not role.startswith("trainer")]
    others = [process.pid, *(roles[role] for role in roles if role.startswith("trainer"))]
    for pids, seconds in ((servers, 0.5), (others, 4.0)):  # trainers wait for an answer
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
    for pids, seconds in ((others, 0.2), (servers, 0.0)):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(seconds)
    for _ in range(2):  # the first report may be of what was trained before
        wait_for_examples(folder, process, num_trained(folder) + 1)
    process.send_signal(signal.SIGINT)
    assert "stopped after" in last_line(process)


# -- disks


def test_a_checkpoint_that_the_disk_refuses_is_tried_again_while_training_goes_on(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    process = run("--out", str(tmp_path / "run"), *ENDLESS, "--checkpoint-seconds", "1")
    wait_for_a_checkpoint(tmp_path / "run", process)
    everybody = [psutil.Process(process.pid), *family_of(process)]
    for each in everybody:
        each.rlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))  # as if the disk were full
    before = find_checkpoints(tmp_path / "run").complete[0][1].examples
    told = Told(process)
    for words in ("no checkpoint: ", "metrics cannot be written"):
        wait_until(lambda words=words: words in told.text, process, words)  # type: ignore[misc]
    stuck = find_checkpoints(tmp_path / "run").complete[0][1].examples
    for each in everybody:
        each.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(
        lambda: find_checkpoints(tmp_path / "run").complete[0][1].examples > stuck, process, "another checkpoint"
    )
    process.send_signal(signal.SIGINT)
    said = told.until_the_end()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    refusals = [line for line in said.splitlines() if line.startswith("no checkpoint: ")]
    assert refusals
    assert all(
        "cannot be written: " in line and "training goes on, it is tried again in 1 s" in line for line in refusals
    ), said
    assert any(
        "metrics cannot be written (File too large); training goes on without" in line for line in said.splitlines()
    ), said
    assert find_checkpoints(tmp_path / "run").complete[0][1].examples > stuck >= before
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines), "no line is half written"
    assert not list((tmp_path / "run").rglob("*.partial"))


# -- readers


def test_a_reader_that_cannot_read_on_saves_what_was_trained_before(small: tuple[Path, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.libfm"
    good = Path(small[1].removeprefix("libfm:").partition("?")[0]).read_text()
    bad.write_text(good + "no label\n" * (ROWS // 10))
    data = f"libfm:{bad}?rows=50"
    process = start(small[0], data, "--out", str(tmp_path / "run"))
    said = last_line(process, 120)
    assert process.returncode == 1
    assert f"{bad}:{ROWS + 1}: " in said
    assert said.endswith(
        f"until there it is saved: once the same data can be read, go on with --resume {tmp_path / 'run'}"
    )
    done = latest_checkpoint(tmp_path / "run")[1]
    assert not done.finished
    assert 0 < done.examples <= ROWS
    result = htrain.run(small[0], data=data, resume=tmp_path / "run", malformed_share=0.9, hosting="threads")
    assert result.totals.examples == ROWS
    assert result.totals.malformed_example.startswith(f"{bad}:")


def test_data_of_which_nothing_can_be_read_leaves_no_checkpoint(small: tuple[Path, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.libfm"
    bad.write_text("no label\n" * 100)
    process = start(small[0], f"libfm:{bad}?rows=50", "--out", str(tmp_path / "run"))
    assert f"{bad}:1: " in last_line(process)
    assert process.returncode == 1
    assert not list((tmp_path / "run").rglob("manifest.json"))


# -- what a checkpoint belongs to


@pytest.mark.parametrize(("rows", "wanted"), [(1999, ""), (2009, ", and of these some are others")])
def test_rows_that_are_others_are_refused_on_resume_whether_some_have_come_or_not(
    small: tuple[Path, str], tmp_path: Path, rows: int, wanted: str
) -> None:
    plan, _ = small
    data, path = libfm(tmp_path / "a.libfm", 2000), tmp_path / "a.libfm"
    htrain.run(plan, data=data, out=tmp_path / "run", hosting="threads")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:1000], "1 3:1 4:1 5:1 6:1    \n", *lines[1001:], *lines[:9]][:rows]))
    with pytest.raises(
        htrain.Error,
        match=rf"was made on other data \('a.libfm' has [\d,]+ bytes, it had [\d,]+{wanted}\): resume with the data as it was",
    ):
        htrain.run(plan, data=data, resume=tmp_path / "run", epochs=2, hosting="threads")
    assert latest_checkpoint(tmp_path / "run")[1].examples == 2000
