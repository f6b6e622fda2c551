"""What a launcher leaves on its disk: checkpoints, valid or not at all. When they are due, roles/test_coordinator.py says."""

import os
from pathlib import Path

import pytest
import torch

from htrain.data.growth import Cut, Extent, FilePart, FileSize
from htrain.data.identity import DataIdentity
from htrain.errors import CheckpointError
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.kept import find_checkpoints, latest_checkpoint
from htrain.executor.record.role_file import save_role
from htrain.executor.record.saves import Saves

TRAINERS = {
    "trainer:0:0": {
        "position": {"epoch": 0, "chunk": 0, "row": 7},
        "totals": {"examples": 7, "steps": 1, "log_loss": 0.5, "positives": 0.5},
    }
}
IDENTITY = Identity(PlanIdentity("abc", {}, {}), DataIdentity(1, "criteo", {}, ()))


def saves_in(folder: Path, told: list[str], cuts: tuple[Cut, ...] = (), *, by_parts: bool = False) -> Saves:
    extent = Extent((FileSize("a", 20),), cuts, by_parts)
    return Saves(folder, IDENTITY, told.append, extent=extent)


def make(saves: Saves) -> Path:
    folder = saves.open(TRAINERS)
    saved = save_role(folder, "trainer:0:0", {"w": torch.ones(3)})
    saves.close(
        TRAINERS,
        {"trainer:0:0": {"file": [saved.name, saved.num_bytes, saved.digest]}, "sparse_ps:0": {}},
        finished=False,
    )
    return folder


def test_a_checkpoint_is_valid_when_it_is_closed(tmp_path: Path) -> None:
    saves = saves_in(tmp_path, [])
    saves.open(TRAINERS)
    assert not find_checkpoints(tmp_path).complete
    saves.discard()
    folder = make(saves)
    assert latest_checkpoint(tmp_path)[0] == folder


def test_one_that_is_not_to_be_leaves_nothing_and_keeps_the_one_before(tmp_path: Path) -> None:
    saves = saves_in(tmp_path, [])
    saves.discard()  # of none that is open
    first = make(saves)
    folder = saves.open(TRAINERS)
    (folder / "trainer_0_0.partial").write_text("half")
    saves.discard()
    assert not folder.exists()
    assert latest_checkpoint(tmp_path)[0] == first
    saves.discard()
    assert latest_checkpoint(tmp_path)[0] == first


def test_how_epochs_are_cut_is_kept_for_as_long_as_somebody_reads_them(tmp_path: Path) -> None:
    past, now = (Cut(epoch, ((FilePart(0, 0, 9),), (FilePart(0, 9, 20),))) for epoch in (0, 1))
    make(saves_in(tmp_path, [], (past, now)))
    assert latest_checkpoint(tmp_path)[1].cuts == (past, now)
    position = {"epoch": 1, "chunk": 0, "row": 0}
    later = {"trainer:0:0": {**TRAINERS["trainer:0:0"], "position": position}}
    saves = saves_in(tmp_path, [], (past, now))
    saves.open(later)
    saves.close(later, {}, finished=False)
    assert latest_checkpoint(tmp_path)[1].cuts == (now,)
    (tmp_path / "other").mkdir()
    make(saves_in(tmp_path / "other", []))
    assert b'"cuts"' not in (latest_checkpoint(tmp_path / "other")[0] / "manifest.json").read_bytes()


def test_how_data_is_shared_out_is_kept_in_a_version_of_its_own(tmp_path: Path) -> None:
    """An htrain that knows of none would go on with other rows."""
    for by_parts, version in ((True, 4), (False, 2)):
        folder = make(saves_in(tmp_path, [], by_parts=by_parts))
        manifest = latest_checkpoint(tmp_path)[1]
        assert (manifest.by_parts is True, manifest.version) == (by_parts, version)
        assert (b'"by_parts"' in (folder / "manifest.json").read_bytes()) is by_parts


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_writable_is_told_of(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        saves_in(tmp_path, []).open(TRAINERS)


def test_what_a_run_can_do_without_is_told_of_and_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    with saves_in(tmp_path, told).unless_refused("where roles run"):
        (tmp_path / "gone" / "roles.json").write_text("x")
    assert told == [f"{tmp_path}: where roles run could not be written: No such file or directory"]


def test_what_is_in_a_folder_that_is_another_runs_by_now_is_not_removed(tmp_path: Path) -> None:
    is_lost = False

    def look() -> None:
        if is_lost:
            raise CheckpointError("lost")

    saves = Saves(tmp_path, IDENTITY, print, look=look)
    made = [make(saves) for _ in range(2)]
    is_lost = True
    made += [make(saves) for _ in range(2)]
    assert [folder for folder, _ in find_checkpoints(tmp_path).complete] == made[::-1]
    is_lost = False
    make(saves)
    assert len(find_checkpoints(tmp_path).complete) == 2
