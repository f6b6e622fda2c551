"""Data that grows while it is read: every row once in each epoch from the one in which it came on, whoever reads and wherever they stood."""

import gzip
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import START, Batch, Malformed, Position, open_data
from htrain.data.growth import Cut, Extent, FilePart, FileSize, Reading
from htrain.data.last_line import begin_of_new
from htrain.data.left import begin_of, left_by
from htrain.data.source import files_of
from htrain.errors import DataError

EPOCHS = 4
SCHEMA = "label: y\ninputs:\n  sparse: {kind: ids, columns: [x], rows: 1000000}\n"


@dataclass
class Log:
    """Files of rows, each with a number of its own as its only feature."""

    folder: Path
    format: str
    options: str
    by_parts: bool = False
    counts: list[int] = field(default_factory=list)  # of the rows of each file
    numbers: int = 0

    @property
    def uri(self) -> str:
        if self.format == "libsvm":
            return f"libsvm:{self.folder}/*.libsvm?rows=1000000{self.options}"
        (self.folder / "s.yaml").write_text(SCHEMA)
        name = self.format.removesuffix(".gz")
        return f"{name}:{self.folder}/*.{self.format}?schema={self.folder}/s.yaml{self.options}"

    @property
    def is_of_text(self) -> bool:
        """Whether its files may grow."""
        return self.format in ("libsvm", "csv")

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{number:03}.{self.format}" for number in range(len(self.counts))]

    @property
    def extent(self) -> Extent:
        return Extent(tuple(FileSize(path.name, path.stat().st_size) for path in self.files), by_parts=self.by_parts)

    def append(self, file: int, rows: int) -> None:
        """So many rows at the end of a file, which may be a new one."""
        numbers = range(self.numbers, self.numbers + rows)
        self.numbers += rows
        if is_new := file == len(self.counts):
            self.counts.append(0)
        self.counts[file] += rows
        if self.format == "parquet":
            assert is_new
            table = pa.table({"y": [n % 2 for n in numbers], "x": list(numbers)})
            pq.write_table(table, self.files[file], row_group_size=11 + 13 * file)
            return
        if self.format == "csv.gz":
            assert is_new
            self.files[file].write_bytes(gzip.compress(("y,x\n" + "".join(f"{n % 2},{n}\n" for n in numbers)).encode()))
            return
        with self.files[file].open("a") as out:
            out.write("y,x\n" if is_new and self.format == "csv" else "")
            out.writelines(f"{n % 2},{n}\n" if self.format == "csv" else f"{n % 2} {n}:1\n" for n in numbers)


@dataclass
class Readers:
    """As many readers as a cluster has trainers: where each stands, and what of the data they read."""

    uri: str
    extent: Extent
    reading: Reading
    epochs: int = EPOCHS

    def batches(self, reader: int) -> Iterator[Batch]:
        """What is left for a reader, which stands behind each batch as it comes."""
        positions = self.reading.positions
        found = open_data(self.uri, self.extent).batches(
            batch_size=7, shard=reader, num_shards=len(positions), epochs=self.epochs, start=positions[reader],
            malformed=Malformed(share=1.0), left=self.reading.left,
        )  # fmt: skip
        for batch in found:
            now = list(self.reading.positions)
            now[reader] = batch.position
            self.reading = Reading(tuple(now), self.reading.left, self.reading.cuts)
            yield batch

    def others(self, count: int) -> "Readers":
        """So many others, who read on."""
        left = left_by(self.reading.left, self.reading.positions)
        begins = tuple(begin_of(left, reader, count) for reader in range(count))
        return replace(self, reading=Reading(begins, left, self.reading.cuts))

    def on(self, extent: Extent) -> "Readers":
        """The same once data has grown to an extent."""
        before, now = ([file.num_bytes for file in each.files] for each in (self.extent, extent))
        paths = files_of(self.uri)[: len(before)]
        is_grown = [old < new for old, new in zip(before, now, strict=False)]
        begins = [begin_of_new(path, n) if more else n for path, n, more in zip(paths, before, is_grown, strict=True)]
        reading = self.reading.grown(before, now, begins)
        return replace(self, extent=Extent(extent.files, reading.cuts, extent.by_parts), reading=reading)


