"""Rows as Arrow's record batches and back.

A number is stored as float32, an id in the narrowest unsigned type that the rows of its table allow: four bytes where a batch has
eight, so that a packed file is smaller than the text it came from.
"""

import numpy as np
import pyarrow as pa

from htrain.data.rows import Array, Rows
from htrain.data.schema import Input, Schema

TIMES = "htrain.time"  # a column of no input
_MAX_ROWS = 2**62  # a file that says more is damaged
_MAX_WIDTH = 2**31 - 1  # a file that says more is damaged


def arrow_schema(schema: Schema, *, is_timed: bool = False) -> pa.Schema:
    """The columns of a packed file: `label`, each array of the schema's inputs, and the times of rows where they have some."""
    of_inputs = (field for item in schema.inputs for field in _fields(item))
    return pa.schema([_LABEL, *of_inputs, *([_TIME] if is_timed else [])])


_LABEL, _TIME = pa.field("label", pa.float32()), pa.field(TIMES, pa.timestamp("us", "UTC"))


def stored_dtype(item: Input) -> str:
    """The dtype in which a packed file has an input's numbers or ids."""
    return "float32" if item.kind == "dense" else str(np.min_scalar_type(max(item.rows) - 1))


def _fields(item: Input) -> list[pa.Field]:
    if item.kind == "dense":
        return [pa.field(item.name, pa.list_(pa.float32(), item.width))]
    ids = _type_below(max(item.rows))
    if item.kind == "bag":
        return [pa.field(item.name, pa.large_list(ids))]
    length = [pa.field(item.name + "_length", _type_below(item.width + 1))] if item.kind == "padded" else []
    return [pa.field(item.name, pa.list_(ids, item.width)), *length]


def _type_below(end: int) -> pa.DataType:
    return pa.from_numpy_dtype(np.min_scalar_type(end - 1))


def is_sound(schema: Schema) -> bool:
    """Whether a schema that was read from a file is one that a reader of data can have made."""
    for item in schema.inputs:
        num_rows = {"dense": 0, "ids": item.width}.get(item.kind, 1)
        if not 0 < item.width <= _MAX_WIDTH or len(item.rows) != num_rows or len(item.tables) != num_rows:
            return False
        if not all(0 < rows < _MAX_ROWS for rows in item.rows):
            return False
    names = [field.name for item in schema.inputs for field in _fields(item)]
    return len({"label", TIMES, *names}) == 2 + len(names)


def to_batch(rows: Rows, columns: pa.Schema) -> pa.RecordBatch:
    """Rows as a record batch with the given columns."""
    return pa.record_batch([_column(rows, field) for field in columns], schema=columns)


def _column(rows: Rows, field: pa.Field) -> pa.Array:
    if pa.types.is_large_list(field.type):
        values, starts = rows.lists[field.name]
        stored = _narrow(values, field.type.value_type)
        return pa.LargeListArray.from_arrays(pa.array(starts), stored, type=field.type)
    if field.name == TIMES:
        return pa.array(rows.times, pa.int64()).cast(field.type)
    values = rows.fixed[field.name]
    if not pa.types.is_fixed_size_list(field.type):
        return _narrow(values, field.type)
    assert values.shape == (rows.count, field.type.list_size), f"{field.name} is {values.shape}, want {field.type}"
    stored = _narrow(values.reshape(-1), field.type.value_type)
    return pa.FixedSizeListArray.from_arrays(stored, type=field.type)


def _narrow(values: Array, kind: pa.DataType) -> pa.Array:
    dtype = pa.array([], kind).to_numpy().dtype  # kind.to_pandas_dtype() wants pandas in older versions of pyarrow
    if values.dtype == np.int64:  # an id beyond its type would become another one
        assert not values.size or (values.min() >= 0 and values.max() <= np.iinfo(dtype).max), "an id without a row"
    return pa.array(values.astype(dtype, copy=False))


def to_rows(batch: pa.RecordBatch, schema: Schema) -> Rows:
    """The rows of a batch of `arrow_schema(schema)`, with times or without, in memory of their own.

    Raises ValueError for ids that are outside their table, and pyarrow's errors for lists that are damaged.
    """
    batch.validate(full=True)
    fixed, lists = {"label": _numbers(batch["label"])}, {}
    for item in schema.inputs:
        column = batch[item.name]
        if item.kind == "bag":
            starts = _numbers(column.offsets)
            lists[item.name] = _ids(column.values, item.name, item.rows).reshape(-1), starts
        elif item.kind == "dense":
            fixed[item.name] = _numbers(column.values).reshape(-1, item.width)
        else:
            fixed[item.name] = _ids(column.values, item.name, item.rows).reshape(-1, item.width)
        if item.kind == "padded":
            length = item.name + "_length"
            fixed[length] = _ids(batch[length], length, (item.width + 1,)).reshape(-1)
    times = _numbers(batch[TIMES].cast(pa.int64())) if TIMES in batch.schema.names else None
    return Rows(batch.num_rows, fixed, lists, times)


def _numbers(array: pa.Array) -> Array:
    """A copy: PyTorch wants arrays that may be written, and Arrow's may not."""
    return np.array(array.to_numpy(zero_copy_only=True))


def _ids(array: pa.Array, name: str, ends: tuple[int, ...]) -> Array:
    """int64[n,len(ends)], each below the end of its column: kernels that read rows do not look again."""
    stored = array.to_numpy(zero_copy_only=True).reshape(-1, len(ends))
    if stored.size and stored.max() >= min(ends) and (stored.max(axis=0) >= np.array(ends)).any():
        raise ValueError(f"'{name}' has a value that is too large")
    return stored.astype(np.int64)
