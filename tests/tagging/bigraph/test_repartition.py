"""Partitions from older ones: rows stay where nothing is gained by a move, and the result is as good as a search of its own, or nearly."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.cli.app import commands
from htrain.data.partition_file import PartitionFile, read_partition
from htrain.errors import DataError
from htrain.tagging.bigraph import Request, partition
from htrain.tagging.bigraph.repartition import UNKNOWN, repartition
from tests.support.bigraphs import counts_by_hand, drawn_graph, planted_graph, probability_by_hand


def run(*words: str) -> Result:
    return CliRunner().invoke(commands, list(words))


@given(seed=st.integers(0, 2**32 - 1), num_workers=st.integers(2, 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_balance_holds_and_no_row_has_moved_that_could_stay_for_nothing(seed: int, num_workers: int) -> None:
    graph, random = drawn_graph(seed), np.random.default_rng(seed)
    before = random.integers(UNKNOWN, num_workers, graph.num_rows).astype(np.int32)
    request = Request(num_workers, 8)
    found = repartition(graph, request, before)
    most, most_rows = (max(-(-n // num_workers), int(s * n / num_workers)) for n, s in ((40, 1.03), (25, 1.05)))
    loads = np.bincount(found.homes, minlength=num_workers)
    assert np.bincount(found.samples, minlength=num_workers).max() <= most
    assert loads.max() <= most_rows
    counts, even = counts_by_hand(graph, found.samples, num_workers), -(-graph.num_samples // num_workers)
    for row, (old, new) in enumerate(zip(before.tolist(), found.homes.tolist(), strict=True)):
        if old not in (UNKNOWN, new) and loads[old] < most_rows:
            at_old, at_new = (probability_by_hand(min(even, int(counts[row, k])), even, 8) for k in (old, new))
            assert at_old <= at_new, "the old owner's batches use it less"


def test_a_good_partition_stays_as_it_is_and_a_bad_one_is_improved() -> None:
    graph, _ = planted_graph(3000, topics=8, share=0.7)
    request = Request(4, 32)
    best = partition(graph, request)
    again = repartition(graph, request, best.homes)
    assert (again.homes != best.homes).mean() < 0.02
    assert again.fetches.per_batch < 1.01 * best.fetches.per_batch
    bad = repartition(graph, request, np.full(graph.num_rows, UNKNOWN, np.int32))
    assert bad.fetches.per_batch > best.fetches.per_batch


def topics_of(path: Path, seed: int) -> str:
    """Examples of eight topics; with another seed others of the same topics."""
    random = np.random.default_rng(seed)
    topic = random.integers(0, 8, 1200)
    rows = topic[:, None] * 40 + random.integers(0, 40, (1200, 4))
    path.write_text(
        "".join(f"{i % 2} " + " ".join(f"{row}:1" for row in set(mine)) + "\n" for i, mine in enumerate(rows.tolist()))
    )
    return f"libfm:{path}?rows=330"


def test_the_command_tells_how_many_rows_have_moved(tmp_path: Path) -> None:
    first, second = topics_of(tmp_path / "a", 0), topics_of(tmp_path / "b", 1)
    words = ("--workers", "4", "--batch", "32")
    assert run("partition", first, *words, "--out", f"{tmp_path}/a.partition").exit_code == 0
    result = run("partition", second, *words, "--from", f"{tmp_path}/a.partition", "--out", f"{tmp_path}/b.partition")
    assert result.exit_code == 0, result.output
    old, new = (read_partition(tmp_path / f"{name}.partition") for name in ("a", "b"))
    owners = [by_key(made) for made in (old, new)]
    known = owners[0].keys() & owners[1].keys()
    moved = sum(owners[0][key] != owners[1][key] for key in known)
    assert (new.facts.known_rows, new.facts.moved_rows, new.facts.begun) == (len(known), moved, "the old owners")
    assert f"of {len(known):,} rows that the old partition had seen, {moved:,} have moved" in result.output
    assert moved < 0.1 * len(known), "the topics are the same"
    assert new.facts.rows_per_batch < 0.2 * new.facts.scattered_rows


def test_tables_with_more_rows_begin_from_the_owners_of_those_that_were_there(tmp_path: Path) -> None:
    uri = topics_of(tmp_path / "a", 0)
    words, first = ("--workers", "4", "--batch", "32"), tmp_path / "a.partition"
    assert run("partition", uri, *words, "--out", str(first)).exit_code == 0
    for more in (0, 1, 70):
        grown = uri.replace("330", str(330 + more))
        assert run("partition", grown, *words, "--from", str(first), "--out", f"{tmp_path}/{more}").exit_code == 0
    wanted = read_partition(tmp_path / "0")
    for more in (1, 70):
        found = read_partition(tmp_path / str(more))
        assert (found.owners == wanted.owners).all(), "the same rows are seen, of the same owners"
        assert (found.facts.known_rows, found.facts.moved_rows) == (wanted.facts.known_rows, wanted.facts.moved_rows)
    with (tmp_path / "a").open("a") as file:
        file.writelines(f"1 {340 + k % 20}:1 {345 + k % 11}:1\n" for k in range(40))
    found = uri.replace("330", "400")
    assert run("partition", found, *words, "--from", str(first), "--out", f"{tmp_path}/new").exit_code == 0
    assert read_partition(tmp_path / "new").facts.known_rows == wanted.facts.known_rows


def by_key(made: PartitionFile) -> dict[int, int]:
    keys = np.flatnonzero(np.unpackbits(made.seen.view(np.uint8), bitorder="little"))
    return dict(zip(keys.tolist(), made.owners.tolist(), strict=True))


def test_a_partition_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    uri = topics_of(tmp_path / "a", 0)
    assert run("partition", uri, "--workers", "4", "--batch", "32", "--out", f"{tmp_path}/p").exit_code == 0
    others = ("--batch", "32", "--from", f"{tmp_path}/p", "--out", f"{tmp_path}/q")
    for words, said in (
        ((uri, "--workers", "3"), "p: is a partition for 4 workers, want 3: leave --from out"),
        (
            (uri.replace("330", "329"), "--workers", "4"),
            "p: is a partition of other tables than the data has: leave --from out",
        ),
    ):
        result = run("partition", *words, *others)
        assert isinstance(result.exception, DataError)
        assert said in str(result.exception)
    (tmp_path / "text").write_text("no partition\n")
    for path, workers in ((f"{tmp_path}/text", "4"), (f"{tmp_path}/none", "4"), (f"{tmp_path}/p", "3")):
        result = run("partition", uri, "--workers", workers, "--batch", "32", "--from", path, "--out", f"{tmp_path}/q")
        assert isinstance(result.exception, DataError)
        assert "partitioning" not in result.output, "nobody reads all data for that"
    assert run("data", "pack", uri, "--partition", f"{tmp_path}/p", "--out", f"{tmp_path}/a.packed").exit_code == 0
    result = run(
        "partition", f"packed:{tmp_path}/a.packed", "--workers", "4", "--batch", "32", "--out", f"{tmp_path}/q"
    )
    assert "was packed by a partition, which gave its rows other numbers; partition its source" in str(result.exception)
    with pytest.raises(FileNotFoundError):
        (tmp_path / "q").stat()
