"""Counter-based random fills: a value is a hash of (seed, row, column), so it does not depend on sharding or order."""

import math

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.ops.mixing import mix

Rows = NDArray[np.float32]


Numbers = NDArray[np.int64]


def fill_uniform(out: Rows, seed: int, first_row: int, low: float, high: float, *, first_column: int = 0) -> None:
    """Fill out[R,D] in place with uniform values in [low, high); out[r, d] is [first_row + r, first_column + d] of its parameter."""
    _uniform(out, np.uint64(seed), first_row=first_row, first_column=first_column, low=low, high=high)


def fill_normal(out: Rows, seed: int, first_row: int, mean: float, std: float, *, first_column: int = 0) -> None:
    """Fill out[R,D] in place with normal values (Box-Muller); which ones is as in `fill_uniform`."""
    _normal(out, np.uint64(seed), first_row=first_row, first_column=first_column, mean=mean, std=std)


def fill_uniform_at(out: Rows, seed: int, rows: Numbers, low: float, high: float) -> None:
    """As `fill_uniform`; out[r] is row rows[r] of its parameter."""
    _uniform_at(out, np.uint64(seed), rows, low=low, high=high)


def fill_normal_at(out: Rows, seed: int, rows: Numbers, mean: float, std: float) -> None:
    """As `fill_normal`; out[r] is row rows[r] of its parameter."""
    _normal_at(out, np.uint64(seed), rows, mean=mean, std=std)


@njit(nogil=True, cache=True, inline="always")
def _bits(row_key, column):  # type: ignore[no-untyped-def]
    return mix(row_key + np.uint64(column) * np.uint64(0x9E3779B97F4A7C15))


@njit(nogil=True, cache=True, inline="always")
def _row_key(seed, row):  # type: ignore[no-untyped-def]
    return mix(mix(seed ^ np.uint64(0x5851F42D4C957F2D)) + np.uint64(row) * np.uint64(0xC2B2AE3D27D4EB4F))


@njit(nogil=True, cache=True, usual="(f4[:,::1], u8, i8, i8, f8, f8)")
def _uniform(out, seed, first_row, first_column, low, high):  # type: ignore[no-untyped-def]
    scale = (high - low) / 16777216.0
    for r in range(out.shape[0]):
        key = _row_key(seed, first_row + r)
        for d in range(out.shape[1]):
            out[r, d] = low + scale * np.float64(_bits(key, first_column + d) >> np.uint64(40))


@njit(nogil=True, cache=True, usual="(f4[:,::1], u8, i8, i8, f8, f8)")
def _normal(out, seed, first_row, first_column, mean, std):  # type: ignore[no-untyped-def]
    for r in range(out.shape[0]):
        key = _row_key(seed, first_row + r)
        for d in range(out.shape[1]):
            bits = _bits(key, first_column + d)
            first = (np.float64(bits >> np.uint64(32)) + 1.0) / 4294967296.0  # in (0, 1]: its logarithm is finite
            second = np.float64(bits & np.uint64(0xFFFFFFFF)) / 4294967296.0
            out[r, d] = mean + std * math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)


@njit(nogil=True, cache=True)
def _uniform_at(out, seed, rows, low, high):  # type: ignore[no-untyped-def]
    for r in range(out.shape[0]):
        _uniform(out[r : r + 1], seed, first_row=rows[r], first_column=0, low=low, high=high)


@njit(nogil=True, cache=True)
def _normal_at(out, seed, rows, mean, std):  # type: ignore[no-untyped-def]
    for r in range(out.shape[0]):
        _normal(out[r : r + 1], seed, first_row=rows[r], first_column=0, mean=mean, std=std)


UNIFORM, NORMAL = (_uniform,), (_normal,)  # the loops of each
