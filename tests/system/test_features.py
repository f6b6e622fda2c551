"""From rows with strings, lists and missing values to the scores of a server: trained, exported, and asked with what `htrain.features` makes of new rows."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.errors import DataError, UsageError

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
SCHEMA: dict[str, Any] = {
    "label": "click",
    "inputs": {
        "dense": {"kind": "dense", "columns": ["age", "price"], "transform": "log1p"},
        "sparse": {"kind": "ids", "columns": ["user", "city"], "rows": [50, 30]},
        "history": {"kind": "padded", "column": "seen", "length": 4, "rows": 40},
        "tags": {"kind": "bag", "column": "tags", "rows": 20, "width": 2},
    },
}
MODEL = """
import torch
from torch import nn


class Interest(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.city, self.item = nn.Embedding(50, 4), nn.Embedding(30, 4), nn.Embedding(40, 4)
        self.tags = nn.EmbeddingBag(20, 4, mode="sum")
        self.score = nn.Linear(8, 1)
        self.top = nn.Sequential(nn.Linear(18, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, dense, sparse, history, history_length, tags, tags_offsets):
        user, seen = self.user(sparse[:, 0]), self.item(history)
        scores = self.score(torch.cat([user[:, None].expand_as(seen), seen], -1)).squeeze(-1)
        mask = torch.arange(history.size(1))[None] < history_length[:, None]
        interest = (torch.softmax(scores.masked_fill(~mask, -1e9), 1)[..., None] * seen).sum(1)
        features = [dense, user, self.city(sparse[:, 1]), interest, self.tags(tags, tags_offsets)]
        return self.top(torch.cat(features, 1))


def build(schema):
    return Interest()
"""


def table(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)

    def lists(words: list[str]) -> list[list[str] | None]:
        return [None if size > 5 else draw.choice(words, size).tolist() for size in draw.integers(0, 7, count)]

    return pa.table({
        "click": draw.integers(0, 2, count),
        "age": [None if age > 80 else float(age) for age in draw.integers(0, 99, count)],
        "price": draw.uniform(-1, 50, count),
        "user": draw.choice(["anna", "béla", "17", "-3", "", None, "9" * 25], count),
        "city": [None if city > 90 else city for city in draw.integers(-50, 99, count).tolist()],
        "seen": pa.array(lists(["a", "12", "long name", ""]), pa.list_(pa.string())),
        "tags": pa.array(lists(["x", "y", "7"]), pa.list_(pa.string())),
    })  # fmt: skip


def test_a_server_scores_as_htrain_does(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "schema.yaml").write_text(str(SCHEMA))  # JSON of strings and numbers, which YAML is, too
    pq.write_table(table(600, 0), tmp_path / "train.parquet")
    new = table(300, 1)
    pq.write_table(new, tmp_path / "new.parquet")
    train, scored = (f"parquet:{tmp_path}/{name}.parquet?schema={tmp_path}/schema.yaml" for name in ("train", "new"))
    cluster = htrain.Cluster(groups=1, trainers=1, group_ps=0, dense_ps=0, sparse_ps=2)
    plan = htrain.compile(
        str(tmp_path / "model.py"), data=train, cluster=cluster, options=htrain.Options(batch_size=32)
    )
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=train, out=tmp_path / "run", hosting="threads", epochs=2)
    htrain.predict(tmp_path / "run", data=scored, out=tmp_path / "scores.npy")
    htrain.export(tmp_path / "run", to="onnx", out=tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    wanted = np.load(tmp_path / "scores.npy")["score"]
    asked = new.drop(["click"])
    for schema in (SCHEMA, tmp_path / "schema.yaml"):
        (seen,) = session.run(["score"], htrain.features(asked, schema=schema))
        np.testing.assert_allclose(seen.ravel(), wanted, rtol=1e-5, atol=1e-6)
    (one,) = session.run(["score"], htrain.features(asked.slice(7, 1), schema=SCHEMA))
    np.testing.assert_allclose(one.ravel(), wanted[7:8], rtol=1e-5, atol=1e-6)


WORDS = st.one_of(
    st.none(), st.text(), st.integers(-(10**20), 10**20).map(str), st.from_regex(r"-?[0-9]{0,3}", fullmatch=True)
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(words=st.lists(WORDS, max_size=9), rows=st.integers(1, 2**40))  # fmt: skip
def test_rows_of_text_are_those_of_the_rule_in_the_docs(words: list[str | None], rows: int) -> None:
    schema = {"label": "y", "inputs": {"ids": {"kind": "ids", "columns": ["word"], "rows": rows}}}
    seen = htrain.features(pa.table({"word": pa.array(words, pa.string())}), schema=schema)["ids"]
    assert seen.dtype == np.int64
    assert seen[:, 0].tolist() == [row_of()(word, rows) for word in words]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=9), rows=st.integers(1, 2**40))
def test_rows_of_whole_numbers_are_those_of_the_rule_in_the_docs(numbers: list[int | None], rows: int) -> None:
    schema = {"label": "y", "inputs": {"ids": {"kind": "ids", "columns": ["number"], "rows": rows}}}
    seen = htrain.features(pa.table({"number": pa.array(numbers, pa.int64())}), schema=schema)["ids"]
    assert seen[:, 0].tolist() == [row_of()(number, rows) for number in numbers]


def test_rows_of_truth_values_are_those_of_the_rule_in_the_docs(tmp_path: Path) -> None:
    pq.write_table(pa.table({"column": ["a"] * 2, "value": ["x", "true"]}), tmp_path / "v.parquet")
    listed = {"kind": "ids", "columns": ["a"], "vocabulary": str(tmp_path / "v.parquet")}
    inputs = {"hashed": {"kind": "ids", "columns": ["a"], "rows": 1009}, "listed": listed}
    values = [True, False, None]
    seen = htrain.features(pa.table({"a": values}), schema={"label": "y", "inputs": inputs})
    assert seen["hashed"][:, 0].tolist() == [row_of()(value, 1009) for value in values]
    assert seen["listed"][:, 0].tolist() == [row_of("listed_row_of")(value, ["x", "true"]) for value in values]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(kept=st.lists(WORDS.filter(bool), min_size=1, max_size=9, unique=True), words=st.lists(WORDS, max_size=9))
def test_rows_of_a_vocabulary_are_those_of_the_rule_in_the_docs(
    kept: list[str], words: list[str | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("vocabulary") / "v.parquet"
    pq.write_table(pa.table({"column": ["word"] * len(kept), "value": kept}), file)
    schema = {"label": "y", "inputs": {"ids": {"kind": "ids", "columns": ["word"], "vocabulary": str(file)}}}
    seen = htrain.features(pa.table({"word": pa.array([*words, *kept], pa.string())}), schema=schema)["ids"]
    assert seen[:, 0].tolist() == [row_of("listed_row_of")(word, kept) for word in [*words, *kept]]


def row_of(name: str = "row_of") -> Any:
    """The function that the page shows."""
    code = DOCS.read_text().split(f"```python\n# {name}.py\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    return found[name]


def test_a_table_of_no_rows_has_inputs_of_none() -> None:
    seen = htrain.features(table(0, 0), schema=SCHEMA)
    assert {name: values.shape for name, values in seen.items()} == {
        "dense": (0, 2), "sparse": (0, 2), "history": (0, 4), "history_length": (0,), "tags": (0,), "tags_offsets": (0,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "schema", "error", "message"),
    [
        (17, SCHEMA, UsageError, "features: data is a int: want a table that Arrow takes"),
        (table(3, 0), "", UsageError, "features: a Table needs schema="),
        (table(3, 0).drop(["user"]), SCHEMA, DataError, "a Table in memory: no column 'user'"),
        (table(3, 0).set_column(1, "age", pa.array(["1", "old", "x"])), SCHEMA, DataError, "a Table in memory: row 2: column 'age' is not a number"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(data: Any, schema: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        htrain.features(data, schema=schema)
    assert "\n" not in str(raised.value)


def test_labels_are_not_looked_at() -> None:
    new = table(5, 0)
    wanted = htrain.features(new, schema=SCHEMA)
    for labels in (["a", None, "b", "c", "d"], [None] * 5):
        seen = htrain.features(new.set_column(0, "click", pa.array(labels)), schema=SCHEMA)
        assert all((seen[name] == values).all() for name, values in wanted.items())
