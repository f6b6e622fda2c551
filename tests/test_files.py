"""Files that are htrain's own, written over what was there (docs/guarantees.md)."""

import os
import threading
from pathlib import Path

import pytest

from htrain.files import new_file, put_file


def test_who_reads_a_file_that_is_put_there_again_finds_one_or_the_other(tmp_path: Path) -> None:
    path, ends = tmp_path / "places.json", threading.Event()

    def put() -> None:
        number = 0
        while not ends.is_set():
            number += 1
            put_file(path, bytes([number % 256]) * 100_000)

    thread = threading.Thread(target=put)
    put_file(path, b"")
    thread.start()
    found = [path.read_bytes() for _ in range(300)]
    ends.set()
    thread.join()
    assert all(len(set(each)) <= 1 and len(each) in (0, 100_000) for each in found)
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_put_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        put_file(tmp_path / "folder", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["scores.parquet", "s" * 255, "\u00e9" * 127, "\udcff" * 255])
def test_what_a_killed_process_leaves_is_called_by_what_it_was_to_be(tmp_path: Path, name: str) -> None:
    with new_file(tmp_path / name, lambda _: True) as file:
        (left,) = os.listdir(tmp_path)
        file.write(b"whole")
    beginning = os.fsdecode(os.fsencode(name)[:98]) if name[0] != "\udcff" else ""
    assert left.startswith(f".htrain-{beginning}")
    assert left.endswith(".partial")
    assert os.listdir(tmp_path) == [name]
