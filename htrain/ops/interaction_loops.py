"""The hot loops of products of pairs of features, example by example. They hold no lock and no GIL.

`tiles` and `runs` are those of `htrain.ops.interaction.Pairs`; `kept` is how many features are given out before the products. What an example needs is
copied to one place first, padded with zeros to blocks of 4 features: that is in the nearest cache when the blocks are multiplied.
"""

import numpy as np

from htrain.jit import njit
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.tables import find_out_of_range, step_rows


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _tile(own, i, j, dots):  # type: ignore[no-untyped-def]
    """dots[i:i+4, j:j+4] = own[i:i+4] @ own[j:j+4].T: a number that is loaded serves four times. Requires: sides of `own` and `dots` in multiples of 4."""
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = np.float32(0.0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = np.float32(0.0)
    for d in range(own.shape[1]):
        a0, a1, a2, a3 = own[i, d], own[i + 1, d], own[i + 2, d], own[i + 3, d]
        b0, b1, b2, b3 = own[j, d], own[j + 1, d], own[j + 2, d], own[j + 3, d]
        s00, s01, s02, s03 = s00 + a0 * b0, s01 + a0 * b1, s02 + a0 * b2, s03 + a0 * b3
        s10, s11, s12, s13 = s10 + a1 * b0, s11 + a1 * b1, s12 + a1 * b2, s13 + a1 * b3
        s20, s21, s22, s23 = s20 + a2 * b0, s21 + a2 * b1, s22 + a2 * b2, s23 + a2 * b3
        s30, s31, s32, s33 = s30 + a3 * b0, s31 + a3 * b1, s32 + a3 * b2, s33 + a3 * b3
    dots[i, j], dots[i, j + 1], dots[i, j + 2], dots[i, j + 3] = s00, s01, s02, s03
    dots[i + 1, j], dots[i + 1, j + 1], dots[i + 1, j + 2], dots[i + 1, j + 3] = s10, s11, s12, s13
    dots[i + 2, j], dots[i + 2, j + 1], dots[i + 2, j + 2], dots[i + 2, j + 3] = s20, s21, s22, s23
    dots[i + 3, j], dots[i + 3, j + 1], dots[i + 3, j + 2], dots[i + 3, j + 3] = s30, s31, s32, s33


@njit(nogil=True, cache=True, usual="(f4[:,:,::1], i8[:,::1], i8[:,::1], i8, f4[:,::1])")
def dots_loop(features, tiles, runs, kept, dots):  # type: ignore[no-untyped-def]
    """dots[B, kept * D + P] of features[B,n,D]: the first `kept` as they are, and the products of pairs behind them.

    Requires: `tiles` and `runs` are of pairs of n features.
    """
    batch, count, width = features.shape
    products, own, _ = _room(count, width)
    for b in range(batch):
        _copy(features[b], own, count)
        for k in range(tiles.shape[0]):
            _tile(own, tiles[k, 0], tiles[k, 1], products)
        for r in range(runs.shape[0]):
            found = array_at(products.ctypes.data + 4 * runs[r, 0], (runs[r, 2],), np.float32(0))
            to = array_at(
                dots.ctypes.data + 4 * (b * dots.shape[1] + kept * width + runs[r, 1]), (runs[r, 2],), np.float32(0)
            )
            for k in range(runs[r, 2]):
                to[k] = found[k]
        for i in range(kept):
            for d in range(width):
                dots[b, i * width + d] = own[i, d]


@njit(nogil=True, cache=True)
def _are_distinct(above, below, size):  # type: ignore[no-untyped-def]
    """Whether no place in the matrix is of two pairs, nor of one twice: then numbers are put there, not added."""
    seen = np.zeros(size, np.bool_)
    for k in range(above.size):
        if seen[above[k]] or seen[below[k]] or above[k] == below[k]:
            return False
        seen[above[k]] = seen[below[k]] = True
    return True


@njit(nogil=True, cache=True)
def _set_weights(weights, above, below, runs, dy, distinct):  # type: ignore[no-untyped-def]
    """The symmetric matrix of an example's dy. `above` and `below` are the places of each pair in it."""
    if distinct:
        for r in range(runs.shape[0]):
            to = array_at(weights.ctypes.data + 4 * runs[r, 0], (runs[r, 2],), np.float32(0))
            given = array_at(dy.ctypes.data + 4 * runs[r, 1], (runs[r, 2],), np.float32(0))
            for k in range(runs[r, 2]):
                to[k] = given[k]
        for k in range(above.size):
            weights[above[k]] = dy[k]
    else:
        weights[:] = 0.0
        for k in range(above.size):
            weights[above[k]] += dy[k]
            weights[below[k]] += dy[k]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, inline="always")
