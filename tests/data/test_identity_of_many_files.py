"""Data of many files is known again file by file, by what each was known by, whatever has come beside it."""

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain.data.identity as module
from htrain.data import Malformed
from htrain.data.identity import (
    DataIdentity,
    begins_of_new,
    identity_of,
    other_than_grown,
    other_than_read,
)
from htrain.data.pack import pack

LINES = [f"{row % 2} {row}:1 {row + 7}:1\n" for row in range(200)]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(lines))


@contextmanager
def small() -> Iterator[None]:
    """Within, files are large that have over 1,000 bytes together."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WHOLE_BYTES": 1000, "_BLOCK_BYTES": 10, "_BLOCKS": 8}.items():
            patch.setattr(module, name, value)
        yield


@dataclass
class Days:
    """A folder of files, a few of which may be over the limit up to which all bytes count; new ones come behind those before."""

    folder: Path
    rows: list[int]

    @property
    def uri(self) -> str:
        return f"libfm:{self.folder}/*.libfm?rows=300"

    def path(self, day: int) -> Path:
        return self.folder / f"{day:02}.libfm"

    def write(self, day: int) -> None:
        self.path(day).write_text("".join(f"{row % 2} {(row + day) % 300}:1\n" for row in range(self.rows[day])))
        os.utime(self.path(day), (day, day + self.rows[day]))

    def grow(self, day: int, rows: int) -> None:
        if day == len(self.rows):
            self.rows.append(0)
        self.rows[day] += rows
        self.write(day)


def written(folder: Path, rows: list[int]) -> Days:
    days = Days(folder, rows)
    for day in range(len(rows)):
        days.write(day)
    return days


def as_older(identity: DataIdentity) -> DataIdentity:
    """As an htrain wrote it that did not say how many blocks count."""
    return msgspec.structs.replace(
        identity, files=tuple(msgspec.structs.replace(each, blocks=0) for each in identity.files)
    )


@given(
    first=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    growths=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 150)), min_size=1, max_size=4),
    is_older=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_files_are_known_by_what_they_were_known_by_whatever_has_come_beside_them(
    first: list[int], growths: list[tuple[int, int]], is_older: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with small():
        days = written(tmp_path_factory.mktemp("days"), first)
        looks = [identity_of(days.uri)]
        for day, rows in growths:
            days.grow(min(day, len(days.rows)), rows)
            looks.append(identity_of(days.uri))
        *before, now = (as_older(each) if is_older else each for each in looks)
        assert [other_than_grown(days.uri, then, looks[-1]) for then in before] == [""] * len(before)
        assert [other_than_read(days.uri, then) for then in before] == [""] * len(before)
        assert now.difference(looks[-1]) == ""


@given(
    first=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    day=st.integers(0, 3),
    place=st.floats(0, 1, exclude_max=True),
    more=st.integers(0, 150),
    keeps_time=st.booleans(),
    is_older=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_file_that_was_rewritten_is_another_whatever_has_come_beside_it(
    first: list[int],
    day: int,
    place: float,
    more: int,
    keeps_time: bool,
    is_older: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With another time of its change, or in a byte that counts."""
    day %= len(first)
    with small():
        days = written(tmp_path_factory.mktemp("days"), first)
        then = identity_of(days.uri)
        data, file = days.path(day).read_bytes(), then.files[day]
        at = int(place * len(data))
        if file.blocks and keeps_time:  # a change between blocks is not seen by them
            at = max(each for each in module._places(len(data), file.blocks) if each <= at)
        days.path(day).write_bytes(data[:at] + b"#" + data[at + 1 :])
        os.utime(days.path(day), (day, day + first[day] + (not keeps_time)))
        if more:
            days.grow(len(first), more)
        before = as_older(then) if is_older else then
        wanted = f"'{file.name}' has {len(data):,} bytes as before, but others"
        assert other_than_grown(days.uri, before, identity_of(days.uri)) in (wanted, f"'{file.name}' was changed since")
        assert other_than_read(days.uri, before)
        assert (other_than_read(days.uri, before, is_copy=True) == wanted) or not keeps_time


