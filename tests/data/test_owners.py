"""Pieces of data of which some costs as much as all: most belong to one shard, which alone reads them, and all shards have about as many."""

import gzip
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.data import START, Dataset, Malformed, open_data
from htrain.data import text as of_text
from htrain.data.growth import Extent, FileSize
from htrain.data.owners import owners
from htrain.data.source import is_read_by_parts

SCHEMA = "label: y\ninputs:\n  sparse: {kind: ids, columns: [x], rows: 1000000}\ntime: t\n"


@given(sizes=st.lists(st.integers(0, 1000), max_size=60), num_shards=st.integers(1, 9))
def test_shards_own_about_as_many_and_what_is_behind_is_shared_out(sizes: list[int], num_shards: int) -> None:
    found = owners(tuple(sizes), num_shards)
    own = [owner for owner in found if owner is not None]
    assert list(found) == own + [None] * (len(sizes) - len(own))
    loads = [
        sum(size for size, owner in zip(sizes, own, strict=False) if owner == shard) for shard in range(num_shards)
    ]
    if own:
        assert max(loads) - sum(loads) / num_shards <= 0.1 * sum(sizes) / num_shards + 1e-9
    if num_shards == 1:
        assert found == (0,) * len(sizes)
    # Behind the last that is owned nobody could own another, and all have about as many.
    for count in range(len(own) + 1, len(sizes) + 1):
        loads = [0] * num_shards
        for size in sizes[:count]:
            loads[loads.index(min(loads))] += size
        assert max(loads) - sum(loads) / num_shards > 0.1 * sum(sizes) / num_shards - 1e-9


def test_equal_files_are_owned_in_turn_and_those_behind_the_last_turn_are_shared_out() -> None:
    assert owners((5,) * 10, 4) == (0, 1, 2, 3, 0, 1, 2, 3, None, None)
    assert owners((5, 5, 5), 4) == (None,) * 3


def written(folder: Path, format: str, files: int, rows: int, option: str = "") -> tuple[str, Extent]:
    """Files of so many rows, each with a number of its own as its only feature: the URI, and what a run reads of it."""
    (folder / "s.yaml").write_text(SCHEMA)
    for file in range(files):
        numbers = range(file * rows, (file + 1) * rows)
        path = folder / f"{file:02}.{format}"
        if format == "parquet":
            table = pa.table({"y": [n % 2 for n in numbers], "x": list(numbers), "t": list(numbers)})
            pq.write_table(table, path, row_group_size=rows // 2)
        else:
            text = "y,x,t\n" + "".join(f"{n % 2},{n},{n}\n" for n in numbers)
            path.write_bytes(gzip.compress(text.encode()))
    uri = f"{format.removesuffix('.gz')}:{folder}/*.{format}?schema={folder}/s.yaml{option}"
    sizes = tuple(FileSize(path.name, path.stat().st_size) for path in sorted(folder.glob(f"*.{format}")))
    return uri, Extent(sizes, by_parts=True)


def read(dataset: Dataset, shard: int, num_shards: int) -> list[int]:
    batches = dataset.batches(
        batch_size=16, shard=shard, num_shards=num_shards, epochs=1, start=START, malformed=Malformed(0.0)
    )
    return [int(number) for batch in batches for number in batch.columns["sparse"].reshape(-1)]


def test_a_row_group_is_decoded_by_one_shard_and_a_file_of_others_is_not_opened(tmp_path: Path) -> None:
    """Fourteen groups for four shards: three each, and two that are shared out."""
    dataset = open_data(*written(tmp_path, "parquet", files=7, rows=200))
    decoded: Counter[tuple[int, int]] = Counter()
    decode = pq.ParquetFile.iter_batches

    def counted(file: pq.ParquetFile, *given: object, row_groups: list[int], **named: object) -> object:
        decoded.update(
            (file.reader.metadata.to_dict()["row_groups"][0]["columns"][1]["statistics"]["min"], g) for g in row_groups
        )
        return decode(file, *given, row_groups=row_groups, **named)

    with patch.object(pq.ParquetFile, "iter_batches", counted):
        numbers = [read(dataset, shard, 4) for shard in range(4)]
    assert sorted(n for each in numbers for n in each) == list(range(1400))
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 4
    assert sorted(decoded.values()) == [1] * 12 + [4, 4]


def test_a_compressed_file_is_decompressed_by_one_shard(tmp_path: Path) -> None:
    uri, extent = written(tmp_path, "csv.gz", files=9, rows=300)
    dataset, of_files = open_data(uri, extent), owners(tuple(file.num_bytes for file in extent.files), 4)
    opened: Counter[str] = Counter()
    open_text = of_text.open_text

    def counted(path: Path, **named: int) -> object:
        opened[path.name] += 1
        return open_text(path, **named)

    with patch.object(of_text, "open_text", counted):
        numbers = [read(dataset, shard, 4) for shard in range(4)]
    assert sorted(n for each in numbers for n in each) == list(range(2700))
    assert [opened[f"{file:02}.csv.gz"] for file in range(9)] == [4 if each is None else 1 for each in of_files]
    assert of_files.count(None) <= 2


@pytest.mark.parametrize("format", ["parquet", "csv.gz"])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 5])
def test_each_row_is_found_again_by_its_chunk(tmp_path: Path, format: str, num_shards: int) -> None:
    source = open_data(*written(tmp_path, format, files=6, rows=90)).source
    for shard in range(num_shards):
        chunks = list(source.chunks(shard=shard, num_shards=num_shards, first=0, malformed=Malformed()))
        numbers = [number for number, _ in chunks]
        assert numbers == sorted(set(numbers))
        for number, rows in chunks:
            for row in (0, rows.count - 1):
                file, n = divmod(int(rows.fixed["sparse"][row, 0]), 90)
                where = source.place(number=number, row=row, num_shards=num_shards)
                assert (
                    where == f"{tmp_path}/{file:02}.{format}{f': row {n + 1}' if format == 'parquet' else f':{n + 2}'}"
                )
        for first in numbers[:: max(1, len(numbers) // 5)]:
            again = source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=Malformed())
            assert [number for number, _ in again] == [number for number in numbers if number >= first]


def test_in_the_order_of_time_all_read_at_about_the_same_time(tmp_path: Path) -> None:
    dataset = open_data(*written(tmp_path, "parquet", files=4, rows=200, option="&order=time"))
    for shard in (0, 1):
        numbers = read(dataset, shard, 2)
        assert numbers == sorted(numbers)
        assert min(numbers) < 50, "of the first row group, too"
        assert max(numbers[:200]) < 450


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("parquet:a.parquet?schema=s.yaml", True),
        ("csv:a.csv?schema=s.yaml", False),
        ("csv:a.csv.gz?schema=s.yaml", True),
        ("criteo:a.tsv,b.tsv.gz", True),
        ("synthetic:?rows=10", False),
        ("packed:a.packed", False),
    ],
)
def test_what_is_read_by_parts(uri: str, wanted: bool) -> None:
    assert is_read_by_parts(uri) is wanted
