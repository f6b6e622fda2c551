"""Data is known again by its content: moved or touched it is the same, with one byte, row or option changed it is another."""

import gzip
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain.data.identity as module
from htrain.data.identity import content_of, data_files, identity_of, other_than_grown, stamps_of
from htrain.errors import DataError

LINES = [f"{row % 2} {row}:1 {row + 7}:1" for row in range(200)]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return f"libfm:{path}?rows=300"


def changed(lines: list[str], how: str, draw: random.Random) -> list[str]:
    place = draw.randrange(len(lines))
    if how == "appended":
        return [*lines, lines[place]]
    if how == "truncated":
        return lines[: max(1, place)]
    if how == "relabelled":
        flipped = ("1" if lines[place][0] == "0" else "0") + lines[place][1:]
        return [*lines[:place], flipped, *lines[place + 1 :]]
    other = (place + 1 + draw.randrange(len(lines) - 1)) % len(lines)
    swapped = lines.copy()
    swapped[place], swapped[other] = lines[other], lines[place]
    return swapped


@settings(max_examples=60, deadline=None)
@given(
    how=st.sampled_from(["appended", "truncated", "relabelled", "reordered"]),
    seed=st.integers(0, 1 << 30),
    keep_time=st.booleans(),
)
def test_changed_rows_are_other_data_also_where_the_files_time_is_kept(
    tmp_path_factory: pytest.TempPathFactory, how: str, seed: int, keep_time: bool
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.libfm"
    before = identity_of(write(path, LINES))
    time = path.stat().st_mtime_ns
    write(path, changed(LINES, how, random.Random(seed)))
    if keep_time:
        os.utime(path, ns=(time, time))
    said = before.difference(identity_of(f"libfm:{path}?rows=300"))
    assert said.startswith("'a.libfm' has ")


@pytest.mark.parametrize("how", ["appended", "truncated", "relabelled", "reordered", "replaced"])
def test_files_are_stamped_by_what_no_writer_can_keep(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.libfm"
    before = stamps_of(uri := write(path, LINES))
    assert before == stamps_of(uri)
    time = path.stat().st_mtime_ns
    if how == "replaced":
        write(tmp_path / "b.libfm", LINES)
        (tmp_path / "b.libfm").replace(path)
    else:
        write(path, changed(LINES, how, random.Random(0)))
    os.utime(path, ns=(time, time))
    assert before != stamps_of(uri)


def test_moved_touched_or_renamed_data_is_the_same(tmp_path: Path) -> None:
    before = identity_of(write(tmp_path / "a.libfm", LINES))
    os.utime(tmp_path / "a.libfm", (1, 1))
    (tmp_path / "there").mkdir()
    shutil.move(tmp_path / "a.libfm", tmp_path / "there" / "b.libfm")
    assert before.difference(identity_of(f"libfm:{tmp_path}/there/b.libfm?rows=300")) == ""


def test_other_options_formats_and_schemas_are_other_data(tmp_path: Path) -> None:
    uri = write(tmp_path / "a.libfm", LINES)
    before = identity_of(uri)
    assert before.difference(identity_of(uri.replace("300", "400"))) == "its option rows is 400 now, it was 300"
    assert before.difference(identity_of(uri.partition("?")[0])) == "its option rows is not given now, it was 300"
    assert before.difference(identity_of(uri.replace("libfm:", "libsvm:"))) == "it is libsvm now, it was libfm"
    assert (
        identity_of("synthetic:?rows=100")
        .difference(identity_of("synthetic:?rows=100&seed=3"))
        .startswith("its option seed is 3")
    )
    (tmp_path / "a.csv").write_text("click,x\n1,2\n")
    (tmp_path / "s.yaml").write_text("label: click\ninputs: {d: {kind: dense, columns: [x]}}\n")
    csv = identity_of(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml")
    shutil.copy(tmp_path / "s.yaml", tmp_path / "t.yaml")
    assert csv.difference(identity_of(f"csv:{tmp_path}/a.csv?schema={tmp_path}/t.yaml")) == ""
    (tmp_path / "s.yaml").write_text("label: clack\ninputs: {d: {kind: dense, columns: [x]}}\n")
    assert (
        csv.difference(identity_of(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml"))
        == "'s.yaml' has 54 bytes as before, but others"
    )


def test_of_a_large_file_blocks_and_the_time_of_its_last_change_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "_BLOCKS", 8)
    path = tmp_path / "a.libfm"
    uri = write(path, LINES)
    data, time = path.read_bytes(), path.stat().st_mtime_ns
    before = identity_of(uri)
    assert not before.files[0].whole
    for place in (3, len(data) - 3):
        path.write_bytes(data[:place] + b"#" + data[place + 1 :])
        os.utime(path, ns=(time, time))
        assert before.difference(identity_of(uri)) == f"'a.libfm' has {len(data):,} bytes as before, but others"
    path.write_bytes(data)
    os.utime(path, ns=(time + 1, time + 1))
    assert before.difference(identity_of(uri)) == "'a.libfm' was changed since"
    os.utime(path, ns=(time, time))
    assert before.difference(identity_of(uri)) == ""


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.libfm: cannot be read: No such file or directory$"):
        identity_of(f"libfm:{tmp_path}/a.libfm")


# -- data that has grown


def grown(path: Path, before: str, after: str, uri: str = "") -> str:
    """What tells a file that was `before` and is `after` now from one that has grown."""
    path.write_text(before, newline="")
    uri = uri or f"libfm:{path}?rows=300"
    then = identity_of(uri)
    path.write_text(after, newline="")
    return other_than_grown(uri, then, identity_of(uri))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30), how=st.sampled_from(["truncated", "relabelled", "reordered"]), more=st.integers(0, 5)
)
def test_a_file_has_grown_where_it_begins_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, how: str, more: int
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.libfm"
    before = "\n".join(LINES) + "\n"
    assert grown(path, before, before + "1 3:1\n" * more) == ""
    other = "\n".join(changed(LINES, how, random.Random(seed))) + "\n"
    assert grown(path, before, other + "1 3:1\n" * more).startswith("'a.libfm' has ")


def test_what_keeps_data_from_having_grown_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.libfm"
    assert (
        grown(path, "1 2:1\n0 4:1\n", "1 3:1\n0 4:1\n1 2:1\n")
        == "'a.libfm' has 18 bytes, it had 12, and of these some are others"
    )
    assert grown(path, "1 2:1\n0 4:1", "1 2:1\n0 4:1\n1 2:1\n") == ""
    assert grown(path, "1 2:1\r\n0 4:1", "1 2:1\r\n0 4:1\r\n") == ""
    assert grown(path, "1 2:1\n0 4:1", "1 2:1\n0 4:17\n") == ""
    assert (
        grown(path, "1 2:1\n0 4:1", "1 2:1\n0 5:17\n")
        == "'a.libfm' has 13 bytes, it had 11, and of these some are others"
    )
    assert grown(path, "1 2:1\n0 4:1\n", "1 2:1\n") == "'a.libfm' has 6 bytes, it had 12"
    then = identity_of(f"libfm:{path}?rows=300")
    path.write_text("1 2:1\n" * 3)
    now = identity_of(f"libfm:{path}?rows=400")
    assert other_than_grown(f"libfm:{path}?rows=400", then, now) == "its option rows is 400 now, it was 300"


def test_new_files_come_behind_those_before(tmp_path: Path) -> None:
    uri = f"libfm:{tmp_path}/*.libfm?rows=300"
    for name in "bd":
        write(tmp_path / f"{name}.libfm", LINES)
    then = identity_of(uri)
    write(tmp_path / "e.libfm", LINES)
    assert other_than_grown(uri, then, identity_of(uri)) == ""
    write(tmp_path / "b.libfm", [*LINES, "1 2:1"])
    assert other_than_grown(uri, then, identity_of(uri)) == ""
    write(tmp_path / "c.libfm", LINES[:50])
    assert (
        other_than_grown(uri, then, identity_of(uri))
        == "'c.libfm' is where 'd.libfm' was: new files come behind those before, by name"
    )
    for name in "cde":
        (tmp_path / f"{name}.libfm").unlink()
    assert other_than_grown(uri, then, identity_of(uri)) == "it has 1 files, it had 2"


def test_the_files_that_describe_data_must_be_as_they_were(tmp_path: Path) -> None:
    uri = f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml"
    (tmp_path / "a.csv").write_text("click,x\n1,2\n")
    (tmp_path / "s.yaml").write_text("label: click\ninputs: {d: {kind: dense, columns: [x]}}\n")
    then = identity_of(uri)
    with (tmp_path / "a.csv").open("a") as file:
        file.write("0,3\n")
    assert other_than_grown(uri, then, identity_of(uri)) == ""
    assert [each.name for each in data_files(uri, then)] == ["a.csv"]
    (tmp_path / "s.yaml").write_text("label: clack\ninputs: {d: {kind: dense, columns: [x]}}\n")
    assert other_than_grown(uri, then, identity_of(uri)) == "'s.yaml' has 54 bytes as before, but others"


def test_files_that_are_no_plain_text_do_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.libfm.gz"
    path.write_bytes(gzip.compress(b"1 2:1\n"))
    then = identity_of(uri := f"libfm:{path}?rows=9")
    path.write_bytes(path.read_bytes() + gzip.compress(b"1 3:1\n"))
    said = other_than_grown(uri, then, identity_of(uri))
    assert said == "'a.libfm.gz' has 52 bytes, it had 26: only a plain text file may grow, others come as new files"


@pytest.mark.parametrize("place", [0, 700, 2900])
def test_of_a_large_file_that_has_grown_the_blocks_that_it_had_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "_BLOCKS", 8)
    path = tmp_path / "a.libfm"
    then = identity_of(uri := write(path, LINES))
    data = path.read_bytes()
    path.write_bytes(data + b"1 3:1\n" * 100)
    assert not then.files[0].whole
    assert other_than_grown(uri, then, identity_of(uri)) == ""
    block = max(at for at in module._places(len(data), 8) if at <= place)
    path.write_bytes(data[:block] + b"#" + data[block + 1 :] + b"1 3:1\n" * 100)
    assert other_than_grown(uri, then, identity_of(uri)).endswith("and of these some are others")


def test_a_file_that_was_small_and_is_large_is_known_by_all_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.libfm"
    then = identity_of(uri := write(path, LINES))
    data = path.read_bytes()
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "_BLOCKS", 8)
    path.write_bytes(data + data)
    now = identity_of(uri)
    assert (then.files[0].whole, now.files[0].whole) == (True, False)
    assert other_than_grown(uri, then, now) == ""
    path.write_bytes(data[:501] + b"#" + data[502:] + data)
    assert other_than_grown(uri, then, identity_of(uri)).endswith("and of these some are others")


def test_content_is_what_files_hold_whenever_they_were_written(tmp_path: Path) -> None:
    uri = write(path := tmp_path / "a.libfm", LINES)
    before = content_of(uri)
    os.utime(path, (1, 1))
    assert content_of(uri) == before
    path.write_bytes(path.read_bytes()[:-2] + b"2\n")
    assert content_of(uri) != before
