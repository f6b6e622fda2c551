"""New numbers of rows by a partition, against lists: each worker's rows are one range of each table, the seen ones first, and nothing is lost."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data.numbering import Numbering, numbering_of, open_numbering, shares_of
from htrain.data.partition_file import PartitionFile
from htrain.errors import DataError
from tests.support.partitions import drawn_partition, written

drawn = st.builds(
    drawn_partition,
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 1500), min_size=1, max_size=4).map(tuple),
    num_workers=st.integers(2, 9) | st.sampled_from([16, 17, 70, 300]),
    share=st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]),
)


def by_hand(partition: PartitionFile, t: int) -> tuple[list[list[int]], list[int]]:
    """Of a table, the seen rows that each worker owns, and the unseen rows."""
    sizes = partition.facts.table_rows
    start = sum(sizes[:t])
    is_seen = np.unpackbits(partition.seen.view(np.uint8), bitorder="little").astype(bool)
    owner = dict(zip(np.flatnonzero(is_seen).tolist(), partition.owners.tolist(), strict=True))
    owned: list[list[int]] = [[] for _ in range(partition.facts.num_workers)]
    unseen = []
    for row in range(sizes[t]):
        (owned[owner[start + row]] if start + row in owner else unseen).append(row)
    return owned, unseen


def order_by_hand(partition: PartitionFile, t: int) -> tuple[list[int], list[int]]:
    """Original ids in the order of their new numbers, and the bounds of workers."""
    owned, unseen = by_hand(partition, t)
    order: list[int] = []
    bounds = [0]
    for rows, share in zip(owned, shares_of(np.array([*map(len, owned)]), len(unseen)).tolist(), strict=True):
        order += rows + unseen[:share]
        unseen = unseen[share:]
        bounds.append(len(order))
    assert not unseen
    return order, bounds


@given(partition=drawn)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_each_workers_rows_are_a_range_of_each_table_seen_ones_first(partition: PartitionFile) -> None:
    numbering = numbering_of(partition)
    assert (numbering.digest, numbering.num_workers) == (partition.facts.digest, partition.facts.num_workers)
    assert numbering.tables.names == partition.facts.tables
    for t, name in enumerate(partition.facts.tables):
        order, bounds = order_by_hand(partition, t)
        assert numbering.bounds(name) == tuple(bounds)
        assert list(numbering.owned(name)) == [len(rows) for rows in by_hand(partition, t)[0]]
        assert numbering.originals(name, 0, len(order)).tolist() == order
        new = numbering.renumber(name, np.arange(len(order)))
        assert new[order].tolist() == list(range(len(order)))


@given(partition=drawn, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_part_of_the_new_rows_has_its_originals_and_any_ids_their_numbers(
    partition: PartitionFile, seed: int
) -> None:
    numbering, random = numbering_of(partition), np.random.default_rng(seed)
    for name, num_rows in zip(partition.facts.tables, partition.facts.table_rows, strict=True):
        first, last = np.sort(random.integers(0, num_rows + 1, 2)).tolist()
        whole = numbering.originals(name, 0, num_rows)
        assert numbering.originals(name, first, last).tolist() == whole[first:last].tolist()
        ids = random.integers(0, num_rows, 5000)
        assert whole[numbering.renumber(name, ids)].tolist() == ids.tolist()


@given(partition=drawn)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_replicas_and_updates_are_those_of_the_rows_that_have_the_new_numbers(partition: PartitionFile) -> None:
    numbering = numbering_of(partition)
    keys = np.flatnonzero(np.unpackbits(partition.seen.view(np.uint8), bitorder="little"))
    updates = dict(zip(keys.tolist(), partition.updates.tolist(), strict=True))
    start = 0
    held = [numbering.secondaries(worker) for worker in range(numbering.num_workers)]
    for name, num_rows in zip(partition.facts.tables, partition.facts.table_rows, strict=True):
        originals = numbering.originals(name, 0, num_rows)
        found = numbering.updates(name, np.arange(num_rows))
        assert found.dtype == np.float32
        assert found.tolist() == [updates.get(start + row, 0.0) for row in originals.tolist()]
        assert numbering.updates_of_tables()[name] == pytest.approx(found.sum(dtype=np.float64), rel=1e-6)
        for worker, rows in enumerate(partition.secondaries):
            here = [key - start for key in keys[rows].tolist() if start <= key < start + num_rows]
            mine = held[worker].get(name, np.zeros(0, np.int64))
            assert mine.tolist() == sorted(mine.tolist())
            assert sorted(originals[mine].tolist()) == sorted(here)
        start += num_rows
    assert all(len(rows) for mine in held for rows in mine.values())


@given(owned=st.lists(st.integers(0, 30), min_size=1, max_size=9), number=st.integers(0, 200))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_shares_of_unseen_rows_even_out_what_workers_own(owned: list[int], number: int) -> None:
    shares = shares_of(np.array(owned), number)
    assert shares.sum() == number
    assert (shares >= 0).all()
    total = shares + owned
    for worker in np.flatnonzero(shares).tolist():
        assert total[worker] <= total.min() + 1, "only who owns least gets more"


def test_more_rows_than_a_line_a_pass_and_a_far_rank_have(tmp_path: Path) -> None:
    partition = drawn_partition(3, (70_000, 130_000), num_workers=8, share=0.6)
    numbering = open_numbering(written(tmp_path, partition))
    for name, num_rows in (("t0", 70_000), ("t1", 130_000)):
        whole = numbering.originals(name, 0, num_rows)
        assert np.sort(whole).tolist() == list(range(num_rows))
        assert whole[numbering.renumber(name, np.arange(num_rows))].tolist() == list(range(num_rows))
        assert numbering.originals(name, 41_000, 41_900).tolist() == whole[41_000:41_900].tolist()
        sizes = np.diff(numbering.bounds(name))
        assert sizes.max() - sizes.min() <= 1


def test_what_is_asked_later_is_held_against_what_was_opened(tmp_path: Path) -> None:
    path = written(tmp_path, drawn_partition(0, (50, 60), num_workers=3))
    numbering = open_numbering(path)
    written(tmp_path, drawn_partition(1, (50, 60), num_workers=3))
    for ask in (lambda: numbering.secondaries(1), lambda: numbering.updates("t0", np.arange(3))):
        with pytest.raises(DataError, match=f"^{path}: is damaged: its digest is another than when it was written"):
            ask()


def test_rows_that_are_none_are_refused_by_name() -> None:
    numbering = numbering_of(drawn_partition(0, (50,), num_workers=3))
    for row in (-1, 50):
        with pytest.raises(DataError, match=f"table 't0' has no row {row}: its rows are 0 to 49"):
            numbering.renumber("t0", np.array([3, row]))
        with pytest.raises(DataError, match=f"table 't0' has no row {row}"):
            numbering.updates("t0", np.array([row]))
    assert numbering.renumber("t0", np.zeros(0, np.int64)).tolist() == []


def test_a_file_that_is_no_partition_is_refused_and_tensors_that_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    with pytest.raises(
        DataError, match="a: is no partition of htrain's; make one with: htrain partition DATA --out FILE"
    ):
        open_numbering(tmp_path / "a")
    partition = drawn_partition(0, (50,), num_workers=3)
    other = drawn_partition(1, (50,), num_workers=3)
    tensors = partition.tensors() | {"seen": other.tensors()["seen"]}
    with pytest.raises(DataError, match=r"^it: is damaged: \d+ rows are seen, want \d+; make it again"):
        Numbering(partition.facts, lambda name: iter([tensors[name]]), name="it")
    tensors = partition.tensors() | {"owners": np.full_like(partition.tensors()["owners"], 2**64 - 1)}
    with pytest.raises(DataError, match=r"^it: is damaged: a row is owned by no worker; make it again"):
        Numbering(partition.facts, lambda name: iter([tensors[name]]), name="it")
