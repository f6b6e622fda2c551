"""What a packed file says that it holds: examples, inputs, its source as it is now, whose its examples are; a damaged one is refused."""

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from gmp_data import BATCH, LENGTH, ROWS, Parts, divided, write_examples

from htrain.data import Malformed, open_data
from htrain.data import packed_contents as module
from htrain.data.pack import pack
from htrain.data.packed_contents import PackedFrom, PackedInput, packed_contents, packed_file
from htrain.data.partition_file import read_partition
from htrain.errors import DataError

COUNT, WORKERS = BATCH * 40, 3


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("packed")
    return divided(write_examples(folder, "a", COUNT), folder, WORKERS)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """Packed in many blocks, without a partition, with two malformed rows."""
    uri = write_examples(tmp_path, "a", COUNT)
    text = (tmp_path / "a.csv").read_text().splitlines()
    text[7] = text[9] = "x" + text[9]
    (tmp_path / "a.csv").write_text("\n".join(text) + "\n")
    with patch.multiple("htrain.data.text", MIN_CHUNK_BYTES=2000, MAX_CHUNK_BYTES=4000):
        pack(uri, tmp_path / "a.packed", malformed=Malformed())
    return tmp_path / "a.packed"


def test_a_packed_file_has_its_examples_inputs_and_source(alone: Path) -> None:
    found, folder = packed_contents(alone), alone.parent
    assert (found.examples, found.malformed, found.bytes) == (COUNT - 2, 2, alone.stat().st_size)
    assert found.blocks > 5
    assert found.checked_blocks == found.blocks
    assert found.uri == f"csv:{folder}/a.csv?schema={folder}/s.yaml"
    assert found.files == tuple(
        PackedFrom(name, (folder / name).stat().st_size, "unchanged") for name in ("a.csv", "s.yaml")
    )
    assert (found.partition, found.worker_examples) == ("", ())
    tables = ("a", "d", "b", "c")
    assert found.inputs == (
        PackedInput("sparse", "ids", "uint8", 2, rows=ROWS[:2], tables=tables[:2]),
        PackedInput("seen", "padded", "uint8", LENGTH, rows=ROWS[2:3], tables=tables[2:3]),
        PackedInput("tags", "bag", "uint8", found.inputs[2].width, rows=ROWS[3:], tables=tables[3:]),
    )


@pytest.mark.parametrize(
    ("rows", "dtype"), [(256, "uint8"), (257, "uint16"), (65_537, "uint32"), (2**32 + 1, "uint64")]
)
def test_an_input_has_the_dtype_that_the_file_has(rows: int, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a,b\n1,0.5,3\n0,1.5,4\n")
    (tmp_path / "s.yaml").write_text(
        f"label: y\ninputs:\n  d: {{kind: dense, columns: [a]}}\n  s: {{kind: ids, columns: [b], rows: {rows}}}\n"
    )
    pack(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml", tmp_path / "p", malformed=Malformed())
    assert {i.name: i.dtype for i in packed_contents(tmp_path / "p").inputs} == {"d": "float32", "s": dtype}


def test_of_a_file_that_was_packed_by_a_partition_each_workers_examples_are_counted(parts: Parts) -> None:
    path = Path(parts.packed.removeprefix("packed:"))
    found, partition = packed_contents(path), read_partition(parts.partition)
    assert found.partition == partition.facts.digest
    assert found.worker_examples == tuple(np.bincount(partition.samples, minlength=WORKERS).tolist())
    assert sum(found.worker_examples) == found.examples == COUNT
    dataset = open_data(parts.packed)
    for worker, count in enumerate(found.worker_examples):
        read = dataset.source.chunks(shard=worker, num_shards=WORKERS, first=0, malformed=Malformed())
        assert sum(rows.count for _, rows in read) == count


def test_a_source_that_changed_or_went_away_is_told_and_no_error(alone: Path) -> None:
    table = alone.parent / "a.csv"
    table.write_text(table.read_text() + "1,1,1,1,1\n")
    (alone.parent / "s.yaml").unlink()
    assert [file.now for file in packed_contents(alone).files] == ["changed", "absent"]


@pytest.mark.parametrize("seed", range(20))
def test_a_bit_that_flips_anywhere_is_seen(alone: Path, seed: int) -> None:
    data = bytearray(alone.read_bytes())
    place = int(np.random.default_rng(seed).integers(len(data)))
    data[place] ^= 1 << seed % 8
    alone.write_bytes(data)
    with pytest.raises(DataError, match=r"; pack the data again: htrain data pack SOURCE --out .*a\.packed$"):
        packed_contents(alone)


def test_of_a_large_file_some_blocks_are_looked_at_evenly(alone: Path) -> None:
    with patch.object(module, "_CHECKED_BYTES", alone.stat().st_size // 3 + 1):
        found = packed_contents(alone)
    assert found.checked_blocks == -(-found.blocks // 3)


def test_what_is_no_packed_file_is_one_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("hello")
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("words", "is no packed file, or a damaged one"),
        ("empty", "is no packed file, or a damaged one"),
        ("pipe", "cannot be read: is a pipe, want a file"),
        (".", "cannot be read: is a folder, want a file"),
        ("absent", "cannot be read: No such file or directory"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            packed_contents(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)


def test_a_packed_file_is_known_by_its_content_its_name_or_by_the_word_before_it(alone: Path) -> None:
    folder = alone.parent
    (folder / "other").write_bytes(alone.read_bytes())
    (folder / "words.packed").write_text("hello")
    (folder / "folder.packed").mkdir()
    os.mkfifo(folder / "pipe.packed")
    assert packed_file(folder / "other") == folder / "other"
    for name in ("words.packed", "pipe.packed", "absent.packed"):
        assert packed_file(folder / name) == folder / name
    for name in ("a.csv", "folder.packed", "absent"):
        assert packed_file(folder / name) is None
    assert packed_file(Path("packed:a/b")) == Path("a/b")
    assert packed_file(Path(f"packed:{folder}/absent")) == folder / "absent"
