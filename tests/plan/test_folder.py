"""The plan folder as files: one whole plan at every moment, whatever ends a writer, and nobody else's file lost."""

import errno
import os
import random
import re
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml

import htrain.plan.folder as module
from htrain.errors import PlanError
from htrain.plan.folder import STAGED, Digests, content_of, steadily, write_folder

Files = Mapping[str, bytes]
OLD: Files = {
    "nets/train.onnx": b"train old",
    "nets/both.onnx": b"both",
    "nets/old.onnx": b"old",
    "params/values.safetensors": b"1",
}
NEW: Files = {"nets/train.onnx": b"train new", "nets/both.onnx": b"both", "nets/new.onnx": b"new"}
THIRD: Files = {"nets/train.onnx": b"train third"}
FOREIGN: Files = {
    "runs/a/run.json": b"mine",
    "nets/notes.onnx": b"mine",
    "params/mine.safetensors": b"mine",
    "README": b"mine",
    "nets/a/b": b"mine",
}


def header(files: Digests) -> bytes:
    return yaml.safe_dump({"digest": "", "files": dict(files)}).encode()


def write(folder: Path, files: Files) -> None:
    write_folder(folder, {name: partial(_write, content) for name, content in files.items()}, header)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def read(folder: Path) -> Files:
    def load(text: bytes) -> Files:
        return {n: content_of(folder, n, d, most_bytes=99) for n, d in yaml.safe_load(text)["files"].items()}

    return steadily(folder, load)


def put(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "plan.yaml"
    }


CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.copyfile")


def killed_at(step: int, folder: Path, files: Files) -> bool:
    """Write in a process that ends, without a word, when it asks the system for its change number `step`; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def end(event: str, arguments: tuple[object, ...]) -> None:
            if event in CHANGES and (event != "open" or int(arguments[2]) & (os.O_WRONLY | os.O_RDWR)):  # type: ignore[call-overload]
                left[0] -= 1
                if not left[0]:
                    os._exit(9)

        sys.addaudithook(end)
        write(folder, files)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_the_old_plan_stands_or_the_new_one_wherever_the_writer_is_killed(tmp_path: Path) -> None:
    seen, step = [], 0
    while True:
        step += 1
        folder = tmp_path / str(step)
        write(folder, OLD)
        put(folder, FOREIGN)
        if not killed_at(step, folder, NEW):
            break
        stands = read(folder)
        assert stands in (OLD, NEW)
        seen.append(stands == NEW)
        if step % 2:  # killed again while the next one tidies up
            killed_at(2, folder, THIRD)
            assert read(folder) == stands
        write(folder, THIRD)
        assert everything_in(folder) == {**FOREIGN, **THIRD}
    assert seen == sorted(seen)  # one step turns the old plan into the new one
    assert {True, False} == set(seen)
    assert len(seen) > 12


def test_a_first_plan_that_was_cut_short_is_no_plan_and_in_nobodys_way(tmp_path: Path) -> None:
    step = 1
    while killed_at(step, tmp_path / str(step), NEW):
        folder = tmp_path / str(step)
        if (folder / "plan.yaml").exists():
            assert read(folder) == NEW
        else:
            assert {p.name for p in folder.glob("*")} <= {STAGED}
        write(folder, THIRD)
        assert everything_in(folder) == THIRD
        step += 1
    assert step > 10


def test_an_error_while_writing_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "deep" / "p", {"nets/a.onnx": full}, header)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "p", OLD)
    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "p", {**{n: partial(_write, c) for n, c in NEW.items()}, "nets/z.onnx": full}, header)
    assert everything_in(tmp_path / "p") == OLD
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["nets", "params", "plan.yaml"]


def test_a_reader_meets_one_plan_or_the_other_while_they_take_turns(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    ended = threading.Event()

    def take_turns() -> None:
        while not ended.is_set():
            write(tmp_path, NEW)
            write(tmp_path, OLD)

    writers = [threading.Thread(target=take_turns) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen = [read(tmp_path) for _ in range(300)]
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert all(files in (OLD, NEW) for files in seen)
    assert OLD in seen
    assert NEW in seen
    assert everything_in(tmp_path) == OLD


def spoilt(draw: random.Random, folder: Path) -> dict[Path, bytes]:
    """Put somebody's own files, links and folders where a plan might go; what they hold, by where it lies."""
    mine = {}
    names = [
        *OLD,
        *NEW,
        *FOREIGN,
        "plan.yaml",
        f"{STAGED}/mine",
        f"{STAGED}/nets/mine.txt",
        "nets",
        "params",
        STAGED,
        ".git/HEAD",
        "nets/.hidden",
    ]
    for number, name in enumerate(draw.sample(names, draw.randint(1, 4))):
        place, content = folder / name, f"mine {number}".encode()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                place = place / "mine"
            place.unlink(missing_ok=True)
            if draw.random() < 0.3:
                elsewhere = folder.parent / f"elsewhere-{number}"
                elsewhere.write_bytes(content)
                place.symlink_to(elsewhere)
                mine[elsewhere] = content
            else:
                place.write_bytes(content)
        except (FileExistsError, NotADirectoryError):  # an earlier one is in the way
            continue
        mine[place] = content
    return mine


def test_a_hundred_tries_to_lose_somebodys_file_lose_none(tmp_path: Path) -> None:
    draw, written = random.Random(0), 0
    for number in range(100):
        folder = tmp_path / str(number) / "p"
        folder.mkdir(parents=True)
        if draw.random() < 0.8:
            write(folder, OLD)
        mine = spoilt(draw, folder)
        before = everything_in(folder)
        try:
            write(folder, NEW)
        except PlanError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert everything_in(folder) == before
        else:
            written += 1
            assert read(folder) == NEW
        assert {place: place.read_bytes() for place in mine} == mine
    assert 20 < written < 80


@pytest.mark.parametrize("form", ["link", "dot", "mode"])
def test_a_folder_may_be_a_link_or_the_current_one(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(real)
    folder = {"link": tmp_path / "link", "dot": Path(), "mode": real}[form]
    write(folder, OLD)
    write(folder, NEW)
    assert read(real) == NEW
    assert everything_in(real) == NEW
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["plan.yaml", "nets/both.onnx"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_file_that_cannot_be_read_just_now_is_named_and_nobody_is_told_to_remove_it(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of another user's plan, or on a disk that fails: it may be whole, and another plan would not take its runs' checkpoints."""
    write(tmp_path, OLD)
    ours = module.read_file

    def refused(path: Path, *, most_bytes: int) -> bytes:
        if path == tmp_path / name:
            raise OSError(number, os.strerror(number))
        return ours(path, most_bytes=most_bytes)

    monkeypatch.setattr(module, "read_file", refused)
    wanted = f"{tmp_path / name}: cannot be read: {os.strerror(number)}"
    with pytest.raises(PlanError, match=rf"^{re.escape(wanted)}$"):
        read(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_to_be_removed_and_a_file_that_is_gone_is_not(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (tmp_path / "nets" / "both.onnx").unlink()
    with pytest.raises(PlanError, match=r"both\.onnx: is missing: compile the model again$"):
        read(tmp_path)
    (tmp_path / "nets" / "both.onnx").mkdir()
    with pytest.raises(
        PlanError, match=r"both\.onnx: cannot be read: Is a directory: remove it and compile the model again$"
    ):
        read(tmp_path)
