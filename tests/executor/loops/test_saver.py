"""A role's share of a checkpoint is of the moment at which it was begun, whatever its role does while it is written."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from htrain.executor.host.memory import empty
from htrain.executor.loops import saver
from htrain.executor.loops.saver import Saver
from htrain.executor.record import share
from htrain.executor.record.checkpoint import SavedFile
from htrain.executor.record.tensor_file import CHANGED


class Told:
    """What a saver tells, once it has rung."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, apart: bool = True) -> None:
        self._rung = threading.Event()
        self.saver = Saver("sparse_ps:0", lambda: tensors, self._rung.set, apart=apart)

    def news(self) -> Any:
        assert self._rung.wait(20)
        self._rung.clear()
        (told,) = self.saver.news().values()
        assert self.saver.news() == {}, "it is told once"
        return told


@pytest.mark.parametrize("apart", [True, False])
def test_rows_that_are_stepped_while_they_are_written_are_saved_as_they_were(tmp_path: Path, apart: bool) -> None:
    table = empty((50_000, 32), torch.float32)
    told = Told({"t": table}, apart=apart)
    for number in range(3):
        table.fill_(number)
        told.saver.begin(tmp_path)
        table.fill_(-1)
        saved = SavedFile(*told.news()["file"])
        assert (load_file(tmp_path / saved.name)["t"] == number).all()
    told.saver.stop()


@pytest.mark.parametrize("apart", [True, False])
def test_what_has_changed_is_that_of_the_moment(tmp_path: Path, apart: bool) -> None:
    table = empty((500_000, 16), torch.float32)
    table.fill_(1)
    told = Told({"t": table, "w": torch.ones(3)}, apart=apart)
    folders = [tmp_path / f"examples_{number:012d}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    told.saver.begin(folders[0])
    whole = told.news()["file"]
    for folder, rows in ((folders[1], [0, 7, 499_999]), (folders[2], [7, 8, 9, 250_000])):
        table[rows] += 1
        before = table.clone()
        told.saver.begin(folder, folders[0].name)
        table.fill_(-1)
        news = told.news()
        assert news["base"] == [folders[0].name, *whole[1:]]
        changed = load_file(folder / news["file"][0])
        at = changed[f"t{CHANGED}"].long()
        then = torch.ones(500_000, 16).index_copy_(0, at, changed["t"])
        assert torch.equal(then, before)
        assert len(at) == int((before != 1).any(1).sum())
        table.copy_(before)
    told.saver.begin(tmp_path, "examples_000000000009")
    assert "base" not in told.news(), "this role has no share in that one"
    told.saver.stop()


@pytest.mark.parametrize("apart", [True, False])
def test_a_disk_that_refuses_is_told_with_the_file(tmp_path: Path, apart: bool) -> None:
    told = Told({"t": torch.zeros(4)}, apart=apart)
    told.saver.begin(tmp_path / "gone")
    assert told.news() == {
        "error": f"{tmp_path}/gone/sparse_ps_0.safetensors: cannot be written: No such file or directory"
    }
    told.saver.begin(tmp_path)
    assert told.news()["file"][0] == "sparse_ps_0.safetensors"


def test_a_role_that_holds_nothing_has_saved_at_once(tmp_path: Path) -> None:
    told = Told({})
    told.saver.begin(tmp_path)
    assert told.news() == {}
    assert list(tmp_path.iterdir()) == []


def test_where_no_process_can_be_begun_it_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(work: object) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(saver, "Apart", no_memory)
    told = Told({"t": torch.ones(4)})
    told.saver.begin(tmp_path)
    assert told.news()["file"][0] == "sparse_ps_0.safetensors"


def test_a_process_that_hangs_is_ended_and_the_next_share_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = share.write_role
    monkeypatch.setattr(saver, "_LEAST_SECONDS", 0.6)
    monkeypatch.setattr(share, "write_role", lambda *_: time.sleep(60))
    told = Told({"t": torch.ones(3)})
    told.saver.begin(tmp_path)
    assert told.news() == {"error": "its process did not end within 1 s"}
    monkeypatch.setattr(share, "write_role", write)
    monkeypatch.setattr(saver, "_LEAST_SECONDS", 60.0)
    told.saver.begin(tmp_path)
    assert "file" in told.news()
    told.saver.stop()


def test_a_role_that_stops_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "write_role", lambda *_: time.sleep(1000))
    told = Told({"t": torch.ones(4)})
    told.saver.begin(tmp_path)
    assert told.saver._apart
    child = psutil.Process(told.saver._apart.pid)
    began = time.monotonic()
    told.saver.stop()
    assert time.monotonic() - began < 10
    assert not child.is_running()
