"""NE and AUC against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.data.evaluation import auc, entropy, normalized_entropy


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=40))
def test_auc_is_the_share_of_pairs_in_order_with_ties_as_half(pairs):
    scores, labels = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs], float)
    above = [(s > t) + (s == t) / 2 for s in scores[labels == 1] for t in scores[labels == 0]]
    if not above:
        assert math.isnan(auc(scores, labels))
    else:
        assert auc(scores, labels) == pytest.approx(np.mean(above), abs=1e-12)


def test_auc_of_a_model_that_diverged_is_nan():
    assert math.isnan(auc(np.array([0.1, np.nan, 0.3]), np.array([0.0, 1.0, 1.0])))


def test_ne_of_the_base_rate_is_one_and_of_certainty_is_zero():
    labels = np.array([1, 0, 0, 1, 0])
    log_loss = -np.sum(np.where(labels == 1, np.log(0.4), np.log(0.6)))
    assert normalized_entropy(float(log_loss), 2, 5) == pytest.approx(1)
    assert normalized_entropy(0.0, 2, 5) == 0


def test_ne_is_nan_where_all_labels_are_the_same_or_there_are_none():
    assert all(
        math.isnan(v)
        for v in (normalized_entropy(1.0, 0, 5), normalized_entropy(1.0, 5, 5), normalized_entropy(0.0, 0, 0))
    )
    assert entropy(0.5) == pytest.approx(math.log(2))