def rows_of(batch: Batch) -> tuple[int, list[int]]:
    """The epoch of a batch, and its rows by their numbers."""
    at = batch.position
    rows = batch.columns["sparse"].reshape(batch.num_examples, -1)[:, 0]
    return at.epoch - (at.chunk == at.row == 0), [int(value) for value in rows]


@given(
    format=st.sampled_from(("libsvm", "csv", "csv.gz", "parquet")),
    by_parts=st.booleans(),
    options=st.sampled_from(("", "&shuffle=20&shuffle_seed=3")),
    files=st.lists(st.integers(1, 90), min_size=1, max_size=9),
    parts=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30), st.integers(0, 2)), min_size=2, max_size=5),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=30, deadline=None)
def test_every_row_is_read_once_in_each_epoch_from_that_in_which_it_came(
    format: str,
    by_parts: bool,
    options: str,
    files: list[int],
    parts: list[tuple[int, int, int]],
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    draw = random.Random(seed)
    log = Log(tmp_path_factory.mktemp("log"), format, options, by_parts)
    for number, rows in enumerate(files):
        log.append(number, rows)
    came = [0] * log.numbers  # the epoch in which each row came
    read: Counter[tuple[int, int]] = Counter()
    readers = Readers(log.uri, log.extent, Reading((START,) * parts[0][0]))

    def take(reader: int, most: int | None) -> None:
        for batch in islice(readers.batches(reader), most):
            epoch, rows = rows_of(batch)
            read.update((epoch, row) for row in rows)

    def grow(times: int) -> None:
        for _ in range(times):
            new = len(log.counts) if not log.is_of_text or draw.random() < 0.4 else draw.randrange(len(log.counts))
            log.append(new, draw.choice((1, 3, 40, 200)))

    for count, steps, growths in parts:
        grow(before := draw.randint(0, growths))
        if log.numbers > len(came):
            came += [max((epoch for epoch, _ in read), default=0)] * (log.numbers - len(came))
            readers = readers.on(log.extent)
        if count != len(readers.reading.positions) or draw.random() < 0.2:
            readers = readers.others(count) if read else Readers(log.uri, log.extent, Reading((START,) * count))
        for reader in range(count):
            take(reader, draw.choice((0, draw.randint(0, 2 * steps), None)))
            if reader == 0:
                grow(growths - before)  # while it is read: that is for the next part
    for reader in range(len(readers.reading.positions)):
        take(reader, None)
    assert read == Counter((epoch, row) for row, first in enumerate(came) for epoch in range(first, EPOCHS))


def looked_at(files: dict[str, str], draw: random.Random) -> dict[str, str]:
    """Some more bytes of each file, or none; the last need not be the end of a line, but for the first one of a file."""
    come = {name: text[: draw.randint(0, len(text))] for name, text in files.items()}
    return {name: text if "\n" in text and draw.random() < 0.8 else "" for name, text in come.items()}


@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    end=st.sampled_from(("\n", "\r\n")),
    looks=st.integers(1, 5),
    options=st.sampled_from(("", "&shuffle=20&shuffle_seed=3")),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=60, deadline=None)
