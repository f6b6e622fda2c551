"""What hashing does to a column: the report against plain Python, exact and from a sample of the rows."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import htrain
from htrain.errors import DataError


def fnv(word: str) -> int:
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def shares(counts: Counter[str], rows: int) -> tuple[float, float]:
    """Of the different values, and of all that come, the shares of those that share a row."""
    there = Counter(fnv(word) % rows for word in counts)
    sharing = [word for word in counts if there[fnv(word) % rows] > 1]
    return len(sharing) / len(counts), sum(counts[word] for word in sharing) / sum(counts.values())


def words(count: int, distinct: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [f"w{k}" for k in np.minimum(draw.geometric(3 / distinct, count), distinct)]


def written(folder: Path, found: list[str], rows: int) -> str:
    columns = {"y": [1] * len(found), "word": found, "number": range(len(found))}
    pq.write_table(pa.table(columns), folder / "a.parquet")
    (folder / "s.yaml").write_text(
        f"label: y\ninputs: {{s: {{kind: ids, columns: [word, number], rows: [{rows}, {len(found)}]}}}}\n"
    )
    return f"parquet:{folder}/a.parquet?schema={folder}/s.yaml"


def test_values_that_share_rows_are_counted(tmp_path: Path) -> None:
    found = words(20_000, 700)
    told = htrain.collisions(written(tmp_path, found, 1000))
    word, number = told.columns
    assert (told.examples, word.distinct, word.sampled, number.sampled) == (20_000, len(set(found)), 1.0, 1.0)
    assert (word.sharing, word.examples_sharing) == pytest.approx(shares(Counter(found), 1000))
    assert word.sharing > 0.2
    assert shares(Counter(found), word.enough_rows)[0] < 0.01
    assert word.enough_rows > 1000
    assert (number.distinct, number.sharing, number.enough_rows) == (20_000, 0.0, 20_000)


def test_beyond_the_values_that_are_held_a_sample_of_rows_tells_about_the_same(tmp_path: Path) -> None:
    found = words(60_000, 20_000)
    exact, _ = htrain.collisions(written(tmp_path, found, 30_000)).columns
    about, number = htrain.collisions(written(tmp_path, found, 30_000), most_values=2000).columns
    assert (exact.sampled, exact.distinct) == (1.0, len(set(found)))
    assert about.sampled <= 1 / 8
    assert about.distinct == pytest.approx(exact.distinct, rel=0.15)
    assert about.sharing == pytest.approx(exact.sharing, rel=0.2)
    assert about.examples_sharing == pytest.approx(exact.examples_sharing, rel=0.25)
    assert about.enough_rows == pytest.approx(100 * exact.distinct, rel=0.2)
    assert (number.sampled, number.sharing) == (1 / 32, 0.0)
    assert number.enough_rows == pytest.approx(60_000, rel=0.01)


def test_a_column_with_a_vocabulary_shares_nothing_and_is_said(tmp_path: Path) -> None:
    uri = written(tmp_path, ["a", "b", "a"], 10)
    htrain.vocabulary(uri, out=tmp_path / "v.parquet", columns=["word"])
    (tmp_path / "s.yaml").write_text(
        "label: y\ninputs: {s: {kind: ids, columns: [word, number], rows: [vocabulary, 2], vocabulary: v.parquet}}\n"
    )
    told = htrain.collisions(uri)
    assert told.listed == ("word",)
    assert [(each.column, each.sharing) for each in told.columns] == [("number", 2 / 3)]
    with pytest.raises(DataError, match="column 'word' has a vocabulary"):
        htrain.collisions(uri, columns=["word"])
