"""Plans that nobody has saved, and tables in memory, as what is compiled, trained, evaluated and predicted; beside the same in files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import nn

import htrain
from htrain.errors import DataError, Error, UsageError
from htrain.executor.record.run_folder import FROM_MEMORY, read_record
from htrain.plan.plan import Plan

USERS, ITEMS, ROWS = 50, 80, 3000
SCHEMA: dict[str, Any] = {
    "label": "click",
    "inputs": {
        "user": {"kind": "ids", "columns": ["user"], "rows": USERS},
        "item": {"kind": "ids", "columns": ["item"], "rows": ITEMS},
        "age": {"kind": "dense", "columns": ["age"]},
    },
}
INPUTS = {
    "user": torch.zeros(4, 1, dtype=torch.int64),
    "item": torch.zeros(4, 1, dtype=torch.int64),
    "age": torch.zeros(4, 1),
}
ALONE = {"groups": 1, "trainers": 1, "group_ps": 0, "sparse_ps": 0, "dense_ps": 0}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users, self.items, self.top = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8), nn.Linear(17, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        """user[B,1], item[B,1], age[B,1]: logit[B,1]."""
        return self.top(torch.cat([self.users(user[:, 0]), self.items(item[:, 0]), age], 1))


def clicks(seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    columns = {"user": random.integers(0, USERS, ROWS), "item": random.integers(0, ITEMS, ROWS)}
    return pa.table({"click": random.integers(0, 2, ROWS), **columns, "age": random.random(ROWS).astype("float32")})


class Examples:
    """A dataset of PyTorch."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = table.to_pylist()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self._rows[place]


def compiled(cluster: dict[str, int], **more: Any) -> Plan:
    given = {"data": clicks(), "schema": SCHEMA, "example_inputs": INPUTS, **more}
    return htrain.compile(Model(), cluster=htrain.Cluster(**cluster), **given)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compiled(ALONE)


@pytest.fixture(scope="module")
def in_files(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as by the command: its plan and data are files."""
    folder = tmp_path_factory.mktemp("files")
    plan.save(folder / "plan")
    pq.write_table(clicks(), folder / "clicks.parquet")
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    data = f"parquet:{folder}/clicks.parquet?schema={folder}/schema.yaml"
    htrain.run(folder / "plan", data=data, out=folder / "run", deterministic=True, hosting="threads")
    return folder


def weights(run: Path, to: Path) -> bytes:
    htrain.export(run, to="torch", out=to)
    return to.read_bytes()


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / FROM_MEMORY).iterdir())


@pytest.mark.parametrize("kind", ["table", "dataset", "dataframe"])
def test_what_is_in_memory_trains_as_what_is_in_files(kind: str, plan: Plan, in_files: Path, tmp_path: Path) -> None:
    data: Any = Examples(clicks()) if kind == "dataset" else clicks()
    if kind == "dataframe":
        data = pytest.importorskip("pandas") and data.to_pandas()
    result = htrain.run(
        plan, data=data, schema=SCHEMA, valid=clicks(1), out=tmp_path / "run", deterministic=True, hosting="threads"
    )
    assert weights(tmp_path / "run", tmp_path / "a.safetensors") == weights(
        in_files / "run", tmp_path / "b.safetensors"
    )
    schema = in_files / "schema.yaml"
    found = htrain.evaluate(tmp_path / "run", data=clicks(1), schema=schema)
    assert (found.auc, found.log_loss) == (result.validations[-1].auc, result.validations[-1].log_loss)
    htrain.predict(tmp_path / "run", data=clicks(), schema=schema, out=tmp_path / "memory.npy")
    data = f"parquet:{in_files}/clicks.parquet?schema={schema}"
    htrain.predict(in_files / "run", data=data, out=tmp_path / "file.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "memory.npy"), np.load(tmp_path / "file.npy"))
    record = read_record(tmp_path / "run")
    assert kept(tmp_path / "run") == sorted(Path(place).parent.name for place in (record.plan, record.data))


def test_the_same_call_goes_on_with_what_is_kept_and_another_cluster_beside_it(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = {"data": clicks(), "schema": SCHEMA, "hosting": "threads"}
    htrain.run(plan, out=run, **given)
    before = kept(run)
    result = htrain.run(plan, resume=run, epochs=2, **given)
    assert result.totals.examples == 2 * ROWS
    assert kept(run) == before
    other = compiled({**ALONE, "trainers": 2, "group_ps": 1, "sparse_ps": 1, "dense_ps": 1})
    result = htrain.run(other, out=run, or_resume=True, epochs=3, **given)
    assert result.totals.examples == 3 * ROWS
    assert len(kept(run)) == len(before) + 1
    with pytest.raises(Error, match="other data"):
        htrain.run(other, resume=run, epochs=4, **{**given, "data": clicks(2)})
    assert len(kept(run)) == len(before) + 1
    seen = result.curves
    assert seen.examples[-1] == 3 * ROWS
    assert len(seen.loss) == len(seen.seconds) > 1
    assert (np.diff(seen.seconds) >= 0).all()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"schema": ""}, "run: a Table needs schema=: a schema file"),
    "a number": ({"data": 5}, "run: data: is a int, want FORMAT:PATH, or a table"),
    "nothing": ({"data": None}, "run: data: is a NoneType, want FORMAT:PATH"),
    "a schema too many": ({"data": "csv:clicks.csv"}, "run: schema= has no effect beside FORMAT:PATH"),
    "ranks": ({"hosting": "mpi"}, "run: under mpiexec each rank would have a plan and data of its own: save them once"),
    "no column": ({"data": clicks().drop_columns(["age"])}, "a Table in memory: no column 'age'"),
    "a validation": ({"valid": clicks().drop_columns(["age"])}, "a Table in memory: no column 'age'"),
    "another run": ({"begin_with": "nowhere"}, "nowhere: no such run folder"),
    "an address": ({"out": "runs/[b]"}, "an address of data cannot have a '[': name another folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_nothing(case: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changed, said = REFUSED[case]
    given = {"data": clicks(), "schema": SCHEMA, "out": "runs/a", "hosting": "threads", **changed}
    with pytest.raises(Error, match=re.escape(said)):
        htrain.run(plan, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_else_stays_as_it_is(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is no run"):
        htrain.run(plan, data=clicks(), schema=SCHEMA, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_data_that_does_not_fit_a_model_is_refused_when_it_is_compiled() -> None:
    other = {**SCHEMA, "inputs": {name: SCHEMA["inputs"][name] for name in ("user", "item")}}
    with pytest.raises(DataError, match="age"):
        compiled(ALONE, schema=other)
    with pytest.raises(UsageError, match="compile: schema= has no effect"):
        compiled(ALONE, data="")
