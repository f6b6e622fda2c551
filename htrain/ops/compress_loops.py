"""The hot loops of compression, over flat float32 arrays. They hold no lock and no GIL."""

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
_HIGH_BITS = 16  # a positive float32 is 31 bits: their order is that of the numbers


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "arcp"}, error_model="numpy")
def quantize_rows(x: Floats, q: Bytes, ranges: Floats) -> None:
    """x[R,N] to q[R,N] in 0..255, with ranges[R] = (least value, step): x is about least + step * q, to half a step."""
    for r in range(x.shape[0]):
        low, high = x[r, 0], x[r, 0]
        for i in range(1, x.shape[1]):
            low, high = min(low, x[r, i]), max(high, x[r, i])
        step = (high - low) / np.float32(255.0)
        inverse = np.float32(1.0) / step if step > 0.0 else np.float32(0.0)
        for i in range(x.shape[1]):
            q[r, i] = np.uint8((x[r, i] - low) * inverse + np.float32(0.5))
        total = np.float32(0.0)
        for i in range(x.shape[1]):
            total += x[r, i]
        ranges[r, 0] = low if np.isfinite(total) else np.float32(np.nan)  # a broken row stays broken, and is seen
        ranges[r, 1] = step


@njit(nogil=True, cache=True, fastmath={"contract"})
def dequantize_rows(q: Bytes, ranges: Floats, x: Floats) -> None:
    """What `quantize_rows` kept of x[R,N]."""
    for r in range(q.shape[0]):
        low, step = ranges[r, 0], ranges[r, 1]
        for i in range(q.shape[1]):
            x[r, i] = low + step * np.float32(q[r, i])


@njit(nogil=True, cache=True)
def add_and_clear(dy: Floats, residual: Floats, total: Floats) -> None:
    """total[n] = dy[n] + residual[n]; the residual is taken, element by element: several contexts share it (Hogwild)."""
    for i in range(dy.size):
        total[i] = dy[i] + residual[i]
        residual[i] = 0.0


@njit(nogil=True, cache=True)
def largest(x: Floats, values: Floats, places: Places) -> None:
    """The values.size elements of x[n] that are largest in magnitude, in the order of their places; of equal ones the first.

    A count by the upper and one by the lower bits of the magnitude find the least that is kept: two passes, no sorting. NaNs come first.
    """
    bits = x.view(np.uint32)
    low_bits = 31 - _HIGH_BITS
    counts = np.zeros(1 << _HIGH_BITS, np.int64)
    for i in range(bits.size):
        counts[(bits[i] & 0x7FFFFFFF) >> low_bits] += 1
    bucket, above = _reached(counts, values.size)
    fine = np.zeros(1 << low_bits, np.int64)
    for i in range(bits.size):
        magnitude = bits[i] & 0x7FFFFFFF
        if magnitude >> low_bits == bucket:
            fine[magnitude & ((1 << low_bits) - 1)] += 1
    lower, above_fine = _reached(fine, values.size - above)
    least = (bucket << low_bits) | lower
    equal = values.size - above - above_fine
    kept = 0
    for i in range(bits.size):
        magnitude = bits[i] & 0x7FFFFFFF
        if magnitude > least or (magnitude == least and equal > 0):
            equal -= magnitude == least
            values[kept] = x[i]
            places[kept] = i
            kept += 1


@njit(nogil=True, cache=True)
def _reached(counts, wanted):  # type: ignore[no-untyped-def]
    """The highest bucket down to which there are `wanted`, and how many are above it."""
    above = 0
    for b in range(counts.size - 1, -1, -1):
        if above + counts[b] >= wanted:
            return b, above
        above += counts[b]
    return 0, above


@njit(nogil=True, cache=True)
def give_back(total: Floats, places: Places, residual: Floats) -> None:
    """Leave in the residual what was not sent: all of total[n] but its elements at `places`, which ascend."""
    k = 0
    for i in range(total.size):
        if k < places.size and places[k] == i:
            k += 1
        else:
            residual[i] += total[i]


@njit(nogil=True, cache=True)
def spread(values: Floats, places: Places, x: Floats) -> bool:
    """x[places] = values; False for a place outside x."""
    for k in range(places.size):
        if places[k] < 0 or places[k] >= x.size:
            return False
        x[places[k]] = values[k]
    return True
