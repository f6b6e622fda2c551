"""A share of tables whose steps say which rows they change is written by a thread, out of a snapshot, whatever is stepped meanwhile."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from htrain.executor.engine.marks import Marks
from htrain.executor.loops import saver
from htrain.executor.loops.saver import Saver
from htrain.executor.record import share
from htrain.executor.record.checkpoint import SavedFile
from htrain.executor.record.tensor_file import CHANGED
from htrain.net.net import Init, Net, Op, Parameter

ROWS, WIDTH = 300_000, 16


class Role:
    """A table with marks, a weight without, and what a saver tells of them once it has rung."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.table = torch.ones(ROWS, WIDTH)
        self.tensors = {"t": self.table, "w": weight}
        op = Op("SparseSgd", ("t", "ids", "rows"), (), {"lr": 1.0, "first_row": 0}, "sparse_ps:0")
        table = Parameter("t", (ROWS, WIDTH), "float32", "table", Init("zeros"))
        marks = Marks()
        marks.hear_of(Net("steps", (op,), (), (), {}, {"t": table}), self.tensors)
        touching = marks.touching(op, is_bundled=False)
        assert touching
        self._touch = touching[1]
        self._rung = threading.Event()
        self.saver = Saver("sparse_ps:0", lambda: self.tensors, self._rung.set, apart=False, marks=marks)

    def step(self, rows: list[int]) -> None:
        ids = torch.tensor(rows)
        self._touch(ids)
        self.table[ids] += 1

    def news(self) -> Any:
        assert self._rung.wait(20)
        self._rung.clear()
        (told,) = self.saver.news().values()
        return told


@pytest.fixture
def role() -> Iterator[Role]:
    made = Role(torch.ones(3))
    yield made
    made.saver.stop()


def folders_in(path: Path, count: int) -> list[Path]:
    folders = [path / f"examples_{number:012d}" for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return folders


def held(folder: Path, news: Any) -> dict[str, torch.Tensor]:
    saved = SavedFile(*news["file"])
    assert (folder / saved.name).stat().st_size == saved.num_bytes
    return load_file(folder / saved.name)


def test_whole_shares_and_those_on_top_are_of_their_moment(role: Role, tmp_path: Path) -> None:
    folders = folders_in(tmp_path, 4)
    role.step([5])
    role.saver.begin(folders[0])
    role.step([5, 6])
    role.tensors["w"] += 1
    whole = role.news()
    first = held(folders[0], whole)
    assert first["t"].sum() == ROWS * WIDTH + WIDTH
    assert (first["t"][5] == 2).all()
    assert first["w"].tolist() == [1, 1, 1]
    for folder, rows in zip(folders[1:], ([5, 6], [5, 6, 0, ROWS - 1], [5, 6, 0, ROWS - 1, 9]), strict=True):
        now = role.table.clone()
        role.saver.begin(folder, folders[0].name)
        role.step([*range(10), ROWS - 1] if folder == folders[3] else {1: [0, ROWS - 1], 2: [9]}[folders.index(folder)])
        news = role.news()
        assert news["base"] == [folders[0].name, *whole["file"][1:]]
        found = held(folder, news)
        assert sorted(found[f"t{CHANGED}"].tolist()) == sorted(rows)
        assert torch.equal(first["t"].index_copy(0, found[f"t{CHANGED}"].long(), found["t"]), now)
        assert found["w"].tolist() == [2, 2, 2]


def test_the_next_share_builds_on_the_last_whole_one(role: Role, tmp_path: Path) -> None:
    folders = folders_in(tmp_path, 3)
    for number, folder in enumerate(folders[:2]):
        role.saver.begin(folder)
        role.news()
        role.step([number])
    role.saver.begin(folders[2], folders[1].name)
    news = role.news()
    assert news["base"][0] == folders[1].name
    assert held(folders[2], news)[f"t{CHANGED}"].tolist() == [1]


def test_where_the_share_that_it_builds_on_is_gone_it_is_refused_and_the_next_is_whole(
    role: Role, tmp_path: Path
) -> None:
    folders = folders_in(tmp_path, 3)
    role.saver.begin(folders[0])
    path = folders[0] / role.news()["file"][0]
    path.unlink()
    role.saver.begin(folders[1], folders[0].name)
    assert role.news() == {
        "error": f"{path}: is not as it was written, and what has changed since cannot be written alone"
    }
    assert list(folders[1].iterdir()) == []
    role.saver.begin(folders[2], folders[0].name)
    assert "base" not in role.news()


def test_a_disk_that_refuses_is_told_with_the_file(role: Role, tmp_path: Path) -> None:
    role.saver.begin(tmp_path / "gone")
    assert role.news() == {
        "error": f"{tmp_path}/gone/sparse_ps_0.safetensors: cannot be written: No such file or directory"
    }
    role.saver.begin(tmp_path)
    assert "file" in role.news()


def test_a_store_that_does_not_answer_holds_up_shares_and_nothing_else(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, answers, write = folders_in(tmp_path, 3), threading.Event(), share.write_role

    def hangs(*given: Any) -> Any:
        answers.wait(60)
        return write(*given)

    monkeypatch.setattr(saver, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(saver, "_BYTES_PER_SECOND", 1e9)
    monkeypatch.setattr(share, "write_role", hangs)
    role.saver.begin(folders[0])
    assert role.news() == {"error": f"{folders[0]}: not written within 0 s"}
    role.step([1])
    role.saver.begin(folders[1])
    assert role.news() == {"error": f"{folders[1]}: the store still holds up the share before"}
    monkeypatch.setattr(saver, "_LEAST_SECONDS", 60.0)
    answers.set()
    for thread in role.saver.threads:
        thread.join(20)
    assert list(folders[0].iterdir()) == []
    role.saver.begin(folders[2])
    assert (held(folders[2], role.news())["t"][1] == 2).all()


def test_a_share_that_hangs_does_not_keep_its_role(role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(share, "write_role", lambda *_: answers.wait(60))
    role.saver.begin(tmp_path)
    role.saver.stop()
    assert not answers.is_set()
    answers.set()


def test_where_much_has_no_marks_a_share_is_written_as_ever(tmp_path: Path) -> None:
    role = Role(torch.ones(17 << 20))
    role.saver.begin(tmp_path)
    assert held(tmp_path, role.news()).keys() == {"t", "w"}
    role.saver.stop()
