"""Scores as a file: Parquet, CSV or NumPy, by its name; written batch by batch, whole or not at all.

Each has a column `score` and a column `label`, float32, and a row for each row of the data, in its order.
"""

from collections.abc import Callable, Iterator, Mapping
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

Column = NDArray[np.float32]
Write = Callable[[Column, Column], None]  # scores[n] and labels[n] of the next rows
_SAYS_SO = ".parquet"  # whose metadata say that htrain wrote it
_KEY = b"htrain.scores"
_COLUMNS = pa.schema([("score", pa.float32()), ("label", pa.float32())], metadata={_KEY: b"1"})
_STRUCTURE = np.dtype([("score", "<f4"), ("label", "<f4")])


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
def scores_file(path: Path) -> Iterator[Write]:
    """A function that takes the scores and labels of the next rows. The file takes its place when all are written; an exception leaves nothing.

    An older Parquet file of scores there is replaced, and nothing else. Raises UsageError for a name of another kind, DataError for a file that cannot be
    written.
    """
    require_scores(path)
    try:
        with new_file(path, _is_ours) as file, _writer(path)(file) as write:
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
def _parquet(file: BinaryIO) -> Iterator[Write]:
    with pq.ParquetWriter(file, _COLUMNS) as writer:
        yield lambda score, label: writer.write_batch(_batch(score, label))


@contextmanager
def _csv(file: BinaryIO) -> Iterator[Write]:
    """pyarrow puts names in quotes: the first line is written here."""
    file.write(b"score,label\n")
    with pa_csv.CSVWriter(file, _COLUMNS, write_options=pa_csv.WriteOptions(include_header=False)) as writer:
        yield lambda score, label: writer.write_batch(_batch(score, label))


def _batch(score: Column, label: Column) -> pa.RecordBatch:
    return pa.record_batch([pa.array(score, pa.float32()), pa.array(label, pa.float32())], schema=_COLUMNS)


@contextmanager
def _numpy(file: BinaryIO) -> Iterator[Write]:
    """A structured array. How long it is, is known at the end: its header, which has room for any length, is written again."""
    rows = 0
    _write_header(file, rows)

    def write(score: Column, label: Column) -> None:
        nonlocal rows
        both = np.empty(len(score), _STRUCTURE)
        both["score"], both["label"] = score, label
        file.write(both.tobytes())
        rows += len(score)

    begin = file.tell()
    yield write
    file.seek(0)
    _write_header(file, rows)
    assert file.tell() == begin, "the header of a .npy file has grown"


def _write_header(file: BinaryIO, rows: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(_STRUCTURE), "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


_WRITERS: Mapping[str, Callable[[BinaryIO], AbstractContextManager[Write]]] = {
    _SAYS_SO: _parquet,
    ".csv": _csv,
    ".npy": _numpy,
}


def _writer(path: Path) -> Callable[[BinaryIO], AbstractContextManager[Write]]:
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path}: scores go to a file whose name ends in {', '.join(_WRITERS)}: it says the format")
    return _WRITERS[path.suffix]
