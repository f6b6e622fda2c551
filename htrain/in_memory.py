"""What the API's functions are given that stands in no file: tables in memory as data, and plans that nobody has saved.

Roles are processes, perhaps on other hosts, and a run goes on after its launcher has died: what it is made of has to stand in files. Those are in the
run folder, by their content, so that the same table or plan is found again by the call that goes on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa

from htrain.data.address import path_of
from htrain.data.described import open_table
from htrain.data.layout import Layout, layout_of, load_layout
from htrain.data.malformed import Malformed
from htrain.data.pack import pack_table
from htrain.data.reader import Dataset
from htrain.data.streamed import arrow_of, is_stream, open_stream
from htrain.data.vocabulary import ReadVocabulary
from htrain.errors import CheckpointError, UsageError
from htrain.executor.record.run_folder import FROM_MEMORY, RECORD
from htrain.plan.folder import digest_of_file, header_digest
from htrain.plan.plan import Plan
from htrain.spec.settings import SchemaOf

_SPECIAL = "?*[,"  # in the address of a file
_DIGITS = 12
_MALFORMED_SHARE = 0.01  # as everywhere where nobody says another
_TAKEN = "FORMAT:PATH, or a table, or batches of one,"


def table_of(function: str, data: Any, schema: SchemaOf, wanted: str = "a table") -> tuple[pa.Table, Layout, str]:
    """A table in memory with its layout, and what messages call it. Raises UsageError for what is no table, DataError for a schema that is none."""
    layout = layout_for(function, data, schema)
    return arrow_table(function, data, layout.columns, wanted), layout, f"a {type(data).__name__} in memory"


def layout_for(function: str, data: Any, schema: SchemaOf, read: ReadVocabulary | None = None) -> Layout:
    """What `schema` says of data in memory. Raises UsageError where there is none, DataError for one that cannot be read."""
    if not schema:
        raise UsageError(
            f"{function}: a {type(data).__name__} needs schema=: a schema file, or what one holds, says which columns are what"
        )
    return layout_of(schema, "schema", read) if isinstance(schema, Mapping) else load_layout(path_of(str(schema)), read)


def arrow_table(function: str, data: Any, columns: Sequence[str] | None, wanted: str) -> pa.Table:
    """A table in memory, of these columns or of all. Raises UsageError for what is none."""
    try:
        return data if isinstance(data, pa.Table) else arrow_of(data, columns)
    except (TypeError, ValueError, pa.ArrowException) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{function}: data is a {type(data).__name__}: want {wanted} that Arrow takes ({told})"
        ) from error


def open_memory(function: str, data: Any, schema: SchemaOf) -> Dataset:
    """A table in memory, or what batches come from, as data. Raises UsageError and DataError as `table_of` does."""
    is_table = isinstance(data, pa.Table) or hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")
    if isinstance(data, pa.RecordBatchReader) or (is_stream(data) and not is_table):
        return open_stream(data, layout_for(function, data, schema), f"a {type(data).__name__}")
    return open_table(*table_of(function, data, schema, _TAKEN))


@contextmanager
def for_a_while(function: str, data: Any, schema: SchemaOf) -> Iterator[str]:
    """The address of a file that holds what is in memory until the end. Raises UsageError and DataError."""
    with TemporaryDirectory(prefix="htrain-") as folder:
        path = Path(folder) / "data.packed"
        pack_table(open_memory(function, data, schema), path, Malformed(_MALFORMED_SHARE))
        yield f"packed:{path}"


class Kept:
    """What a run is given from memory, in files of its folder. At the end those go that are new and not named in its run.json: of a run that did not begin,
    and of validations."""

    def __init__(self, function: str, run_folder: str | Path, malformed_share: float) -> None:
        self._function, self._malformed_share = function, malformed_share
        self._run, self._folder = Path(run_folder), (Path(run_folder) / FROM_MEMORY).resolve()
        self._new: list[Path] = []
        self._made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._new:
            if path.name not in _text_of(self._run / RECORD):
                rmtree(path, ignore_errors=True)
        for path in self._made:
            with suppress(OSError):  # it holds something, as it should
                path.rmdir()

    def plan(self, plan: str | Path | Plan) -> Path:
        """The folder of a plan. Raises PlanError and CheckpointError where it cannot be written."""
        if not isinstance(plan, Plan):
            return Path(plan)
        with self._staged() as staged:
            plan.save(staged / "plan")
            return self._put(staged, "plan", header_digest(staged / "plan"))

    def data(self, data: Any, schema: SchemaOf) -> str:
        """The address of data. Raises UsageError for what is none, DataError and CheckpointError where it cannot be read or written."""
        if isinstance(data, str):
            return data
        if special := [c for c in _SPECIAL if c in str(self._folder)]:
            raise UsageError(
                f"{self._function}: a {type(data).__name__} is kept in {self._folder}, and an address of data cannot have a {special[0]!r}: "
                "name another folder"
            )
        dataset = open_memory(self._function, data, schema)
        with self._staged() as staged:
            pack_table(dataset, staged / "data", Malformed(self._malformed_share))
            return f"packed:{self._put(staged, 'data', digest_of_file(staged / 'data'))}"

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """A new folder beside those that stand, for what becomes one of them. Raises CheckpointError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            staged = Path(mkdtemp(prefix=".", dir=self._folder))
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        try:
            yield staged
        finally:
            rmtree(staged, ignore_errors=True)

    def _put(self, staged: Path, name: str, digest: str) -> Path:
        """Rename what is staged by its content; what stands there is the same, and stays. Raises CheckpointError."""
        path = self._folder / digest[:_DIGITS]
        try:
            if not path.exists():
                staged.rename(path)
                self._new.append(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        return path / name


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written: {error.strerror or error}")


def _text_of(path: Path) -> str:
    """What a file says; nothing where it is not there."""
    try:
        return path.read_text()
    except OSError:
        return ""
