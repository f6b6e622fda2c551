"""Batches and examples that come from Python are the rows that the same table has in memory, and no more of them are held than make a block."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

import htrain
from htrain.data import START, Batch, Malformed, open_data, packed_writer
from htrain.data.described import MAX_BLOCK_ROWS
from htrain.errors import DataError, UsageError

COUNT = 2 * MAX_BLOCK_ROWS + 100
SCHEMA: dict[str, Any] = {
    "label": "click",
    "inputs": {
        "dense": {"kind": "dense", "columns": ["x_0", "x_1"], "transform": "log1p"},
        "sparse": {"kind": "ids", "columns": ["user", "word"], "rows": [500, 300]},
        "history": {"kind": "padded", "column": "seen", "length": 3, "rows": 300},
    },
}


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    """As tensors of a model have them."""
    draw = torch.Generator().manual_seed(0)
    return {
        "click": torch.randint(0, 2, (COUNT,), generator=draw).float(),
        "x": torch.rand(COUNT, 2, generator=draw, requires_grad=False),
        "user": torch.randint(0, 10**12, (COUNT,), generator=draw),
        "word": [f"w{k}" for k in torch.randint(0, 99, (COUNT,), generator=draw).tolist()],
        "seen": torch.randint(0, 300, (COUNT, 3), generator=draw),
        "unused": torch.zeros(COUNT, 2, 2),
    }


@pytest.fixture(scope="module")
def table(arrays: dict[str, Any]) -> pa.Table:
    """The same as columns."""
    x, seen = arrays["x"].numpy(), arrays["seen"].tolist()
    numbers = {"click": arrays["click"].numpy(), "x_0": x[:, 0], "x_1": x[:, 1], "user": arrays["user"].numpy()}
    return pa.table({**numbers, "word": arrays["word"], "seen": seen})


class Examples(Dataset[dict[str, Any]]):
    """A dataset of PyTorch in the way of a list."""

    def __init__(self, arrays: dict[str, Any], count: int) -> None:
        self._arrays, self._count = arrays, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {name: values[i] for name, values in self._arrays.items()}


class Stream(IterableDataset[dict[str, Any]]):
    """A dataset of PyTorch in the way of an iterator."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._examples[i] for i in range(len(self._examples)))


def parts(table: pa.Table, size: int) -> Iterator[pa.Table]:
    return (table.slice(k, size) for k in range(0, len(table), size))


def batches(path: Path) -> list[Batch]:
    data = open_data(f"packed:{path}")
    return list(data.batches(batch_size=3000, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))


