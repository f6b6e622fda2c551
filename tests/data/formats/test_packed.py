"""Packed files: the batches of their source, whatever the source; and nothing that was not written as one is taken for one."""

import gzip
import os
import shutil
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from htrain.data import START, Malformed, Position, open_data, text
from htrain.data.formats.packed import KEY, VERSION, Header, Totals
from htrain.data.pack import pack
from htrain.errors import DataError

SCHEMA = """label: y
inputs:
  d: {kind: dense, columns: [a]}
  s: {kind: ids, columns: [a, c], rows: [300, 70000]}
  p: {kind: padded, column: b, length: 2, rows: 5000000000}
  t: {kind: bag, column: b, rows: 200}
"""


def lines(count: int) -> str:
    """Criteo's format; row i can be told from all others."""
    return "".join(f"{i % 2}\t{i}" + "\t" * 12 + f"\t{i:08x}" + "\t" * 25 + "\n" for i in range(count))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.yaml").write_text(SCHEMA)
    (tmp_path / "a.tsv").write_text(lines(400))
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(lines(400).encode()))
    table = "".join(f"{i % 2},{i},{i * 7},{' '.join(map(str, range(i % 4)))}\n" for i in range(300))
    (tmp_path / "a.csv").write_text("y,a,c,b\n" + table)
    (tmp_path / "a.libfm").write_text("".join(f"{i % 2} {i}:1 {i * 3}:0.5\n" for i in range(300)))
    (tmp_path / "a.graph").write_text("".join(f"{u} {u % 7} {(u * 3) % 11} {u % 5 + 11}\n" for u in range(90)))
    return tmp_path


def batches(uri, *, shard=0, num_shards=1, start=START, epochs=2):
    return list(
        open_data(uri).batches(
            batch_size=32, shard=shard, num_shards=num_shards, epochs=epochs, start=start, malformed=Malformed()
        )
    )


def assert_same(found, wanted):
    assert [b.position for b in found] == [b.position for b in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert sorted(one.columns) == sorted(other.columns)
        for name, column in one.columns.items():
            assert (column.dtype, column.shape) == (other.columns[name].dtype, other.columns[name].shape)
            assert column.tobytes() == other.columns[name].tobytes()
            assert column.flags.writeable


@pytest.mark.parametrize(
    "source",
    ["criteo:{}/a.tsv", "criteo:{}/a.tsv.gz?rows=70", "csv:{0}/a.csv?schema={0}/s.yaml", "libfm:{}/a.libfm",
     "synthetic:?rows=9000&table_rows=1000", "graph:{}/a.graph?fanout=3,2"],
)  # fmt: skip
def test_a_packed_file_gives_the_batches_of_its_source_bit_for_bit_and_goes_on_where_its_source_stopped(folder, source):
    uri, packed = source.format(folder), f"packed:{folder}/p"
    totals = pack(uri, folder / "p", malformed=Malformed())
    wanted = batches(uri)
    assert_same(batches(packed), wanted)
    assert open_data(packed).schema == open_data(uri).schema
    assert open_data(packed).num_examples() == totals.examples == sum(b.num_examples for b in wanted) // 2
    stopped = wanted[len(wanted) // 3]
    assert_same(batches(packed, start=stopped.position), wanted[len(wanted) // 3 + 1 :])


@pytest.mark.parametrize("num_shards", [2, 3])
def test_so_does_each_shard_where_the_source_has_many_chunks(folder, num_shards):
    with patch.multiple(text, MIN_CHUNK_BYTES=100, MAX_CHUNK_BYTES=400):  # as 4 MiB are to a file of hundreds of MiB
        pack(f"criteo:{folder}/a.tsv", folder / "p", malformed=Malformed())
        for shard in range(num_shards):
            wanted = batches(f"criteo:{folder}/a.tsv", shard=shard, num_shards=num_shards)
            assert_same(batches(f"packed:{folder}/p", shard=shard, num_shards=num_shards), wanted)


def test_chunks_without_a_row_are_blocks_too_so_that_positions_stay_what_they_were(folder):
    content = ("1" + "\t" * 39 + "\n") * 2 + "\n" * 3000 + "9" * 4000 + "\n" + lines(30)
    (folder / "a.tsv").write_text(content)
    with patch.multiple(text, MIN_CHUNK_BYTES=100, MAX_CHUNK_BYTES=400):
        totals = pack(f"criteo:{folder}/a.tsv", folder / "p", malformed=Malformed())
        assert_same(batches(f"packed:{folder}/p"), batches(f"criteo:{folder}/a.tsv"))
    assert (totals.examples, totals.malformed) == (32, 1)


def test_few_blocks_are_shared_out_among_many_shards(folder, read):
    pack(f"criteo:{folder}/a.tsv", folder / "p", malformed=Malformed())
    whole = read(f"packed:{folder}/p")
    shards = [read(f"packed:{folder}/p", shard=s, num_shards=7) for s in range(7)]
    assert sorted(chain(*shards)) == sorted(whole)
    assert max(map(len, shards)) <= 1.5 * min(map(len, shards))


def test_ids_are_stored_in_no_more_bytes_than_their_tables_want(folder):
    pack(f"csv:{folder}/a.csv?schema={folder}/s.yaml", folder / "p", malformed=Malformed())
    schema = pa.ipc.open_file(str(folder / "p")).schema
    kinds = {field.name: getattr(field.type, "value_type", field.type) for field in schema}
    assert kinds == {
        "label": pa.float32(), "d": pa.float32(), "s": pa.uint32(), "p": pa.uint64(), "p_length": pa.uint8(), "t": pa.uint8()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "s.yaml"])
def test_a_packed_file_whose_source_or_schema_has_changed_is_refused_and_says_how_to_pack_again(folder, name):
    uri = f"csv:{folder}/a.csv?schema={folder}/s.yaml"
    pack(uri, folder / "p", malformed=Malformed())
    found = (folder / name).stat()
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    with pytest.raises(DataError) as caught:
        open_data(f"packed:{folder}/p")
    assert str(caught.value) == (
        f"{folder}/p: was packed from {folder}/{name} as it was before it changed: "
        f"pack it again (htrain data pack '{uri}' --out {folder}/p)"
    )
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns))
    open_data(f"packed:{folder}/p")
    with (folder / name).open("a") as file:
        file.write("\n")
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(DataError, match="as it was before it changed"):
        open_data(f"packed:{folder}/p")


def test_a_packed_file_serves_without_its_source_and_moves_with_it(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(folder)
    pack("criteo:a.tsv", Path("p"), malformed=Malformed())
    wanted = batches("criteo:a.tsv")
    other = tmp_path_factory.mktemp("other")
    shutil.move("p", other)
    assert_same(batches(f"packed:{other}/p"), wanted)
    (other / "a.tsv").write_text("not what it was")
    with pytest.raises(DataError, match="as it was before it changed"):
        open_data(f"packed:{other}/p")
    assert str(folder).encode() not in (other / "p").read_bytes()


def test_a_file_packed_again_while_it_is_read_is_an_error(folder):
    pack(f"criteo:{folder}/a.tsv", folder / "p", malformed=Malformed())
    dataset = open_data(f"packed:{folder}/p")
    pack(f"libfm:{folder}/a.libfm", folder / "p", malformed=Malformed())
    with pytest.raises(DataError, match=r"p: was packed again while it was read; start again$"):
        list(dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))
    (folder / "p").unlink()
    with pytest.raises(DataError, match=r"p: cannot be read: No such file or directory$"):
        list(dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))


