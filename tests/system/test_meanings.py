"""Data whose columns are read in another way than those that a run was trained on is refused: a weight or a row would be that of other values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from whole_runs import WIDE_DEEP

import htrain
from htrain.errors import DataError
from htrain.spec.cluster import this_machine

SCHEMA = """\
label: y
inputs:
  dense: {kind: dense, columns: [age, price], missing: [40, 3]}
  sparse: {kind: ids, columns: [user, item], rows: [50, 7]}
  at: {kind: time, column: when, parts: [hour]}
  twice: {kind: ids, columns: [item, item], rows: [7, 5]}
  unread: {kind: ids, columns: [user], rows: 30}
"""
OTHERS = {
    "rows": (("[50, 7]", "[49, 7]"), "input 'sparse' has 'user' as ids modulo 49, and as ids modulo 50 in the data "),
    "order": (
        ("[age, price], missing: [40, 3]", "[price, age], missing: [3, 40]"),
        "input 'dense' has 'price' where 'age' stands in the data ",
    ),
    "order of ids": (("[user, item], rows: [50, 7]", "[item, user], rows: [50, 7]"), "input 'sparse' has 'item' where 'user' stands in"),
    "transform": (
        ("missing: [40, 3]", "missing: [40, 3], transform: log1p"),
        "has 'age' as numbers, log1p, 40 where one is missing, and as numbers, 40 where one is missing in",
    ),
    "missing": (("missing: [40, 3]", "missing: [40, 0]"), "has 'price' as numbers, 0 where one is missing, and as numbers, 3"),
    "a little more": (("missing: [40, 3]", "missing: [40.00001, 3]"), "has 'age' as numbers, 40.00001 where one is missing, and as numbers, 40 where"),
    "zone": (("parts: [hour]", "parts: [hour], zone: Asia/Tokyo"), "input 'at' has 'when.hour' as hour in Asia/Tokyo, and as hour in UTC"),
}  # fmt: skip
SAME = {
    "another name": ("[age, price]", "[years, price]"),
    "another table": ("rows: [50, 7]", "rows: [50, 7], tables: [a, b]"),
    "an input that the model does not read": ("rows: 30", "rows: 31"),
    "another unit": ("parts: [hour]", "parts: [hour], unit: ms"),
}


WIDTHS = {"sparse": 2, "at": 1, "twice": 2}


class Reads(nn.Module):
    """All inputs but one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.fc = nn.EmbeddingBag(50, 1, mode="sum"), nn.Linear(2, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, at: torch.Tensor, twice: torch.Tensor) -> torch.Tensor:
        logit: torch.Tensor = self.fc(dense) + self.rows(torch.cat([sparse, at, twice], 1))
        return logit.squeeze(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on data of such a schema."""
    place = tmp_path_factory.mktemp("meanings")
    draw = np.random.default_rng(0)
    table = {
        "y": draw.integers(0, 2, 300),
        "user": [f"u{k}" for k in draw.integers(0, 40, 300)],
        "item": draw.integers(0, 7, 300),
        "when": draw.integers(0, 10**9, 300),
        **{name: draw.random(300) * 9 for name in ("age", "price", "years")},
    }
    pq.write_table(pa.table(table), place / "a.parquet")
    example = {"dense": torch.zeros(4, 2), **{name: torch.zeros(4, n, dtype=torch.long) for name, n in WIDTHS.items()}}
    plan = htrain.compile(Reads(), data=of(place, SCHEMA), cluster=this_machine(), example_inputs=example)
    plan.save(place / "plan")
    htrain.run(place / "plan", data=of(place, SCHEMA), out=place / "run", hosting="threads", deterministic=True)
    return place


def of(folder: Path, text: str) -> str:
    schema = folder / f"{abs(hash(text))}.yaml"
    if not schema.exists():  # packed data asks whether it was written again
        schema.write_text(text)
    return f"parquet:{folder}/a.parquet?schema={schema}"


USES: dict[str, Callable[[Path, str], Any]] = {
    "eval": lambda folder, data: htrain.evaluate(folder / "run", data=data),
    "predict": lambda folder, data: htrain.predict(folder / "run", data=data, out=folder / "scores.npy"),
    "valid": lambda folder, data: htrain.run(
        folder / "plan", data=of(folder, SCHEMA), valid=data, out=folder / "other", hosting="threads"
    ),
    "begin_with": lambda folder, data: htrain.run(
        folder / "plan", data=data, begin_with=folder / "run", out=folder / "other", hosting="threads"
    ),
}


@pytest.mark.parametrize("use", USES)
def test_columns_that_are_read_in_another_way_are_refused_by_name(use: str, folder: Path) -> None:
    for (before, after), says in OTHERS.values():
        assert before in SCHEMA
        with pytest.raises(DataError) as raised:
            USES[use](folder, of(folder, SCHEMA.replace(before, after)))
        assert says in str(raised.value)
        assert not (folder / "other" / "checkpoints").exists()


@pytest.mark.parametrize("what", SAME)
def test_what_says_nothing_of_values_may_change(what: str, folder: Path) -> None:
    before, after = SAME[what]
    assert before in SCHEMA
    assert htrain.evaluate(folder / "run", data=of(folder, SCHEMA.replace(before, after))).examples == 300


def test_packed_data_is_read_as_what_it_was_packed_from(folder: Path, tmp_path: Path) -> None:
    htrain.pack(of(folder, SCHEMA), out=tmp_path / "a.packed")
    wanted = htrain.evaluate(folder / "run", data=of(folder, SCHEMA))
    assert htrain.evaluate(folder / "run", data=f"packed:{tmp_path}/a.packed").ne == wanted.ne
    (before, after), says = OTHERS["transform"]
    htrain.pack(of(folder, SCHEMA.replace(before, after)), out=tmp_path / "b.packed")
    with pytest.raises(DataError, match=says):
        htrain.evaluate(folder / "run", data=f"packed:{tmp_path}/b.packed")


def test_criteo_has_the_rows_that_it_was_trained_with(tmp_path: Path) -> None:
    line = "1\t" + "3\t" * 13 + "\t".join(["a"] * 26) + "\n"
    (tmp_path / "a.tsv").write_text(line * 40)
    data = f"criteo:{tmp_path}/a.tsv?rows="
    htrain.compile(WIDE_DEEP, data=f"{data}100", cluster=this_machine(), self_check=False).save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=f"{data}100", out=tmp_path / "run", hosting="threads")
    assert htrain.evaluate(tmp_path / "run", data=f"{data}100").examples == 40
    with pytest.raises(
        DataError,
        match="input 'sparse' has 'C1' as ids modulo 50, and as ids modulo 100 in the data that the run was trained on",
    ):
        htrain.evaluate(tmp_path / "run", data=f"{data}50")
