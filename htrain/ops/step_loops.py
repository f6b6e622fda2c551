"""The hot loops of sparse optimizer steps, in place, over distinct ids and one gradient row for each. They hold no lock and no GIL.

Loops may run concurrently on the same rows: that is Hogwild, an update may be lost, none is torn within a float. Ids and gradients
come by message: a loop gives up, and returns False, before it reads or writes outside an array. Rows are asked for some ids ahead of their use: those of
large tables are in no cache (docs/decisions/fusions.md). `htrain.ops.served` runs the loops over many tables.
"""

import numpy as np

from htrain.jit import njit
from htrain.ops.ftrl import ftrl_number
from htrain.ops.pointers import prefetch_row
from htrain.ops.sparse_checks import Ids, Rows, fits, ids_out_of_range

AHEAD = 12  # rows that are on their way while one is used


def sgd_rows(table: Rows, ids: Ids, grads: Rows, first_row: int, lr: float) -> None:
    """table[id] -= lr * grad for a shard table[R,D] that starts at `first_row`, ids[u] and grads[u,D].

    Raises DataError for an id outside the shard, and for gradients that are too few or of another width.
    """
    if not fits(sgd_loop, table, ids, grads, first_row, lr):
        raise ids_out_of_range(ids, grads, table, first_row)


def adagrad_rows(table: Rows, accumulator: Rows, ids: Ids, grads: Rows, first_row: int, lr: float, eps: float) -> None:
    """torch.optim.Adagrad on the rows of `ids`; accumulator[R,D]. Raises DataError as `sgd_rows`."""
    if not fits(adagrad_loop, table, accumulator, ids, grads, first_row, lr, eps):
        raise ids_out_of_range(ids, grads, table, first_row)


def rowwise_adagrad_rows(
    table: Rows, accumulator: Rows, ids: Ids, grads: Rows, first_row: int, lr: float, eps: float
) -> None:
    """Row-wise Adagrad: one accumulator[R] per row, of the mean of the squared gradient. Raises DataError as `sgd_rows`."""
    if not fits(rowwise_adagrad_loop, table, accumulator, ids, grads, first_row, lr, eps):
        raise ids_out_of_range(ids, grads, table, first_row)


def adam_rows(
    table: Rows,
    mean: Rows,
    square: Rows,
    *,
    ids: Ids,
    grads: Rows,
    first_row: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
) -> None:
    """torch.optim.SparseAdam on the rows of `ids`, as step number `step` of the table, from 1 on; mean[R,D] and square[R,D]. Raises DataError as `sgd_rows`."""
    beta1, beta2 = betas
    rate = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
    numbers = (first_row, rate, beta1, beta2, eps)
    if not fits(adam_loop, table, *(mean, square), *(ids, grads), *numbers):
        raise ids_out_of_range(ids, grads, table, first_row)


def rowwise_adam_rows(
    table: Rows,
    mean: Rows,
    square: Rows,
    *,
    ids: Ids,
    grads: Rows,
    first_row: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
) -> None:
    """Adam on the rows of `ids` with a second moment square[R] for each row, of the mean of its squares; mean[R,D]. Raises DataError as `sgd_rows`."""
    beta1, beta2 = betas
    numbers = (first_row, lr / (1 - beta1**step), 1 / (1 - beta2**step), beta1, beta2, eps)
    if not fits(rowwise_adam_loop, table, *(mean, square), *(ids, grads), *numbers):
        raise ids_out_of_range(ids, grads, table, first_row)


def momentum_rows(
    table: Rows, moving: Rows, *, ids: Ids, grads: Rows, first_row: int, lr: float, momentum: float
) -> None:
    """SGD with momentum on the rows of `ids`; moving[R,D] of other rows stays as it is. Raises DataError as `sgd_rows`."""
    if not fits(momentum_loop, table, moving, *(ids, grads), *(first_row, lr, momentum)):
        raise ids_out_of_range(ids, grads, table, first_row)


def ftrl_rows(
    table: Rows, state: Rows, *, ids: Ids, grads: Rows, first_row: int, lr: float, beta: float, l1: float, l2: float
) -> None:
    """FTRL-Proximal on the rows of `ids`; state[R,2D] is z, then n, of each row. Raises DataError as `sgd_rows`."""
    numbers = (first_row, lr, beta, l1, l2)
    if not fits(ftrl_loop, table, state, *(ids, grads), *numbers):
        raise ids_out_of_range(ids, grads, table, first_row)


@njit(nogil=True, cache=True, inline="always")
def _shapes_fit(table, ids, grads):  # type: ignore[no-untyped-def]
    return grads.shape[0] >= ids.size and grads.shape[1] == table.shape[1]


@njit(nogil=True, cache=True, inline="always")
def _ask_ahead(table, ids, i, first_row):  # type: ignore[no-untyped-def]
    """The row of an id some places further on."""
    if i + AHEAD < ids.size:
        prefetch_row(table.ctypes.data, ids[i + AHEAD] - first_row, table.strides[0])


