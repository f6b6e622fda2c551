"""A run goes on with data that has grown: every example, old and new, is trained once in each epoch that it is there for, by a table that counts."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from forked import Started
from ledger import ROWS, counted, last_begun, ledger_plan
from whole_runs import (
    ENDLESS,
    WIDE_DEEP,
    libfm,
    parameters,
    start,
    start_held,
    train,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until_held,
)

import htrain
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

CLUSTERS = {
    "alone": {"group_ps": 0, "sparse_ps": 0},
    "2 trainers": {"trainers": 2, "group_ps": 1, "sparse_ps": 1},
    "3 servers": {"trainers": 1, "group_ps": 1, "sparse_ps": 3},
    "4 trainers": {"trainers": 4, "group_ps": 1, "sparse_ps": 1},
    "2 groups": {"groups": 2, "trainers": 1, "group_ps": 1, "sparse_ps": 2, "dense_ps": 1},
}
EPOCHS = 30


class Log:
    """Files in Criteo's format that are appended to: how often each row of the ledger's table stands in all examples, by when they came."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.data = f"criteo:{folder}/day-*.tsv?rows={ROWS}"
        self._folder = folder
        self._draw = np.random.default_rng(seed)
        self.numbers = 0

    def append(self, day: int, examples: int) -> np.ndarray:
        """So many more of a day, [ROWS]: how often each row stands in them."""
        ids = self._draw.integers(0, ROWS, (examples, 26))
        lines = ("1\t" + "3\t" * 13 + "\t".join(f"{row:x}" for row in of) + "\n" for of in ids)
        with (self._folder / f"day-{day}.tsv").open("a") as file:
            file.writelines(lines)
        self.numbers += examples
        return np.bincount(ids.ravel(), minlength=ROWS)

    def cut(self, day: int, num_bytes: int) -> str:
        """The last bytes of a day, which it has no more: they are still to be written."""
        path = self._folder / f"day-{day}.tsv"
        text = path.read_text()
        path.write_text(text[: len(text) - num_bytes])
        return text[len(text) - num_bytes :]

    def add(self, day: int, text: str) -> None:
        """More of a day."""
        with (self._folder / f"day-{day}.tsv").open("a") as file:
            file.write(text)

    def last(self, day: int, rest: str) -> np.ndarray:
        """How often each row stands in the last line of a day once the rest of it has come, [ROWS]."""
        line = (self._folder / f"day-{day}.tsv").read_text().rpartition("\n")[2] + rest
        return np.bincount([int(row, 16) for row in line.rstrip("\n").split("\t")[14:]], minlength=ROWS)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("clusters"), dict[str, Path]()

    def plan(cluster: str) -> Path:
        if cluster not in made:
            made[cluster] = folder / cluster.replace(" ", "_")
            ledger_plan(this_machine(**CLUSTERS[cluster])).save(made[cluster])
        return made[cluster]

    return plan


@pytest.fixture
def run() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(plan: Path, data: str, *arguments: str) -> Started:
        started.append(process := start(plan, data, *arguments))
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "clusters",
    [
        ("2 trainers", "2 trainers", "alone"),
        ("alone", "4 trainers", "2 groups", "alone"),
        ("4 trainers", "3 servers", "3 servers"),
    ],
)
def test_every_example_is_trained_once_an_epoch_while_the_log_grows(
    run: Callable[..., Started], plans: Callable[[str], Path], tmp_path: Path, clusters: tuple[str, ...]
) -> None:
    folder, log = tmp_path / "run", Log(tmp_path / "log", len(clusters))
    came = [(0, log.append(0, 2000)), (0, log.append(1, 500))]  # in which epoch, and what
    begun = 0
    for number, cluster in enumerate(clusters):
        is_last = number == len(clusters) - 1
        where = ("--resume", str(folder)) if number else ("--out", str(folder))
        until = ("--epochs", str(begun + 2), "--checkpoint-seconds", "end")  # of all that has come, one epoch more
        process = run(
            plans(cluster), log.data, *where, *(until if is_last else (*ENDLESS, "--checkpoint-seconds", "0.2"))
        )
        if not is_last:
            examples = find_checkpoints(folder).complete[0][1].examples if number else 0
            wait_for_examples(folder, process, examples + 1000)
            new = [log.append(number + 1, 300)]  # while it trains: that is for the next part
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
        assert process.returncode == (0 if is_last else 130), said
        assert ("its data has grown (" in said) == (number > 0)
        if not is_last:
            begun = max(begun, last_begun(folder))
            new.append(log.append(number + 2, 200))  # a file that was not there
            came += [(begun, of) for of in new]
    assert (counted(plans(clusters[-1]), folder) == sum((begun + 2 - epoch) * of for epoch, of in came)).all()


