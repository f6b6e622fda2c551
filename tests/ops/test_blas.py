"""Gradients of weights by numpy's BLAS, against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.ops import OPS
from htrain.ops.blas import numpy_is_ahead, product_over_rows


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_a_product_over_rows_is_that_of_torch(rows: int, n: int, k: int, part: bool) -> None:
    dy, x = torch.randn(rows, n + 3)[:, 2 : n + 2], torch.randn(rows, k + 1)[:, 1:]  # as a Split gives them
    dy, x = (dy, x) if part else (dy.contiguous(), x.contiguous())
    assert torch.allclose(product_over_rows(dy, x), (dy.double().t() @ x.double()).float(), rtol=1e-4, atol=1e-4)


def test_steps_and_gradients_are_the_same_by_either(monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, w = torch.randn(160, 50), torch.randn(160, 30), torch.randn(30, 50)
    monkeypatch.setattr("htrain.ops.blas._fits_the_cpu", lambda: False)
    assert not numpy_is_ahead(dy, x)
    stepped = w.clone()
    OPS["FCSgd"].kernel(stepped, x, dy, lr=0.1)
    made = OPS["FCGradient"].kernel(x, w, dy, bias=True, wants_x=True)
    threads = torch.get_num_threads()
    monkeypatch.setattr("htrain.ops.blas._fits_the_cpu", lambda: True)
    torch.set_num_threads(1)
    try:
        assert numpy_is_ahead(dy, x)
        assert not numpy_is_ahead(dy.bfloat16(), x.bfloat16())
        by_numpy = w.clone()
        OPS["FCSgd"].kernel(by_numpy, x, dy, lr=0.1)
        again = OPS["FCGradient"].kernel(x, w, dy, bias=True, wants_x=True)
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(stepped, by_numpy, rtol=1e-4, atol=1e-4)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(made, again, strict=True))
