"""A table in memory is data once it is packed: the rows that the same table has as a Parquet file."""

from pathlib import Path
from typing import Any

import numpy as np
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
