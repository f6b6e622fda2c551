"""Rankings within groups against their definitions, over every order of the examples whose scores tie."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.data.evaluation import auc
from htrain.data.ranking import Grouping, ranking, require_column
from htrain.data.schema import Input, Schema
from htrain.errors import UsageError

examples = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3), st.integers(0, 1)), max_size=14)


def orders(scored: list[tuple[int, int]]) -> list[list[int]]:
    """The labels in every order that puts no lower score before a higher one."""
    return [
        [label for _, label in order] for order in permutations(scored) if all(a[0] >= b[0] for a, b in pairwise(order))
    ]


def measures(labels: list[int], top: int) -> tuple[float, float, float]:
    """NDCG, recall and reciprocal rank of one list, as textbooks have them."""
    gain = sum(label / math.log2(place + 2) for place, label in enumerate(labels[:top]))
    best = sum(label / math.log2(place + 2) for place, label in enumerate(sorted(labels, reverse=True)[:top]))
    return gain / best, sum(labels[:top]) / sum(labels), 1 / (labels.index(1) + 1)


@given(examples, st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_rankings_are_means_over_groups_and_over_all_orders_of_ties(rows, top):
    groups: dict[int, list[tuple[int, int]]] = {}
    for group, score, label in rows:
        if len(groups.setdefault(group, [])) < 6:  # 720 orders
            groups[group].append((score, label))
    kept = [(group, *each) for group, members in groups.items() for each in members]
    mixed = [members for members in groups.values() if 0 < sum(label for _, label in members) < len(members)]
    group, score, label = (np.array(column) for column in zip(*kept, strict=True)) if kept else (np.empty(0),) * 3
    found = ranking(group, score.astype(np.float32), label.astype(np.float32), Grouping("user", top))
    assert (found.groups, found.top, found.group_by) == (len(mixed), top, "user")
    assert found.all_groups == len(groups)
    assert found.examples == sum(map(len, mixed))
    if not mixed:
        assert all(math.isnan(each) for each in (found.gauc, found.ndcg, found.recall, found.mrr))
        return
    areas = [(len(m), auc(np.array([s for s, _ in m], float), np.array([y for _, y in m], float))) for m in mixed]
    assert found.gauc == pytest.approx(sum(n * area for n, area in areas) / sum(n for n, _ in areas), abs=1e-9)
    each = [np.mean([measures(labels, top) for labels in orders(members)], axis=0) for members in mixed]
    assert (found.ndcg, found.recall, found.mrr) == pytest.approx(tuple(np.mean(each, axis=0)), abs=1e-9)


def test_neither_the_order_of_examples_nor_what_groups_are_called_matters():
    draw = np.random.default_rng(3)
    group, score = draw.integers(0, 50, 4000), draw.normal(size=4000).astype(np.float32).round(1)
    label = (draw.random(4000) < 0.2).astype(np.float32)
    found, shuffled = ranking(group, score, label, Grouping("user", 5)), draw.permutation(4000)
    assert ranking((group * 7.5 - 100)[shuffled], score[shuffled], label[shuffled], Grouping("user", 5)) == found


def test_the_place_of_the_first_positive_of_a_million_that_tie_is_theirs_in_the_mean():
    label = np.zeros(1_000_000, np.float32)
    label[7] = 1
    found = ranking(np.zeros(label.size), np.zeros_like(label), label, Grouping("user", 10))
    assert found.mrr == pytest.approx(np.mean(1 / np.arange(1, label.size + 1)), rel=1e-9)
    assert (found.gauc, found.recall) == pytest.approx((0.5, 1e-5))


def test_a_model_that_diverged_has_no_ranking():
    assert math.isnan(
        ranking(np.zeros(2), np.array([1, np.nan], np.float32), np.array([0, 1.0]), Grouping("user", 1)).gauc
    )


SCHEMA = Schema((
    Input("sparse", "ids", 2, columns=("user", "item"), rows=(9, 9), tables=("user", "item")),
    Input("more", "ids", 2, columns=("item", "day"), rows=(9, 9), tables=("item", "day")),
    Input("session", "ids", 1, columns=("id",), rows=(9,), tables=("id",)),
    Input("dense", "dense", 3),
    Input("price", "dense", 1),
    Input("clicked", "padded", 1, rows=(9,), tables=("item",)),
))  # fmt: skip


@pytest.mark.parametrize("name", ["sparse.user", "user", "day", "more.item", "session", "session.id", "id", "price"])
def test_a_column_of_one_value_for_each_example_has_groups(name):
    require_column(SCHEMA, name, what="--group-by")


@pytest.mark.parametrize("name", ["sparse", "dense", "clicked", "sparse.day", "", "nobody"])
def test_what_has_more_values_or_more_than_one_meaning_is_refused_with_what_there_is(name):
    with pytest.raises(
        UsageError, match=r"--group-by: '.*' is no column of one value for each example; the data has .*sparse\.user"
    ):
        require_column(SCHEMA, name, what="--group-by")


def test_a_name_of_several_columns_is_refused_with_theirs():
    with pytest.raises(UsageError, match=r"--group-by: 'item' is in several inputs: say sparse\.item or more\.item"):
        require_column(SCHEMA, "item", what="--group-by")
    shadowed = Schema((*SCHEMA.inputs, Input("user", "ids", 1, columns=("session",), rows=(9,), tables=("id",))))
    with pytest.raises(UsageError, match=r"'user' is in several inputs: say sparse\.user or user\.session"):
        require_column(shadowed, "user", what="--group-by")
    require_column(shadowed, "user.session", what="--group-by")
