"""A run's checkpoints: writes that are cut short, which one is the latest, and what is removed."""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from fault_histories.disk import Disk, in_place
from fault_histories.world import World

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record import kept
from htrain.executor.record.checkpoint import Base, read_manifest, write_manifest
from htrain.executor.record.kept import find_checkpoints, latest_checkpoint, new_checkpoint, prune, remove_checkpoint
from htrain.executor.record.role_file import save_role, verify
from htrain.executor.record.run_folder import began
from tests.support.checkpoints import ROLE, cleared, equal, latest, load, manifest_of, save, tensors

# Killed in the middle of a write


def crash_while_saving(run: Path, examples: int, *, manifest: str) -> Path:
    """What a kill leaves: some roles written, one half written, no manifest."""
    folder, _ = new_checkpoint(run, examples)
    save_role(folder, "sparse_ps:0", tensors())
    (folder / "group_ps_0_1.partial").write_bytes(b"half")
    if manifest:
        (folder / manifest).write_text('{"version": 1, "plan_')
    return folder


@pytest.mark.parametrize("manifest", ["", "manifest.partial"])
def test_interrupted_write_is_never_the_latest_checkpoint(tmp_path: Path, manifest: str) -> None:
    good = save(tmp_path, 5)
    crash_while_saving(tmp_path, 9, manifest=manifest)
    assert latest(tmp_path) == good
    target = cleared()
    load(good, target)
    assert equal(target, tensors())


def test_interrupted_write_alone_is_no_checkpoint(tmp_path: Path) -> None:
    folder = crash_while_saving(tmp_path, 9, manifest="manifest.partial")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint: its run ended before the first: remove"):
        latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint \(No such file or directory: manifest\.json\)"):
        read_manifest(folder)


