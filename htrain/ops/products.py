"""Products of FCs by the library that is ahead for their shape on this CPU (docs/decisions/fusions.md; tools/bench/fc_products.py compares them).

torch's own, MKL's mostly; oneDNN's, which also adds a bias and takes ReLU; OpenBLAS's, which also adds a product to what is there. They round
differently, so the choice is made by CPU, shape, threads and what is installed, never by the time that one takes: the same run has the same bits.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import linear

from htrain.ops.blas import add_product, is_ahead, is_narrow, product

_pointwise: Callable[..., torch.Tensor] | None = (
    torch.ops.mkldnn._linear_pointwise.default
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    else None
)  # oneDNN's product, with what comes behind it in the same pass; an overload by its name is found without trying others under the GIL

_OF_ONEDNN = frozenset(
    {torch.float32, torch.bfloat16} if _pointwise and torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
)  # it has no product of bfloat16 for CPUs of AVX2 alone; torch has

_MANY = 512  # rows: with more, oneDNN is ahead of OpenBLAS where nothing is added

_SMALL, _TINY = (
    1 << 20,
    1 << 18,
)  # multiply-adds of a product, and of a step: below, torch's own begins sooner than OpenBLAS is called

_FEW = 32  # columns: MKL makes a narrow gradient at twice the speed when it is transposed, as wide as dy

_LARGE = 1 << 23  # multiply-adds: below, beginning costs oneDNN more than it gains


def fast_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, *, relu: bool = False
) -> torch.Tensor:
    """x[B,K] @ w[N,K].T + bias[N], and max(that, 0) where `relu`."""
    if len(x) <= _MANY and x.numel() * w.shape[0] >= _SMALL and not is_narrow():
        w_by_column = w.t()
        if is_ahead(x, w_by_column):
            y = product(x, w_by_column)
            if bias is not None:
                y.add_(bias)
            return y.relu_() if relu else y
    if _suits_onednn(x, w.shape[0], w.dtype):
        return _by_onednn(x, w, bias, relu)
    y = linear(x, w, bias)
    return y.relu_() if relu else y


def weight_gradient(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """dy[B,N].T @ x[B,K]: the gradient of a weight[N,K]."""
    dy_by_column = dy.t()
    if dy.numel() * x.shape[-1] < _SMALL or not is_ahead(dy_by_column, x):
        return dy_by_column @ x
    if not is_narrow():
        return product(dy_by_column, x)
    suits = not _is_thin(x) and _suits_onednn(dy_by_column, x.shape[1], x.dtype)
    return _by_onednn(dy_by_column, x.t()) if suits else dy_by_column @ x


def sgd_step(w: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, lr: float) -> None:
    """w[N,K] -= lr * dy[B,N].T @ x[B,K]: the product goes into the weight where the library can; one of another dtype than the weight's is rounded first."""
    dy_by_column = dy.t()
    if x.dtype != w.dtype:
        w.sub_(dy_by_column @ x, alpha=lr)
    elif dy.numel() * x.shape[-1] >= _TINY and is_ahead(dy_by_column, x) and w.is_contiguous() and not _is_thin(x):
        if is_narrow() and _suits_onednn(dy_by_column, x.shape[1], x.dtype):
            w.sub_(_by_onednn(dy_by_column, x.t()), alpha=lr)  # still quicker than OpenBLAS in one pass
        else:
            add_product(w, dy_by_column, x, -lr)
    elif x.shape[1] <= _FEW < w.shape[0]:
        w.sub_((x.t() @ dy).t(), alpha=lr)
    else:
        w.addmm_(dy_by_column, x, alpha=-lr)


def _suits_onednn(x: torch.Tensor, outputs: int, dtype: torch.dtype) -> bool:
    """Whether oneDNN takes x[B,K] times K x `outputs` of a dtype, and gains by it."""
    large = _pointwise is not None and x.numel() * outputs >= _LARGE
    return large and x.device.type == "cpu" and x.dtype == dtype and dtype in _OF_ONEDNN


def _is_thin(x: torch.Tensor) -> bool:
    """Whether x[B,K] has so few columns that MKL makes the gradient of its weight at several times the speed of oneDNN, and sooner than OpenBLAS with AVX2's
    kernels: as in attention over pairs of fields."""
    return x.shape[1] <= _FEW and is_narrow()


def _by_onednn(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, relu: bool = False) -> torch.Tensor:
    assert _pointwise
    return _pointwise(x, w, bias, "relu" if relu else "none", [], "")
