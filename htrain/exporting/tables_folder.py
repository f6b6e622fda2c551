"""The tables of a trained model as a folder of pieces, and an index of them.

OUT/index.json                                   the name, rows, dim and dtype of each table, and its pieces: file, first row, rows
OUT/0.embeddings.tables.C1.weight/0.parquet      rows 0 to piece_rows - 1, and so on; the number in a name is the first row
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from htrain.errors import DataError, UsageError
from htrain.exporting.wholes import Whole
from htrain.files import partial_of

_MOST_NAME = 80
_VERSION = 1


def require_new(out: Path) -> None:
    """Raises DataError where a folder is there already, or cannot be made."""
    if os.path.lexists(out):
        raise DataError(f"{out}: is there already: name a new folder")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK | os.X_OK):
        raise DataError(f"{out}: cannot be written: {out.parent} is no folder that can be written to")


def write_tables(wholes: Sequence[Whole], out: Path, *, form: str, piece_rows: int) -> int:
    """Write tables to the new folder `out`, each in pieces of at most `piece_rows` rows; how many pieces. The folder appears whole or not at all.

    Raises UsageError for a form that cannot hold a table's dtype, DataError as `require_new` does, CheckpointError for a checkpoint that lacks rows,
    OSError where it cannot be written.
    """
    for whole in wholes:
        if whole.parameter.dtype == "bfloat16" and form != "safetensors":
            raise UsageError(f"table '{whole.name}' is bfloat16, which {form} does not have: want --format safetensors")
    require_new(out)
    partial = partial_of(out)
    partial.mkdir()
    try:
        tables = [
            _written(whole, f"{k}.{_fit(whole.name)}", partial, form, piece_rows) for k, whole in enumerate(wholes)
        ]
        index = {"version": _VERSION, "format": form, "tables": tables}
        (partial / "index.json").write_text(json.dumps(index, indent=1) + "\n")
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sum(len(table["pieces"]) for table in tables)


def _fit(name: str) -> str:
    """A table's name as a folder may be called."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_MOST_NAME]


def _written(whole: Whole, folder: str, out: Path, form: str, piece_rows: int) -> dict:
    """The table's entry of the index."""
    (out / folder).mkdir()
    rows, dim = whole.shape
    pieces = []
    for first in range(0, rows, piece_rows):
        end = min(first + piece_rows, rows)
        name = f"{folder}/{first}.{form}"
        _WRITERS[form](out / name, first, whole.rows(first, end))
        pieces.append({"file": name, "first_row": first, "rows": end - first})
    return {"name": whole.name, "rows": rows, "dim": dim, "dtype": whole.parameter.dtype, "pieces": pieces}


def _safetensors(path: Path, first: int, rows: torch.Tensor) -> None:
    path.write_bytes(save({"rows": rows}))


def _numpy(path: Path, first: int, rows: torch.Tensor) -> None:
    np.save(path, rows.numpy())


def _parquet(path: Path, first: int, rows: torch.Tensor) -> None:
    """A column `row`, its number in the table, and a column `values`."""
    count, dim = rows.shape
    values = pa.FixedSizeListArray.from_arrays(pa.array(rows.numpy().reshape(-1)), dim)
    pq.write_table(pa.table({"row": pa.array(np.arange(first, first + count)), "values": values}), path)


_WRITERS: Mapping[str, Callable[[Path, int, torch.Tensor], None]] = {
    "safetensors": _safetensors,
    "parquet": _parquet,
    "npy": _numpy,
}
FORMATS = tuple(_WRITERS)
