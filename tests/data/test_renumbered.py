"""Rows of every kind of input with new numbers for ids, against a loop; and which data may be renumbered."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import START, Dataset, Input, Malformed, Position, Schema, open_data
from htrain.data.edges import edges_of, tables_of
from htrain.data.numbering import Numbering, numbering_of
from htrain.data.renumbered import new_rows, new_schema, renumbered
from htrain.data.rows import Rows
from htrain.errors import DataError
from tests.support.partitions import drawn_partition

SCHEMA = Schema(
    (
        Input("dense", "dense", 2, ("a", "b")),
        Input("sparse", "ids", 3, ("u", "i", "j"), rows=(50, 30, 90), tables=("t0", "t1", "t1")),
        Input("history", "padded", 4, ("h",), rows=(90,), tables=("t1",)),
        Input("words", "bag", 3, ("w",), rows=(60,), tables=("t2",)),
    )
)
SIZES = (50, 90, 60)


def drawn_rows(seed: int, count: int) -> Rows:
    random = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(random.integers(0, 4, count)))
    length = random.integers(0, 5, count)
    fixed = {
        "dense": random.random((count, 2), np.float32),
        "sparse": np.stack([random.integers(0, rows, count) for rows in (50, 30, 90)], axis=1),
        "history": np.where(np.arange(4) < length[:, None], random.integers(0, 90, (count, 4)), 0),
        "history_length": length,
        "label": np.zeros(count, np.float32),
    }
    return Rows(count, fixed, {"words": (random.integers(0, 60, starts[-1]), starts)})


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 20), num_workers=st.integers(2, 5))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_id_of_an_example_gets_its_number_and_nothing_else_changes(
    seed: int, count: int, num_workers: int
) -> None:
    rows, numbering = drawn_rows(seed, count), numbering_of(drawn_partition(seed, SIZES, num_workers=num_workers))
    new, tables = new_rows(rows, SCHEMA, numbering), tables_of(SCHEMA)
    starts, keys = edges_of(rows, SCHEMA, tables)
    new_starts, new_keys = edges_of(new, new_schema(SCHEMA, numbering), tables)
    numbers = [tables.start_of(t) + numbering.renumber(t, np.arange(tables.rows_of(t))) for t in tables.names]
    assert new_starts.tolist() == starts.tolist()
    assert new_keys.tolist() == np.concatenate(numbers)[keys].tolist()
    is_filling = np.arange(4) >= rows.fixed["history_length"][:, None]
    assert (new.fixed["history"][is_filling] == numbering.renumber("t1", np.zeros(1, np.int64))[0]).all()  # as 0 before
    for name in ("dense", "label", "history_length"):
        assert new.fixed[name] is rows.fixed[name]


def test_a_column_with_the_first_rows_of_a_shared_table_may_have_any_of_them_then() -> None:
    numbering = numbering_of(drawn_partition(0, SIZES, num_workers=2))
    schema = new_schema(SCHEMA, numbering)
    assert [each.rows for each in schema.inputs] == [(), (50, 90, 90), (90,), (60,)]
    assert tables_of(schema) == tables_of(SCHEMA)


def click_log(folder: Path) -> tuple[Dataset, Numbering]:
    """Examples of 26 tables of 40 rows, and a partition of these."""
    (folder / "a.tsv").write_text("".join(f"{i % 2}" + "\t3" * 13 + f"\t{i:08x}" * 26 + "\n" for i in range(300)))
    dataset = open_data(f"criteo:{folder}/a.tsv?rows=40")
    made = drawn_partition(0, (40,) * 26, num_workers=3)
    facts = msgspec.structs.replace(made.facts, tables=tables_of(dataset.schema).names)
    return dataset, numbering_of(replace(made, facts=facts), name="a.partition")


def test_a_dataset_has_its_batches_and_positions_with_new_numbers(tmp_path: Path) -> None:
    dataset, numbering = click_log(tmp_path)
    new = renumbered(dataset.for_loss("bce"), numbering)
    assert (new.partition, new.num_workers, new.loss, new.num_examples()) == (numbering.digest, 0, "bce", 300)

    def read(data: Dataset, start: Position = START) -> list[tuple[Position, np.ndarray]]:
        batches = data.batches(batch_size=32, shard=1, num_shards=2, epochs=2, start=start, malformed=Malformed())
        return [(batch.position, batch.columns["sparse"]) for batch in batches]

    names = tables_of(dataset.schema).names
    for (position, ids), (old_position, old_ids) in zip(read(new), read(dataset), strict=True):
        assert position == old_position
        for c, name in enumerate(names):
            assert ids[:, c].tolist() == numbering.renumber(name, old_ids[:, c]).tolist()
    assert [position for position, _ in read(new, position)] == [p for p, _ in read(dataset, position)]
    assert new.source.name == dataset.source.name
    where = {"number": 0, "row": 3, "num_shards": 1}
    assert new.source.place(**where) == dataset.source.place(**where)


def test_data_is_renumbered_once_and_by_its_own_partition_alone(tmp_path: Path) -> None:
    dataset, numbering = click_log(tmp_path)
    new = renumbered(dataset, numbering)
    assert renumbered(new, numbering) is new
    other = replace(new, partition="another")
    with pytest.raises(
        DataError,
        match=r"a.tsv: was packed by the partition another, and a.partition is the partition \w+: pack its source",
    ):
        renumbered(other, numbering)
    with pytest.raises(
        DataError, match=r"a.tsv: does not belong to the partition: it has no table 't0', which the partition has"
    ):
        renumbered(dataset, numbering_of(drawn_partition(0, SIZES, num_workers=2)))
