"""Scores of a run: a row for each row of the data, in its order, in a file that is whole or not there."""

import random
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from taken_out import trained

import htrain
from htrain.data import open_data
from htrain.data.evaluation import auc
from htrain.data.ranking import Grouping, ranking
from htrain.errors import CheckpointError, DataError, Error, UsageError
from htrain.executor.launch import forward
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[3] / "models" / "wide_deep.py")


def libfm(path: Path, rows: int, *, seed: int = 0, bad: tuple[int, ...] = ()) -> str:
    draw = random.Random(seed)
    lines = [f"{draw.choice((1, -1))} " + " ".join(f"{draw.randrange(20)}:1" for _ in range(3)) for _ in range(rows)]
    for row in bad:
        lines[row] = "no such row"
    path.write_text("\n".join(lines) + "\n")
    return f"libfm:{path}?rows=20"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = libfm(folder / "train.libfm", 200)
    cluster = this_machine(group_ps=1, sparse_ps=1)
    plan = htrain.compile(MODEL, data=data, cluster=cluster, options=with_flags(batch_size=20), solver="rules")
    return trained(plan, data, folder)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.suffix == ".npy":
        found = np.load(path)
        return found["score"], found["label"]
    table = pq.read_table(path) if path.suffix == ".parquet" else pa_csv.read_csv(path)
    assert table.column_names == ["score", "label"]
    return table["score"].to_numpy().astype(np.float32), table["label"].to_numpy().astype(np.float32)


