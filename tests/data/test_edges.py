"""The rows that examples look up, against a loop over every kind of input."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data.edges import edges_of, tables_of
from htrain.data.rows import Rows
from htrain.data.schema import Input, Schema

SCHEMA = Schema(
    (
        Input("dense", "dense", 2, ("a", "b")),
        Input("sparse", "ids", 3, ("u", "i", "j"), rows=(5, 7, 9), tables=("user", "item", "item")),
        Input("history", "padded", 4, ("h",), rows=(9,), tables=("item",)),
        Input("words", "bag", 3, ("w",), rows=(6,), tables=("word",)),
    )
)


def drawn_rows(seed: int, count: int) -> Rows:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 4, count)
    starts = np.append(0, np.cumsum(lengths))
    fixed = {
        "dense": random.random((count, 2), np.float32),
        "sparse": np.stack([random.integers(0, rows, count) for rows in (5, 7, 9)], axis=1),
        "history": random.integers(0, 9, (count, 4)),
        "history_length": random.integers(0, 7, count),  # a length beyond the width is that of the whole list
        "label": np.zeros(count, np.float32),
    }
    return Rows(count, fixed, {"words": (random.integers(0, 6, starts[-1]), starts)})


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 20))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_each_example_has_the_rows_of_all_its_inputs_in_their_order(seed: int, count: int) -> None:
    rows, tables = drawn_rows(seed, count), tables_of(SCHEMA)
    assert (tables.names, tables.starts, tables.num_rows) == (("user", "item", "word"), (0, 5, 14), 20)
    starts, keys = edges_of(rows, SCHEMA, tables)
    assert starts[0] == 0
    assert len(starts) == count + 1
    words, word_starts = rows.lists["words"]
    for i in range(count):
        user, item, other = rows.fixed["sparse"][i].tolist()
        history = rows.fixed["history"][i][: min(4, rows.fixed["history_length"][i])].tolist()
        mine = words[word_starts[i] : word_starts[i + 1]].tolist()
        wanted = [user, 5 + item, 5 + other, *(5 + each for each in history), *(14 + each for each in mine)]
        assert keys[starts[i] : starts[i + 1]].tolist() == wanted


def test_a_row_is_told_by_its_table_and_tables_that_are_named_once_never_repeat_a_row() -> None:
    tables = tables_of(SCHEMA)
    assert [tables.place(key) for key in (0, 4, 5, 13, 14, 19)] == [
        "user[0]", "user[4]", "item[0]", "item[8]", "word[0]", "word[5]"
    ]  # fmt: skip
    assert not tables.never_repeat
    apart = Schema((Input("sparse", "ids", 2, ("u", "i"), rows=(5, 7), tables=("user", "item")),))
    assert tables_of(apart).never_repeat
    twice = Schema((Input("sparse", "ids", 2, ("u", "i"), rows=(5, 7), tables=("user", "user")),))
    assert not tables_of(twice).never_repeat
    assert tables_of(twice).num_rows == 7
