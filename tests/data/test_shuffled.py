"""Shuffled data: the same rows, within their windows, in another order that can be gone on with anywhere."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.data import START, Malformed, open_data
from htrain.errors import DataError

Read = Callable[..., list[tuple[Any, ...]]]
ROWS = 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file, three of its thirds, and a packed one, of numbered rows with lists."""
    folder = tmp_path_factory.mktemp("shuffled")
    (folder / "s.yaml").write_text(
        "label: y\ninputs:\n  n: {kind: dense, columns: [n]}\n  i: {kind: ids, columns: [i], rows: 1000}\n  l: {kind: bag, column: l, rows: 50}\n"
    )
    lines = [f"{k % 2},{k},{k * 7 % 1000},{' '.join(str(k % 50) for _ in range(k % 4))}" for k in range(ROWS)]
    (folder / "a.csv").write_text("\n".join(["y,n,i,l", *lines, ""]))
    for part in range(3):
        (folder / f"part-{part}.csv").write_text("\n".join(["y,n,i,l", *lines[part * 300 : part * 300 + 300], ""]))
    htrain.pack(f"csv:{folder}/a.csv?schema={folder}/s.yaml", out=folder / "a.packed")
    return folder


def uri(folder: Path, kind: str, *options: str) -> str:
    place = {"csv": f"csv:{folder}/a.csv", "parts": f"csv:{folder}/part-*.csv", "packed": f"packed:{folder}/a.packed"}[
        kind
    ]
    said = [*([] if kind == "packed" else [f"schema={folder}/s.yaml"]), *options]
    return f"{place}?{'&'.join(said)}" if said else place


def numbers(source: str, **said: Any) -> list[int]:
    """The numbers of the rows, as they come."""
    asked: dict[str, Any] = {
        "batch_size": 64,
        "shard": 0,
        "num_shards": 1,
        "epochs": 1,
        "start": START,
        "malformed": Malformed(),
    }
    return [int(n) for batch in open_data(source).batches(**asked | said) for n in batch.columns["n"][:, 0]]


@pytest.mark.parametrize("kind", ["csv", "parts", "packed"])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_row_comes_once_in_each_epoch_with_its_own_values_in_another_order(
    kind: str, shards: int, folder: Path, read: Read
) -> None:
    plain = Counter(read(uri(folder, kind)))
    seen: list[list[tuple[Any, ...]]] = []
    for epochs in (1, 2):
        rows = [
            row
            for shard in range(shards)
            for row in read(uri(folder, kind, "shuffle=200"), shard=shard, num_shards=shards, epochs=epochs)
        ]
        assert Counter(rows) == Counter({row: count * epochs for row, count in plain.items()})
        seen.append(rows)
    if shards == 1:
        assert seen[1][:ROWS] == seen[0]
        assert seen[1][ROWS:] != seen[0]
        assert seen[0] != read(uri(folder, kind))


def test_the_seed_says_the_order(folder: Path) -> None:
    one, again, other = (numbers(uri(folder, "csv", "shuffle=1000", f"shuffle_seed={seed}")) for seed in (3, 3, 4))
    assert one == again != other
    assert one != sorted(one)
    assert numbers(uri(folder, "csv", "shuffle=1000")) == numbers(uri(folder, "csv", "shuffle=1000", "shuffle_seed=0"))


def test_rows_stay_within_their_windows(folder: Path) -> None:
    """Each of the three files is a window of 300; one of 301 has rows of two, and no more of the second than a chunk of it."""
    found = numbers(uri(folder, "parts", "shuffle=300"))
    for part in range(3):
        assert sorted(found[part * 300 : part * 300 + 300]) == list(range(part * 300, part * 300 + 300))
    together = numbers(uri(folder, "parts", "shuffle=301"))
    assert max(abs(place - number) for place, number in enumerate(together)) < 600
    assert max(together[:300]) >= 300


def test_a_shuffle_looks_drawn(folder: Path) -> None:
    """A row is as likely to come from any tenth as from any other."""
    places = [numbers(uri(folder, "csv", "shuffle=900", f"shuffle_seed={seed}")).index(7) for seed in range(120)]
    tenths = Counter(place * 10 // ROWS for place in places)
    assert len(tenths) == 10
    assert max(tenths.values()) < 30


@given(kind=st.sampled_from(["csv", "parts", "packed"]), window=st.integers(2, 1200), size=st.integers(1, 250), steps=st.integers(0, 30),
       shards=st.integers(1, 3))  # fmt: skip
@settings(max_examples=20, deadline=None, derandomize=True)
def test_reading_goes_on_from_any_batch(
    kind: str, window: int, size: int, steps: int, shards: int, folder: Path
) -> None:
    source = open_data(uri(folder, kind, f"shuffle={window}"))
    asked: dict[str, Any] = {
        "batch_size": size,
        "shard": shards - 1,
        "num_shards": shards,
        "epochs": 2,
        "malformed": Malformed(),
    }
    batches = list(source.batches(**asked, start=START))
    if steps < len(batches):
        rest = list(source.batches(**asked, start=batches[steps].position))
        assert [batch.columns["n"].tolist() for batch in rest] == [
            batch.columns["n"].tolist() for batch in batches[steps + 1 :]
        ]


def test_a_row_is_named_as_its_source_does(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "a.csv").read_text().splitlines()
    lines[701] = lines[701].replace("0,700", "7,700", 1)
    (tmp_path / "a.csv").write_text("\n".join([*lines, ""]))
    source = open_data(f"csv:{tmp_path}/a.csv?schema={folder}/s.yaml&shuffle=250").for_loss("bce")
    with pytest.raises(DataError, match=r"a\.csv:702: the label is 7"):
        list(source.batches(batch_size=8, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))


def test_a_part_that_is_held_out_is_shuffled_by_itself(folder: Path) -> None:
    train, test = (numbers(uri(folder, "csv", "test=0.3", f"part={part}", "shuffle=900")) for part in ("train", "test"))
    assert sorted(train + test) == list(range(ROWS))
    assert train != sorted(train)
    assert test != sorted(test)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("shuffle=1", "option shuffle=1: want a whole number from 2 to"),
        ("shuffle=x", "option shuffle=x: want"),
        ("shuffle=100&shuffle_seed=-1", "option shuffle_seed=-1: want"),
        ("shuffle_seed=3", "option shuffle_seed=3: has no effect without shuffle=ROWS"),
    ],
)
def test_what_makes_no_order_is_refused(options: str, said: str, folder: Path) -> None:
    with pytest.raises(DataError, match=f"^{said}"):
        open_data(uri(folder, "csv", options))


def test_what_is_packed_or_partitioned_is_not_shuffled(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shuffle has no effect on what is packed: say it when it is read, as packed:"):
        htrain.pack(uri(folder, "csv", "shuffle=100"), out=tmp_path / "b.packed")
    with pytest.raises(DataError, match="shuffle has no effect on what is partitioned"):
        htrain.partition(uri(folder, "csv", "shuffle=100"), out=tmp_path / "p", num_workers=2, batch_size=16)
