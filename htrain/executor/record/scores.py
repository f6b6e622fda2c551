"""Scores as a file: Parquet, CSV or NumPy, by its name; written batch by batch, whole or not at all.

Each has a column `score`, a column `label`, and one for each head of the model, float32, and a row for each row of the data, in its order. A head that is a
vector is a list in Parquet, a field of so many numbers for NumPy, and columns `NAME_0`, `NAME_1`, ... in CSV.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from htrain.errors import DataError, UsageError
from htrain.files import new_file, place_to_write

Columns = Mapping[str, NDArray[np.float32]]  # of the next n rows: float32[n], or [n,K] of a vector
Write = Callable[[Columns], None]
Widths = Mapping[str, int]  # of columns: how many numbers a vector has, 0 for a number
_OURS: Widths = {"score": 0, "label": 0}
_SAYS_SO = ".parquet"  # whose metadata say that htrain wrote it
_KEY = b"htrain.scores"


def require_scores(path: Path) -> None:
    """Raises what `scores_file` would for a file that cannot be written, before the work is done."""
    _writer(path)
    try:
        if path.suffix != _SAYS_SO and path.is_file():
            raise DataError(
                f"{path}: is there already, and a {path.suffix} file does not say who wrote it: name another, or remove it"
            )
        place_to_write(path, _is_ours)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def scores_file(path: Path, heads: Widths) -> Iterator[Write]:
    """A function that takes the columns of the next rows: score, label, and those of the `heads`.

    The file takes its place when all are written; an exception leaves nothing. An older Parquet file of scores there is replaced, and nothing else. Raises
    UsageError for a name of another kind, DataError for a file that cannot be written.
    """
    require_scores(path)
    try:
        with new_file(path, _is_ours) as file, _writer(path)(file, {**_OURS, **heads}) as write:
            yield write
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}")


def _is_ours(path: Path) -> bool:
    """Whether a file says that it holds scores."""
    try:
        return _KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


@contextmanager
def _parquet(file: BinaryIO, widths: Widths) -> Iterator[Write]:
    schema = pa.schema([(name, _kind(width)) for name, width in widths.items()], metadata={_KEY: b"1"})
    with pq.ParquetWriter(file, schema) as writer:
        yield lambda columns: writer.write_batch(_batch([columns[name] for name in widths], schema))


def _kind(width: int) -> pa.DataType:
    return pa.list_(pa.float32(), width) if width else pa.float32()


@contextmanager
def _csv(file: BinaryIO, widths: Widths) -> Iterator[Write]:
    """pyarrow puts names in quotes: the first line is written here."""
    names = [part for name, width in widths.items() for part in ([f"{name}_{i}" for i in range(width)] or [name])]
    file.write((",".join(map(_quoted, names)) + "\n").encode())
    schema = pa.schema([(name, pa.float32()) for name in names])
    with pa_csv.CSVWriter(file, schema, write_options=pa_csv.WriteOptions(include_header=False)) as writer:
        yield lambda columns: writer.write_batch(_batch([*_apart(columns, widths)], schema))


def _quoted(name: str) -> str:
    """A name as CSV has it: in quotes where a reader would take it for several."""
    return f'"{name.replace(chr(34), chr(34) * 2)}"' if set(name) & set('",\r\n') else name


def _apart(columns: Columns, widths: Widths) -> Iterator[NDArray[np.float32]]:
    """The columns with vectors as columns of numbers."""
    for name, width in widths.items():
        yield from columns[name].T if width else [columns[name]]


def _batch(columns: Sequence[NDArray[np.float32]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])
        if column.ndim > 1
        else pa.array(column)
        for column in columns
    ]
    return pa.record_batch(arrays, schema=schema)


@contextmanager
def _numpy(file: BinaryIO, widths: Widths) -> Iterator[Write]:
    """A structured array. How long it is, is known at the end: its header, which has room for any length, is written again."""
    structure = np.dtype([(name, "<f4", (width,)) if width else (name, "<f4") for name, width in widths.items()])
    rows = 0
    _write_header(file, structure, rows)

    def write(columns: Columns) -> None:
        nonlocal rows
        made = np.empty(len(columns["score"]), structure)
        for name in widths:
            made[name] = columns[name]
        file.write(made.tobytes())
        rows += len(made)

    begin = file.tell()
    yield write
    file.seek(0)
    _write_header(file, structure, rows)
    assert file.tell() == begin, "the header of a .npy file has grown"


def _write_header(file: BinaryIO, structure: np.dtype[np.void], rows: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(structure), "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


_Writer = Callable[[BinaryIO, Widths], AbstractContextManager[Write]]
_WRITERS: Mapping[str, _Writer] = {_SAYS_SO: _parquet, ".csv": _csv, ".npy": _numpy}


def _writer(path: Path) -> _Writer:
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path}: scores go to a file whose name ends in {', '.join(_WRITERS)}: it says the format")
    return _WRITERS[path.suffix]
