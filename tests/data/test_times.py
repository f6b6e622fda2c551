"""Moments and missing numbers of CSV and Parquet data, against Python's own datetime and a loop over the rows."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.data import START, Malformed, open_data
from htrain.data.times import ROWS, instants_of
from htrain.errors import DataError

ZONES = ("UTC", "Europe/Oslo", "Asia/Kathmandu", "America/St_Johns")
PARTS = ["hour", "weekday", "day", "month"]
quick = settings(max_examples=60, deadline=None, derandomize=True)
# Arrow knows no summer times after 2037.
moments = st.datetimes(datetime(1905, 1, 1), datetime(2037, 12, 31)).map(lambda at: at.replace(microsecond=0))


def schema(zone: str = "UTC", unit: str = "s", parts: list[str] = PARTS) -> dict[str, Any]:
    return {
        "label": "y",
        "inputs": {"when": {"kind": "time", "column": "at", "parts": parts, "zone": zone, "unit": unit}},
    }


def wanted(at: datetime | None, zone: str) -> list[int]:
    """Of a moment in UTC."""
    if at is None:
        return [0, 0, 0, 0]
    local = at.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    return [local.hour + 1, local.weekday() + 1, local.day, local.month]


def seen(column: pa.Array, **said: Any) -> list[list[int]]:
    return htrain.features(pa.table({"at": column}), schema=schema(**said))["when"].tolist()


@given(times=st.lists(st.none() | moments, max_size=9), zone=st.sampled_from(ZONES))
@quick
def test_parts_of_timestamps_numbers_and_text_are_those_of_the_calendar(
    times: list[datetime | None], zone: str
) -> None:
    expected = [wanted(at, zone) for at in times]
    assert seen(pa.array(times, pa.timestamp("us")), zone=zone) == expected
    aware = [at and at.replace(tzinfo=UTC) for at in times]
    for unit, per_second in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        assert (
            seen(pa.array(aware, pa.timestamp("us", "Asia/Tokyo")).cast(pa.timestamp(unit, "Asia/Tokyo")), zone=zone)
            == expected
        )
        numbers = [at and int((at - datetime(1970, 1, 1)).total_seconds()) * per_second for at in times]
        assert seen(pa.array(numbers, pa.int64()), zone=zone, unit=unit) == expected
        assert (
            seen(pa.array([None if n is None else str(n) for n in numbers], pa.string()), zone=zone, unit=unit)
            == expected
        )
    shifted = timezone(timedelta(hours=5, minutes=30))
    for text in (
        [at and at.isoformat() for at in times],
        [at and at.isoformat(" ") for at in times],
        [at and f"{at.isoformat()}Z" for at in times],
        [at and at.replace(tzinfo=UTC).astimezone(shifted).isoformat() for at in times],
    ):
        assert seen(pa.array(text, pa.string()), zone=zone) == expected


@given(time=st.datetimes(datetime(1905, 1, 1), datetime(2037, 12, 31)), more=st.integers(0, 999))
@quick
def test_text_of_nanoseconds_is_the_microsecond_that_it_is_in(time: datetime, more: int) -> None:
    text = f"{time:%Y-%m-%dT%H:%M:%S.%f}{more:03}"
    instant = (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    for zone, hours in (("", 0), ("Z", 0), ("+02:00", 2)):
        found, missing, wrong = instants_of(pa.array([text + zone, None]), "s")
        assert found[0] == instant - hours * 3_600_000_000
        assert (missing.tolist(), wrong.tolist()) == ([False, True], [False, False])


def test_a_number_beyond_the_calendar_is_no_time_in_whatever_type() -> None:
    for kind in (pa.uint64(), pa.string()):
        for unit in ("s", "ms", "us", "ns"):
            _, _, wrong = instants_of(pa.array([2**64 - 1, 2**64 - 10**9, 5], pa.uint64()).cast(kind), unit)
            assert wrong.tolist() == [True, True, False]


@given(days=st.lists(st.none() | st.dates(date(1905, 1, 1), date(2100, 1, 1)), max_size=5))
@quick
def test_a_date_is_its_first_moment(days: list[date | None]) -> None:
    expected = [wanted(day and datetime(day.year, day.month, day.day), "UTC") for day in days]
    assert seen(pa.array(days, pa.date32())) == expected
    assert seen(pa.array([day and day.isoformat() for day in days], pa.string())) == expected


def test_each_part_has_a_table_of_its_own_large_enough() -> None:
    at = [datetime(2024, 1, 1) + timedelta(hours=7 * k) for k in range(2000)]
    values = np.array(seen(pa.array(at)))
    assert [values[:, k].min() for k in range(4)] == [1, 1, 1, 1]
    assert [values[:, k].max() + 1 for k in range(4)] == [ROWS[part] for part in PARTS]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-11-26 25:00", "12:30", "9" * 25, "253402300800"])
def test_what_is_no_moment_is_a_malformed_row(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(str(schema()))
    (tmp_path / "a.csv").write_text(f"y,at\n1,2026-11-26\n0,{text}\n1,\n")
    malformed = Malformed(1.0)
    data = open_data(f"csv:{tmp_path}/a.csv?schema={tmp_path}/schema.yaml")
    (batch,) = data.batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=malformed)
    assert batch.columns["when"].tolist() == [wanted(datetime(2026, 11, 26), "UTC"), [0, 0, 0, 0]]
    assert malformed.examples[0].endswith("a.csv:3: column 'at' is not a time")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "time", "column": "at", "parts": ["hour"], "zone": "Mars"}, "zone: 'Mars' is no time zone: want a name such as UTC"),
        ({"kind": "time", "column": "at", "parts": ["hour"], "zone": "../x"}, "is no time zone"),
        ({"kind": "time", "column": "at", "parts": []}, "parts"),
        ({"kind": "time", "column": "at", "parts": ["hour", "hour"]}, "names a part twice"),
        ({"kind": "time", "column": "at", "parts": ["minute"]}, "Invalid enum value 'minute'"),
        ({"kind": "dense", "columns": ["a", "b"], "missing": [1.0]}, "missing: has 1 numbers for 2 columns"),
        ({"kind": "dense", "columns": ["a"], "missing": "mean"}, "missing"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_is_refused_by_its_field(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        htrain.features(pa.table({"at": [1]}), schema={"label": "y", "inputs": {"x": entry}})


def test_a_column_that_cannot_be_one_of_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'at' is double; want times, dates, whole numbers or text"):
        seen(pa.array([1.5]))


@given(
    rows=st.lists(st.tuples(*[st.none() | st.floats(-1e6, 1e6, width=32)] * 2), max_size=8),
    fills=st.tuples(st.floats(-50, 50), st.floats(-50, 50)),
    logarithmic=st.booleans(),
    indicator=st.booleans(),
)
@quick
def test_a_missing_number_is_what_the_schema_says_and_is_told_where_that_is_wanted(
    rows: list[tuple[float | None, float | None]], fills: tuple[float, float], logarithmic: bool, indicator: bool
) -> None:
    entry = {
        "kind": "dense",
        "columns": ["a", "b"],
        "missing": list(fills),
        "indicator": indicator,
        "transform": "log1p" if logarithmic else "none",
    }
    columns = {name: pa.array([row[k] for row in rows], pa.float64()) for k, name in enumerate("ab")}
    found = htrain.features(pa.table(columns), schema={"label": "y", "inputs": {"x": entry}})["x"]
    expected = []
    for row in rows:
        numbers = [fill if value is None else value for value, fill in zip(row, fills, strict=True)]
        numbers = [math.log1p(max(value, 0.0)) for value in numbers] if logarithmic else numbers
        expected.append(numbers + [float(value is None) for value in row] * indicator)
    assert found.dtype == np.float32
    assert found.shape == (len(rows), 4 if indicator else 2)
    np.testing.assert_allclose(found, np.array(expected, np.float32).reshape(found.shape), rtol=1e-6)


def test_csv_and_parquet_of_the_same_rows_give_the_same(tmp_path: Path) -> None:
    at = [datetime(2026, 11, 26, 8, 30), None, datetime(2026, 7, 1, 23, 59, 59)]
    table = pa.table({"y": [1, 0, 1], "at": at, "price": [1.5, None, 2.0]})
    document = schema("Europe/Oslo")
    document["inputs"]["price"] = {"kind": "dense", "columns": ["price"], "missing": 7.0, "indicator": True}
    (tmp_path / "s.yaml").write_text(str(document).replace("True", "true"))
    pq.write_table(table, tmp_path / "a.parquet")
    lines = [
        f"{y},{at or ''},{'' if price is None else price}"
        for y, at, price in zip(*table.to_pydict().values(), strict=True)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["y,at,price", *lines, ""]))
    both = []
    for kind in ("csv", "parquet"):
        data = open_data(f"{kind}:{tmp_path}/a.{kind}?schema={tmp_path}/s.yaml")
        (batch,) = data.batches(batch_size=9, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
        both.append({name: values.tolist() for name, values in batch.columns.items()})
    assert both[0] == both[1]
    assert both[0]["when"] == [wanted(each, "Europe/Oslo") for each in at]
    assert both[0]["price"] == [[1.5, 0.0], [7.0, 1.0], [2.0, 0.0]]
