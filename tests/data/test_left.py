"""Data that one number of readers has begun and others read on: every row once an epoch, whatever the numbers are and wherever they stood."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import START, Dataset, Malformed, Position, open_data
from htrain.data.left import Left, begin_of, left_by

EPOCHS = 3


@dataclass
class Readers:
    """As many readers as a cluster has trainers: where each stands."""

    dataset: Dataset
    left: tuple[Left, ...]
    positions: list[Position]

    def batches(self, reader: int) -> Iterator[tuple[int, list[int]]]:
        """What is left for a reader: the epoch of each batch, and which rows it has; it stands behind each as it comes."""
        start = self.positions[reader]
        batches = self.dataset.batches(
            batch_size=7, shard=reader, num_shards=len(self.positions), epochs=EPOCHS, start=start, malformed=Malformed(), left=self.left,
        )  # fmt: skip
        for batch in batches:
            at = batch.position
            self.positions[reader] = at
            epoch = at.epoch - (at.chunk == at.row == 0)
            yield epoch, [int(value) for value in batch.columns["sparse"].reshape(batch.num_examples, -1)[:, 0]]

    def others(self, count: int) -> "Readers":
        """So many others, who read on."""
        left = left_by(self.left, self.positions)
        return Readers(self.dataset, left, [begin_of(left, reader, count) for reader in range(count)])


def written(folder: Path, files: Sequence[int]) -> str:
    """Files of so many rows in libsvm's form; each row has a number of its own as its only feature."""
    number = 0
    for place, rows in enumerate(files):
        lines = [f"{(number + row) % 2} {number + row}:1\n" for row in range(rows)]
        number += rows
        (folder / f"{place:03}.libsvm").write_text("".join(lines))
    return f"libsvm:{folder}?rows={number}"


def rows_of(files: Sequence[int]) -> Counter[tuple[int, int]]:
    return Counter((epoch, row) for epoch in range(EPOCHS) for row in range(sum(files)))


clusters = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 25)), min_size=1, max_size=4)


@given(
    files=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    clusters=clusters,
    last=st.integers(1, 5),
    order=st.sampled_from(("", "&shuffle=20&shuffle_seed=3")),
    draw=st.randoms(use_true_random=False),
)
@settings(max_examples=120, deadline=None)
def test_every_row_is_read_once_an_epoch_whoever_reads_on(
    files: list[int],
    clusters: list[tuple[int, int]],
    last: int,
    order: str,
    draw: "object",
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dataset = open_data(written(tmp_path_factory.mktemp("data"), files) + order)
    readers = Readers(dataset, (), [START] * clusters[0][0])
    read: Counter[tuple[int, int]] = Counter()
    for count, steps in clusters:
        readers = readers.others(count) if read else Readers(dataset, (), [START] * count)
        for reader in range(count):
            own = draw.randint(0, 2 * steps)  # type: ignore[attr-defined]  # some are epochs ahead of others
            for epoch, rows in islice(readers.batches(reader), own):
                read.update((epoch, row) for row in rows)
    if draw.random() < 0.5:  # type: ignore[attr-defined]  # a reader that stands in the middle goes on where it stood
        readers = Readers(dataset, readers.left, list(readers.positions))
    else:
        readers = readers.others(last) if read else Readers(dataset, (), [START] * last)
    for reader in range(len(readers.positions)):
        for epoch, rows in readers.batches(reader):
            read.update((epoch, row) for row in rows)
    assert read == rows_of(files)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 2), (2, 3), (5, 4)])
def test_what_is_left_is_shared_out_evenly(before: int, after: int) -> None:
    dataset = open_data("synthetic:?rows=100000&table_rows=10")
    readers = Readers(dataset, (), [START] * before)
    for reader in range(before):
        list(islice(readers.batches(reader), 3))
    others = readers.others(after)
    counts = [sum(len(rows) for epoch, rows in others.batches(reader) if epoch == 0) for reader in range(after)]
    assert max(counts) < 1.5 * min(counts)


def test_windows_of_an_even_number_of_chunks_are_shared_out_too() -> None:
    """The number of a window is that of its first chunk: every second one, where two chunks make a window."""
    dataset = open_data("synthetic:?rows=400000&table_rows=10")
    chunks = [rows.count for _, rows in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed())]
    assert len(chunks) > 40
    dataset = open_data(f"synthetic:?rows=400000&table_rows=10&shuffle={chunks[0] + 1}")
    readers = Readers(dataset, (), [START])
    next(iter(readers.batches(0)))
    others = readers.others(2)
    counts = [sum(len(rows) for epoch, rows in others.batches(reader) if epoch == 0) for reader in range(2)]
    assert min(counts) > 0.2 * sum(counts)


def test_what_does_not_hold_together_is_refused() -> None:
    with pytest.raises(ValueError, match="1 positions of 2 shards in 1 parts each"):
        Left(2, 1, (START,))
    with pytest.raises(ValueError, match="before the first row"):
        Left(1, 1, (Position(0, -1, 0),))


def test_malformed_rows_of_chunks_that_others_read_are_not_counted(tmp_path: Path) -> None:
    lines = ["1 5:1\n" if row % 10 else "no label\n" for row in range(400)]
    (tmp_path / "a.libsvm").write_text("".join(lines))
    dataset = open_data(f"libsvm:{tmp_path}/a.libsvm?rows=10")
    left = left_by((), [Position(0, 1, 0)])
    seen = [Malformed(share=1.0) for _ in range(3)]
    for reader, malformed in enumerate(seen):
        start = begin_of(left, reader, 3)
        list(
            dataset.batches(
                batch_size=8, shard=reader, num_shards=3, epochs=1, start=start, malformed=malformed, left=left
            )
        )
    first = Malformed(share=1.0)
    next(dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=first))
    assert sum(each.count for each in seen) + first.count == 40
    assert sum(each.rows for each in seen) + first.rows == 400


def test_rows_in_the_order_of_time_stay_in_it(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "label: y\ntime: {column: t, unit: s}\ninputs:\n  x: {kind: ids, columns: [x], rows: 10}\n"
    )
    lines = "".join(f"{row % 2},{1_600_000_000 + row},{row % 10}\n" for row in range(3000))
    (tmp_path / "a.csv").write_text("y,t,x\n" + lines)
    dataset = open_data(f"csv:{tmp_path}/a.csv?schema={tmp_path}/schema.yaml&order=time")
    left = left_by((), [Position(0, 8, 3), Position(0, 3, 5)])
    for reader in range(3):
        batches = dataset.batches(
            batch_size=1,
            shard=reader,
            num_shards=3,
            epochs=1,
            start=begin_of(left, reader, 3),
            malformed=Malformed(),
            left=left,
        )
        places = [(batch.position.chunk, batch.position.row) for batch in batches][:-1]
        assert places == sorted(places)
