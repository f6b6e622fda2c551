"""Products of pairs of features, against torch's products of all of them: any pairs in any order, any number and width of features."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.ops import OPS

PAIRS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n * n - 1), max_size=60)))


@settings(deadline=None)  # the first compiles the loops
@given(PAIRS, st.sampled_from([1, 3, 16, 20, 64, 128]), st.booleans(), st.data())
def test_pairs_and_their_gradient_are_those_of_all_products(
    pairs: tuple[int, list[int]], width: int, part: bool, data: st.DataObject
) -> None:
    (count, chosen), batch = pairs, 3
    kept = data.draw(st.integers(0, count))
    positions = torch.tensor(chosen, dtype=torch.int64)
    features = torch.randn(batch, count, width, dtype=torch.float64, requires_grad=True)
    products = torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, positions)
    wanted = torch.cat([features[:, :kept].flatten(1), products], 1)
    dy = torch.randn(batch, wanted.shape[1] + 2)[:, 1 : 1 + wanted.shape[1]]  # as a Split gives it
    dy = dy if part else dy.contiguous()
    wanted.backward(dy.double())
    assert features.grad is not None

    plain = features.detach().float()
    assert torch.allclose(
        OPS["PairwiseDots"].kernel(plain, positions, kept=kept), wanted.detach().float(), rtol=1e-4, atol=1e-4
    )
    gradient = OPS["PairwiseDotsGradient"].kernel(plain, positions, dy, kept=kept)
    assert torch.allclose(gradient, features.grad.float(), rtol=1e-4, atol=1e-4)


def test_a_kernel_that_knows_its_pairs_takes_features_of_any_number() -> None:
    positions = torch.tensor([1, 2])
    bind = OPS["PairwiseDots"].bind
    assert bind
    bound = bind(None, positions)
    for count in (3, 2, 5):
        features = torch.randn(4, count, 8)
        all_products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        assert torch.allclose(bound(features), all_products[:, 1:3], atol=1e-5)


@pytest.mark.parametrize("kept", [-1, 4])
def test_features_that_are_not_there_are_not_given_out(kept: int) -> None:
    with pytest.raises(DataError, match="features are to be given out, of 3"):
        OPS["PairwiseDots"].kernel(torch.zeros(2, 3, 4), torch.tensor([1, 2]), kept=kept)


@pytest.mark.parametrize("dy", [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.float64)])
def test_gradients_of_another_form_are_refused(dy: torch.Tensor) -> None:
    with pytest.raises(DataError, match=r"gradients of pairs are .* want"):
        OPS["PairwiseDotsGradient"].kernel(torch.zeros(2, 3, 4), torch.tensor([1, 2]), dy)
