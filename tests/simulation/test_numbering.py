"""Numbers of rows, against a dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.simulation.numbering import Numbering

BOUNDS = (0, 5, 5, 10**12)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.integers(0, 12), st.integers(10**11, 10**12 - 1)), unique=True, max_size=9), max_size=12
    )
)
def test_keys_are_numbered_in_their_shards_as_they_come(batches: list[list[int]]) -> None:
    numbering, known = Numbering(BOUNDS, 200), {}
    assert numbering.first.tolist() == [0, 5, 5, 205]
    for keys in batches:
        for key in keys:
            before = sum((k < 5) == (key < 5) for k in known)
            known.setdefault(key, before + (0 if key < 5 else 5))
        assert numbering.numbers(np.array(keys, np.int64)).tolist() == [known[key] for key in keys]


@pytest.mark.parametrize("key", [-1, 10**12])
def test_a_key_that_no_shard_has_is_refused(key: int) -> None:
    with pytest.raises(DataError, match=rf"^row {key} is asked for, the cached tables have 1000000000000"):
        Numbering(BOUNDS, 9).numbers(np.array([3, key]))
