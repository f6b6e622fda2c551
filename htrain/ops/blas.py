"""Products of float32 by OpenBLAS, where it is ahead of what torch calls (docs/decisions/fusions.md).

It is called with its own C interface, `cblas_sgemm`, which adds a product to what is there: numpy's `dot` cannot.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

_OF_AVX2 = ("haswell", "zen")  # what it calls its kernels for CPUs without AVX-512
_ROW_MAJOR, _NOT_TRANSPOSED, _TRANSPOSED = 101, 111, 112  # of cblas.h
_INT = ctypes.c_int
_LOADING = threading.Lock()


def is_ahead(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether `product` and `add_product` take left[M,K] @ right[K,N], float32, and are expected to be faster than
    torch.

    What they do not take is left to torch, with its errors.
    """
    if (
        left.dtype is not torch.float32
        or right.dtype is not torch.float32
        or left.dim() != 2
        or right.dim() != 2
        or left.shape[1] != right.shape[0]
    ):
        return False
    return (
        left.is_cpu
        and right.is_cpu
        and _has_contiguous_lines(left)
        and _has_contiguous_lines(right)
        and torch.get_num_threads() == 1
        and _sgemm() is not None
    )


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left[M,K] @ right[K,N]. Requires: `is_ahead`."""
    made = torch.empty(left.shape[0], right.shape[1])
    _multiply(left, right, 1.0, made, 0.0)
    return made


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float) -> None:
    """total[M,N] += scale * left[M,K] @ right[K,N], in one pass over the total. Requires: `is_ahead`; a total that is contiguous."""
    _multiply(left, right, scale, total, 1.0)


def _multiply(left: torch.Tensor, right: torch.Tensor, scale: float, total: torch.Tensor, kept: float) -> None:
    (rows, inner), columns = left.shape, right.shape[1]
    if total.shape != (rows, columns) or not total.is_contiguous() or total.dtype is not torch.float32:
        raise ValueError(
            f"a product of {list(left.shape)} and {list(right.shape)} has no room in {total.dtype}{list(total.shape)}, strides {total.stride()}"
        )
    sgemm = _sgemm()
    assert sgemm
    (left_transposed, left_leading), (right_transposed, right_leading) = _layout(left), _layout(right)
    sgemm(
        _ROW_MAJOR, left_transposed, right_transposed, rows, columns, inner, scale, left.data_ptr(), left_leading,
        right.data_ptr(), right_leading, kept, total.data_ptr(), max(1, columns),
    )  # fmt: skip


def _layout(matrix: torch.Tensor) -> tuple[int, int]:
    """Whether it is transposed, as cblas.h says it, and its leading dimension: how far a row is from the next, or a
    column in one that is transposed.
    """
    down, right = matrix.stride()
    if right == 1 and down >= matrix.shape[1]:
        return _NOT_TRANSPOSED, max(1, down)
    return _TRANSPOSED, max(1, right)


def _has_contiguous_lines(matrix: torch.Tensor) -> bool:
    """Whether the rows of a matrix, or its columns, are contiguous and do not overlap, as those of an expanded tensor
    do.
    """
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return (right == 1 and down >= columns) or (down == 1 and right >= rows)


@cache
def is_narrow() -> bool:
    """Whether its kernels fill half of this CPU's vectors: those of AVX2 on Zen 5, which OPENBLAS_CORETYPE may ask for, or an old release know no better than.

    On Zen 4, which computes AVX-512 in two halves, they lose little.
    """
    library = _library()
    if library is None or get_host_cpu_name() == "znver4" or not get_host_cpu_features().get("avx512f"):
        return False
    kernels = library.scipy_openblas_get_corename
    kernels.argtypes, kernels.restype = [], ctypes.c_char_p
    return kernels().decode().lower() in _OF_AVX2


@cache
def _sgemm() -> Callable[..., None] | None:
    """`cblas_sgemm` of the library; None where there is no such library. Threads that come to it at once all have it from the first: its settings may not
    change while another multiplies."""
    with _LOADING:
        return _one_threaded_sgemm()


@cache
def _one_threaded_sgemm() -> Callable[..., None] | None:
    """`cblas_sgemm` of the library, which is told to take one thread."""
    library = _library()
    if library is None:
        return None
    library.scipy_openblas_set_num_threads(1)
    lengths, pointer, number = [_INT, _INT, _INT], ctypes.c_void_p, ctypes.c_float
    found = library.scipy_cblas_sgemm
    found.argtypes = [_INT, _INT, _INT, *lengths, number, pointer, _INT, pointer, _INT, number, pointer, _INT]
    found.restype = None
    return found


@cache
def _library() -> ctypes.CDLL | None:
    """The OpenBLAS that is installed; none on a CPU on which it was not found to be ahead, or without it."""
    if not get_host_cpu_name().startswith("znver") or sys.platform != "linux":
        return None
    try:
        packaged = import_module("scipy_openblas32")
        library = ctypes.CDLL(str(Path(packaged.get_lib_dir()) / packaged.get_library(fullname=True)))
        for name in ("cblas_sgemm", "openblas_set_num_threads", "openblas_get_corename"):
            getattr(library, f"scipy_{name}")
    except (ImportError, OSError, AttributeError):  # not installed, or another release's names: torch's products serve
        return None
    return library
