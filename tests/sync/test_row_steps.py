"""Sums of gradients by row, against a loop over a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.sync.index import new_index
from htrain.sync.row_steps import sum_by_row


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_each_row_has_the_sum_of_its_gradients_and_each_gradient_its_place(keys: list[int], width: int) -> None:
    rows = np.array(keys, np.int64)
    grads = np.random.default_rng(len(keys)).integers(-5, 6, (len(keys), width)).astype(np.float32)
    distinct, summed, places = np.empty_like(rows), np.full_like(grads, np.nan), np.empty_like(rows)
    count = sum_by_row(rows, grads, new_index(rows.size), distinct=distinct, summed=summed, places=places)
    assert distinct[:count].tolist() == list(dict.fromkeys(keys))
    assert distinct[places].tolist() == keys
    for row, total in zip(distinct[:count], summed[:count], strict=True):
        assert total.tolist() == grads[rows == row].sum(0).tolist()