def test_lines_that_were_looked_at_in_their_middle_are_read_once_they_are_whole(
    rows: list[int], end: str, looks: int, options: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also of files that are empty at first. What is there of such a line is no row here: it is malformed."""
    draw, folder = random.Random(seed), tmp_path_factory.mktemp("live")
    uri = f"libsvm:{folder}/*.libsvm?rows=1000000{options}"
    names = iter(range(1000))
    whole = {f"{file}.libsvm": "".join(f"1 {next(names)}:1{end}" for _ in range(n)) for file, n in enumerate(rows)}
    whole["9.libsvm"] = f"1 {next(names)}:1{end}1 {next(names)}:1"
    left = whole.copy()
    seen: list[int] = []

    def grow(come: dict[str, str]) -> Extent:
        for name, text in come.items():
            with (folder / name).open("a", newline="") as file:
                file.write(text)
            left[name] = left[name][len(text) :]
        return Extent(tuple(FileSize(name, (folder / name).stat().st_size) for name in whole))

    (folder / "0.libsvm").write_text(first := f"1 999:1{end}", newline="")
    readers = Readers(uri, grow(looked_at(left, draw)), Reading((START,) * draw.randint(1, 3)), epochs=1)
    for look in range(looks):
        for reader in range(len(readers.reading.positions)):
            for batch in islice(readers.batches(reader), draw.choice((0, 2, 1000))):
                seen += rows_of(batch)[1]
        come = left if look == looks - 1 else looked_at(left, draw)
        if any(come.values()):
            readers = readers.on(grow(come.copy()))
        if draw.random() < 0.4 and seen:
            readers = readers.others(draw.randint(1, 3))
    for reader in range(len(readers.reading.positions)):
        seen += [row for batch in readers.batches(reader) for row in rows_of(batch)[1]]
    assert first
    assert sorted(seen) == sorted([999, *range(next(names))])


def numbers(uri: str, extent: Extent | None = None, *, start: Position = START) -> list[int]:
    found = open_data(uri, extent).batches(
        batch_size=7, shard=0, num_shards=1, epochs=1, start=start, malformed=Malformed(0.0)
    )
    return [row for batch in found for row in rows_of(batch)[1]]


@pytest.mark.parametrize("format", ["libsvm", "csv"])
@pytest.mark.parametrize("options", ["", "&test=0.3&part=test"])
def test_one_reader_has_what_came_behind_the_rest_as_if_it_were_another_file(
    tmp_path: Path, format: str, options: str
) -> None:
    log = Log(tmp_path, format, options)
    log.append(0, 3000)
    before = Readers(log.uri, log.extent, Reading((START,)))
    seen = [row for batch in islice(before.batches(0), 40) for row in rows_of(batch)[1]]
    log.append(0, 2000)
    log.append(1, 10)
    after = before.on(log.extent)
    seen += [row for batch in after.batches(0) if rows_of(batch)[0] == 0 for row in rows_of(batch)[1]]
    assert seen == sorted(seen)
    assert seen == numbers(log.uri)
    assert after.extent.cuts == (
        Cut(0, ((FilePart(0, 0, before.extent.files[0].num_bytes),), after.extent.cuts[0].segments[1])),
    )
    assert after.reading.positions[0] == Position(EPOCHS, 0, 0)


def test_epochs_before_the_last_that_was_begun_stay_as_they_were() -> None:
    reading = Reading((Position(1, 5, 2), Position(3, 0, 0), Position(2, 1, 0))).grown([100], [150, 20])
    whole, came = (FilePart(0, 0, 100),), (FilePart(0, 100, 150), FilePart(1, 0, 20))
    assert reading.cuts == (Cut(1, (whole,)), Cut(2, (whole, came)))
    assert reading.positions == (Position(1, 5, 2), Position(2, 1 << 32, 0), Position(2, 1, 0))
    again = reading.grown([150, 20], [150, 21])
    assert again.cuts == (Cut(1, (whole,)), Cut(2, (whole, came, (FilePart(1, 20, 21),))))
    later = Reading((Position(4, 0, 0), Position(3, 1, 1)), (), again.cuts).grown([150, 21], [151, 21])
    assert later.cuts[2:] == (Cut(3, ((FilePart(0, 0, 150), FilePart(1, 0, 21)), (FilePart(0, 150, 151),))),)
    assert later.positions == (Position(3, 2 << 32, 0), Position(3, 1, 1))


def test_a_new_file_without_a_row_cuts_nothing_and_keeps_its_place() -> None:
    reading = Reading((Position(1, 0, 0), Position(0, 2, 0)))
    assert reading.grown([100], [100, 0]) == reading
    grown = reading.grown([100, 0], [100, 20, 5])
    came = (FilePart(1, 0, 20), FilePart(2, 0, 5))
    assert grown.cuts == (Cut(0, ((FilePart(0, 0, 100), FilePart(1, 0, 0)), came)),)
    assert grown.positions[0] == Position(0, 2 << 32, 0)


def test_what_nobody_has_begun_is_read_as_it_is_now() -> None:
    assert Reading((START, START)).grown([100], [150]) == Reading((START, START))


@given(
    text=st.lists(st.sampled_from(("1 5:1", "0 77:1", "", "no row", "1 6:1 ")), min_size=1, max_size=30),
    end=st.sampled_from(("\n", "\r\n", "")),
    shards=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_a_part_of_a_file_has_the_lines_that_begin_in_it(
    text: list[str], end: str, shards: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where the line before had no end."""
    folder = tmp_path_factory.mktemp("part")
    before = "0 1:1\n1 2:1" + (end or "\n")
    lines = "".join(f"{line}{end or chr(10)}" for line in text)
    (folder / "all.libsvm").write_text(before + lines, newline="")
    begin = len(before) - len(end) if end else len(before)  # what had no end then has one now
    total = len(before + lines)
    cut = Cut(0, ((FilePart(0, 0, begin),), (FilePart(0, begin, total),)))
    extent = Extent((FileSize("all.libsvm", total),), (cut,))
    dataset = open_data(f"libsvm:{folder}/all.libsvm?rows=100", extent)
    (begun,) = dataset.begun
    found: list[int] = []
    for shard in range(shards):
        for number, rows in begun.source.chunks(shard=shard, num_shards=shards, first=0, malformed=Malformed(1.0)):
            found += rows.fixed["sparse"].ravel().tolist() if number >> 32 else []
    assert sorted(found) == sorted(int(line[2:].partition(":")[0]) for line in text if line[:1] in ("0", "1"))


def test_of_a_file_that_grows_meanwhile_no_more_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path, "csv", "")
    log.append(0, 500)
    extent = log.extent
    with log.files[0].open("a") as file:
        file.write("1,9999")  # a line without its end
    log.append(1, 5)
    assert numbers(log.uri, extent) == list(range(500))
    assert open_data(log.uri, extent).num_examples() == 500


