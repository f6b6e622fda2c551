"""Data packed by a partition: the examples of its source, each in the blocks of one worker, with the numbers that the partition gives rows."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

from htrain.cli.app import commands
from htrain.data import START, Dataset, Malformed, Position, open_data, text
from htrain.data import pack_by_partition as packing
from htrain.data.edges import edges_of
from htrain.data.formats.packed import Totals
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.pack import pack
from htrain.data.pack_by_partition import PackedParts, pack_by_partition
from htrain.data.partition_file import PartitionFile, read_partition
from htrain.errors import DataError
from htrain.tagging.bigraph import Request
from htrain.tagging.bigraph.divide import Listener, divide
from htrain.tagging.bigraph.of_data import read_bigraph

SCHEMA = """label: y
inputs:
  d: {kind: dense, columns: [a]}
  s: {kind: ids, columns: [a, c], rows: [300, 900]}
  p: {kind: padded, column: b, length: 3, rows: 70}
  t: {kind: bag, column: b, rows: 90}
"""
WORKERS, BATCH = 3, 16
Example = tuple[float, ...]


def table(seed: int, count: int) -> str:
    """Lines of a CSV file: the list of ids goes into two tables."""
    random = np.random.default_rng(seed)
    lines = ["y,a,c,b"]
    for i in range(count):
        topic = random.integers(0, 6)
        listed = " ".join(map(str, topic * 10 + random.integers(0, 10, random.integers(0, 6))))
        lines.append(f"{i % 2},{topic * 50 + random.integers(0, 50)},{topic * 150 + random.integers(0, 150)},{listed}")
    return "\n".join(lines) + "\n"


def partitioned(uri: str, out: Path, *, replicated: float = 0.0) -> PartitionFile:
    silent = Listener(lambda number, total: None, lambda what: None)
    return divide(uri, out, Request(WORKERS, BATCH), replicated=replicated, malformed=Malformed(), listener=silent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, other data of the same kind, and a partition of the first."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "s.yaml").write_text(SCHEMA)
    (folder / "a.csv").write_text(table(0, 700))
    (folder / "new.csv").write_text(table(1, 500))
    partitioned(uri_of(folder, "a"), folder / "a.partition", replicated=0.05)
    return folder


def uri_of(folder: Path, name: str) -> str:
    return f"csv:{folder}/{name}.csv?schema={folder}/s.yaml"


def packed(folder: Path, out: Path, name: str = "a") -> tuple[PackedParts, Dataset]:
    made = pack_by_partition(uri_of(folder, name), folder / "a.partition", out, malformed=Malformed())
    return made, open_data(f"packed:{out}")


def examples(dataset: Dataset, shard: int = 0, num_shards: int = 1) -> list[Example]:
    """Each example as label, dense number and ids, by the readers of whole chunks."""
    found = []
    for number, rows in dataset.source.chunks(shard=shard, num_shards=num_shards, first=0, malformed=Malformed()):
        assert number % num_shards == shard
        values, starts = rows.lists["t"]
        for i in range(rows.count):
            fixed = (rows.fixed[name][i].ravel().tolist() for name in ("label", "d", "s", "p_length", "p"))
            found.append((*chain(*fixed), *values[starts[i] : starts[i + 1]].tolist()))
    return found


def back(found: list[Example], numbering: Numbering) -> list[Example]:
    """Examples with original ids for new numbers."""
    originals = {
        name: numbering.originals(name, 0, numbering.tables.rows_of(name)).tolist() for name in numbering.tables.names
    }
    old = []
    for label, dense, a, c, length, *ids in found:
        padded = [originals["b"][int(row)] for row in ids[:3]]
        old.append(
            (
                label,
                dense,
                originals["a"][int(a)],
                originals["c"][int(c)],
                length,
                *padded,
                *(originals["b"][int(row)] for row in ids[3:]),
            )
        )
    return old


@pytest.mark.parametrize("block_bytes", [1, 3000, 4 << 20])
def test_each_workers_shard_has_its_examples_in_order_with_new_numbers(
    folder: Path, tmp_path: Path, block_bytes: int
) -> None:
    with (
        patch.multiple(packing, _BLOCK_BYTES=block_bytes),
        patch.multiple(text, MIN_CHUNK_BYTES=100, MAX_CHUNK_BYTES=900),
    ):
        made, dataset = packed(folder, tmp_path / "p")
    numbering = open_numbering(folder / "a.partition")
    labels = read_partition(folder / "a.partition").samples
    source = examples(open_data(uri_of(folder, "a")))
    assert made.is_partitioned
    assert (dataset.partition, dataset.num_workers) == (numbering.digest, WORKERS)
    for worker in range(WORKERS):
        wanted = [example for example, label in zip(source, labels, strict=True) if label == worker]
        assert back(examples(dataset, worker, WORKERS), numbering) == wanted
    assert Counter(back(examples(dataset), numbering)) == Counter(source)


def test_another_number_of_shards_is_refused_and_one_reads_all(folder: Path, tmp_path: Path) -> None:
    _, dataset = packed(folder, tmp_path / "p")
    for number in (2, 4, 6):
        said = f"p: packed for 3 workers, the run has {number} trainers: pack it again with a partition for {number}"
        with pytest.raises(DataError, match=said):
            examples(dataset, 0, number)
    assert len(examples(dataset)) == 700


@pytest.mark.parametrize("num_shards", [1, WORKERS])
def test_batches_go_on_from_any_position_and_rows_are_told_by_their_place(
    folder: Path, tmp_path: Path, num_shards: int
) -> None:
    with patch.multiple(packing, _BLOCK_BYTES=3000):
        _, dataset = packed(folder, tmp_path / "p")
    for shard in range(num_shards):

        def read(start: Position, shard: int = shard) -> list[tuple[Position, bytes]]:
            batches = dataset.batches(
                batch_size=BATCH, shard=shard, num_shards=num_shards, epochs=2, start=start, malformed=Malformed()
            )
            return [(batch.position, batch.columns["s"].tobytes()) for batch in batches]

        whole = read(START)
        for i in range(0, len(whole), 5):
            assert read(whole[i][0]) == whole[i + 1 :]
    in_order = [number for number, _ in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed())]
    assert in_order == sorted(in_order)
    places = {
        dataset.source.place(number=number, row=row, num_shards=1)
        for number, rows in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=Malformed())
        for row in range(rows.count)
    }
    assert places == {f"{tmp_path}/p: row {row}" for row in range(1, 701)}


def test_predicted_fetches_are_those_of_the_partition_and_measured_ones_are_counted(
    folder: Path, tmp_path: Path
) -> None:
    made, dataset = packed(folder, tmp_path / "p")
    numbering, facts = open_numbering(folder / "a.partition"), read_partition(folder / "a.partition").facts
    tables = numbering.tables
    for worker in range(WORKERS):
        read = dataset.source.chunks(shard=worker, num_shards=WORKERS, first=0, malformed=Malformed())
        keys = [
            keys[starts[i] : starts[i + 1]].tolist()
            for _, rows in read
            for starts, keys in [edges_of(rows, dataset.schema, tables)]
            for i in range(rows.count)
        ]
        own = {
            tables.start_of(name) + row
            for name in tables.names
            for row in [
                *range(*numbering.bounds(name)[worker : worker + 2]),
                *numbering.secondaries(worker).get(name, []),
            ]
        }
        batches = [set(chain(*keys[i : i + BATCH])) - own for i in range(0, len(keys) - BATCH + 1, BATCH)]
        assert made.drift.examples[worker] == len(keys)
        assert made.drift.measured[worker] == pytest.approx(sum(map(len, batches)) / len(batches))
    assert np.mean(made.drift.predicted) == pytest.approx(facts.rows_per_batch)
    assert np.mean(made.drift.measured) == pytest.approx(facts.rows_per_batch, rel=0.1)


def test_new_examples_go_where_their_rows_are_and_the_balance_holds_at_any_time(folder: Path, tmp_path: Path) -> None:
    made, dataset = packed(folder, tmp_path / "p", "new")
    numbering = open_numbering(folder / "a.partition")
    assert not made.is_partitioned
    assert Counter(back(examples(dataset), numbering)) == Counter(examples(open_data(uri_of(folder, "new"))))
    assert max(made.drift.examples) <= np.ceil(1.03 * 500 / WORKERS)
    anywhere = read_partition(folder / "a.partition").facts.scattered_rows
    assert np.mean(made.drift.measured) < 0.8 * anywhere


def test_malformed_rows_are_left_out_where_the_partition_left_them_out(folder: Path, tmp_path: Path) -> None:
    lines = table(2, 300).splitlines()
    lines[40] = "?,1,1,1"
    lines[200] = "1,x,1,1"
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    uri = f"csv:{tmp_path}/a.csv?schema={folder}/s.yaml"
    labels = partitioned(uri, tmp_path / "a.partition").samples
    made = pack_by_partition(uri, tmp_path / "a.partition", tmp_path / "p", malformed=Malformed())
    numbering, dataset = open_numbering(tmp_path / "a.partition"), open_data(f"packed:{tmp_path}/p")
    assert made.totals == Totals(298, made.totals.blocks, 2)
    source = examples(open_data(uri))
    for worker in range(WORKERS):
        wanted = [example for example, label in zip(source, labels, strict=True) if label == worker]
        assert back(examples(dataset, worker, WORKERS), numbering) == wanted


def test_one_table_for_all_ids_has_the_same_graph_by_new_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("".join(f"{i % 2} {i % 40}:1 {i % 7 + 50}:1\n" for i in range(200)))
    uri = f"libfm:{tmp_path}/a.libfm?rows=60"
    partitioned(uri, tmp_path / "a.partition")
    pack_by_partition(uri, tmp_path / "a.partition", tmp_path / "p", malformed=Malformed())
    (graph, seen), (again, _) = (read_bigraph(open_data(each), Malformed()) for each in (uri, f"packed:{tmp_path}/p"))
    assert (graph.num_samples, graph.num_rows, len(graph.rows)) == (again.num_samples, again.num_rows, len(again.rows))
    assert seen.num_rows == 47


def test_what_does_not_belong_together_is_refused_by_name_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def said(uri: str, partition: Path = folder / "a.partition", out: Path = tmp_path / "p") -> str:
        with pytest.raises(DataError) as caught:
            pack_by_partition(uri, partition, out, malformed=Malformed())
        assert not (tmp_path / "p").exists()
        assert not list(tmp_path.glob(".htrain-*"))
        return str(caught.value)

    (tmp_path / "s.yaml").write_text(SCHEMA.replace("rows: [300, 900]", "rows: [300, 901]"))
    belongs = f"{folder}/a.csv: does not belong to {folder}/a.partition: "
    assert (
        said(f"csv:{folder}/a.csv?schema={tmp_path}/s.yaml")
        == belongs + "its table 'c' has 901 rows, in the partition 900"
    )
    (tmp_path / "s.yaml").write_text(SCHEMA.replace("columns: [a, c], rows: [300, 900]", "columns: [c], rows: [900]"))
    assert (
        said(f"csv:{folder}/a.csv?schema={tmp_path}/s.yaml") == belongs + "it has no table 'a', which the partition has"
    )
    (tmp_path / "s.yaml").write_text(
        SCHEMA.replace("columns: [a, c], rows: [300, 900]", "columns: [a, c, y], rows: [300, 900, 2]")
    )
    assert (
        said(f"csv:{folder}/a.csv?schema={tmp_path}/s.yaml")
        == belongs + "it has a table 'y', which the partition has not"
    )
    assert "a.csv: is what would be packed; give another --out" in said(uri_of(folder, "a"), out=folder / "a.csv")
    assert "cannot be written: it holds something that htrain did not write there" in said(
        uri_of(folder, "a"), out=folder / "a.partition"
    )
    assert "a.csv: is no partition of htrain's" in said(uri_of(folder, "a"), folder / "a.csv")
    data = bytearray((folder / "a.partition").read_bytes())
    data[-3] ^= 1
    (tmp_path / "bad").write_bytes(data)
    assert "bad: is damaged: its digest is another than when it was written; make it again" in said(
        uri_of(folder, "a"), tmp_path / "bad"
    )
    with patch.object(packing, "to_batch", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        pack_by_partition(uri_of(folder, "a"), folder / "a.partition", tmp_path / "p", malformed=Malformed())
    assert not list(tmp_path.glob("*p"))
    assert not list(tmp_path.glob(".htrain-*"))


def test_packed_parts_are_not_packed_again(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "p")
    with pytest.raises(
        DataError, match="was packed by a partition, which gave its rows other numbers; pack its source"
    ):
        pack(f"packed:{tmp_path}/p", tmp_path / "q", malformed=Malformed())


def test_the_command_prints_predicted_beside_measured(folder: Path, tmp_path: Path) -> None:
    words = ["data", "pack", uri_of(folder, "new"), "--partition", f"{folder}/a.partition", "--out", f"{tmp_path}/p"]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(
        "examples: new to the partition, each where its rows are; distinct rows of others that a batch of 16 needs"
    )
    assert lines[1].split() == ["worker", "examples", "predicted", "measured"]
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "2", "mean"]
    assert lines[6].startswith(f"{tmp_path}/p: 500 examples, ")
    document = json.loads(CliRunner().invoke(commands, [*words, "--json"]).stdout)
    assert document["is_partitioned"] is False
    assert sum(document["drift"]["examples"]) == document["totals"]["examples"] == 500
    assert len(document["drift"]["measured"]) == len(document["drift"]["predicted"]) == WORKERS
