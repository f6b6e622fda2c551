"""Which values a dropout keeps: a hash of (seed, batch, place), so that it depends on neither the role, the thread nor the machine that asks."""

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.ops.mixing import mix

_SCALE = float(1 << 32)


def kept(count: int, seed: int, batch: int, p: float) -> NDArray[np.bool_]:
    """bool[count]: True with probability 1 - p, for each of the values of a batch. `batch` is any number that tells batches apart, of 64 bits."""
    out = np.empty(count, np.bool_)
    _keep(out, np.uint64(seed), np.uint64(batch & 0xFFFFFFFFFFFFFFFF), np.uint64(min(round(p * _SCALE), 1 << 32)))
    return out


@njit(nogil=True, cache=True)
def _keep(out, seed, batch, threshold):  # type: ignore[no-untyped-def]
    """A hash is two numbers of 32 bits: what is below the threshold is dropped."""
    key = mix(mix(seed ^ np.uint64(0x5851F42D4C957F2D)) + batch * np.uint64(0xC2B2AE3D27D4EB4F))
    for pair in range((out.shape[0] + 1) // 2):
        bits = mix(key + np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15))
        out[2 * pair] = (bits >> np.uint64(32)) >= threshold
        if 2 * pair + 1 < out.shape[0]:
            out[2 * pair + 1] = (bits & np.uint64(0xFFFFFFFF)) >= threshold