def assert_same(path: Path, wanted: list[Batch]) -> None:
    found = batches(path)
    assert [batch.position for batch in found] == [batch.position for batch in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name, column in other.columns.items():
            np.testing.assert_array_equal(one.columns[name], column)


def cut(arrays: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    return {name: values[start:end] for name, values in arrays.items()}


FORMS = {
    "loader": lambda arrays, table: DataLoader(Examples(arrays, COUNT), batch_size=500),
    "stream": lambda arrays, table: Stream(Examples(arrays, COUNT)),
    "examples": lambda arrays, table: Examples(arrays, COUNT),
    "tensors": lambda arrays, table: [cut(arrays, k, k + 777) for k in range(0, COUNT, 777)],
    "batches": lambda arrays, table: (batch for part in parts(table, 5000) for batch in part.to_batches()),
    "reader": lambda arrays, table: table.to_reader(max_chunksize=1000),
    "frames": lambda arrays, table: [part.to_pandas() for part in parts(table, 9000)],
}


@pytest.mark.parametrize("form", FORMS)
def test_what_comes_in_batches_is_what_the_table_is(
    form: str, arrays: dict[str, Any], table: pa.Table, tmp_path: Path
) -> None:
    htrain.pack(table, schema=SCHEMA, out=tmp_path / "table.packed")
    totals = htrain.pack(FORMS[form](arrays, table), schema=SCHEMA, out=tmp_path / "a.packed")
    assert totals.examples == COUNT
    assert_same(tmp_path / "a.packed", batches(tmp_path / "table.packed"))


def test_a_stream_is_not_held(table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, written = [0], [0]

    def come() -> Iterator[pa.Table]:
        for part in parts(table, 1000):
            given[0] += part.num_rows
            assert given[0] - written[0] <= MAX_BLOCK_ROWS + 1000
            yield part

    write = packed_writer.PackedWriter.write

    def noted(self: Any, batch: pa.RecordBatch) -> None:
        written[0] += batch.num_rows
        write(self, batch)

    monkeypatch.setattr(packed_writer.PackedWriter, "write", noted)
    htrain.pack(come(), schema=SCHEMA, out=tmp_path / "a.packed")
    assert given == written == [COUNT]


def test_labels_of_one_column_lists_of_tensors_and_gradients_are_taken_as_they_are_meant(tmp_path: Path) -> None:
    schema = {"label": "y", "inputs": {"h": {"kind": "bag", "column": "h", "rows": 9}}}
    lists = [torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([3])]
    htrain.pack([{"y": torch.ones(3, 1, requires_grad=True), "h": lists}], schema=schema, out=tmp_path / "a.packed")
    (batch,) = batches(tmp_path / "a.packed")
    assert [batch.columns[name].tolist() for name in ("label", "h", "h_offsets")] == [[1, 1, 1], [1, 2, 3], [0, 2, 2]]


class Column:
    """A column of a library that gives it as Arrow does, such as a Series of Polars."""

    def __init__(self, values: list[Any]) -> None:
        self._held = pa.chunked_array([pa.array(values)])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._held.__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.array([np.nan if each is None else each for each in self._held.to_pylist()])


def masked(values: list[Any]) -> np.ndarray:
    return np.ma.masked_array([0 if each is None else each for each in values], [each is None for each in values])


HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "objects": lambda values: np.array(values, object),
    "masked": masked,
    "Int64": lambda values: pd.Series(values, dtype="Int64"),
    "series of objects": lambda values: pd.Series(values, dtype=object),
    "column": Column,
    "arrow": pa.array,
}


@pytest.mark.parametrize("holder", HOLDERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_what_is_missing_in_a_batch_is_missing_and_the_others_keep_their_digits(
    holder: str, ids: list[int | None], tmp_path: Path
) -> None:
    schema = {
        "label": "y",
        "inputs": {
            "a": {"kind": "ids", "columns": ["a"], "rows": 1009},
            "x": {"kind": "dense", "columns": ["a"], "missing": 7.0, "indicator": True},
        },
    }
    htrain.pack([{"y": np.ones(len(ids)), "a": HOLDERS[holder](ids)}], schema=schema, out=tmp_path / "a.packed")
    (batch,) = batches(tmp_path / "a.packed")
    assert batch.columns["a"].tolist() == [[0 if each is None else each % 1009] for each in ids]
    wanted = [[7.0, 1.0] if each is None else [float(np.float32(float(each))), 0.0] for each in ids]
    assert batch.columns["x"].tolist() == wanted


TYPES: list[Callable[[list[Any]], pa.Array]] = [
    lambda ids: pa.array(ids, pa.int64()),
    lambda ids: pa.array([each if each is None or abs(each) < 2**53 else 7 for each in ids], pa.float64()),
    lambda ids: pa.array([None if each is None else abs(each) for each in ids], pa.uint64()),
    lambda ids: pa.array([None if each is None else str(each) for each in ids], pa.string()),
    lambda ids: pa.array([None if each is None else f"w{each}" for each in ids], pa.string_view()),
    lambda ids: pa.array([None if each is None else f"w{each}" for each in ids]).dictionary_encode(),
    lambda ids: pa.nulls(len(ids)),
    lambda ids: pa.array([None if each is None else each > 0 for each in ids], pa.bool_()),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_batches=st.lists(
        st.tuples(st.sampled_from(TYPES), st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1), max_size=4)),
        min_size=1,
        max_size=9,
    )
)
def test_batches_of_other_types_are_each_what_they_are_alone(given_batches: list[Any], tmp_path: Path) -> None:
    """As files are: what a value is does not hang on the batches beside it."""
    inputs = {"a": {"kind": "ids", "columns": ["a"], "rows": 1009}, "l": {"kind": "bag", "column": "l", "rows": 1009}}
    schema = {"label": "y", "inputs": inputs}
    arrays = [make(ids) for make, ids in given_batches]
    tables = [
        pa.table({"y": np.ones(len(a)), "a": a, "l": pa.array([[each] for each in a.to_pylist()])}) for a in arrays
    ]
    alone = [htrain.features(table, schema=schema) for table in tables]
    if not sum(map(len, arrays)):
        return
    htrain.pack(iter(tables), schema=schema, out=tmp_path / "a.packed")
    (batch,) = batches(tmp_path / "a.packed")
    for name in ("a", "l"):
        assert batch.columns[name].tolist() == [row for each in alone for row in each[name].tolist()]


def test_examples_and_matrices_keep_their_masks(tmp_path: Path) -> None:
    schema = {
        "label": "y",
        "inputs": {
            "x": {"kind": "dense", "columns": ["x_0", "x_1"], "missing": 7.0},
            "h": {"kind": "bag", "column": "h", "rows": 99},
        },
    }
    x, h = masked([1.0, None]), masked([None, 5])
    for data in (
        [{"y": 1.0, "x": x, "h": h}, {"y": 0.0, "x": np.array([3.0, 4.0]), "h": np.array([6, 7])}],
        [{"y": [1.0, 0.0], "x": np.ma.stack([x, [3.0, 4.0]]), "h": np.ma.stack([h, [6, 7]])}],
        [{"y": 1.0, "x_0": 1.0, "x_1": x[1], "h": h}, {"y": 0.0, "x_0": 3.0, "x_1": 4.0, "h": [6, 7]}],
    ):
        htrain.pack(data, schema=schema, out=tmp_path / "a.packed")
        (batch,) = batches(tmp_path / "a.packed")
        assert batch.columns["x"].tolist() == [[1, 7], [3, 4]]
        assert batch.columns["h"].tolist() == [0, 5, 6, 7]


@pytest.mark.parametrize("names", [("x", "x_0"), ("x_0", "x")])
def test_a_column_by_its_own_name_is_not_overwritten_by_that_of_a_matrix(
    names: tuple[str, str], tmp_path: Path
) -> None:
    schema = {"label": "y", "inputs": {"x": {"kind": "dense", "columns": ["x_0", "x_1"]}}}
    values = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "x_0": np.array([7.0, 8.0])}
    data = {"y": np.ones(2), **{name: values[name] for name in names}}
    htrain.pack([data], schema=schema, out=tmp_path / "a.packed")
    (batch,) = batches(tmp_path / "a.packed")
    assert batch.columns["x"].tolist() == [[7, 2], [8, 4]]