def _blocks(weights, own, total, width):  # type: ignore[no-untyped-def]
    for i in range(0, own.shape[0], 4):
        for d in range(width):
            total[i, d] = total[i + 1, d] = total[i + 2, d] = total[i + 3, d] = 0.0
        for j in range(0, own.shape[0], 4):
            a0, a1, a2, a3 = weights[i, j], weights[i, j + 1], weights[i, j + 2], weights[i, j + 3]
            b0, b1, b2, b3 = weights[i + 1, j], weights[i + 1, j + 1], weights[i + 1, j + 2], weights[i + 1, j + 3]
            c0, c1, c2, c3 = weights[i + 2, j], weights[i + 2, j + 1], weights[i + 2, j + 2], weights[i + 2, j + 3]
            e0, e1, e2, e3 = weights[i + 3, j], weights[i + 3, j + 1], weights[i + 3, j + 2], weights[i + 3, j + 3]
            for d in range(width):
                x0, x1, x2, x3 = own[j, d], own[j + 1, d], own[j + 2, d], own[j + 3, d]
                total[i, d] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                total[i + 1, d] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                total[i + 2, d] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                total[i + 3, d] += e0 * x0 + e1 * x1 + e2 * x2 + e3 * x3


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _mix(weights, own, total):  # type: ignore[no-untyped-def]
    """total[n,D] = weights[n,n] @ own[n,D], in blocks of 4 x 4: a number that is loaded serves four times, and so does one that is stored.

    A usual width is compiled as such: its loops have no ends to see to. Each that is takes half a second of a first run. Requires: n a multiple of 4.
    """
    width = own.shape[1]
    if width == 64:
        _blocks(weights, own, total, 64)
    else:
        _blocks(weights, own, total, width)


@njit(nogil=True, cache=True)
def _room(count, width):  # type: ignore[no-untyped-def]
    """A matrix of weights, and features before and after it: `count` of them, padded to a multiple of 4."""
    padded = (count + 3) // 4 * 4
    return (
        np.zeros((padded, padded), np.float32),
        np.zeros((padded, width), np.float32),
        np.zeros((padded, width), np.float32),
    )


@njit(nogil=True, cache=True)
def _copy(rows, to, count):  # type: ignore[no-untyped-def]
    """Element by element: Numba's assignment of slices looks for overlaps each time."""
    for i in range(count):
        for d in range(rows.shape[1]):
            to[i, d] = rows[i, d]


@njit(nogil=True, cache=True, inline="always")
def _weigh(features, above, below, runs, kept, dy, distinct, weights, own, total):  # type: ignore[no-untyped-def]
    """total[n,D]: the gradient of an example's features."""
    width = features.shape[1]
    _set_weights(weights.reshape(-1), above, below=below, runs=runs, dy=dy[kept * width :], distinct=distinct)
    _copy(features, own, features.shape[0])
    _mix(weights, own, total)
    for i in range(kept):
        for d in range(width):
            total[i, d] += dy[i * width + d]


@njit(nogil=True, cache=True, usual="(f4[:,:,::1], i8[::1], i8[::1], i8[:,::1], i8, f4[:,::1], f4[:,:,::1])")
def gradient_loop(features, above, below, runs, kept, dy, gradient):  # type: ignore[no-untyped-def]
    """gradient[B,n,D] of features[B,n,D] for dy[B, kept * D + P]: for each example, the symmetric matrix of dy times
    the features.

    Requires: `above`, `below` and `runs` are of pairs of n features.
    """
    batch, count, width = features.shape
    weights, own, total = _room(count, width)
    distinct = _are_distinct(above, below, weights.size)
    for b in range(batch):
        _weigh(
            features[b],
            above,
            below=below,
            runs=runs,
            kept=kept,
            dy=dy[b],
            distinct=distinct,
            weights=weights,
            own=own,
            total=total,
        )
        _copy(total, gradient[b], count)


@njit(nogil=True, cache=True)
def gradient_and_step_loop(features, above, below, runs, kept, dy, dx, tables, sizes, ids, columns, lr):  # type: ignore[no-untyped-def]
    """As `gradient_loop`, of features that tables' rows are: the gradient of the first ones goes to dx[n_dense,B,D], that
    of the others steps these rows by SGD. `tables` are the addresses of tables, `sizes`[T] their rows.

    Returns the first table with an id of ids[B,C] outside it, or -1; in the first case nothing has been changed.
    """
    batch, count, width = features.shape
    bad = find_out_of_range(sizes, ids, columns)
    if bad >= 0:
        return bad
    weights, own, total = _room(count, width)
    distinct = _are_distinct(above, below, weights.size)
    for b in range(batch):
        prefetch_row(features.ctypes.data, b + 1, 4 * count * width)
        _weigh(
            features[b],
            above,
            below=below,
            runs=runs,
            kept=kept,
            dy=dy[b],
            distinct=distinct,
            weights=weights,
            own=own,
            total=total,
        )
        for k in range(dx.shape[0]):
            for d in range(width):
                dx[k, b, d] = total[k, d]
        step_rows(tables, sizes, ids=ids, columns=columns, b=b, rate=np.float32(lr), dy=total, first=dx.shape[0])
    return -1
