"""Sharding, batching and resuming, the same for every format."""

import gzip
from collections import Counter
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import START, Malformed, Position, Schema, open_data, text
from htrain.data.formats import tabular
from htrain.data.pack import pack
from htrain.data.reader import Dataset
from htrain.errors import CheckpointError, DataError

COUNT = 157  # rows of every file; row i can be told from all others
FORMATS = ["criteo", "criteo.gz", "libfm", "bag", "csv", "csv.gz", "parquet", "synthetic", "packed", "packed bag"]
SCHEMA = "label: y\ninputs:\n  a: {kind: ids, columns: [a], rows: 1000}\n  b: {kind: bag, column: b, rows: 1000}\n"


@pytest.fixture(scope="module")
def uris(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "s.yaml").write_text(SCHEMA)
    criteo = "".join(f"{i % 2}\t{i}" + "\t" * 12 + f"\t{'0' * (i % 7)}{i:x}" + "\t" * 25 + "\n" for i in range(COUNT))
    table = "y,a,b\r\n" + "".join(f"{i % 2},{i},{' '.join(map(str, range(i % 4)))}\n" for i in range(COUNT))
    bag = "".join(f"{i % 2} {' '.join(f'{i + k}:1' for k in range(1 + i % 3))}\n" for i in range(COUNT))
    (folder / "a.tsv").write_text(criteo.rstrip("\n"))
    (folder / "a.tsv.gz").write_bytes(gzip.compress(criteo.encode()))
    (folder / "a.libfm").write_text("".join(f"{i % 2} {i}:1 {i * 3}:0.5\n" for i in range(COUNT)))
    (folder / "bag.libfm").write_text(bag)
    (folder / "a.csv").write_text(table)
    (folder / "a.csv.gz").write_bytes(gzip.compress(table.encode()))
    lists = [list(range(i % 4)) for i in range(COUNT)]
    rows = pa.table({"y": [i % 2 for i in range(COUNT)], "a": list(range(COUNT)), "b": lists})
    pq.write_table(rows, folder / "a.parquet", row_group_size=50)
    pack(f"criteo:{folder}/a.tsv", folder / "a.packed", malformed=Malformed())
    pack(f"csv:{folder}/a.csv?schema={folder}/s.yaml", folder / "bag.packed", malformed=Malformed())
    return {
        "criteo": f"criteo:{folder}/a.tsv",
        "criteo.gz": f"criteo:{folder}/a.tsv.gz",
        "libfm": f"libfm:{folder}/a.libfm",
        "bag": f"libsvm:{folder}/bag.libfm",
        "csv": f"csv:{folder}/a.csv?schema={folder}/s.yaml",
        "csv.gz": f"csv:{folder}/a.csv.gz?schema={folder}/s.yaml",
        "parquet": f"parquet:{folder}/a.parquet?schema={folder}/s.yaml",
        "synthetic": f"synthetic:?rows={COUNT}&table_rows=100000",
        "packed": f"packed:{folder}/a.packed",
        "packed bag": f"packed:{folder}/bag.packed",
    }


def sized(chunk):
    """Chunks of about `chunk` bytes or rows at most, whatever the file's size."""
    return patch.multiple(text, MIN_CHUNK_BYTES=chunk, MAX_CHUNK_BYTES=chunk * 4), patch.multiple(
        tabular, MAX_BLOCK_ROWS=chunk
    )


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=12, deadline=None)
@given(num_shards=st.integers(1, 9), batch_size=st.integers(1, 200), chunk=st.integers(1, 300))
def test_every_example_comes_exactly_once_over_any_number_of_shards(uris, read, format, num_shards, batch_size, chunk):
    whole = read(uris[format])
    small_text, small_blocks = sized(chunk)
    with small_text, small_blocks:
        shards = [read(uris[format], batch_size=batch_size, shard=s, num_shards=num_shards) for s in range(num_shards)]
    assert len(whole) == COUNT
    assert Counter(chain(*shards)) == Counter(whole)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=6, deadline=None)
