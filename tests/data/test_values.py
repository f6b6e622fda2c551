"""The same value is the same id in whatever type of Arrow's a column has it."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data.arrow_rows import table_rows
from htrain.data.layout import layout_of
from htrain.data.values import rows_of

ROWS = 1009
LAYOUT = layout_of(
    {
        "label": "y",
        "inputs": {
            "one": {"kind": "ids", "columns": ["a"], "rows": ROWS},
            "some": {"kind": "bag", "column": "l", "rows": ROWS},
        },
    },
    "schema",
)
Values = list[int | str | None]


def fnv(word: str) -> int:
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def row_of(value: int | str | None) -> int:
    """By the rule of docs/how-to/export.md."""
    if value is None or value == "":
        return 0
    return value % ROWS if isinstance(value, int) else fnv(value) % ROWS


def ids(values: pa.Array, lists: pa.Array) -> tuple[list[int], list[int]]:
    table = pa.table({"y": np.ones(len(values)), "a": values, "l": lists})
    rows, faults = table_rows(table, LAYOUT)
    assert not faults
    return rows.fixed["one"][:, 0].tolist(), rows.lists["some"][0].tolist()


def categories(values: Values, kind: pa.DataType) -> pa.Array:
    held = list(dict.fromkeys(value for value in values if value is not None))
    places = [None if value is None else held.index(value) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(held, kind))


TEXTS: dict[str, Callable[[Values], pa.Array]] = {
    "string": lambda values: pa.array(values, pa.string()),
    "large_string": lambda values: pa.array(values, pa.large_string()),
    "string_view": lambda values: pa.array(values, pa.string_view()),
    "categories": lambda values: categories(values, pa.string()),
    "categories of large_string": lambda values: categories(values, pa.large_string()),
    "categories of string_view": lambda values: categories(values, pa.string_view()),
}
NUMBERS: dict[str, tuple[int, int, pa.DataType]] = {
    "int32": (-(2**31), 2**31, pa.int32()),
    "int64": (-(2**63), 2**63, pa.int64()),
    "uint64": (0, 2**64, pa.uint64()),
}


@pytest.mark.parametrize("kind", TEXTS)
@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.none() | st.sampled_from(["", "a", "é", "x y", "-"]), min_size=1, max_size=9),
    first=st.integers(0, 3),
)
def test_text_has_the_same_rows_in_each_type(kind: str, values: Values, first: int) -> None:
    array = TEXTS[kind](values)
    starts = pa.array(
        [0, *range(len(values))], pa.int32()
    )  # an empty list, then one of a value each; the last is left out
    lists = pa.ListArray.from_arrays(starts, array)
    one, some = ids(array.slice(first), lists.slice(first))
    assert one == [row_of(value) for value in values[first:]]
    listed = values[max(0, first - 1) : len(values) - 1] if first < len(values) else []
    assert some == [row_of(value) for value in listed if value != ""]


@pytest.mark.parametrize("kind", NUMBERS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_whole_number_has_the_same_row_as_its_digits(kind: str, data: st.DataObject) -> None:
    low, end, type = NUMBERS[kind]
    numbers = st.integers(low, end - 1) | st.sampled_from([low, 0, end - 1])
    values = data.draw(st.lists(numbers | st.none(), min_size=1, max_size=9))
    digits = [None if value is None else str(value) for value in values]
    wanted = [row_of(value) for value in values]
    for array in (pa.array(values, type), categories([*values], type), *(make([*digits]) for make in TEXTS.values())):
        lists = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), array)
        assert ids(array, lists) == (wanted, wanted)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), None),
        (str(-(2**63)), -(2**63)),
        (str(-(2**63) - 1), None),
        ("99999999999999999999", None),
        ("00000000000000000007", 7),
        ("000000000000000000007", None),
        ("-0", 0),
        ("12345678901234567:89", None),
        ("1234567890123456789/", None),
        ("--1", None),
    ],
)
def test_digits_are_a_number_where_64_bits_hold_it_and_text_beyond(word: str, number: int | None) -> None:
    assert ids(pa.array([word]), pa.array([[word]])) == ([row_of(word if number is None else number)],) * 2


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2), pa.list_view])
def test_rows_of_a_table_are_those_of_python_in_each_type(lists: Callable[[pa.DataType], pa.DataType]) -> None:
    words, pairs = ["a", None, "", "é"], [["a", "b"], None, ["", None], ["c", "d"]]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.int64()):
        values, several = ([1, None, 3, 4], [[1, 2], None, [3, None], [5, 6]]) if kind == pa.int64() else (words, pairs)
        table = pa.table({"a": pa.array(values, kind), "l": pa.array(several, lists(kind))})
        for places in ([3, 1, 2], [], [0]):
            found = rows_of(table, np.array(places, np.int64)).to_pydict()
            assert found == {"a": [values[k] for k in places], "l": [several[k] for k in places]}
