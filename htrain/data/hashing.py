"""The hash by which examples are drawn and held out: it must not change, or what was held out would be trained on."""

import numpy as np

from htrain.jit import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiples of it are spread evenly


@njit(nogil=True, cache=True)
def mixed(x):  # type: ignore[no-untyped-def]
    """64 bits, each of which depends on every bit of x (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def mixed_each(words):  # type: ignore[no-untyped-def]
    """`mixed` of each of words[n], uint64."""
    found = np.empty(words.size, np.uint64)
    for i in range(words.size):
        found[i] = mixed(words[i])
    return found