def test_a_folder_of_no_run_is_not_said_to_hold_one(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").touch()
    with pytest.raises(
        CheckpointError, match=f"^{re.escape(str(tmp_path))}: holds no run; it is a plan: want a folder that htrain run"
    ):
        latest_checkpoint(tmp_path)


def test_saving_again_after_no_more_examples_does_not_touch_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    good = save(tmp_path, 5)
    broken = crash_while_saving(tmp_path, 5, manifest="")
    assert broken != good
    assert latest(tmp_path) == good
    load(good, cleared())
    newer = save(tmp_path, 5)
    assert latest(tmp_path) == newer


def test_process_killed_while_it_writes_a_role_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    good = save(tmp_path, 5)
    script = (
        "import os, signal, sys, torch; from pathlib import Path\n"
        "from htrain.executor.record.kept import new_checkpoint; from htrain.executor.record.role_file import save_role\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run = Path(sys.argv[1]); folder, _ = new_checkpoint(run, 9)\n"
        "save_role(folder, 'group_ps:0:1', {'w': torch.ones(4)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [p.name for p in (tmp_path / "checkpoints" / "examples_000000000009").iterdir()] == ["group_ps_0_1.partial"]
    assert latest(tmp_path) == good
    load(good, cleared())


def test_full_disk_is_an_error_that_names_the_file_and_leaves_no_partial_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"sparse_ps_0\.safetensors: cannot be written: .*File too large"):
            save_role(folder, "sparse_ps:0", {"t": torch.zeros(100_000)})
        long = msgspec.structs.replace(manifest_of(folder, 0), name="abc" * 10_000)
        with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be written: File too large"):
            write_manifest(folder, long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(folder.iterdir()) == []


def test_file_that_cannot_get_its_name_leaves_no_partial_file(tmp_path: Path) -> None:
    for name in ("dense_ps_0.safetensors", "manifest.json"):
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=r"dense_ps_0\.safetensors: cannot be written: .*Is a directory"):
        save_role(tmp_path, "dense_ps:0", tensors())
    with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be written: Is a directory"):
        write_manifest(tmp_path, manifest_of(tmp_path, 0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense_ps_0.safetensors", "manifest.json"]


def test_folder_that_is_not_there_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone/dense_ps_0\.safetensors: cannot be written: "):
        save_role(tmp_path / "gone", "dense_ps:0", tensors())
    with pytest.raises(CheckpointError, match=r"gone/manifest\.json: cannot be written: No such file or directory"):
        write_manifest(tmp_path / "gone", manifest_of(tmp_path, 0))


# Several checkpoints


@pytest.mark.parametrize("counts", [(90, 1000, 7), (5, 10**12 - 1, 10**12, 10**13), (10**13, 10**12, 1), (3, 3, 3)])
def test_latest_checkpoint_is_the_one_that_was_made_last_whatever_its_name_says(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    for examples in counts:
        folder = save(tmp_path, examples)
        assert latest(tmp_path) == folder
        prune(tmp_path)
        assert latest(tmp_path) == folder
    assert [manifest.examples for _, manifest in find_checkpoints(tmp_path).complete] == list(counts[:-3:-1])


def test_a_checkpoint_under_another_name_is_its_owners(tmp_path: Path) -> None:
    """Somebody has put one aside, in the manner of ours: it is neither the latest, nor pruned."""
    aside = tmp_path / "checkpoints" / "examples_000000000009-007"
    shutil.copytree(save(tmp_path, 9), aside)
    for examples in (1, 2, 3):
        newest = save(tmp_path, examples)
    prune(tmp_path, keep=1)
    assert latest(tmp_path) == newest
    assert sorted((tmp_path / "checkpoints").iterdir()) == [newest, aside]
    assert read_manifest(aside).examples == 9


@pytest.mark.parametrize(
    "spoil", [lambda f: (f / "manifest.json").write_text("{"), lambda f: os.truncate(f / "group_ps_0_1.safetensors", 3)]
)
def test_a_damaged_checkpoint_is_told_of_while_it_is_the_newest_and_never_removed(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    old, broken = save(tmp_path, 1), save(tmp_path, 2)
    spoil(broken)
    found = find_checkpoints(tmp_path)
    assert [folder for folder, _ in found.complete] == [old]
    assert len(found.damaged) == 1
    with pytest.raises(DamagedCheckpoint, match=f"damaged: .*: remove its folder to use {old.name}$"):
        latest_checkpoint(tmp_path)
    newer = save(tmp_path, 3)
    prune(tmp_path, keep=1)
    assert find_checkpoints(tmp_path).damaged == ()
    assert latest(tmp_path) == newer
    assert broken.is_dir()
    assert not old.exists()


def test_run_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: no such run folder$"):
        latest_checkpoint(tmp_path / "nowhere")


def test_checkpoints_that_cannot_be_listed_are_not_none(tmp_path: Path) -> None:
    """A file system that is away for a moment, a folder that is another user's: a run that began anew would remove them once they are back."""
    (tmp_path / "run.json").touch()
    (tmp_path / "checkpoints").symlink_to("checkpoints")
    for look in (find_checkpoints, latest_checkpoint, prune, began):
        with pytest.raises(CheckpointError, match="checkpoints: cannot be read: Too many levels of symbolic links"):
            look(tmp_path)


def test_a_checkpoint_that_cannot_be_looked_at_is_told_of_and_nothing_of_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, newest = save(tmp_path, 1), save(tmp_path, 2)
    looked_at = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path == newest / "manifest.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return looked_at(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "lstat", lstat)
        found = find_checkpoints(tmp_path)
        assert [folder for folder, _ in found.complete] == [old]
        assert [str(error) for error in found.damaged] == [
            f"{newest}/manifest.json: cannot be read: Input/output error"
        ]
        with pytest.raises(OSError, match="Input/output error"):
            prune(tmp_path)
    assert latest(tmp_path) == newest
    load(newest, cleared())


def test_pruning_keeps_the_newest_and_removes_what_kills_left(tmp_path: Path) -> None:
    kept = [save(tmp_path, examples) for examples in (1, 3, 4)][1:]
    crash_while_saving(tmp_path, 1, manifest="manifest.partial")
    crash_while_saving(tmp_path, 2, manifest="")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    prune(tmp_path)
    assert sorted((tmp_path / "checkpoints").iterdir()) == [*kept, tmp_path / "checkpoints" / "notes.txt"]
    prune(tmp_path, keep=1)
    assert latest(tmp_path) == kept[-1]
    load(kept[-1], cleared())


def test_a_name_comes_again_only_once_nobody_can_write_under_it(tmp_path: Path) -> None:
    """A role of an earlier try, on a host that is not reached, writes when it likes: not into a checkpoint of a later one."""
    cut_short = crash_while_saving(tmp_path, 8, manifest="manifest.partial")
    save(tmp_path, 5)
    prune(tmp_path)
    assert list(cut_short.iterdir()) == []
    mine, _ = new_checkpoint(tmp_path, 8)
    assert mine != cut_short
    saved = save_role(mine, ROLE, tensors())
    save_role(cut_short, ROLE, cleared())  # late
    write_manifest(mine, manifest_of(mine, 8, saved, sequence=2))
    prune(tmp_path)
    assert latest(tmp_path) == mine
    target = cleared()
    load(mine, target)
    assert equal(target, tensors())
    for examples in (9, 10):
        save(tmp_path, examples)
        prune(tmp_path)
    assert not cut_short.exists()


def test_pruning_leaves_what_others_put_into_a_checkpoint(tmp_path: Path) -> None:
    old, broken = save(tmp_path, 1), crash_while_saving(tmp_path, 2, manifest="")
    for folder in (old, broken):
        (folder / "notes.txt").write_text("mine")
        (folder / "mine.safetensors").write_text("mine")
    save(tmp_path, 3)
    prune(tmp_path, keep=1)
    for folder in (old, broken):
        assert sorted(p.name for p in folder.iterdir()) == ["mine.safetensors", "notes.txt"]


def test_a_folder_that_takes_no_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(
        CheckpointError, match=r"checkpoints: no checkpoint can be written: (File exists|Not a directory)$"
    ):
        new_checkpoint(tmp_path, 5)


def test_pruning_a_run_without_checkpoints_does_nothing(tmp_path: Path) -> None:
    prune(tmp_path)
    assert list(tmp_path.iterdir()) == []


# On a host that goes off


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_that_is_valid_is_there_when_a_host_comes_back_though_those_before_were_removed(
    tmp_path: Path, seed: int
) -> None:
    world = World(seed)
    world.calm = 1.0
    disk = Disk(world, tmp_path)
    with in_place(disk):
        for examples in (5, 6, 7):
            newest = save(tmp_path, examples)
            prune(tmp_path, keep=1)
        crash_while_saving(tmp_path, 9, manifest="")
        disk.lose_power()
    assert latest(tmp_path) == newest
    target = cleared()
    load(newest, target)
    assert equal(target, tensors())


def test_which_is_the_latest_is_asked_of_their_numbers_not_of_their_files_times(tmp_path: Path) -> None:
    """A copy of a run has other times, and so has a run whose host's clock was set."""
    first, second = save(tmp_path, 100), save(tmp_path, 200)
    (second / "group_ps_0_1.safetensors").write_bytes(b"")
    os.utime(second / "manifest.json", (0, 0))
    with pytest.raises(DamagedCheckpoint, match=r"examples_000000000200.*damaged: 0 bytes"):
        latest_checkpoint(tmp_path)
    save(tmp_path, 300)
    os.utime(second / "manifest.json")
    assert latest_checkpoint(tmp_path)[1].examples == 300, "the damaged one is older"
    assert first.exists()


def test_a_number_is_not_given_twice_though_the_one_that_had_it_cannot_be_read(tmp_path: Path) -> None:
    saved = [save(tmp_path, 100 * n) for n in (1, 2)]
    for folder in saved:
        (folder / "group_ps_0_1.safetensors").rename(folder / "away")
    assert new_checkpoint(tmp_path, 300)[1] == 3


def test_a_folder_that_cannot_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 100)

    def away(*_: object, **__: object) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle", str(tmp_path))

    monkeypatch.setattr(Path, "is_dir", away)
    for look in (find_checkpoints, lambda run: new_checkpoint(run, 200)):
        with pytest.raises(CheckpointError, match="Stale file handle"):
            look(tmp_path)


def test_wherever_removing_is_interrupted_what_is_left_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What builds on another goes before it."""
    whole = save(tmp_path, 100)
    files = read_manifest(whole).files
    base = Base(whole.name, files[ROLE].num_bytes, files[ROLE].digest)
    for examples in (200, 300):
        folder = save(tmp_path, examples)
        manifest = read_manifest(folder)
        write_manifest(folder, msgspec.structs.replace(manifest, bases={ROLE: base}, version=3))
    save(tmp_path, 400), save(tmp_path, 500)
    gone: list[str] = []

    def interrupted(folder: Path) -> None:
        gone.append(folder.name)
        remove_checkpoint(folder)
        for path, _ in find_checkpoints(tmp_path).complete:
            verify(path, read_manifest(path))
        assert not find_checkpoints(tmp_path).damaged

    monkeypatch.setattr(kept, "remove_checkpoint", interrupted)
    prune(tmp_path, keep=1)
    assert gone == [f"examples_{n:012d}" for n in (400, 300, 200, 100)]
