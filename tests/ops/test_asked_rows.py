"""Ids of tables that lie one behind the other as keys, against counting by hand: an id without a row is never a row of the next table."""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.ops.asked_rows import keys_of


@settings(max_examples=200, derandomize=True)
@given(st.data())
def test_rows_are_keys_of_their_own_table_or_refused(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="rows of tables")
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    places = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=5), label="tables that are asked")
    ids = [data.draw(st.lists(st.integers(-2, 6) | st.sampled_from([2**62, -(2**62)]), max_size=4)) for _ in places]
    places.append(0), ids.append([0])  # every ask is for the first table, and for all: as nets are made
    for table in range(len(sizes)):
        places.append(table), ids.append([0])
    firsts = tuple(bounds[place] for place in places)
    tensors = [torch.tensor(each, dtype=torch.int64) for each in ids]
    wrong = [
        f"id {row} at position {each.index(row)} is outside the table's rows [0, {sizes[place]})"
        for place, each in zip(places, ids, strict=True)
        for row in each
        if not 0 <= row < sizes[place]
    ]
    if wrong:
        with pytest.raises(DataError, match=re.escape(wrong[0])):
            keys_of(tensors, firsts, bounds[-1])
    else:
        keys = keys_of(tensors, firsts, bounds[-1]).tolist()
        assert keys == [bounds[place] + row for place, each in zip(places, ids, strict=True) for row in each]
        assert all(any(low <= key < high for low, high in pairwise(bounds)) for key in keys)
    assert [each.tolist() for each in tensors] == ids  # they are read, not changed


def test_what_is_announced_may_be_beyond_the_last_table_alone() -> None:
    """Whoever announces does not know the number of all keys: it is refused where it is asked for."""
    assert keys_of([torch.tensor([1]), torch.tensor([7])], (0, 3)).tolist() == [1, 10]
    with pytest.raises(DataError, match=re.escape("id 3 at position 0 is outside the table's rows [0, 3)")):
        keys_of([torch.tensor([3]), torch.tensor([7])], (0, 3))