def interrupt(path: Path) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("uri", "out", "meanwhile", "error", "said"),
    [
        ("criteo:a.tsv", "old", interrupt, KeyboardInterrupt, "^$"),
        ("criteo:a.tsv", "old", lambda p: (p / "a.tsv").write_text("1"), DataError, "'criteo:a.tsv' was written to while it was packed"),
        ("criteo:bad.tsv", "old", None, DataError, r"bad\.tsv:1: has 1 columns, want 40 \(.* of .* rows are malformed"),
        ("criteo:few.tsv", "old", None, DataError, r"few\.tsv:1: has 1 columns, want 40 \(no row of few\.tsv can be read\)"),
        ("criteo:blank.tsv", "old", None, DataError, r"no row of blank\.tsv can be read"),
        ("criteo:a.tsv", "absent/p", None, DataError, r"absent/p: cannot be written: .*absent is not a folder$"),
        ("criteo:a.tsv", ".", None, DataError, r"^\.: cannot be written: it is a folder, want a file$"),
        ("criteo:a.tsv", "bad.tsv", None, DataError, r"bad\.tsv: cannot be written: it holds something that htrain did not write there"),
        ("criteo:a.tsv", "a.tsv", None, DataError, r"a\.tsv: is what would be packed; give another --out"),
        ("packed:old", "old", None, DataError, "old: is no packed file"),
    ],
)  # fmt: skip
def test_a_packing_that_fails_leaves_what_was_there(folder, monkeypatch, uri, out, meanwhile, error, said):
    monkeypatch.chdir(folder)
    Path("bad.tsv").write_text("x\n" * 50)
    Path("few.tsv").write_text("x\n" * 5)
    Path("blank.tsv").write_text("\n" * 5)
    Path("old").write_bytes(b"ARROW1" + KEY + b"what was there")
    before = sorted(os.listdir())
    fsync = os.fsync
    if meanwhile:
        monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), meanwhile(folder)))
    with pytest.raises(error, match=said):
        pack(uri, Path(out), malformed=Malformed())
    assert sorted(os.listdir()) == before
    assert Path("old").read_bytes() == b"ARROW1" + KEY + b"what was there"


def test_what_was_left_out_is_counted_and_positions_are_plain(folder):
    (folder / "a.tsv").write_text("oops\n" + lines(50))
    malformed = Malformed()
    assert pack(f"criteo:{folder}/a.tsv", folder / "p", malformed=malformed).malformed == malformed.count == 1
    source = open_data(f"packed:{folder}/p").source
    assert isinstance(source.header, Header)
    assert (source.header.version, source.totals) == (VERSION, Totals(50, source.totals.blocks, 1))
    assert batches(f"packed:{folder}/p", epochs=1)[-1].position == Position(1, 0, 0)