def test_a_line_that_goes_on_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    (tmp_path / "s.yaml").write_text(SCHEMA)
    path.write_text("y,x\n1,2\n0,3")
    extent = Extent((FileSize("a.csv", path.stat().st_size),))
    path.write_text("y,x\n1,2\n0,345\n1,6\n")
    assert numbers(f"csv:{path}?schema={tmp_path}/s.yaml", extent) == [2, 3]


def test_files_that_are_shorter_or_others_than_when_the_run_began_are_named(tmp_path: Path) -> None:
    log = Log(tmp_path, "csv", "")
    log.append(0, 50)
    log.append(1, 50)
    extent, size = log.extent, log.files[1].stat().st_size
    opened = open_data(log.uri, extent)
    log.files[1].write_text("y,x\n1,2\n")
    wanted = rf"^{log.files[1]}: has 8 bytes, it had {size} when the run began$"
    with pytest.raises(DataError, match=wanted):
        open_data(log.uri, extent)
    with pytest.raises(DataError, match=wanted):
        list(opened.batches(batch_size=7, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))
    log.files[1].unlink()
    (tmp_path / "002.csv").write_text("y,x\n1,2\n")
    with pytest.raises(DataError, match=r"has no '001\.csv', which was there when the run began$"):
        open_data(log.uri, extent)


def test_files_that_come_between_others_are_none_of_what_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path, "csv", "")
    log.append(0, 50)
    log.append(1, 50)
    extent = log.extent
    for name in ("+.csv", "000a.csv", "002.csv"):
        (tmp_path / name).write_text("y,x\n1,999\n")
    assert numbers(log.uri, extent) == list(range(100))


def test_what_does_not_hold_together_is_refused() -> None:
    with pytest.raises(ValueError, match="no bytes of file 0: 5 to 5"):
        FilePart(0, 5, 5)
    with pytest.raises(ValueError, match="no cut of epoch 0"):
        Cut(0, ((),))
    with pytest.raises(ValueError, match="no file has the bytes 0 to 9 of file 1"):
        Extent((FileSize("a", 10),), (Cut(0, ((FilePart(1, 0, 9),),)),))
    with pytest.raises(ValueError, match="no file has the bytes 0 to 11 of file 0"):
        Extent((FileSize("a", 10),), (Cut(0, ((FilePart(0, 0, 11),),)),))
