"""A table in memory is data once it is packed: the rows that the same table has as a Parquet file."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import htrain
from htrain.data import START, Malformed, open_data
from htrain.errors import DataError, UsageError

SCHEMA: dict[str, Any] = {
    "label": "click",
    "inputs": {
        "dense": {"kind": "dense", "columns": ["age"], "transform": "log1p"},
        "sparse": {"kind": "ids", "columns": ["user", "word"], "rows": [500, 300]},
        "history": {"kind": "padded", "column": "seen", "length": 4, "rows": 300},
        "tags": {"kind": "bag", "column": "tags", "rows": 50},
    },
}
YAML = """label: click
inputs:
  dense: {kind: dense, columns: [age], transform: log1p}
  sparse: {kind: ids, columns: [user, word], rows: [500, 300]}
  history: {kind: padded, column: seen, length: 4, rows: 300}
  tags: {kind: bag, column: tags, rows: 50}
"""


class Frame:
    """What gives its columns as Arrow does, as DataFrames do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def table(count: int = 20_000) -> pa.Table:
    draw = np.random.default_rng(0)
    lists = [draw.integers(0, 300, draw.integers(0, 7)).tolist() for _ in range(count)]
    return pa.table({
        "click": draw.integers(0, 2, count), "age": [None if a > 90 else a for a in draw.uniform(0, 99, count)], "user": draw.integers(0, 10**9, count),
        "word": draw.choice(["red", "green", None], count), "seen": lists, "tags": lists[::-1], "unused": ["x"] * count,
    })  # fmt: skip


def rows(uri: str) -> list[dict[str, Any]]:
    found = open_data(uri).batches(batch_size=7000, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    return [batch.columns for batch in found]


@pytest.mark.parametrize("kind", [lambda t: t, Frame])
def test_a_table_has_the_rows_of_the_same_table_in_a_file(kind: Any, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    (tmp_path / "s.yaml").write_text(YAML)
    totals = htrain.pack(kind(table()), schema=SCHEMA, out=tmp_path / "a.packed")
    assert totals.examples == 20_000
    wanted = rows(f"parquet:{tmp_path}/a.parquet?schema={tmp_path}/s.yaml")
    for one, other in zip(rows(f"packed:{tmp_path}/a.packed"), wanted, strict=True):
        assert one.keys() == other.keys()
        for name, column in one.items():
            np.testing.assert_array_equal(column, other[name])
    htrain.pack(kind(table(9)), schema=tmp_path / "s.yaml", out=tmp_path / "b.packed")
    assert len(rows(f"packed:{tmp_path}/b.packed")[0]["label"]) == 9


@pytest.mark.parametrize(
    ("data", "given", "error", "message"),
    [
        (table(9), {}, UsageError, "pack: a Table needs schema="),
        (17, {"schema": SCHEMA}, UsageError, "pack: data is a int: want FORMAT:PATH, or a table"),
        (table(9).drop(["user"]), {"schema": SCHEMA}, DataError, "a Table in memory: no column 'user'; it has click"),
        (table(9), {"schema": {"label": "click"}}, DataError, "schema: not a schema: "),
        (table(9), {"schema": SCHEMA, "partition": "p"}, UsageError, "partition= has no effect on a table in memory"),
        ("csv:a.csv", {"schema": SCHEMA}, UsageError, "schema= has no effect beside FORMAT:PATH"),
        (table(9).slice(0, 0), {"schema": SCHEMA}, DataError, "no row of a Table in memory can be read"),
    ],
)
def test_what_is_no_table_is_one_line(
    data: Any, given: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        htrain.pack(data, out=tmp_path / "a.packed", **given)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "a.packed").exists()


WORDS = ["red", "", None, "42", " red", "007", "Łódź"]
LISTS = [["1", "b"], [], None, ["", "x"], [None, "3"], ["1", "2", "3", "4", "5"], ["a"]]
PAIRS = [[k, k + 1] for k in range(7)]
WHOLE = [17, None, 1234567890123, 123456792, 10**10, -5, 2**53 - 1]
CATEGORIES = pa.dictionary(pa.int32(), pa.large_string())


def inputs_with(column: str, array: pa.Array) -> dict[str, Any]:
    """The inputs of seven rows, one column of which is another."""
    one = table(7)
    return htrain.features(one.set_column(one.schema.get_field_index(column), column, array), schema=SCHEMA)


@pytest.mark.parametrize(
    ("column", "values", "usual", "kinds"),
    [
        ("word", WORDS, pa.string(), [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), CATEGORIES]),
        ("age", [" 1", "2.5", "", None, "3e1", "0", "7"], pa.string(), [pa.string_view(), CATEGORIES]),
        *[
            (column, LISTS, pa.list_(pa.string()),
             [pa.list_(pa.large_string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view()), pa.list_view(pa.string()), pa.list_(CATEGORIES)])
            for column in ("seen", "tags")
        ],
        ("seen", PAIRS, pa.list_(pa.int64()), [pa.list_(pa.int64(), 2), pa.list_(pa.int32(), 2), pa.list_(pa.float16()), pa.list_(pa.uint8())]),
        ("user", WHOLE, pa.int64(), [pa.float64(), pa.string()]),
        ("user", [17, None, 2**24 - 1, 5, 6, 7, 8], pa.int64(), [pa.float32(), pa.int32()]),
        ("user", [17, None, 1000, 5, 6, 7, 8], pa.int64(), [pa.float16()]),
        ("age", [1.5, None, 2, 3, 4, 5, 6], pa.float64(), [pa.float16()]),
        ("seen", [None] * 7, pa.list_(pa.int64()), [pa.null()]),
        ("tags", [None] * 7, pa.list_(pa.int64()), [pa.null()]),
    ],
)  # fmt: skip
def test_values_are_the_same_in_every_type_that_holds_them(
    column: str, values: list[Any], usual: pa.DataType, kinds: list[pa.DataType]
) -> None:
    wanted = inputs_with(column, pa.array(values, usual))
    for kind in kinds:
        as_text = [None if value is None else str(value) for value in values]
        array = pa.array(as_text if kind == pa.string() else values, pa.float64() if kind == pa.float32() else kind)
        array = array.cast(kind)
        for name, found in inputs_with(column, array).items():
            np.testing.assert_array_equal(found, wanted[name], err_msg=f"{name}, of a column of {kind}")


def test_a_frame_may_have_columns_that_nobody_reads_and_arrow_does_not_know() -> None:
    frame: pd.DataFrame = table(9).to_pandas()
    wanted = htrain.features(frame, schema=SCHEMA)
    found = htrain.features(frame.assign(other=[object(), "a", 1, 2.5, b"c", [1], {}, None, "d"]), schema=SCHEMA)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
