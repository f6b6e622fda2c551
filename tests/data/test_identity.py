"""Data is known again by its content: moved or touched it is the same, with one byte, row or option changed it is another."""

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain.data.identity as module
from htrain.data.identity import identity_of, stamps_of
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