def test_a_run_of_one_epoch_goes_on_with_what_has_come_each_time_it_is_started(
    plans: Callable[[str], Path], tmp_path: Path
) -> None:
    log, whole, examples = Log(tmp_path / "log", 0), np.zeros(ROWS, np.int64), []
    for rows in (640, 100, 0, 7, 300):
        if rows:
            whole += log.append(0, rows)
        found = htrain.run(plans("2 trainers"), data=log.data, out=tmp_path / "run", or_resume=True, hosting="threads")
        examples.append(found.totals.examples)
    assert examples == [640, 740, 740, 747, 1047]
    assert (counted(plans("2 trainers"), tmp_path / "run") == whole).all()


@pytest.mark.parametrize(("cut", "retry"), [(0, "whole"), (40, "whole"), (40, "alone")])
def test_a_run_that_loses_a_role_goes_on_with_what_there_was_when_it_was_started(
    run: Callable[..., Started], plans: Callable[[str], Path], tmp_path: Path, cut: int, retry: str
) -> None:
    """Also where the log was within a line then, and lacked its last bytes: the line is read when it is whole. A trainer that is begun again alone reads on as
    well; it may train a few batches twice.
    """
    folder, log, plan = tmp_path / "run", Log(tmp_path / "log", 0), plans("2 trainers")
    old = log.append(0, 1500)
    held_back = log.cut(0, cut)
    words = (
        plan,
        log.data,
        "--out",
        str(folder),
        "--or-resume",
        "--epochs",
        str(EPOCHS),
        "--retries",
        "3",
        "--retry",
        retry,
    )
    process = run(*words, "--checkpoint-seconds", "0.2")
    wait_for_a_checkpoint(folder, process)
    later = log.last(0, held_back) if cut else np.zeros(ROWS, np.int64)
    log.add(0, held_back)
    new = log.append(0, 200)
    (tmp_path / "log" / "day-1.tsv").touch()
    os.kill(json.loads((folder / "roles.json").read_text())["trainer:0:1"]["pid"], signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert ("it is begun again, and the others go on" if retry == "alone" else "(retry 1 of 3)") in said
    again = counted(plan, folder) - EPOCHS * (old - later)  # with two net replicas, of four batches
    assert again.min() >= 0
    assert again.sum() <= (4 * 32 * 26 if retry == "alone" else 0)
    process = run(*words)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert ("the last line of 'day-0.tsv' had no end and goes on: it is read anew" in said) == bool(cut)
    assert (counted(plan, folder) == again + EPOCHS * (old - later) + later + new).all()


def test_a_file_that_was_renamed_under_a_run_ends_it_with_a_line_when_a_role_is_lost(
    run: Callable[..., Started], plans: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", Log(tmp_path / "log", 0)
    log.append(0, 500)
    words = ("--out", str(folder), *ENDLESS, "--retries", "3", "--checkpoint-seconds", "0.2")
    process = run(plans("2 trainers"), log.data, *words)
    wait_for_a_checkpoint(folder, process)
    (tmp_path / "log" / "day-0.tsv").rename(tmp_path / "log" / "day-1.tsv")
    os.kill(json.loads((folder / "roles.json").read_text())["trainer:0:1"]["pid"], signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert said.rstrip().endswith(
        f"{folder}: was made on other data (there is no file 'day-0.tsv'): resume with the data as it was, or start a new run with --out"
    )


def libfm_parts(folder: Path, first: int, rows: int) -> tuple[str, str, str]:
    """A file of `first` rows, what comes behind them as text, and the place of both in files of their own."""
    uri = libfm(folder / "all.libfm", rows)
    lines = (folder / "all.libfm").read_text().splitlines(keepends=True)
    for name, part in (("log", lines[:first]), ("old", lines[:first]), ("new", lines[first:])):
        (folder / f"{name}.libfm").write_text("".join(part))
    both = f"libfm:{folder}/old.libfm,{folder}/new.libfm?{uri.partition('?')[2]}"
    return uri.replace("all.libfm", "log.libfm"), "".join(lines[first:]), both


@pytest.mark.parametrize(("first", "steps"), [(640, 0), (650, 13)])
def test_one_trainer_comes_to_the_same_bits_as_on_old_and_new_data_undisturbed(
    tmp_path: Path, first: int, steps: int
) -> None:
    """Of the end of an epoch, where that is the end of a batch, and of its middle."""
    data, new, both = libfm_parts(tmp_path, first, 1500)
    cluster = this_machine(group_ps=0, sparse_ps=0, dense_ps=0)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=32)).save(tmp_path / "plan")
    if steps:
        process = start_held(str(steps), tmp_path / "plan", data, "--deterministic", out=tmp_path / "run")
        wait_until_held(tmp_path / "run", process, str(steps))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    else:
        train(tmp_path / "plan", data, "--deterministic", "--out", str(tmp_path / "run"))
    with (tmp_path / "log.libfm").open("a") as file:
        file.write(new)
    train(tmp_path / "plan", data, "--deterministic", "--epochs", "2", "--resume", str(tmp_path / "run"))
    train(tmp_path / "plan", both, "--deterministic", "--epochs", "2", "--out", str(tmp_path / "undisturbed"))
    mine, its = parameters(tmp_path / "run"), parameters(tmp_path / "undisturbed")
    assert mine.keys() == its.keys()
    assert all(mine[name].equal(its[name]) for name in mine)
