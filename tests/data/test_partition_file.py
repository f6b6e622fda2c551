"""A partition on a disk: the same when read, refused when it is damaged, another version, or something else."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from htrain.data.identity import DataIdentity
from htrain.data.partition_file import (
    KEY,
    Facts,
    PartitionFile,
    UsedRow,
    is_partition,
    read_partition,
    sealed,
    small,
    write_partition,
)  # fmt: skip
from htrain.errors import DataError


def made() -> PartitionFile:
    arrays = (
        np.array([0, 1, 1], np.uint8), np.array([0b1101], np.uint64), np.array([1, 0, 1], np.uint8), np.array([1, 0.5, 2], np.float16),
        (np.array([0], np.int32), np.array([], np.int32)),
    )  # fmt: skip
    even = ((0.0, 1.5), (2.5, 0.0))
    facts = Facts(
        version=2, uri="libfm:a", data=DataIdentity(1, "libfm", {}, ()), inputs=(), tables=("t",), table_rows=(4,), num_examples=3, num_seen=3,
        num_edges=6, num_workers=2, batch_size=2, seed=0, begun="mixture", rows=even, replicated=((0.0, 0.5), (0.0, 0.0)), uses=even,
        scattered_rows=3.0, scattered_uses=2.0, most_used=(UsedRow("t[0]", 3, 1),), digests={}, digest="",
    )  # fmt: skip
    return sealed(PartitionFile(facts, *arrays))


def test_what_is_read_is_what_was_written_and_figures_are_those_of_its_matrices(tmp_path: Path) -> None:
    path, partition = tmp_path / "a.partition", made()
    write_partition(path, partition)
    found = read_partition(path)
    assert found.facts == partition.facts
    assert found.owners.tolist() == [1, 0, 1]
    for name, array in found.tensors().items():
        wanted = partition.tensors()[name]
        assert array.dtype == wanted.dtype
        assert array.tolist() == wanted.tolist()
    assert found.facts.rows_per_batch == (1.5 + 2.5 - 0.5) / 2
    assert found.facts.uses_per_sample == (1.5 + 2.5) / 3
    assert is_partition(path)
    write_partition(path, partition)  # over its own kind


def test_workers_take_as_few_bytes_as_they_need() -> None:
    assert small(np.array([0, 255])).dtype == np.uint8
    assert small(np.array([0, 256])).dtype == np.uint16
    assert small(np.array([], np.int64)).dtype == np.uint8


@settings(max_examples=200, deadline=None, derandomize=True)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_bit_of_a_file_changes_unseen(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int) -> None:
    path = tmp_path_factory.mktemp("bit") / "a.partition"
    write_partition(path, made())
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"^{path}: .*$"):
        read_partition(path)


def test_another_version_and_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.partition"
    document = msgspec.json.decode(msgspec.json.encode(made().facts)) | {"version": 7}
    path.write_bytes(save({"samples": np.zeros(1, np.uint8)}, {KEY: msgspec.json.encode(document).decode()}))
    with pytest.raises(DataError, match="is a partition of version 7, this htrain reads 2; make it again"):
        read_partition(path)
    path.write_bytes(save({"samples": np.zeros(1, np.uint8)}))
    with pytest.raises(DataError, match="is no partition of htrain's; make one with: htrain partition DATA --out FILE"):
        read_partition(path)
    path.write_text("hello")
    with pytest.raises(DataError, match="is no partition of htrain's"):
        read_partition(path)
    assert not is_partition(path)
    with pytest.raises(DataError, match="cannot be written: it holds something that htrain did not write there"):
        write_partition(path, made())
    assert path.read_text() == "hello"
    with pytest.raises(DataError, match="cannot be read: "):
        read_partition(tmp_path / "absent")
    assert not is_partition(tmp_path)
