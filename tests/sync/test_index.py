"""The index against a dict."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.sync.index import find, insert, new_index, remove

KEYS = st.integers(0, 20) | st.integers(2**40, 2**40 + 20)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), KEYS), max_size=80))
def test_index_holds_what_a_dict_holds(changes: list[tuple[bool, int]]) -> None:
    index = new_index(8)  # 16 places: keys collide all the time
    known: dict[int, int] = {}
    for slot, (adds, key) in enumerate(changes):
        if adds and key not in known and len(known) < 13:
            insert(index, np.int64(key), slot)
            known[key] = slot
        elif not adds and key in known:
            remove(index, np.int64(key))
            del known[key]
        assert all(find(index, np.int64(k)) == known.get(k, -1) for k in (*range(21), *known))
    assert np.count_nonzero(index[1::2] >= 0) == len(known)
