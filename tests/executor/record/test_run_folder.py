"""A run folder has one owner at a time, whoever it is and however the one before ended."""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import htrain.executor.record.run_folder as module
from htrain.errors import CheckpointError, Error, UsageError
from htrain.executor.host.process import Process, this_process
from htrain.executor.record import layout
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.layout import Layout, keep_layout
from htrain.executor.record.run_folder import (
    Owner,
    RunRecord,
    claimed,
    forget_beginning,
    read_record,
    refuse_owned,
    require_empty,
    start_record,
)
from htrain.executor.record.run_log import RunLog

RECORD = RunRecord("plan", "synthetic:", 1, False)
HOLD = """
import sys, time
from pathlib import Path
from htrain.executor.record.run_folder import claimed
with claimed(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that owns the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "mine\n"
    return process


def test_a_folder_that_another_process_owns_is_refused_at_once_and_named_until_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = holder(folder)
    try:
        wanted = rf"^{re.escape(str(folder))}: process {other.pid} on {re.escape(socket.gethostname())} \(since \d\d:\d\d:\d\d\) works in it: "
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=wanted), claimed(folder):
            pass
        with pytest.raises(CheckpointError, match=wanted):
            refuse_owned(folder)
        assert time.monotonic() - began < 30, "it does not wait until that is gone"
        assert folder.is_dir()
    finally:
        other.kill()
        other.wait()
    refuse_owned(folder)
    with claimed(folder) as claim:
        assert claim.taken_over == f"process {other.pid} on {socket.gethostname()}"
        (folder / "something").touch()
    assert [path.name for path in folder.iterdir()] == ["something"]


def test_of_many_who_want_a_folder_at_once_one_at_a_time_has_it(tmp_path: Path) -> None:
    inside, most, refused, had = 0, 0, 0, 0
    lock = threading.Lock()

    def want() -> None:
        nonlocal inside, most, refused, had
        for _ in range(40):
            try:
                with claimed(tmp_path / "run"):
                    with lock:
                        inside, had = inside + 1, had + 1
                        most = max(most, inside)
                    time.sleep(0.001)
                    with lock:
                        inside -= 1
            except CheckpointError:
                with lock:
                    refused += 1

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert had
    assert had + refused == 240


def elsewhere(**changes: object) -> Process:
    return msgspec.structs.replace(this_process(), **{"host": "far", "pid": 7, **changes})


def write_owner(folder: Path, process: Process, *, age_seconds: float) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "owner.json").write_bytes(msgspec.json.encode(Owner(process, time.time())))
    os.utime(folder / "owner.json", (time.time() - age_seconds,) * 2)


def test_an_owner_on_another_host_counts_while_it_gives_signs_of_life(tmp_path: Path) -> None:
    """Where a file system shares no locks, we get the lock that it has."""
    write_owner(tmp_path, elsewhere(), age_seconds=5)
    with pytest.raises(CheckpointError, match="process 7 on far"), claimed(tmp_path):
        pass
    write_owner(tmp_path, elsewhere(), age_seconds=300)
    with claimed(tmp_path) as claim:
        assert claim.taken_over == "process 7 on far"


def test_an_owner_says_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.0)
    with claimed(tmp_path) as claim:
        os.utime(tmp_path / "owner.json", (1, 1))
        claim.give_sign()
        assert time.time() - (tmp_path / "owner.json").stat().st_mtime < 60


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("renamed"))


def replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("lose", [remove, rename, replace_by_a_file])
def test_a_folder_that_is_removed_or_renamed_under_its_owner_is_lost_to_it(
    lose: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    wanted = rf"^{folder}: was removed, or renamed, while its run went on, which ends: under its new name it goes on"
    with claimed(folder) as claim:
        (folder / "something").touch()
        lose(folder)
        claim.give_sign()
        claim.require()  # no look is due
        monkeypatch.setattr(module, "SIGN_SECONDS", 0.0)
        claim.give_sign()
        with pytest.raises(CheckpointError, match=wanted):
            claim.require()
        with pytest.raises(CheckpointError, match=wanted):
            claim.look()


def test_a_folder_that_is_removed_and_made_anew_is_that_of_the_run_which_has_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claimed(folder) as claim:
        claim.look()
        shutil.rmtree(folder)
        other = holder(folder)
        try:
            named = re.escape(f"process {other.pid} on {socket.gethostname()}")
            with pytest.raises(
                CheckpointError, match=rf"^{folder}: was removed, .* another run's now \({named}\): this"
            ):
                claim.look()
        finally:
            other.kill()
            other.wait()
    assert (folder / "owner.json").exists(), "it is the other's"


def test_a_file_system_that_is_away_for_a_moment_takes_no_folder_from_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with claimed(tmp_path) as claim:
        monkeypatch.setattr(os.path, "samestat", away)
        claim.look()
        (tmp_path / "owner.json").write_bytes(msgspec.json.encode(Owner(elsewhere(), time.time())))
        with pytest.raises(CheckpointError, match=r"another run's now \(process 7 on far\)"):
            claim.look()


def test_where_there_are_no_locks_the_name_of_one_that_lives_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    write_owner(tmp_path, this_process(), age_seconds=300)
    with pytest.raises(CheckpointError, match=f"process {os.getpid()} on"), claimed(tmp_path):
        pass
    write_owner(tmp_path, msgspec.structs.replace(this_process(), began=1.0), age_seconds=1)
    with claimed(tmp_path) as claim:
        assert claim.taken_over


@pytest.mark.parametrize("content", ["my own notes", '{"process": 3}'])
def test_a_file_that_is_not_ours_is_not_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / "owner.json").write_text(content)
    with pytest.raises(UsageError, match=r"owner\.json: is not what htrain writes there"), claimed(tmp_path):
        pass
    assert (tmp_path / "owner.json").read_text() == content


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "owner.json")
    with pytest.raises((UsageError, CheckpointError)), claimed(tmp_path):
        pass
    (tmp_path / "link").mkdir()
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link" / "owner.json").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError), claimed(tmp_path / "link"):
        pass
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("name", ["a.txt/run", "x" * 300, "\0"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written"), claimed(tmp_path / name):
        pass


BEGINNINGS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda folder: start_record(folder, RECORD, resume=False),
    "parameters/abc.json": lambda folder: keep_layout(folder, Layout("abc", "", 1, {}, {})),
    "metrics.jsonl": lambda folder: RunLog(folder, pytest.fail),
}


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 1), (errno.EROFS, 1), (errno.EACCES, 2)])
@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_disk_that_is_full_when_a_run_begins_is_no_command_that_cannot_work(
    name: str, number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager starts it again, but for a status of 2."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    for each in (module, layout):
        monkeypatch.setattr(each, "put_file", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    wanted = f"^{re.escape(str(tmp_path))}(/{name})?: cannot be written: {os.strerror(number)}$"
    with pytest.raises(Error, match=wanted) as raised:
        BEGINNINGS[name](tmp_path)
    assert raised.value.exit_status == status


@pytest.mark.parametrize("name", ["runs", "runs/a"])
def test_a_link_to_where_there_is_no_folder_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    """As to a disk that is not mounted: what would be made there would be on another."""
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    wanted = f"{tmp_path}/runs is a link to {tmp_path}/disk, where there is no folder: make it, or choose another --out"
    with pytest.raises(UsageError, match=re.escape(wanted) + "$"), claimed(tmp_path / name):
        pass
    assert not (tmp_path / "disk").exists()
    (tmp_path / "disk").mkdir()
    with claimed(tmp_path / name):
        assert (tmp_path / "disk" / name.partition("/")[2] / "owner.json").exists()


def test_a_new_run_wants_an_empty_folder(tmp_path: Path) -> None:
    require_empty(tmp_path)
    with claimed(tmp_path):
        start_record(tmp_path, RECORD, resume=False)
        assert read_record(tmp_path) == RECORD
        with pytest.raises(
            UsageError, match="holds a run that ended before its first checkpoint: remove it, or choose another --out"
        ):
            require_empty(tmp_path)
        start_record(tmp_path, RECORD, resume=True)
        checkpoint = tmp_path / "checkpoints" / "examples_000000000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").touch()
        with pytest.raises(UsageError, match="already holds a run; go on with --resume"):
            require_empty(tmp_path)


def test_a_folder_that_holds_something_else_is_not_said_to_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    wanted = rf"^{re.escape(str(tmp_path))}: holds something that is no run \(notes\.txt\): choose another --out, or remove it$"
    with pytest.raises(UsageError, match=wanted):
        require_empty(tmp_path)


def test_a_record_that_is_damaged_or_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a run folder \(run\.json: No such file or directory\)"):
        read_record(tmp_path)
    for text in ("{", json.dumps({"plan": 1}), "[]", "\ud800"):
        (tmp_path / "run.json").write_bytes(text.encode(errors="surrogatepass"))
        with pytest.raises(CheckpointError, match=r"run\.json: damaged: "):
            read_record(tmp_path)


def test_a_folder_of_versions_or_an_address_is_said_to_be_no_run_and_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    said = "; it holds versions, which are for htrain.Published, and have no optimizer states: "
    with pytest.raises(CheckpointError, match=re.escape(said + "name the folder")):
        read_record(tmp_path)
    with pytest.raises(CheckpointError, match=re.escape("holds no run" + said + "want a folder")):
        latest_checkpoint(tmp_path)
    address, said = (
        Path("s3://bucket/ads"),
        "; runs are folders of this machine: versions at an address are for htrain.Published",
    )
    for look in (read_record, latest_checkpoint):
        with pytest.raises(CheckpointError, match=said):
            look(address)


def test_the_beginning_of_a_run_that_nobody_has_played_is_removed_unless_something_else_has_come(
    tmp_path: Path,
) -> None:
    with claimed(tmp_path):
        for begin in BEGINNINGS.values():
            begin(tmp_path)
        (tmp_path / "notes.txt").touch()
        forget_beginning(tmp_path)
        assert (tmp_path / "run.json").exists()
        (tmp_path / "notes.txt").unlink()
        forget_beginning(tmp_path)
        assert os.listdir(tmp_path) == ["owner.json"]
