"""A run on data with vocabularies: what is scored with another one is refused, since its values would have others' rows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_runs import WIDE_DEEP

import htrain
from htrain.errors import CheckpointError, DataError
from htrain.spec.cluster import this_machine

SCHEMA = "label: y\ninputs:\n  sparse: {{kind: ids, columns: [user, item], rows: [vocabulary, 7], vocabulary: {}}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on data with a vocabulary, and two others of as many values: one has them in another order, one lies elsewhere."""
    place = tmp_path_factory.mktemp("vocabularies")
    draw = np.random.default_rng(0)
    users = [f"u{k}" for k in draw.integers(0, 12, 400)]
    pq.write_table(pa.table({"y": draw.integers(0, 2, 400), "user": users, "item": range(400)}), place / "a.parquet")
    (place / "s.yaml").write_text(SCHEMA.format("v.parquet"))
    data = f"parquet:{place}/a.parquet?schema={place}/s.yaml"
    htrain.vocabulary(data, out=place / "v.parquet", min_count=2)
    table = pq.read_table(place / "v.parquet")
    pq.write_table(table.take(list(range(len(table)))[::-1]), place / "turned.parquet")
    pq.write_table(table.select(["column", "value"]), place / "moved.parquet")
    for name in ("turned", "moved"):
        (place / f"{name}.yaml").write_text(SCHEMA.format(f"{name}.parquet"))
    (place / "hashed.yaml").write_text(
        f"label: y\ninputs:\n  sparse: {{kind: ids, columns: [user, item], rows: [{2 + len(table)}, 7]}}\n"
    )
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(), self_check=False).save(place / "plan")
    htrain.run(place / "plan", data=data, out=place / "run", hosting="threads", deterministic=True)
    return place


def of_schema(folder: Path, schema: str) -> str:
    return f"parquet:{folder}/a.parquet?schema={folder}/{schema}.yaml"


USES: dict[str, Callable[[Path, str], Any]] = {
    "eval": lambda folder, data: htrain.evaluate(folder / "run", data=data),
    "predict": lambda folder, data: htrain.predict(folder / "run", data=data, out=folder / "scores.npy"),
    "valid": lambda folder, data: htrain.run(
        folder / "plan", data=of_schema(folder, "s"), valid=data, out=folder / "other", hosting="threads"
    ),
    "begin_with": lambda folder, data: htrain.run(
        folder / "plan", data=data, begin_with=folder / "run", out=folder / "other", hosting="threads"
    ),
}


@pytest.mark.parametrize("use", USES)
def test_rows_of_other_values_are_refused_by_their_column(use: str, folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"column sparse\.user has another vocabulary than the data .*: its values would"
    ):
        USES[use](folder, of_schema(folder, "turned"))
    with pytest.raises(DataError, match=r"column sparse\.user has no vocabulary, unlike the data "):
        USES[use](folder, of_schema(folder, "hashed"))


def test_the_same_values_in_another_file_and_packed_are_the_same(folder: Path, tmp_path: Path) -> None:
    wanted = htrain.evaluate(folder / "run", data=of_schema(folder, "s"))
    assert htrain.evaluate(folder / "run", data=of_schema(folder, "moved")) == wanted
    htrain.pack(of_schema(folder, "moved"), out=tmp_path / "a.packed")
    assert htrain.evaluate(folder / "run", data=f"packed:{tmp_path}/a.packed").ne == wanted.ne
    htrain.pack(of_schema(folder, "turned"), out=tmp_path / "b.packed")
    with pytest.raises(DataError, match=r"b\.packed: column sparse\.user has another vocabulary"):
        htrain.evaluate(folder / "run", data=f"packed:{tmp_path}/b.packed")
    with pytest.raises(DataError, match="has other inputs than"):
        htrain.evaluate(folder / "run", data=f"packed:{tmp_path}/a.packed,{tmp_path}/b.packed")


def test_a_run_does_not_go_on_with_a_changed_vocabulary(folder: Path, tmp_path: Path) -> None:
    for name, given in (("a.parquet", "a.parquet"), ("s.yaml", "s.yaml"), ("v.parquet", "turned.parquet")):
        shutil.copy(folder / given, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"was made on other data \('v\.parquet' has "):
        htrain.run(folder / "plan", data=of_schema(tmp_path, "s"), resume=folder / "run", epochs=2, hosting="threads")


def test_a_vocabulary_that_has_outgrown_the_tables_is_refused_before_a_step(folder: Path, tmp_path: Path) -> None:
    (folder / "few.yaml").write_text("label: y\ninputs:\n  sparse: {kind: ids, columns: [user, item], rows: [9, 7]}\n")
    plan = htrain.compile(WIDE_DEEP, data=of_schema(folder, "few"), cluster=this_machine(), self_check=False)
    plan.save(tmp_path / "plan")
    with pytest.raises(
        DataError,
        match=r"the vocabulary of 'sparse' has rows up to 13, '.*user\.weight' has the rows 0 to 8 of it",
    ):
        htrain.run(tmp_path / "plan", data=of_schema(folder, "s"), out=tmp_path / "run", hosting="threads")
    assert not (tmp_path / "run").exists()
