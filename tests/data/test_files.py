"""Data in many files is the data of one: the same rows in the same order, shared out, resumed and named."""

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htrain.data import START, Batch, Malformed, Position, open_data
from htrain.data.identity import identity_of
from htrain.data.pack import pack
from htrain.data.source import by_name
from htrain.errors import DataError

SCHEMA = "label: y\ninputs:\n  d: {kind: dense, columns: [x]}\n  s: {kind: ids, columns: [i], rows: 1000}\n"


def written(folder: Path, counts: list[int], format: str) -> str:
    """Files of so many rows, whose numbers go on from file to file; the place that names them all."""
    (folder / "s.yaml").write_text(SCHEMA)
    begin = 0
    for k, count in enumerate(counts):
        rows = range(begin, begin + count)
        begin += count
        if format == "csv":
            (folder / f"part-{k:03}.csv").write_text("y,x,i\n" + "".join(f"{r % 2},{r},{r % 1000}\n" for r in rows))
        else:
            table = pa.table({"y": [r % 2 for r in rows], "x": [float(r) for r in rows], "i": [r % 1000 for r in rows]})
            pq.write_table(table, folder / f"part-{k:03}.parquet", row_group_size=7)
    return f"{format}:{folder}/part-*.{format}?schema={folder}/s.yaml"


def batches(uri: str, size: int, *, shard: int = 0, num_shards: int = 1, start: Position = START) -> list[Batch]:
    return list(
        open_data(uri).batches(
            batch_size=size, shard=shard, num_shards=num_shards, epochs=2, start=start, malformed=Malformed()
        )
    )