def test_as_many_blocks_count_as_did_though_this_htrain_would_take_others(tmp_path: Path) -> None:
    with small():
        days = written(tmp_path, [150, 150])
        then = identity_of(days.uri)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_BLOCKS", 14)
            now = identity_of(days.uri)
            assert ([each.blocks for each in then.files], [each.blocks for each in now.files]) == ([4, 4], [7, 7])
            assert other_than_grown(days.uri, then, now) == ""
            days.grow(1, 10)
            assert other_than_grown(days.uri, then, identity_of(days.uri)) == ""
            assert other_than_read(days.uri, then) == ""


@pytest.fixture
def small_files() -> Iterator[None]:
    with small():
        yield


@pytest.mark.usefixtures("small_files")
def test_a_schema_file_that_was_known_by_all_of_its_bytes_still_is(tmp_path: Path) -> None:
    """It is compared as it was known, like the files of rows."""
    uri = f"csv:{tmp_path}/*.csv?schema={tmp_path}/s.yaml"
    (tmp_path / "a.csv").write_text("click,x\n1,2\n")
    (tmp_path / "s.yaml").write_text("label: click\ninputs: {d: {kind: dense, columns: [x]}}\n" + "# about it\n" * 20)
    then = identity_of(uri)
    (tmp_path / "b.csv").write_text("click,x\n" + "1,2\n" * 300)
    now = identity_of(uri)
    assert (then.files[-1].whole, now.files[-1].whole) == (True, False)
    assert other_than_grown(uri, then, now) == ""
    schema = (tmp_path / "s.yaml").read_text()
    (tmp_path / "s.yaml").write_text(schema.replace("# about it\n", "# about me\n", 1))
    assert other_than_grown(uri, then, identity_of(uri)).endswith("bytes as before, but others")


def test_what_a_run_reads_is_known_by_its_names_among_others(tmp_path: Path) -> None:
    uri = f"libfm:{tmp_path}/*.libfm?rows=300"
    for name in "bd":
        write(tmp_path / f"{name}.libfm", LINES)
    then = identity_of(uri)
    for name in "ace":
        write(tmp_path / f"{name}.libfm", LINES[:50])
        assert other_than_read(uri, then) == ""
    with (tmp_path / "b.libfm").open("a") as file:
        file.write("1 3:1\n")
    assert other_than_read(uri, then) == ""
    write(tmp_path / "b.libfm", LINES[1:])
    assert other_than_read(uri, then).startswith("'b.libfm' has ")
    (tmp_path / "b.libfm").rename(tmp_path / "b1.libfm")
    assert other_than_read(uri, then) == "there is no file 'b.libfm'"


@pytest.mark.parametrize("content", [b"", b"half a file"])
def test_a_packed_file_that_is_being_written_disturbs_nobody_who_reads_others(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.libfm", LINES)
    pack(f"libfm:{tmp_path}/a.libfm?rows=300", tmp_path / "a.packed", malformed=Malformed())
    then = identity_of(uri := f"packed:{tmp_path}/*.packed")
    (tmp_path / "b.packed").write_bytes(content)
    assert other_than_read(uri, then) == ""
    shutil.copy(tmp_path / "a.packed", tmp_path / "b.packed")
    assert other_than_grown(uri, then, identity_of(uri)) == ""


@pytest.mark.parametrize("name", ["b.libfm", "b.libfm.gz"])
def test_a_file_that_was_empty_takes_rows_as_a_new_one_does(tmp_path: Path, name: str) -> None:
    uri = f"libfm:{tmp_path}/*?rows=300"
    write(tmp_path / "a.libfm", LINES)
    (tmp_path / name).touch()
    then = identity_of(uri)
    content = b"1 2:1\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    write(tmp_path / "c.libfm", LINES)
    now = identity_of(uri)
    assert other_than_grown(uri, then, now) == ""
    assert begins_of_new(uri, then.files, now.files) == [then.files[0].num_bytes, 0]
