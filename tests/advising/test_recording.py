"""What is kept of a pass over data: all of it, or a sample by row that is the same as a lower threshold would have taken."""

from collections.abc import Mapping

import numpy as np
import pytest

from htrain.advising.groups import Group
from htrain.advising.recording import ALL, Recorded, Recorder
from htrain.errors import DataError
from htrain.simulation.strategies.strategy import Keyed
from htrain.sync.accesses import Longs

ROWS = 50_000
GROUP = Group((Keyed("cache_4", {"a": 0, "b": ROWS}, (0, 60_000, 2 * ROWS), (0, 1)),), (0, ROWS, 60_000, 2 * ROWS))


def batches(number: int, *, most: int = ROWS) -> list[Mapping[str, Longs]]:
    random = np.random.default_rng(0)
    return [{blob: random.choice(most, 300, replace=False) for blob in "ab"} for _ in range(number)]


def recorded(of: list[Mapping[str, Longs]], budget: int, *, trainers: int = 1, threshold: int = ALL) -> Recorded:
    recorder = Recorder(GROUP, trainers, budget, threshold, fewest_rows=4096)
    for first in range(0, len(of), trainers):
        for ids in of[first : first + trainers]:
            recorder.take(ids)
        recorder.fit()
    return recorder.end()


def test_everything_is_kept_of_little_data() -> None:
    found = recorded(batches(10), 10_000)
    accesses = found.accesses
    assert accesses.rate == 1
    assert len(accesses.slots) == found.asked.sum() == 6000
    assert np.bincount(accesses.parts[accesses.slots]).sum() == 6000
    assert accesses.num_batches == 10


def test_a_sample_is_what_its_threshold_takes_from_the_beginning() -> None:
    of = batches(100)
    halved = recorded(of, 20_000)
    at_once = recorded(of, 10**9, threshold=round(halved.accesses.rate * ALL))
    assert halved.accesses.rate == 1 / 4
    assert 10_000 < len(halved.accesses.slots) <= 20_000
    assert halved.accesses.slots.tolist() == at_once.accesses.slots.tolist()
    assert halved.accesses.starts.tolist() == at_once.accesses.starts.tolist()
    assert halved.asked.sum() == 60_000


def hashed(keys: Longs) -> np.ndarray:
    """splitmix64, its upper 32 bits."""
    mixed = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)


@pytest.mark.parametrize("share", [8, 16])
def test_a_row_is_in_a_sample_with_all_of_its_uses_or_with_none(share: int) -> None:
    of = batches(100)
    accesses = recorded(of, 10**9, threshold=ALL // share).accesses
    keys = np.concatenate([first + batch[blob] for batch in of for first, blob in ((0, "a"), (ROWS, "b"))])
    rows, uses = np.unique(keys[hashed(keys) < ALL // share], return_counts=True)
    assert accesses.num_rows == len(rows)
    assert np.bincount(accesses.rows[accesses.slots]).tolist() == uses.tolist()
    assert abs(len(rows) / len(np.unique(keys)) - 1 / share) < 0.01


def test_of_few_rows_the_last_batches_are_kept() -> None:
    of = batches(100, most=500)
    found = recorded(of, 20_000, trainers=2)
    accesses = found.accesses
    assert accesses.rate == 1
    assert found.total == 60_000
    assert found.asked[: found.primed].sum() == 0
    last = accesses.slots[accesses.starts[2 * found.primed] :]
    num_kept = accesses.num_batches - found.primed
    whole = recorded(of, 10**9, trainers=2).accesses
    assert last.tolist() == whole.slots[-len(last) :].tolist()
    assert (found.asked[found.primed :].sum(2) == 600).all()
    assert 8 <= num_kept < 25


def test_caches_begin_with_rows_in_the_order_of_their_last_uses() -> None:
    of = batches(100, most=500)
    found = recorded(of, 20_000)
    accesses, num_dropped = found.accesses, 100 - (found.accesses.num_batches - found.primed)
    used: dict[int, None] = {}
    for ids in of[:num_dropped]:
        for key in (*ids["a"].tolist(), *(ids["b"] + ROWS).tolist()):
            used.pop(key, None)
            used[key] = None
    order = [*dict.fromkeys(used)]
    keys = np.unique([key for ids in of for key in (*ids["a"], *(ids["b"] + ROWS))])
    assert keys[accesses.slots[: accesses.starts[found.primed]]].tolist() == order


def test_a_trainer_whose_data_is_over_asks_for_nothing() -> None:
    recorder = Recorder(GROUP, 2, 1000)
    for ids in (batches(1)[0], None):
        recorder.take(ids)
    found = recorder.end()
    assert found.asked.sum(2).tolist() == [[600, 0]]


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_an_id_that_no_table_has_is_named(bad: int) -> None:
    recorder = Recorder(GROUP, 1, 1000)
    with pytest.raises(DataError, match=f"row {bad} is asked for by b, the table has 50000: is an id too large"):
        recorder.take({"a": np.array([1, 2]), "b": np.array([1, bad])})
