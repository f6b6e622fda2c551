"""Fingerprints of rows, against their bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htrain.publishing.fingerprints import fingerprints_of

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8)


@given(
    seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(DTYPES), rows=st.integers(0, 40), columns=st.integers(1, 9)
)
def test_rows_have_one_fingerprint_where_they_have_the_same_bytes_and_else_others(
    seed: int, dtype: torch.dtype, rows: int, columns: int
) -> None:
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(0, 3, (rows, columns))).to(dtype)
    found = fingerprints_of(drawn)
    assert found.shape == (rows,)
    numbers = {row.view(torch.uint8).numpy().tobytes(): int(number) for row, number in zip(drawn, found, strict=True)}
    assert [numbers[row.view(torch.uint8).numpy().tobytes()] for row in drawn] == found.tolist()
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_rows_of_few_small_numbers_have_one_fingerprint(dtype: torch.dtype) -> None:
    """Such numbers have few bits that are set, and all of them high."""
    numbers = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5] if dtype.is_floating_point else [0, 1, -1, 2, 4]).to(dtype)
    rows = numbers[torch.cartesian_prod(*[torch.arange(5)] * 7)]
    assert len(np.unique(fingerprints_of(rows))) == 5**7


def test_a_row_that_differs_in_one_bit_has_another_fingerprint() -> None:
    row = torch.randn(1, 16)
    changed = row.repeat(32 * 16, 1).view(torch.int32)
    for bit in range(32 * 16):
        changed[bit, bit // 32] ^= torch.tensor(1 << bit % 32, dtype=torch.int64).to(torch.int32)
    found = fingerprints_of(torch.cat([row, changed.view(torch.float32)]))
    assert len(set(found.tolist())) == 1 + 32 * 16


def test_zero_and_minus_zero_are_other_bytes_and_a_nan_equals_itself() -> None:
    rows = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [float("nan"), 1.0], [float("nan"), 1.0]])
    plus, minus, one, other = fingerprints_of(rows).tolist()
    assert plus != minus
    assert one == other
