"""What a CSV file says is what the same values say in Parquet and in memory: numbers of any size, words for what is missing, and ids that floats have lost."""

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.data import START, Malformed, open_data
from htrain.data.arrow_rows import table_rows
from htrain.data.formats.tabular import parse_csv
from htrain.data.layout import layout_of
from htrain.errors import DataError

SCHEMA = {
    "label": "y",
    "inputs": {
        "x": {"kind": "dense", "columns": ["x"], "missing": 7.5, "indicator": True},
        "a": {"kind": "ids", "columns": ["a"], "rows": 1009},
        "l": {"kind": "bag", "column": "l", "rows": 1009},
        "t": {"kind": "time", "column": "t", "parts": ["hour"]},
    },
}
LAYOUT = layout_of(SCHEMA, "schema")
WORDS = ["NA", "N/A", "null", "NULL", "nan", "NaN", "n/a", "#N/A", "-nan"]


def fnv(word: str) -> int:
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def of_csv(columns: dict[str, list[str]], layout=LAYOUT):
    text = io.StringIO()
    csv.writer(text).writerows(zip(*columns.values(), strict=True))
    return parse_csv(np.frombuffer(text.getvalue().encode(), np.uint8), tuple(columns), layout)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 4, 2**53 + 4) | st.none(), min_size=1))
def test_whole_numbers_of_any_size_are_rounded_as_their_text_is(numbers: list[int | None]) -> None:
    layout = layout_of({"label": "y", "inputs": {"x": SCHEMA["inputs"]["x"]}}, "schema")
    wanted = [[7.5, 1] if each is None else [float(np.float32(float(each))), 0] for each in numbers]
    ones = ["1"] * len(numbers)
    table = pa.table({"y": np.ones(len(numbers)), "x": pa.array(numbers, pa.int64())})
    text = {"y": ones, "x": ["" if each is None else str(each) for each in numbers]}
    for rows, faults in (table_rows(table, layout), of_csv(text, layout)):
        assert not faults
        assert rows.fixed["x"].tolist() == wanted
    doubled = [each and min(abs(each) * 2, 2**64 - 1) for each in numbers]
    positive = pa.array(doubled, pa.uint64())
    rows, _ = table_rows(table.set_column(1, "x", positive), layout)
    assert rows.fixed["x"][:, 0].tolist() == [7.5 if each is None else np.float32(each) for each in doubled]


@given(st.floats(width=32, allow_nan=False))
def test_numbers_of_32_bits_are_what_their_text_is(number: float) -> None:
    layout = layout_of({"label": "y", "inputs": {"x": SCHEMA["inputs"]["x"]}}, "schema")
    held = pa.table({"y": [1.0], "x": pa.array([number], pa.float32())})
    for rows, faults in (table_rows(held, layout), of_csv({"y": ["1"], "x": [str(np.float32(number))]}, layout)):
        assert [place for place, _ in faults] == [0] * int(np.isinf(number))
        assert rows.fixed["x"][:, 0].tolist() == [number] * int(np.isfinite(number))


@pytest.mark.parametrize("quoted", ["", '"'])
def test_words_for_what_is_missing_are_missing_numbers_and_times_and_ids_as_any_other(
    quoted: str, tmp_path: Path
) -> None:
    count = len(WORDS)
    columns = {"y": ["1"] * count, "x": [f" {word}" for word in WORDS], "a": WORDS, "l": WORDS, "t": WORDS}
    lines = [",".join(f"{quoted}{each}{quoted}" for each in row) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(columns), *lines]))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (tmp_path / "s.yaml").write_text(str(SCHEMA))
    rows = [fnv(word) % 1009 for word in WORDS]
    for form in ("csv", "parquet"):
        data = open_data(f"{form}:{tmp_path}/a.{form}?schema={tmp_path}/s.yaml")
        (batch,) = data.batches(batch_size=99, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed(0))
        found = {name: values.tolist() for name, values in batch.columns.items()}
        assert found["x"] == [[7.5, 1]] * count
        assert found["t"] == [[0]] * count
        assert found["a"] == [[row] for row in rows]
        assert (found["l"], found["l_offsets"]) == (rows, list(range(count)))


def test_a_missing_label_is_malformed_by_whatever_word_it_is_missing() -> None:
    count = len(WORDS)
    columns = {"y": WORDS, "x": ["1"] * count, "a": ["1"] * count, "l": ["1"] * count, "t": ["1"] * count}
    for rows, faults in (of_csv(columns), table_rows(pa.table(columns), LAYOUT)):
        assert not rows.count
        assert [reason for _, reason in faults] == ["column 'y' is missing"] * count


@pytest.mark.parametrize(
    ("kind", "exact", "lost"),
    [
        (pa.float64(), [2.0**53 - 1, -(2.0**53) + 1, 5.0, None, float("nan")], [2.0**53, -(2.0**60), 1e300]),
        (pa.float32(), [2.0**24 - 1, -5.0, 1.5, None], [2.0**24, -(2.0**30)]),
    ],
)
def test_ids_that_floats_do_not_hold_are_named(kind: pa.DataType, exact: list[float | None], lost: list[float]) -> None:
    values = [*exact, *lost]
    count = len(values)
    fixed = {"y": np.ones(count), "x": np.ones(count), "t": pa.array([1] * count)}
    one = pa.table({**fixed, "a": pa.array(values, kind), "l": [["1"]] * count})
    lists = pa.array([[1.0, value] for value in values], pa.list_(kind))
    some = pa.table({**fixed, "a": ["1"] * count, "l": lists})
    for table, column in ((one, "a"), (some, "l")):
        rows, faults = table_rows(table, LAYOUT)
        assert rows.count == len(exact)
        assert [place for place, _ in faults] == list(range(len(exact), count))
        assert (
            f"column '{column}' has {lost[0]:.0f} as a float, which does not hold all digits of an id" in faults[0][1]
        )


def test_frames_in_which_ids_became_floats_are_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": [1.0, 0.0], "a": [1234567890123456789, None]})
    schema = {"label": "y", "inputs": {"a": {"kind": "ids", "columns": ["a"], "rows": 1009}}}
    with pytest.raises(DataError, match="a DataFrame in memory: row 1: column 'a' has 1234567890123456768 as a float"):
        htrain.features(frame, schema=schema)
    kept = frame.assign(a=pandas.array([1234567890123456789, None], "Int64"))
    assert htrain.features(kept, schema=schema)["a"].tolist() == [[1234567890123456789 % 1009], [0]]
