"""What the API's functions are given: plans and data by the names of files, or in memory (htrain.in_memory, which is loaded for that alone)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from htrain.errors import UsageError
from htrain.executor.launch.run import check_folder
from htrain.plan.plan import Plan
from htrain.spec.settings import SchemaOf

_TABLES = ("__arrow_c_stream__", "__dataframe__", "__iter__", "__getitem__")  # of tables, and of what gives batches


def words(value: Any) -> Any:
    """What an argument says by name or address, for `require_arguments`; "" of what is in memory."""
    return value if isinstance(value, str | Path) else ""


def is_in_memory(*values: object) -> bool:
    """Whether any of these arguments stands in no file."""
    return any(not isinstance(value, str | Path) for value in values)


def require_plan(function: str, plan: object) -> None:
    """Raises UsageError for what is no plan, nor the folder of one."""
    if not isinstance(plan, str | Path | Plan):
        raise UsageError(
            f"{function}: plan: is a {type(plan).__name__}, want a Plan, or a str or Path, where one was saved"
        )


def require_data(function: str, schema: SchemaOf, **data: Any) -> None:
    """Raises UsageError for data that is neither an address nor in memory, for a schema that is none, and for one where all data has its own."""
    for name, value in data.items():
        if is_in_memory(value) and not any(hasattr(value, how) for how in _TABLES):
            raise UsageError(
                f"{function}: {name}: is a {type(value).__name__}, want FORMAT:PATH, or a table in memory that Arrow takes, or batches of one"
            )
    if not isinstance(schema, str | Path | Mapping):
        raise UsageError(
            f"{function}: schema: is a {type(schema).__name__}, want a str or Path, a schema file, or a dict, what one holds"
        )
    require_schema_used(function, schema, *data.values())


def require_schema_used(function: str, schema: SchemaOf, *data: object) -> None:
    """Raises UsageError for a schema where all data has one of its own, by its address."""
    if schema and not is_in_memory(*data):
        raise UsageError(f"{function}: schema= has no effect beside FORMAT:PATH: say ?schema=FILE.yaml")


def require_files(schema: SchemaOf, *, plan: Any, data: Any, valid: Any, is_mpi: bool) -> None:
    """Raises UsageError for what a run cannot be given, and from memory where each rank would have its own."""
    require_plan("run", plan)
    require_data("run", schema, data=data, valid=valid)
    if is_mpi and is_in_memory(plan, data, valid):
        raise UsageError(
            "run: under mpiexec each rank would have a plan and data of its own: save them once (plan.save, htrain.pack), and name the files"
        )


@contextmanager
def in_files(
    run_folder: Path,
    *,
    plan: Any,
    data: Any = "",
    valid: Any = "",
    schema: SchemaOf = "",
    malformed_share: float = 0.01,
    is_new: bool,
    function: str = "run",
) -> Iterator[tuple[Path, str, str]]:
    """The folder of a run's plan, and the addresses of its data and validation data.

    Raises what `htrain.in_memory.Kept` does, and for a new run in a folder that holds something what `check_folder` does.
    """
    if not is_in_memory(plan, data, valid):
        yield Path(plan), data, valid
        return
    if is_new:
        check_folder(run_folder, resume=False)
    with import_module("htrain.in_memory").Kept(function, run_folder, malformed_share) as kept:
        yield kept.plan(plan), kept.data(data, schema), kept.data(valid, schema)


@contextmanager
def data_in_a_file(function: str, data: Any, schema: SchemaOf) -> Iterator[str]:
    """The address of data, which stands in a file until the end. Raises UsageError and DataError for what cannot be read."""
    if not is_in_memory(data):
        yield data
        return
    with import_module("htrain.in_memory").for_a_while(function, data, schema) as address:
        yield address
