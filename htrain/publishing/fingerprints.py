"""Fingerprints of rows: by which of them a row is known to have changed since it was published. Numba, nogil.

Whoever changes a row need not say so: no step of any op, cache or strategy knows of publishing. A row costs 8 bytes, and one look at its bytes a version.
Of rows that have changed one in 2^64 keeps its fingerprint, and is published when it changes again.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.jit import njit

Fingerprints = NDArray[np.uint64]
_WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)


def fingerprints_of(rows: torch.Tensor) -> Fingerprints:
    """Of each row of rows[n,...], which are contiguous and on the host: uint64[n]."""
    num_rows = len(rows)
    if not rows.numel():
        return np.zeros(num_rows, np.uint64)
    row_bytes = rows.reshape(num_rows, -1).view(torch.uint8).numpy()
    word = next(kind for kind in _WORDS if row_bytes.shape[1] % np.dtype(kind).itemsize == 0)
    found = np.empty(num_rows, np.uint64)
    _mix(row_bytes.view(word), found)
    return found


@njit(nogil=True, cache=True)
def _mix(words, found):  # type: ignore[no-untyped-def]
    """found[n] of words[n,W], one word after another by the finalizer of MurmurHash3.

    It is a bijection: rows that differ in one word alone never have one fingerprint. Rows that differ in more do by chance alone, as each bit moves all:
    with half of it, rows of small whole numbers, whose words have few bits and all of them high, had fingerprints in common.
    """
    for row in range(words.shape[0]):
        mixed = np.uint64(0x9E3779B97F4A7C15)
        for column in range(words.shape[1]):
            mixed ^= np.uint64(words[row, column])
            mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
            mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
            mixed ^= mixed >> np.uint64(33)
        found[row] = mixed
