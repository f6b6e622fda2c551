"""Labels that a loss does not take are refused where they stand, in every format."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from htrain.data import START, Malformed, open_data
from htrain.data.labels import as_taken, first_outside
from htrain.data.pack import pack
from htrain.errors import DataError

ROWS, PLACE = 3000, 1234  # the row, from 0, whose label is another
SCHEMA = "label: y\ninputs:\n  d: {kind: dense, columns: [a]}\n"
Write = Callable[[Path, list[str]], tuple[str, str]]


def labels(other: str, place: int = PLACE) -> list[str]:
    return [other if i == place else str(i % 2) for i in range(ROWS)]


def criteo(folder: Path, found: list[str]) -> tuple[str, str]:
    """With a line before that cannot be read, and a blank one."""
    (folder / "a.tsv").write_text("oops\n\n" + "".join(f"{y}{chr(9) * 39}\n" for y in found))
    return f"criteo:{folder}/a.tsv", f"{folder}/a.tsv:{PLACE + 3}"


def compressed(folder: Path, found: list[str]) -> tuple[str, str]:
    text = "".join(f"{y}{chr(9) * 39}\n" for y in found)
    (folder / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return f"criteo:{folder}/a.tsv.gz", f"{folder}/a.tsv.gz:{PLACE + 1}"


def libfm(folder: Path, found: list[str]) -> tuple[str, str]:
    (folder / "a.libfm").write_text("no 1:1\n" + "".join(f"{y} {i % 7}:1\n" for i, y in enumerate(found)))
    return f"libfm:{folder}/a.libfm", f"{folder}/a.libfm:{PLACE + 2}"


def csv(folder: Path, found: list[str]) -> tuple[str, str]:
    (folder / "s.yaml").write_text(SCHEMA)
    (folder / "a.csv").write_text("y,a\n1,x\n" + "".join(f"{y},3\n" for y in found))
    return f"csv:{folder}/a.csv?schema={folder}/s.yaml", f"{folder}/a.csv:{PLACE + 3}"


def parquet(folder: Path, found: list[str]) -> tuple[str, str]:
    (folder / "s.yaml").write_text(SCHEMA)
    pq.write_table(
        pa.table({"y": [None, *map(float, found)], "a": [1.0] * (ROWS + 1)}), folder / "a.parquet", row_group_size=700
    )
    return f"parquet:{folder}/a.parquet?schema={folder}/s.yaml", f"{folder}/a.parquet: row {PLACE + 2}"


def packed(folder: Path, found: list[str]) -> tuple[str, str]:
    pack(libfm(folder, found)[0], folder / "p", malformed=Malformed())
    return f"packed:{folder}/p", f"{folder}/p: row {PLACE + 1}"


FORMATS: tuple[Write, ...] = (criteo, compressed, libfm, csv, parquet, packed)


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_label_of_two_is_refused_under_bce_with_its_place(
    write: Write, num_shards: int, tmp_path: Path, read
) -> None:
    uri, place = write(tmp_path, labels("2"))
    said = []
    for shard in range(num_shards):
        try:
            read(uri, shard=shard, num_shards=num_shards)
        except DataError as error:
            said.append(str(error))
    assert said == [
        f"{place}: the label is 2, but the bce loss takes labels from 0 to 1, and -1 for 0: write them so, or compile with --loss mse"
    ]


@pytest.mark.parametrize("write", FORMATS)
def test_mse_takes_any_number(write: Write, tmp_path: Path, read) -> None:
    uri, _ = write(tmp_path, labels("2"))
    assert (2.0,) in [part for example in read(uri, loss="mse") for part in example]


@pytest.mark.parametrize("write", [libfm, csv, parquet, packed])
def test_minus_one_is_zero_under_bce_and_itself_under_mse(write: Write, tmp_path: Path) -> None:
    uri, _ = write(tmp_path, labels("-1"))
    batches = {loss: all_labels(uri, loss) for loss in ("bce", "mse")}
    assert {loss: found.min() for loss, found in batches.items()} == {"bce": 0.0, "mse": -1.0}
    assert (batches["mse"] == -1).sum() == 1


def all_labels(uri: str, loss: str) -> np.ndarray:
    batches = (
        open_data(uri)
        .for_loss(loss)
        .batches(batch_size=64, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    )
    return np.concatenate([batch.columns["label"] for batch in batches])


@pytest.mark.parametrize("loss", ["bce", "mse", ""])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_no_label(loss: str, value: float) -> None:
    label = np.array([0, 1, 0, value, 1], np.float32)
    assert first_outside(as_taken(label, loss), loss) == 3
    assert first_outside(label[:3], loss) is None


def test_labels_between_zero_and_one_are_taken() -> None:
    label = np.array([0.25, -1, 1], np.float32)
    taken = as_taken(label, "bce")
    assert taken.tolist() == [0.25, 0.0, 1.0]
    assert label.tolist() == [0.25, -1.0, 1.0]
    assert first_outside(taken, "bce") is None
    assert first_outside(np.array([0.5, 1.5], np.float32), "bce") == 1