@njit(nogil=True, cache=True, fastmath={"contract"})  # one rounding for multiply and add, as in torch
def sgd_loop(table, ids, grads, first_row, lr):  # type: ignore[no-untyped-def]
    """The loop of `sgd_rows`. False where an id is outside the shard or the gradients do not fit: rows before it may
    have been stepped.
    """
    if not _shapes_fit(table, ids, grads):
        return False
    rate = np.float32(lr)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        for d in range(table.shape[1]):
            table[row, d] -= rate * grads[i, d]
    return True


# error_model: a test for a divisor of zero would keep the loop from SIMD, at several times its time
@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def adagrad_loop(table, accumulator, ids, grads, first_row, lr, eps):  # type: ignore[no-untyped-def]
    """The loop of `adagrad_rows`. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads):
        return False
    rate, floor = np.float32(lr), np.float32(eps)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(accumulator, ids, i, first_row)
        for d in range(table.shape[1]):
            grad = grads[i, d]
            accumulator[row, d] += grad * grad
            table[row, d] -= rate * grad / (np.sqrt(accumulator[row, d]) + floor)
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def rowwise_adagrad_loop(table, accumulator, ids, grads, first_row, lr, eps):  # type: ignore[no-untyped-def]
    """The loop of `rowwise_adagrad_rows`. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads):
        return False
    floor = np.float32(eps)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(accumulator, ids, i, first_row)
        total = np.float32(0.0)
        for d in range(table.shape[1]):
            total += grads[i, d] * grads[i, d]
        accumulator[row] += total / np.float32(table.shape[1])
        rate = np.float32(lr) / (np.sqrt(accumulator[row]) + floor)
        for d in range(table.shape[1]):
            table[row, d] -= rate * grads[i, d]
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def adam_loop(table, mean, square, ids, grads, first_row, rate, beta1, beta2, eps):  # type: ignore[no-untyped-def]
    """The loop of `adam_rows`, with the rate corrected for its bias. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads):
        return False
    corrected, floor = np.float32(rate), np.float32(eps)
    to_first, to_second = np.float32(1 - beta1), np.float32(1 - beta2)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(mean, ids, i, first_row)
        _ask_ahead(square, ids, i, first_row)
        for d in range(table.shape[1]):
            grad = grads[i, d]
            mean[row, d] += to_first * (grad - mean[row, d])
            square[row, d] += to_second * (grad * grad - square[row, d])
            table[row, d] -= corrected * mean[row, d] / (np.sqrt(square[row, d]) + floor)
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def rowwise_adam_loop(table, mean, square, ids, grads, first_row, rate, unbias, beta1, beta2, eps):  # type: ignore[no-untyped-def]
    """The loop of `rowwise_adam_rows`: `rate` and second moments, times `unbias`, are corrected for their bias. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads):
        return False
    corrected, unbiased, floor = np.float32(rate), np.float32(unbias), np.float32(eps)
    to_first, to_second = np.float32(1 - beta1), np.float32(1 - beta2)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(mean, ids, i, first_row)
        total = np.float32(0.0)
        for d in range(table.shape[1]):
            total += grads[i, d] * grads[i, d]
        square[row] += to_second * (total / np.float32(table.shape[1]) - square[row])
        step = corrected / (np.sqrt(square[row] * unbiased) + floor)
        for d in range(table.shape[1]):
            mean[row, d] += to_first * (grads[i, d] - mean[row, d])
            table[row, d] -= step * mean[row, d]
    return True


@njit(nogil=True, cache=True, fastmath={"contract"})
def momentum_loop(table, moving, ids, grads, first_row, lr, momentum):  # type: ignore[no-untyped-def]
    """The loop of `momentum_rows`. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads):
        return False
    rate, kept = np.float32(lr), np.float32(momentum)
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(moving, ids, i, first_row)
        for d in range(table.shape[1]):
            moving[row, d] = kept * moving[row, d] + grads[i, d]
            table[row, d] -= rate * moving[row, d]
    return True


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def ftrl_loop(table, state, ids, grads, first_row, lr, beta, l1, l2):  # type: ignore[no-untyped-def]
    """The loop of `ftrl_rows`. A rate of 0 moves no weight. Returns as `sgd_loop` does."""
    if not _shapes_fit(table, ids, grads) or state.shape[1] != 2 * table.shape[1]:
        return False
    alpha, floor, dead, ridge = np.float32(lr), np.float32(beta), np.float32(l1), np.float32(l2)
    width = table.shape[1]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        _ask_ahead(table, ids, i, first_row)
        _ask_ahead(state, ids, i, first_row)
        for d in range(width):
            n = state[row, width + d] + grads[i, d] * grads[i, d]
            w, z = ftrl_number(table[row, d], state[row, d], n, grads[i, d], lr=alpha, beta=floor, l1=dead, l2=ridge)
            table[row, d], state[row, d], state[row, width + d] = w, z, n
    return True
