"""Checkpoints that somebody reads beside a run that goes on."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import Base, version_of, write_manifest
from htrain.executor.record.kept import find_checkpoints, latest_checkpoint, new_checkpoint, prune, remove_checkpoint
from htrain.executor.record.reading import Reading, read_beside
from htrain.executor.record.role_file import save_role
from tests.support.checkpoints import ROLE, cleared, equal, load, manifest_of, save, tensors


def read(run: Path) -> Reading:
    return read_beside(lambda: latest_checkpoint(run))


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_a_checkpoint_that_is_read_stays_until_that_is_done(tmp_path: Path) -> None:
    old = save(tmp_path, 1)
    readings = [read(tmp_path), read(tmp_path)]
    newest = save(tmp_path, 2)
    for each in readings:
        prune(tmp_path, keep=1)
        load(old, target := cleared())
        assert equal(target, tensors())
        each.close()
    prune(tmp_path, keep=1)
    assert names(tmp_path) == [newest.name]


def test_it_goes_once_nobody_has_the_reading_any_more(tmp_path: Path) -> None:
    save(tmp_path, 1)
    reading = read(tmp_path)
    newest = save(tmp_path, 2)
    del reading
    prune(tmp_path, keep=1)
    assert names(tmp_path) == [newest.name]


def test_it_goes_once_the_process_that_has_read_it_was_killed(tmp_path: Path) -> None:
    old = save(tmp_path, 1)
    script = f"""
from pathlib import Path
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.reading import read_beside
reading = read_beside(lambda: latest_checkpoint(Path({str(tmp_path)!r})))
print("reads", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        assert reader.stdout.readline() == b"reads\n"
        newest = save(tmp_path, 2)
        prune(tmp_path, keep=1)
        assert names(tmp_path) == [old.name, newest.name]
        reader.kill()
    prune(tmp_path, keep=1)
    assert names(tmp_path) == [newest.name]


def test_what_a_checkpoint_that_is_read_builds_on_stays_with_it(tmp_path: Path) -> None:
    base = save(tmp_path, 1)
    whole = latest_checkpoint(tmp_path)[1].files[ROLE]
    built, sequence = new_checkpoint(tmp_path, 2)
    saved = save_role(built, ROLE, {"scalar": tensors()["scalar"]})
    alone = manifest_of(built, 2, saved, sequence=sequence)
    bases = {ROLE: Base(base.name, whole.num_bytes, whole.digest)}
    made = msgspec.structs.replace(alone, bases=bases)
    write_manifest(built, msgspec.structs.replace(made, version=version_of(made)))
    reading = read(tmp_path)
    newest = save(tmp_path, 3)
    prune(tmp_path, keep=1)
    assert [folder for folder, _ in find_checkpoints(tmp_path).complete] == [newest, built, base]
    reading.close()
    prune(tmp_path, keep=1)
    assert names(tmp_path) == [newest.name]


def test_what_is_removed_before_it_can_be_held_is_not_taken(tmp_path: Path) -> None:
    old, newest = save(tmp_path, 1), save(tmp_path, 2)
    chosen = [latest_checkpoint(tmp_path)]
    remove_checkpoint(newest)
    reading = read_beside(lambda: chosen.pop() if chosen else latest_checkpoint(tmp_path))
    assert reading.folder == old
    with pytest.raises(CheckpointError, match=f"{newest.name}: was removed while it was read"):
        read_beside(lambda: (newest, reading.manifest))
