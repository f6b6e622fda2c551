"""The hash of all that is drawn by counters: first values of parameters, and what dropouts drop."""

import numpy as np

from htrain.jit import njit


@njit(nogil=True, cache=True, inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """A bijection of 64 bits in which every input bit moves every output bit (two multiply-xorshift rounds)."""
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    return x
