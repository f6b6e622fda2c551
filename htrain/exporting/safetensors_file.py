"""A safetensors file, written tensor by tensor and block by block: what is written need not fit in memory."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from htrain.executor.record.tensor_file import DTYPES, header_of
from htrain.exporting.wholes import Whole

_WRITTEN_BY = "htrain export"
_MOST_HEADER_BYTES = 100_000_000  # the format's own limit


def write_wholes(file: BinaryIO, wholes: Sequence[Whole]) -> None:
    """Write whole parameters under their names. Raises CheckpointError where a checkpoint lacks a part of one."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "written_by": _WRITTEN_BY}}
    end = 0
    for whole in wholes:
        begin, end = end, end + whole.num_bytes
        entries[whole.name] = {
            "dtype": DTYPES[whole.parameter.dtype],
            "shape": list(whole.shape),
            "data_offsets": [begin, end],
        }
    file.write(header_of(entries))
    for whole in wholes:
        write_blocks(file, whole.blocks())


def write_blocks(file: BinaryIO, blocks: Iterable[torch.Tensor]) -> None:
    """Write the values of tensors, one behind the other."""
    for block in blocks:
        file.write(block.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def is_exported(path: Path) -> bool:
    """Whether htrain wrote a file of weights. Raises OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length <= _MOST_HEADER_BYTES else {}
        except (ValueError, RecursionError):
            return False
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and metadata.get("written_by") == _WRITTEN_BY
