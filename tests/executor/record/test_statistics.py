"""Running statistics of several groups are those of the examples of all, as numpy counts them."""

import numpy as np
import pytest
import torch

from htrain.executor.record.statistics import of_all_groups

PAIRS = {"mean": "variance"}


def held(examples: np.ndarray) -> dict[str, torch.Tensor]:
    """What a group holds that has seen these examples, [examples, channels]."""
    return {
        "mean": torch.from_numpy(examples.mean(0)).float(),
        "variance": torch.from_numpy(examples.var(0)).float(),
        "another": torch.ones(3),
    }


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_what_groups_of_sorted_examples_have_seen_is_put_together(groups: int) -> None:
    random = np.random.default_rng(groups)
    of_groups = [random.normal(10 * k, 1 + k, (500, 4)) for k in range(groups)]
    found = of_all_groups(PAIRS, [held(each) for each in of_groups])
    together = np.concatenate(of_groups)
    assert found.keys() == {"mean", "variance"}
    np.testing.assert_allclose(found["mean"], together.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["variance"], together.var(0), rtol=1e-5)
    assert found["mean"].dtype == found["variance"].dtype == torch.float32


def test_groups_that_have_seen_the_same_leave_it_as_it_is() -> None:
    one = held(np.random.default_rng(0).normal(1e4, 1e-3, (100, 4)))
    for name, value in of_all_groups(PAIRS, [one, one, one]).items():
        assert torch.equal(value, one[name])


def test_what_one_group_alone_has_is_left_out() -> None:
    one = held(np.arange(8.0).reshape(4, 2))
    assert not of_all_groups(PAIRS, [one])
    assert not of_all_groups(PAIRS, [one, {"mean": one["mean"]}, {}])