def numbers(found: list[Batch]) -> list[float]:
    return np.concatenate([batch.columns["d"].ravel() for batch in found] or [np.empty(0)]).tolist()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    format=st.sampled_from(["csv", "parquet"]),
    size=st.integers(1, 30),
    num_shards=st.integers(1, 4),
    data=st.data(),
)
def test_many_files_are_read_as_one_and_from_any_place_again(
    counts: list[int],
    format: str,
    size: int,
    num_shards: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    uri = written(tmp_path_factory.mktemp("parts"), counts, format)
    assert numbers(batches(uri, size)) == [*range(sum(counts))] * 2
    shares = [batches(uri, size, shard=shard, num_shards=num_shards) for shard in range(num_shards)]
    assert sorted(number for share in shares for number in numbers(share)) == sorted([*range(sum(counts))] * 2)
    shard = data.draw(st.sampled_from([shard for shard, share in enumerate(shares) if share]))
    stop = data.draw(st.integers(0, len(shares[shard]) - 1))
    rest = batches(uri, size, shard=shard, num_shards=num_shards, start=shares[shard][stop].position)
    assert numbers(rest) == numbers(shares[shard][stop + 1 :])
    assert open_data(uri).num_examples() == sum(counts)


def test_small_files_are_shared_out_evenly(tmp_path: Path) -> None:
    uri = written(tmp_path, [5] * 40, "csv")
    shares = [len(numbers(batches(uri, 8, shard=shard, num_shards=4))) for shard in range(4)]
    assert sum(shares) == 400
    assert max(shares) - min(shares) <= 10


def test_a_folder_a_pattern_and_a_list_name_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    uri = written(tmp_path / "in", [3, 4], "csv").replace("in/s.yaml", "s.yaml")
    (tmp_path / "in" / "s.yaml").rename(tmp_path / "s.yaml")
    (tmp_path / "in" / "_SUCCESS").touch()
    (tmp_path / "in" / ".hidden.csv").touch()
    (tmp_path / "in" / "part-000.csv.meta.json").write_text("{}")
    query = uri.partition("?")[2]
    folder, listed = f"csv:{tmp_path}/in?{query}", f"csv:{tmp_path}/in/part-000.csv,{tmp_path}/in/part-001.csv?{query}"
    assert numbers(batches(uri, 5)) == numbers(batches(folder, 5)) == numbers(batches(listed, 5))
    assert numbers(batches(f"csv:{tmp_path}/in/part-001.csv,{tmp_path}/in/part-000.csv?{query}", 5))[0] == 3
    assert identity_of(uri).difference(identity_of(folder)) == ""
    (tmp_path / "in" / "part-002.csv").write_text("y,x,i\n1,2,3\n")
    assert identity_of(listed).difference(identity_of(folder)) == "it has 4 files, it had 3"


def test_an_empty_file_among_others_of_text_is_one_whose_rows_are_to_come(tmp_path: Path) -> None:
    uri = written(tmp_path, [3, 4], "csv")
    whole = batches(uri, 5)
    for name in ("part-0000.csv", "part-000a.csv", "part-002.csv"):
        (tmp_path / name).touch()
    assert numbers(batches(uri, 5)) == numbers(whole)
    assert open_data(uri).num_examples() == 7


def test_compressed_files_without_text_are_empty_too(tmp_path: Path) -> None:
    uri = written(tmp_path, [3, 4], "csv")
    whole = batches(uri, 5)
    for name in ("part-0000.csv.gz", "part-002.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    places = f"csv:{tmp_path}/part-*?schema={tmp_path}/s.yaml"
    assert numbers(batches(places, 5)) == numbers(whole)
    with pytest.raises(DataError, match=r"part-002\.csv\.gz: is empty$"):
        open_data(f"csv:{tmp_path}/part-002.csv.gz?schema={tmp_path}/s.yaml")


def test_a_name_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    written(tmp_path, [3], "csv")
    try:
        (tmp_path / os.fsdecode(b"part-\xff.csv")).write_text("y,x,i\n1,2,3\n")
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(DataError, match=r"part-\\udcff\.csv': a name that is not UTF-8, which no run can write down"):
        open_data(f"csv:{tmp_path}/part-*?schema={tmp_path}/s.yaml")


def test_files_of_one_name_are_picked_in_order() -> None:
    first, second, between = Path("a/x"), Path("c/x"), Path("b/y")
    assert by_name([first, between, second], ["x", "x"]) == [first, second]
    assert by_name([first, between, second], ["y", "x"]) == [between, second]
    assert by_name([first, between], ["x", "x", "y"]) == [first, None, between]


def test_many_files_are_packed_as_one(tmp_path: Path) -> None:
    uri = written(tmp_path, [30, 1, 17], "parquet")
    pack(uri, tmp_path / "all.packed", malformed=Malformed())
    assert numbers(batches(f"packed:{tmp_path}/all.packed", 6)) == numbers(batches(uri, 6))


def test_a_bad_row_is_named_with_its_file(tmp_path: Path) -> None:
    uri = written(tmp_path, [3, 3], "csv")
    with (tmp_path / "part-001.csv").open("a") as file:
        file.write("1,2\n")
    malformed = Malformed(share=1.0)
    found = open_data(uri).batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=malformed)
    assert numbers(list(found)) == [*range(6)]
    assert malformed.examples[0].startswith(f"{tmp_path}/part-001.csv:5: has 2 columns, want 3")
    (tmp_path / "part-001.csv").write_text("y,x,i\n1,2,3\n7,2,3\n")
    with pytest.raises(DataError, match=rf"^{tmp_path}/part-001.csv:3: the label is 7, but"):
        list(
            open_data(uri)
            .for_loss("bce")
            .batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
        )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("csv:{t}/x-*.csv?schema={t}/s.yaml", r"x-\*\.csv: no such file"),
        ("csv:{t}/none?schema={t}/s.yaml", "none: has no file"),
        ("csv:{t}/part-000.csv,{t}/part-0*.csv?schema={t}/s.yaml", "part-000.csv: is named twice"),
        ("csv:{t}/empty.csv,{t}/empty2.csv?schema={t}/s.yaml", "empty.csv: is empty"),
        ("parquet:{t}/part.parquet,{t}/empty.csv?schema={t}/s.yaml", "empty.csv: is empty"),
        ("csv:{t}/part-*.csv,{t}/other.csv?schema={t}/s.yaml", "other.csv: no column 'y'"),
        (
            "libfm:{t}/a.libfm,{t}/b.libfm",
            r"b.libfm: has other inputs than \S+a.libfm: ids 'sparse' of 1 columns, with \d+ rows in all; \?rows=N",
        ),
        ("graph:{t}/a.libfm,{t}/b.libfm", "graph data is one file, this names 2"),
    ],
)
def test_a_place_that_names_no_data_is_one_line(place: str, message: str, tmp_path: Path) -> None:
    written(tmp_path, [2, 2], "csv")
    (tmp_path / "none").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "empty2.csv").touch()
    pq.write_table(pa.table({"y": [1.0], "x": [1.0], "i": [3]}), tmp_path / "part.parquet")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "a.libfm").write_text("1 4:1\n")
    (tmp_path / "b.libfm").write_text("1 900:1\n")
    with pytest.raises(DataError, match=message) as raised:
        open_data(place.format(t=tmp_path))
    assert "\n" not in str(raised.value)


def test_large_files_are_known_by_blocks_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htrain.data.identity.WHOLE_BYTES", 1000)
    monkeypatch.setattr("htrain.data.identity._BLOCK_BYTES", 10)
    monkeypatch.setattr("htrain.data.identity._BLOCKS", 8)
    uri = written(tmp_path, [100, 100, 1], "csv")
    before = identity_of(uri)
    assert [file.whole for file in before.files] == [False, False, True, False]
    path = tmp_path / "part-001.csv"
    found = path.stat()
    path.write_bytes(path.read_bytes()[:-2] + b"7\n")
    os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))
    assert "'part-001.csv' has" in before.difference(identity_of(uri))


def test_a_link_to_a_file_that_has_gone_is_no_file_less(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 1:1\n")
    (tmp_path / "b.libfm").symlink_to(tmp_path / "nowhere")
    (tmp_path / "_mark").symlink_to(tmp_path / "nowhere")
    for place in (str(tmp_path), f"{tmp_path}/*.libfm"):
        with pytest.raises(DataError, match=r"b\.libfm: a link to what is not there: restore it, or take it away$"):
            open_data(f"libfm:{place}?rows=10")
    (tmp_path / "b.libfm").unlink()
    assert open_data(f"libfm:{tmp_path}?rows=10").num_examples() == 1