def test_whole_numbers_of_python_are_taken_up_to_64_bits(tmp_path: Path) -> None:
    schema = {"label": "y", "inputs": {"a": {"kind": "ids", "columns": ["a"], "rows": 1009}}}
    for ids in ([2**64 - 1, 5], [2**63, 2**63 - 1]):
        for data in ([{"y": 1.0, "a": each} for each in ids], [{"y": [1.0] * 2, "a": ids}]):
            htrain.pack(data, schema=schema, out=tmp_path / "a.packed")
            (batch,) = batches(tmp_path / "a.packed")
            assert batch.columns["a"].tolist() == [[each % 1009] for each in ids]
    for ids in ([2**64, 5], [2**63, -1]):
        frame = pd.DataFrame({"y": [1.0] * 2, "a": np.array(ids, object)})
        for data in ([{"y": [1.0] * 2, "a": ids}], [frame], frame):
            with pytest.raises((DataError, UsageError), match="has whole numbers that no type of 64 bits holds"):
                htrain.pack(data, schema=schema, out=tmp_path / "b.packed")
    assert not (tmp_path / "b.packed").exists()


def test_a_malformed_row_of_a_stream_is_named_by_its_place(table: pa.Table, tmp_path: Path) -> None:
    labels = table["click"].to_pylist()
    labels[9000:9020] = [None] * 20
    bad = table.set_column(0, "click", pa.array(labels))
    with pytest.raises(DataError, match=r"a generator: row 9001: column 'click' is missing \(20 of .* are malformed"):
        htrain.pack(parts(bad, 99), schema=SCHEMA, out=tmp_path / "a.packed", malformed_share=0)


