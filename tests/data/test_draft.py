"""A drafted schema reads the data that it was made of, and says what columns look like."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import htrain
from htrain.cli.app import commands
from htrain.data import open_data
from htrain.data.guess import Guess, guess
from htrain.data.malformed import Malformed
from htrain.errors import DataError, UsageError

ROWS = 400
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def table() -> pa.Table:
    r = np.random.default_rng(0)
    return pa.table(
        {
            "is_click": r.integers(0, 2, ROWS),
            "userId": r.integers(0, 90, ROWS),
            "age": pa.array(r.integers(18, 90, ROWS), mask=r.random(ROWS) < 0.1),
            "price": r.random(ROWS) * 100,
            "city": [f"City {i % 37}" if i % 5 else None for i in range(ROWS)],
            "seen": [list(map(int, r.integers(0, 500, i % 9))) for i in range(ROWS)],
            "at": [BEGIN + timedelta(minutes=i) for i in range(ROWS)],
            "ts": np.arange(ROWS) * 1000 + 1_760_000_000_000,
            "premium": r.random(ROWS) < 0.2,
            "a struct": pa.array([{"a": 1}] * ROWS),
            "hash": r.integers(2**61, 2**62, ROWS),
            "tags": [["a", "b"][: i % 3] for i in range(ROWS)],
            "moved": r.integers(-5, 5, ROWS),
            "nothing": pa.nulls(ROWS),
        }
    )


def in_csv(folder: Path) -> str:
    frame = table().drop_columns(["a struct", "nothing"]).to_pandas()
    for name in ("seen", "tags"):
        frame[name] = [" ".join(map(str, each)) for each in frame[name]]
    frame.to_csv(folder / "a.csv", index=False)
    return f"csv:{folder}/a.csv"


def in_parquet(folder: Path) -> str:
    pq.write_table(table(), folder / "a.parquet", row_group_size=100)
    return f"parquet:{folder}/a.parquet"


def all_rows(uri: str) -> tuple[int, int]:
    """How many rows are read, and how many cannot be."""
    strict = Malformed(1.0)
    chunks = open_data(uri).source.chunks(shard=0, num_shards=1, first=0, malformed=strict)
    return sum(rows.count for _, rows in chunks), strict.count


@pytest.mark.parametrize("write", [in_csv, in_parquet])
def test_a_draft_reads_all_rows_of_its_data(write: Callable[[Path], str], tmp_path: Path) -> None:
    uri = write(tmp_path)
    found = htrain.describe(uri)
    (tmp_path / "s.yaml").write_text(found.text)
    assert all_rows(f"{uri}?schema={tmp_path}/s.yaml") == (ROWS, 0)
    assert (found.examples, found.is_all, found.malformed, found.label) == (ROWS, True, 0, "is_click")
    kinds = {each.column: each.kind for each in found.columns}
    usual = {
        "dense": {"age", "price", "moved"},
        "ids": {"userId", "city", "hash"},
        "padded": {"seen"},
        "time": {"at", "ts"},
    }
    assert all(kinds[name] == kind for kind, names in usual.items() for name in names)
    rows = {each.column: each.rows for each in found.columns}
    assert (rows["userId"], rows["seen"]) == (90, 500)
    schema = open_data(f"{uri}?schema={tmp_path}/s.yaml").schema
    assert schema.input("seen").width == 8
    assert schema.input("ts").rows == (25, 8)


def test_what_no_input_takes_is_left_out_and_told_of(tmp_path: Path) -> None:
    found = htrain.describe(in_parquet(tmp_path))
    assert [each.column for each in found.columns if not each.kind] == ["a struct", "nothing"]
    assert '# Left out: "a struct", of a type that no input takes' in found.text


def test_numbers_that_no_float32_holds_are_left_out() -> None:
    found = htrain.describe(pa.table({"label": [0, 1], "a": [1e39, 2.0], "b": [float("inf"), 1.0], "c": [1.0, None]}))
    assert [each.kind for each in found.columns] == ["ids", "", "", "dense"]
    assert found.malformed == 0


def test_ids_beyond_the_rows_that_are_looked_at_are_within_the_table_of_a_parquet_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1] * 50, "item": np.arange(100)}), tmp_path / "a.parquet", row_group_size=10)
    found = htrain.describe(f"parquet:{tmp_path}/a.parquet", rows=20)
    assert not found.is_all
    assert [each.rows for each in found.columns] == [2, 100]


def test_a_frame_is_described_and_its_draft_packs_it(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": [0.0, 1.0] * 8, "word": ["b", "c"] * 8, "dense": [[1, 2]] * 16})
    found = htrain.describe(frame)
    schema = tmp_path / "s.yaml"
    schema.write_text(found.text)
    totals = htrain.pack(frame, out=tmp_path / "a.packed", schema=schema)
    assert totals.examples == 16
    with pytest.raises(UsageError, match="describe: data is a int: want FORMAT:PATH, or a table"):
        htrain.describe(5)


@pytest.mark.parametrize(
    ("columns", "label", "message"),
    [
        ({"a": [0, 1], "b": [1, 0], "c": [5, 6]}, "", "which column is the label .*columns of 0 and 1: a, b"),
        ({"a": [3, 1], "c": [5, 6]}, "", "no column is of 0 and 1 alone; columns: a, c"),
        ({"a": [0, 1], "c": [5, 6]}, "d", "no column 'd'; it has a, c"),
        ({"a": [0, 1]}, "", "no column beside the label 'a' that an input takes"),
        ({"a": pa.array([], pa.int64())}, "", "has no rows to look at"),
        ({"a": [[0], [1]], "c": [5, 6]}, "a", "column 'a' is list<.*>; want a number or text"),
    ],
)
def test_what_cannot_be_drafted_is_refused(columns: dict[str, Any], label: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        htrain.describe(pa.table(columns), label=label)


def test_files_are_described_together(tmp_path: Path) -> None:
    for k in range(3):
        pq.write_table(pa.table({"label": [0, 1], "item": [k, 10 * k]}), tmp_path / f"{k}.parquet")
    found = htrain.describe(f"parquet:{tmp_path}")
    assert (found.examples, found.is_all, found.columns[1].rows) == (6, True, 21)
    assert not htrain.describe(f"parquet:{tmp_path}", rows=4).is_all
    pq.write_table(pa.table({"label": [0, 1], "item": [["x"], ["y"]]}), tmp_path / "3.parquet")
    with pytest.raises(DataError, match="its files have other columns"):
        htrain.describe(f"parquet:{tmp_path}")


def ran(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands, ["data", "describe", *words])
    return result.exit_code, result.stdout


def test_the_command_prints_a_draft_or_writes_it_where_nothing_is(tmp_path: Path) -> None:
    uri, out = in_csv(tmp_path), tmp_path / "s.yaml"
    assert ran(uri) == (0, htrain.describe(uri).text)
    code, told = ran(uri, "--out", str(out))
    assert code == 0
    assert "userId" in told
    assert f"read the data as {uri}?schema={out}" in told
    out.write_text("mine")
    assert ran(uri, "--out", str(out))[0] != 0
    assert out.read_text() == "mine"
    assert json.loads(ran(uri, "--json")[1])["label"] == "is_click"


VALUES = st.one_of(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
    st.lists(st.none() | st.floats(), min_size=3, max_size=3),
    st.lists(st.none() | st.text(), min_size=3, max_size=3),
    st.lists(st.none() | st.booleans(), min_size=3, max_size=3),
    st.lists(st.none() | st.datetimes(), min_size=3, max_size=3),
    st.lists(st.none() | st.lists(st.integers(0, 2**40)), min_size=3, max_size=3),
    st.lists(st.sampled_from(["1|2", "3", "", "NA", "2026-01-01", "1e5", "12345678901234567890"]), min_size=3, max_size=3),
)  # fmt: skip


def guesses(data: pa.Table) -> list[Guess]:
    return [guess(name, data[name], None) for name in data.column_names[1:]]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.dictionaries(st.text(min_size=1), VALUES, min_size=1, max_size=4))
def test_a_draft_of_any_columns_is_a_schema_that_reads_them(columns: dict[str, list[Any]], tmp_path: Path) -> None:
    """Or none of them is taken by an input."""
    data = pa.table({"the label": pa.array([0, 1, 1]), **{f"_{name}": values for name, values in columns.items()}})
    if not any(each.kind for each in guesses(data)):
        with pytest.raises(DataError, match="that an input takes"):
            htrain.describe(data, label="the label")
        return
    found = htrain.describe(data, label="the label")
    (tmp_path / "s.yaml").write_text(found.text, encoding="utf-8")
    out = tmp_path / "a.packed"
    assert htrain.pack(data, out=out, schema=tmp_path / "s.yaml", malformed_share=1.0).examples + found.malformed == 3


def test_a_csv_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,a,a\n0,1,2\n1,3,4\n")
    with pytest.raises(DataError, match="has 2 columns called 'a'"):
        htrain.describe(f"csv:{tmp_path}/a.csv")


def test_compressed_text_is_described(tmp_path: Path) -> None:
    rows = pa.table({"label": [0, 1] * 20, "item": np.arange(40)})
    with pa.CompressedOutputStream(str(tmp_path / "a.csv.gz"), "gzip") as file:
        pacsv.write_csv(rows, file)
    found = htrain.describe(f"csv:{tmp_path}/a.csv.gz", rows=15)
    assert (found.examples, found.is_all, found.columns[1].rows) == (15, False, 15)