@given(data=st.data(), num_shards=st.integers(1, 3), batch_size=st.integers(1, 60), chunk=st.integers(20, 300))
def test_resuming_at_any_batch_gives_the_batches_that_would_have_followed(
    uris, examples, format, data, num_shards, batch_size, chunk
):
    dataset = open_data(uris[format])

    def batches(start):
        return list(
            dataset.batches(
                batch_size=batch_size, shard=0, num_shards=num_shards, epochs=2, start=start, malformed=Malformed()
            )
        )

    small_text, small_blocks = sized(chunk)
    with small_text, small_blocks:
        whole = batches(START)
        stop = data.draw(st.integers(0, len(whole) - 1))
        rest = batches(Position.from_dict(whole[stop].position.to_dict()))
    assert [(examples(b), b.position) for b in rest] == [(examples(b), b.position) for b in whole[stop + 1 :]]


@pytest.mark.parametrize("format", FORMATS)
def test_only_the_last_batch_of_an_epoch_is_partial_and_none_spans_two_epochs(uris, format):
    batches = open_data(uris[format]).batches(
        batch_size=50, shard=0, num_shards=1, epochs=2, start=START, malformed=Malformed()
    )
    assert [b.num_examples for b in batches] == [50, 50, 50, 7] * 2


@pytest.mark.parametrize("format", ["criteo", "csv", "parquet", "packed"])
def test_a_shard_of_a_small_file_is_about_as_large_as_any_other(uris, read, format):
    sizes = [len(read(uris[format], shard=s, num_shards=4)) for s in range(4)]
    assert max(sizes) <= 2 * min(sizes)


def test_a_short_synthetic_log_is_shared_out_evenly(read):
    sizes = [len(read("synthetic:?rows=10000", shard=s, num_shards=16)) for s in range(16)]
    assert sum(sizes) == 10_000
    assert max(sizes) <= 1.3 * min(sizes)


def test_parquet_row_groups_without_a_block_of_the_shard_are_not_read(uris):
    source = open_data(uris["parquet"]).source  # four groups of 50 rows, of three blocks each
    read_groups = pq.ParquetFile.iter_batches
    with patch.object(pq.ParquetFile, "iter_batches", autospec=True, side_effect=read_groups) as opened:
        numbers = [n for n, _ in source.chunks(shard=0, num_shards=1, first=3, malformed=Malformed())]
    assert numbers == list(range(3, 10))
    assert [call.kwargs["row_groups"] for call in opened.call_args_list] == [[1], [2], [3]]


class OneFault:
    """A source of one malformed row."""

    name = "two"

    def num_examples(self):
        return 1

    def chunks(self, *, shard, num_shards, first, malformed):
        malformed.saw(1, 1, lambda i: "two:1: bad")
        yield from ()


def test_a_source_without_a_good_row_is_an_error_that_names_its_first_row():
    dataset = Dataset(OneFault(), Schema(()))
    with pytest.raises(DataError, match=r"^two:1: bad \(none of the 1 rows of two can be read\)$"):
        list(dataset.batches(batch_size=1, shard=0, num_shards=2, epochs=1, start=START, malformed=Malformed()))


def test_a_shard_that_holds_malformed_rows_only_is_empty_when_other_shards_have_good_ones(tmp_path, read):
    good = "1" + "\t" * 39
    (tmp_path / "a.tsv").write_text("\n".join([good] * 7 + ["bad"] + [good] * 8))
    uri = f"criteo:{tmp_path}/a.tsv"
    assert sum(len(read(uri, shard=s, num_shards=40)) for s in range(40)) == 15


@pytest.mark.parametrize(
    "values",
    [None, [], {"epoch": 1}, {"epoch": -1, "chunk": 0, "row": 0}, {"epoch": True, "chunk": 0, "row": 0},
     {"epoch": 0, "chunk": 1.5, "row": 0}, {"epoch": 0, "chunk": 0, "row": 0, "more": 0}],
)  # fmt: skip
def test_a_position_that_is_not_three_counts_is_refused(values):
    with pytest.raises(CheckpointError, match="a reader's position must hold epoch, chunk and row, got "):
        Position.from_dict(values)


def test_memory_is_bounded_by_the_chunk_not_the_file(tmp_path):
    line = b"1" + b"\t" * 39 + b"\n"
    path = Path(tmp_path, "a.tsv")
    path.write_bytes(line * 200_000)
    source = open_data(f"criteo:{path}").source
    with patch.multiple(text, MAX_CHUNK_BYTES=100_000):
        largest = max(rows.count for _, rows in source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed()))
    assert largest <= 100_000 // len(line) + 1
