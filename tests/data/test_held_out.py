"""Parts that are held out: each row in one of them, whatever the format, the order and the number of readers."""

import csv
import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.data import START, Batch, Malformed, open_data
from htrain.data.identity import identity_of
from htrain.errors import DataError

YAML = """label: click
inputs:
  dense: {kind: dense, columns: [age]}
  sparse: {kind: ids, columns: [user, word], rows: [500, 300]}
  tags: {kind: bag, column: tags, rows: 50}
"""
COUNT = 3000
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in many forms; `age` tells one from another."""
    place = tmp_path_factory.mktemp("held_out")
    draw = random.Random(0)
    rows = [
        (draw.randrange(2), age, draw.randrange(10**6), draw.choice("abcdef"), [draw.randrange(50) for _ in range(draw.randrange(4))])
        for age in range(COUNT)
    ]  # fmt: skip
    (place / "s.yaml").write_text(YAML)
    with (place / "a.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "age", "user", "word", "tags"])
        writer.writerows([*row[:4], " ".join(map(str, row[4]))] for row in rows)
    (place / "a.csv.gz").write_bytes(gzip.compress((place / "a.csv").read_bytes()))

    def table(some: list[Row]) -> pa.Table:
        return pa.table(
            dict(zip(("click", "age", "user", "word", "tags"), map(list, zip(*some, strict=True)), strict=True))
        )

    pq.write_table(table(rows), place / "a.parquet", row_group_size=700)
    pq.write_table(table(rows[::-1]), place / "backwards.parquet")
    (place / "many").mkdir()
    for number in range(3):
        pq.write_table(table(rows[number * 1000 : (number + 1) * 1000]), place / "many" / f"{number}.parquet")
    htrain.pack(f"parquet:{place}/a.parquet?schema={place}/s.yaml", out=place / "a.packed")
    return place


FORMS = ("csv:{}/a.csv?schema={}/s.yaml&", "csv:{}/a.csv.gz?schema={}/s.yaml&", "parquet:{}/a.parquet?schema={}/s.yaml&",
         "parquet:{}/many?schema={}/s.yaml&", "packed:{}/a.packed?", "parquet:{}/backwards.parquet?schema={}/s.yaml&")  # fmt: skip


def batches(uri: str, *, shards: int = 1, loss: str = "") -> list[Batch]:
    dataset = open_data(uri).for_loss(loss)
    return [
        batch
        for shard in range(shards)
        for batch in dataset.batches(batch_size=256, shard=shard, num_shards=shards, epochs=1, start=START, malformed=Malformed())
    ]  # fmt: skip


def ages(uri: str, *, shards: int = 1) -> list[int]:
    found = batches(uri, shards=shards)
    return np.concatenate([b.columns["dense"][:, 0] for b in found]).astype(int).tolist() if found else []


def uri_of(form: str, folder: Path, options: str) -> str:
    return form.replace("{}", str(folder)) + options


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(share=st.sampled_from(["0.1", "0.25", "0.5", "0.9", "1e-2"]), shards=st.integers(1, 5))
def test_each_row_is_in_one_part_and_the_same_one_in_any_form(folder: Path, form: str, share: str, shards: int) -> None:
    parts = [ages(uri_of(form, folder, f"test={share}&part={part}"), shards=shards) for part in ("train", "test")]
    assert sorted(parts[0] + parts[1]) == list(range(COUNT))
    assert abs(len(parts[1]) - COUNT * float(share)) < 5 * (COUNT * float(share) * (1 - float(share))) ** 0.5
    reference = ages(uri_of(FORMS[0], folder, f"test={share}&part=test"))
    assert sorted(parts[1]) == reference
    if shards == 1 and form != FORMS[-1]:
        assert parts[1] == reference
        assert parts[0] == sorted(parts[0])


def test_what_is_not_said_to_be_tested_is_trained_on(folder: Path) -> None:
    assert ages(uri_of(FORMS[0], folder, "test=0.3")) == ages(uri_of(FORMS[0], folder, "test=0.3&part=train"))
    one, other = (set(ages(uri_of(FORMS[0], folder, f"test={share}&part=test"))) for share in ("0.1", "0.3"))
    assert one < other


def test_all_columns_of_a_part_are_those_that_the_whole_has_for_the_same_rows(folder: Path) -> None:
    whole = {int(b.columns["dense"][0, 0]): b for b in _single(uri_of(FORMS[2], folder, ""))}
    for batch in _single(uri_of(FORMS[2], folder, "test=0.02&part=test")):
        wanted = whole[int(batch.columns["dense"][0, 0])]
        for name, column in batch.columns.items():
            np.testing.assert_array_equal(column, wanted.columns[name])


def _single(uri: str) -> list[Batch]:
    found = open_data(uri.rstrip("&?"))
    return list(found.batches(batch_size=1, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_reader_goes_on_from_any_batch(folder: Path, shards: int) -> None:
    dataset = open_data(uri_of(FORMS[2], folder, "test=0.3&part=test"))
    for shard in range(shards):

        def read(start: Any, shard: int = shard) -> list[Batch]:
            return list(dataset.batches(batch_size=50, shard=shard, num_shards=shards, epochs=2, start=start, malformed=Malformed()))  # fmt: skip

        whole = read(START)
        for k, batch in enumerate(whole):
            rest = read(batch.position)
            assert [b.columns["dense"].tolist() for b in rest] == [b.columns["dense"].tolist() for b in whole[k + 1 :]]


def test_rows_that_are_alike_are_in_one_part(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("label: y\ninputs: {ids: {kind: ids, columns: [u], rows: 1000}}\n")
    lines = [f"{label},{u}" for u in range(200) for label in (0, 1, 1)]
    random.Random(0).shuffle(lines)
    (tmp_path / "a.csv").write_text("y,u\n" + "\n".join(lines) + "\n")
    uri = f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml&test=0.4&part="
    users = [set(np.concatenate([b.columns["ids"][:, 0] for b in batches(uri + part)])) for part in ("train", "test")]
    assert not users[0] & users[1]
    assert len(users[0] | users[1]) == 200


def test_a_label_that_cannot_be_trained_on_is_named_by_its_line(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "a.csv").read_text().splitlines()
    wrong = ages(uri_of(FORMS[0], folder, "test=0.2&part=test"))[57]
    lines[wrong + 1] = "7" + lines[wrong + 1][1:]
    (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
    uri = f"csv:{tmp_path}/b.csv?schema={folder}/s.yaml&test=0.2&part="
    for shards in (1, 2):
        with pytest.raises(DataError, match=rf"b\.csv:{wrong + 2}: the label is 7"):
            batches(uri + "test", shards=shards, loss="bce")
    assert not [b for b in batches(uri + "train", loss="bce") if 7 in b.columns["label"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("test=0", "option test=0: want a share above 0 and below 1"),
        ("test=nan", "option test=nan: want a share above 0 and below 1"),
        ("test=10%", "option test=10%: want a share"),
        ("test=1.5", "option test=1.5: want a share"),
        ("test=0.1&part=valid", "option part=valid: want train or test"),
        ("part=test", "option part=test: has no effect without test=SHARE"),
        ("share=0.1", r"unknown option 'share'; parquet takes schema, test, test_from, test_until, part"),
    ],
)
def test_what_makes_no_sense_is_one_line(folder: Path, options: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(uri_of(FORMS[2], folder, options))


def test_a_part_without_rows_is_said(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("label: y\ninputs: {ids: {kind: ids, columns: [u], rows: 1000}}\n")
    (tmp_path / "a.csv").write_text("y,u\n1,5\n")
    with pytest.raises(DataError, match=r"a\.csv \(part test of test=1e-06\): holds no rows"):
        batches(f"csv:{tmp_path}/a.csv?schema={tmp_path}/s.yaml&test=0.000001&part=test")


def test_chunks_in_which_no_row_can_be_read_are_passed_by(folder: Path, tmp_path: Path) -> None:
    bad = range(700, 1400)  # a row group of its own
    table = pq.read_table(folder / "a.parquet")
    click = pa.array([9e99 if row in bad else label for row, label in enumerate(table["click"].to_pylist())])
    pq.write_table(table.set_column(0, "click", click), tmp_path / "b.parquet", row_group_size=700)
    htrain.pack(f"parquet:{tmp_path}/b.parquet?schema={folder}/s.yaml", out=tmp_path / "b.packed", malformed_share=0.5)
    for uri in (f"parquet:{tmp_path}/b.parquet?schema={folder}/s.yaml&", f"packed:{tmp_path}/b.packed?"):
        dataset = open_data(uri + "test=0.5&part=test")
        found = list(dataset.batches(batch_size=256, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed(0.5)))  # fmt: skip
        seen = np.concatenate([b.columns["dense"][:, 0] for b in found]).astype(int).tolist()
        assert seen == [age for age in ages(uri_of(FORMS[2], folder, "test=0.5&part=test")) if age not in bad]


def test_data_of_another_part_is_other_data(folder: Path) -> None:
    one, other = (identity_of(uri_of(FORMS[2], folder, f"test=0.1&part={part}")) for part in ("train", "test"))
    assert one.difference(other) == "its option part is test now, it was train"
