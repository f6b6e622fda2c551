"""Random fills against their hash written in Python's own integers, and against the distributions that they promise."""

import math
from itertools import pairwise

import numpy as np
import pytest
from fenced import assert_fence_stands, fenced
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from htrain.ops.row_init import fill_normal, fill_uniform

quick = settings(max_examples=30, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**63 - 1)
FIRST_ROWS = st.one_of(st.integers(0, 100), st.integers(2**40, 2**62))
MASK = 2**64 - 1


def mixed(x: int) -> int:
    for _ in range(2):
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32


def bits(seed: int, row: int, column: int) -> int:
    """The 64 random bits of a place: a hash of seed, row and column."""
    row_key = mixed(mixed(seed ^ 0x5851F42D4C957F2D) + row * 0xC2B2AE3D27D4EB4F & MASK)
    return mixed(row_key + column * 0x9E3779B97F4A7C15 & MASK)


def uniform(rows: int, columns: int, seed: int, first_row: int = 0) -> NDArray[np.float32]:
    out = np.full((rows, columns), np.nan, np.float32)
    fill_uniform(out, seed, first_row, 0.0, 1.0)
    return out


@quick
@given(seed=SEEDS, first_row=FIRST_ROWS)
@example(seed=2**63 - 1, first_row=2**62)
def test_values_are_those_of_the_hash_of_seed_row_and_column(seed: int, first_row: int) -> None:
    even, odd = np.empty((3, 2), np.float32), np.empty((3, 2), np.float32)
    fill_uniform(even, seed, first_row, -0.5, 1.5)
    fill_normal(odd, seed, first_row, 2.0, 0.5)
    for r in range(3):
        for d in range(2):
            drawn = bits(seed, first_row + r, d)
            assert even[r, d] == pytest.approx(-0.5 + 2.0 * (drawn >> 40) / 2**24, abs=1e-6)
            radius = math.sqrt(-2 * math.log(((drawn >> 32) + 1) / 2**32))
            assert odd[r, d] == pytest.approx(
                2 + 0.5 * radius * math.cos(2 * math.pi * (drawn & 2**32 - 1) / 2**32), abs=1e-5
            )


@quick
@given(seed=SEEDS, cuts=st.sets(st.integers(0, 12), max_size=4), first_row=FIRST_ROWS)
@pytest.mark.parametrize("fill", [fill_uniform, fill_normal])
def test_a_table_has_the_same_rows_however_it_is_cut_and_nothing_else_is_written(
    fill, seed: int, cuts: set[int], first_row: int
) -> None:
    whole = np.empty((12, 3), np.float32)
    fill(whole, seed, first_row, 0.0, 1.0)
    edges = [0, *sorted(cuts), 12]
    for low, high in pairwise(edges):
        shard, field = fenced(high - low, 3)
        fill(shard, seed, first_row + low, 0.0, 1.0)
        assert np.array_equal(shard, whole[low:high])
        assert_fence_stands(field)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("fill", [fill_uniform, fill_normal])
def test_an_empty_table_takes_no_values(fill, shape: tuple[int, int]) -> None:
    out = np.empty(shape, np.float32)
    fill(out, 1, 0, 0.0, 1.0)
    assert out.shape == shape


def test_uniform_values_fill_their_range_evenly_and_stay_below_its_end() -> None:
    drawn = uniform(100_000, 4, seed=3).reshape(-1)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=64, range=(0, 1))[0]
    expected = drawn.size / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 63 + 5 * math.sqrt(2 * 63)


def test_normal_values_have_the_moments_and_the_tails_of_a_normal_distribution() -> None:
    drawn = np.empty((100_000, 4), np.float32)
    fill_normal(drawn, 3, 0, 1.0, 2.0)
    standard = (drawn.reshape(-1).astype(np.float64) - 1) / 2
    assert np.isfinite(standard).all()
    error = 5 / math.sqrt(standard.size)
    assert abs(standard.mean()) < error
    assert abs((standard**2).mean() - 1) < math.sqrt(2) * error
    assert abs((standard**3).mean()) < math.sqrt(15) * error
    assert abs((standard**4).mean() - 3) < math.sqrt(96) * error
    for bound in (0.5, 1, 2, 3):
        share = math.erf(bound / math.sqrt(2))
        assert abs((np.abs(standard) < bound).mean() - share) < error


@pytest.mark.parametrize("apart", ["columns", "rows", "seeds", "far rows"])
def test_neighbours_are_not_correlated(apart: str) -> None:
    drawn = uniform(50_000, 2, seed=4) - 0.5
    first, second = {
        "columns": (drawn[:, 0], drawn[:, 1]),
        "rows": (drawn[:-1, 0], drawn[1:, 0]),
        "seeds": (drawn, uniform(50_000, 2, seed=5) - 0.5),
        "far rows": (drawn, uniform(50_000, 2, seed=4, first_row=2**40) - 0.5),
    }[apart]
    assert abs(float((first * second).mean()) * 12) < 5 / math.sqrt(first.size)