GOOD = {"click": [1, 0], "x_0": [1, 1], "x_1": [1, 1], "user": [1, 2], "word": ["a", "b"], "seen": [[1], [2]]}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            [(torch.ones(2), torch.ones(2))],
            DataError,
            "a list: batch 1 is a tuple: want a dict of arrays or tensors by",
        ),
        (
            [[torch.ones(2), torch.ones(2)]],
            DataError,
            r"a list: batch 1 is a list: want .* \(its first entry is a Tensor\)",
        ),
        ([GOOD, {"x": [1]}], DataError, "a list: batch 2: no column 'click'; it has x$"),
        ([{**GOOD, "user": [1]}], DataError, "a list: batch 1 is a dict: want "),
        (
            [{**GOOD, "user": torch.ones(2, 3)}],
            DataError,
            "'user' has 3 numbers for each row: name them user_0, user_1",
        ),
        (
            [{k: v for k, v in GOOD.items() if k != "word"}],
            DataError,
            "a list: batch 1: no column 'word'; it has click, x_0",
        ),
        (
            [GOOD, {k: v for k, v in GOOD.items() if k != "word"}, GOOD],
            DataError,
            "a list: batch 2: no column 'word'; it has click, x_0",
        ),
        (
            [pa.table(GOOD), pa.table(GOOD).drop(["seen"]).to_pandas()],
            DataError,
            "a list: batch 2: no column 'seen'; it has click, x_0",
        ),
        (
            [pa.record_batch([*GOOD.values(), [1, 2]], [*GOOD, "user"])],
            DataError,
            "a list: batch 1: has 2 columns called 'user'",
        ),
        ([GOOD, {**GOOD, "user": [b"a", b"b"]}], DataError, "a list: batch 2: column 'user' is binary; want a number"),
        ([{k: v[0] for k, v in GOOD.items()}, {"click": 1}], DataError, "example 2 has other columns than example 1"),
        (
            [{**{k: v[0] for k, v in GOOD.items()}, "user": torch.ones((), dtype=torch.bfloat16)}],
            DataError,
            "a list: batch 1 is a list: want a dict of arrays",
        ),
        ([{1: [2]}], DataError, "no column 'click'; it has 1$"),
        ([], DataError, "no row of a list can be read"),
        ({1: 2}, UsageError, "data is a dict: want FORMAT:PATH, or a table, or batches of one, that Arrow takes"),
    ],
)
def test_what_is_no_batch_is_one_line_and_leaves_no_file(
    given: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        htrain.pack(given, schema=SCHEMA, out=tmp_path / "a.packed")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "a.packed").exists()


class Broken(Dataset[dict[str, Any]]):
    """A dataset of which an example cannot be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == 13:
            raise FileNotFoundError(2, "No such file or directory", "13.png")
        return {**{name: values[0] for name, values in GOOD.items()}, "seen": torch.tensor([1])}


@pytest.mark.parametrize(
    ("given", "number"),
    [(Broken(), 14), (DataLoader(Broken(), batch_size=5), 3), (DataLoader(Broken(), batch_size=5, num_workers=1), 3)],
    ids=["examples", "loader", "worker"],
)
def test_what_the_users_own_code_raises_is_told_as_its_and_leaves_no_file(
    given: Any, number: int, tmp_path: Path
) -> None:
    with pytest.raises(
        DataError, match=rf"^a \w+: batch or example {number} cannot be had: FileNotFoundError: .*13\.png"
    ) as raised:
        htrain.pack(given, schema=SCHEMA, out=tmp_path / "a.packed")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_frame_is_a_table_and_no_stream(table: pa.Table, tmp_path: Path) -> None:
    frame: pd.DataFrame = table.slice(0, 50).to_pandas()
    assert htrain.pack(frame, schema=SCHEMA, out=tmp_path / "a.packed").examples == 50