def test_scores_are_in_the_order_of_the_rows_whatever_the_batches_and_the_format(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = libfm(tmp_path / "a.libfm", 150, seed=1)
    said = htrain.predict(run, data=data, out=tmp_path / "whole.npy")
    scores, labels = read(tmp_path / "whole.npy")
    assert (said.examples, said.scores, said.path) == (150, "probabilities", tmp_path / "whole.npy")
    assert said.mean_score == pytest.approx(scores.mean(), rel=1e-6)
    assert labels.tolist() == [float(line.startswith("1 ")) for line in (tmp_path / "a.libfm").read_text().splitlines()]
    monkeypatch.setattr(forward, "_BATCH", 7)
    for form in ("npy", "parquet", "csv"):
        htrain.predict(run, data=data, out=tmp_path / f"batches.{form}")
        found = read(tmp_path / f"batches.{form}")
        np.testing.assert_allclose(found[0], scores, rtol=0, atol=1e-6)
        assert np.array_equal(found[1], labels)
    assert (tmp_path / "batches.csv").read_text().startswith("score,label\n0.")


def test_scores_and_what_is_evaluated_do_not_depend_on_the_workers_and_the_callers_settings_stay(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, before = libfm(tmp_path / "a.libfm", 150, seed=1), (torch.get_num_threads(), sys.getswitchinterval())
    monkeypatch.setattr(forward, "_BATCH", 7)
    found = []
    for workers in (1, 2, 5):
        htrain.predict(run, data=data, out=tmp_path / f"{workers}.npy", workers=workers)
        found.append((htrain.evaluate(run, data=data, workers=workers), (tmp_path / f"{workers}.npy").read_bytes()))
    assert found[0] == found[1] == found[2]
    assert (torch.get_num_threads(), sys.getswitchinterval()) == before
    assert not [each for each in threading.enumerate() if each.name.startswith("score")]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_ends_scoring_ends_its_workers(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(forward, "_BATCH", 7)
    with pytest.raises(DataError, match=r"bad\.libfm:101: "):
        htrain.predict(
            run, data=libfm(tmp_path / "bad.libfm", 150, bad=(100,)), out=tmp_path / "s.npy", workers=workers
        )
    assert not (tmp_path / "s.npy").exists()

    def fails(*given: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(forward, "_scored", fails)
    with pytest.raises(MemoryError):
        htrain.evaluate(run, data=libfm(tmp_path / "a.libfm", 150), workers=workers)
    assert not [each for each in threading.enumerate() if each.name.startswith("score")]


def test_scores_are_those_that_evaluation_is_of(run: Path, tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 150, seed=1)
    htrain.predict(run, data=data, out=tmp_path / "a.npy")
    score, label = (torch.from_numpy(column.copy()) for column in read(tmp_path / "a.npy"))
    found = htrain.evaluate(run, data=data)
    loss = torch.nn.functional.binary_cross_entropy(score, label).item()
    assert loss == pytest.approx(found.log_loss, rel=1e-5)
    assert auc(score.numpy(), label.numpy()) == pytest.approx(found.auc, abs=1e-6)


def test_rankings_are_those_of_the_scores_within_the_values_of_a_column(run: Path, tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 150, seed=1)
    htrain.predict(run, data=data, out=tmp_path / "a.npy")
    score, label = read(tmp_path / "a.npy")
    second = [int(line.split()[2].split(":")[0]) for line in (tmp_path / "a.libfm").read_text().splitlines()]
    column = open_data(data).schema.input("sparse").columns[1]
    for name in (column, f"sparse.{column}"):
        found = htrain.evaluate(run, data=data, group_by=name, top=3).ranking
        assert found
        wanted = ranking(np.array(second), score, label, Grouping(name, 3))
        assert found.group_by == name
        assert [*asdict(found).values()][:6] == pytest.approx([*asdict(wanted).values()][:6], abs=1e-9)
        assert (found.all_groups, found.examples) == (wanted.all_groups, wanted.examples)
    found = htrain.evaluate(run, data=data)
    assert found.ranking is None
    assert found.calibration == pytest.approx(score.mean() / label.mean(), rel=1e-5)


def test_a_column_that_is_none_is_refused(run: Path, tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 30)
    with pytest.raises(
        UsageError, match=r"^--group-by: 'user' is no column of one value for each example; the data has "
    ):
        htrain.evaluate(run, data=data, group_by="user")
    with pytest.raises(UsageError, match=r"^--top 5 has no effect without --group-by"):
        htrain.evaluate(run, data=data, top=5)


def test_evaluation_says_how_many_malformed_rows_it_leaves_out_and_where(run: Path, tmp_path: Path) -> None:
    found = htrain.evaluate(run, data=libfm(tmp_path / "a.libfm", 150, seed=1, bad=(7, 30)))
    assert (found.examples, found.malformed) == (148, 2)
    assert found.malformed_example.startswith(f"{tmp_path / 'a.libfm'}:8: ")
    whole = htrain.evaluate(run, data=libfm(tmp_path / "whole.libfm", 150, seed=1))
    assert (whole.malformed, whole.malformed_example) == (0, "")


def test_the_positive_rate_is_that_of_the_labels(run: Path, tmp_path: Path) -> None:
    found = htrain.evaluate(run, data=libfm(tmp_path / "a.libfm", 150, seed=1))
    ones = sum(line.startswith("1 ") for line in (tmp_path / "a.libfm").read_text().splitlines())
    assert found.positive_rate == ones / 150


def test_only_an_older_file_of_scores_is_replaced(run: Path, tmp_path: Path) -> None:
    long, short = libfm(tmp_path / "long.libfm", 30), libfm(tmp_path / "short.libfm", 20)
    for data, rows in ((long, 30), (short, 20)):
        htrain.predict(run, data=data, out=tmp_path / "s.parquet")
        assert len(read(tmp_path / "s.parquet")[0]) == rows
    for name in ("mine.parquet", "mine.csv", "mine.npy"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(DataError, match=f"{name}: (is there already, and a|cannot be written: it holds something)"):
            htrain.predict(run, data=short, out=tmp_path / name)
        assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("form", ["npy", "parquet", "csv"])
def test_a_malformed_row_is_named_and_leaves_no_file(
    form: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_BATCH", 7)
    data, out = libfm(tmp_path / "a.libfm", 50, bad=(40,)), tmp_path / "out"
    out.mkdir()
    with pytest.raises(DataError, match=r"a\.libfm:41: .*: every row is to have its score: mend the row"):
        htrain.predict(run, data=data, out=out / f"s.{form}")
    assert list(out.iterdir()) == []


BAD = {
    "scores go to a file whose name ends in .parquet, .csv, .npy": ("s.txt", UsageError, {}),
    "no/s.npy: cannot be written": ("no/s.npy", DataError, {}),
    "'group:²': want center, or group:N with N below 1": ("s.npy", CheckpointError, {"replica": "group:²"}),
    "'group:1': want center, or group:N with N below 1": ("s.npy", CheckpointError, {"replica": "group:1"}),
    "the plan wants input 'sparse' as int64": ("s.npy", DataError, {"data": "synthetic:?rows=10"}),
}


@pytest.mark.parametrize("says", BAD)
def test_what_cannot_be_written_or_read_is_refused(says: str, run: Path, tmp_path: Path) -> None:
    name, kind, asked = BAD[says]
    data = libfm(tmp_path / "a.libfm", 10)
    with pytest.raises(Error, match=says) as refusal:
        htrain.predict(run, out=tmp_path / name, **{"data": data, **asked})
    assert type(refusal.value) is kind
    assert [path.name for path in tmp_path.iterdir()] == ["a.libfm"]
