"""Files of tensors are read by safetensors as what was written, and their checksum is that of their bytes."""

import os
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from htrain.executor.record.tensor_file import DTYPES, tensor_file
from htrain.net.net import DTYPE_BYTES

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
described = st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=6)


def made(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if dtype == "bool" else 100, shape, generator=draw).to(getattr(torch, dtype))


def written(path: Path, tensors: dict[str, torch.Tensor]) -> int:
    file = tensor_file(tensors)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    digest = file.write(descriptor)
    os.close(descriptor)
    assert path.stat().st_size == file.num_bytes
    return digest


@given(described=described)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_bit_for_bit(
    described: dict[str, tuple[str, tuple[int, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("files") / "t.safetensors"
    tensors = {name: made(*what, seed) for seed, (name, what) in enumerate(described.items())}
    digest = written(path, tensors)
    assert digest == zlib.crc32(path.read_bytes())
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)


def test_every_dtype_of_a_net_can_be_written() -> None:
    assert DTYPE_BYTES.keys() <= DTYPES.keys()


def test_a_mapped_table_lies_at_a_multiple_of_its_elements(tmp_path: Path) -> None:
    written(
        tmp_path / "t",
        {"a": torch.zeros(3, dtype=torch.int8), "b": torch.ones(5, 2), "c": torch.ones(7, dtype=torch.float64)},
    )
    with safe_open(tmp_path / "t", "pt") as file:
        assert all(file.get_tensor(name).data_ptr() % file.get_tensor(name).element_size() == 0 for name in "abc")


def test_what_is_written_is_what_memory_holds_then_and_no_copy_of_before(tmp_path: Path) -> None:
    table = torch.zeros(4, 2)
    file = tensor_file({"t": table})
    table[2] = 7
    descriptor = os.open(tmp_path / "t", os.O_WRONLY | os.O_CREAT)
    file.write(descriptor)
    os.close(descriptor)
    assert torch.equal(load_file(tmp_path / "t")["t"], table)
