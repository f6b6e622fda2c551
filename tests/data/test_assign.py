"""Where new examples go, against a loop that counts owners."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data import Input, Schema
from htrain.data.assign import SLACK, as_partitioned, by_known_rows
from htrain.data.numbering import numbering_of
from htrain.data.rows import Rows
from htrain.errors import DataError
from tests.support.partitions import drawn_partition

SCHEMA = Schema((Input("words", "bag", 3, ("w",), rows=(80,), tables=("t0",)),))


def bags(seed: int, count: int) -> Rows:
    random = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(random.integers(0, 5, count)))
    return Rows(count, {"label": np.zeros(count, np.float32)}, {"words": (random.integers(0, 80, starts[-1]), starts)})


@given(seed=st.integers(0, 2**32 - 1), num_workers=st.integers(2, 5), cut=st.integers(0, 120))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_an_example_goes_to_who_owns_most_of_its_known_rows_and_may_have_more(
    seed: int, num_workers: int, cut: int
) -> None:
    rows, numbering = bags(seed, 120), numbering_of(drawn_partition(seed, (80,), num_workers=num_workers, share=0.6))
    assign = by_known_rows(numbering, SCHEMA)
    found = [*assign(rows.cut(0, cut)).tolist(), *assign(rows.cut(cut, 120)).tolist()]
    bounds, owned = numbering.bounds("t0"), numbering.owned("t0")
    values, starts = rows.lists["words"]
    loads = [0] * num_workers
    for i, worker in enumerate(found):
        mine = set(values[starts[i] : starts[i + 1]].tolist())
        known = [len(mine & set(range(bounds[k], bounds[k] + owned[k]))) for k in range(num_workers)]
        may = [k for k in range(num_workers) if loads[k] < np.ceil(SLACK * (i + 1) / num_workers)]
        best = min(may, key=lambda k: (-known[k], loads[k]))
        assert (known[worker], loads[worker]) == (known[best], loads[best])
        assert worker in may
        loads[worker] += 1


def test_partitioned_examples_have_their_labels_and_no_more_than_there_are() -> None:
    assign, rows = as_partitioned(np.array([2, 0, 1], np.uint8), name="'libfm:a'"), bags(0, 2)
    assert assign(rows).tolist() == [2, 0]
    with pytest.raises(
        DataError, match="'libfm:a': has more examples than the 3 that were partitioned: partition it again"
    ):
        assign(rows)
