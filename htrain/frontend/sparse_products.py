"""Products with constant sparse matrices while a model is captured: rows that are picked, scaled and summed, as no exported graph holds a sparse tensor."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from htrain.errors import ModelError

_PRODUCTS = frozenset({torch.sparse.mm, torch.mm, torch.spmm, torch.matmul, torch.Tensor.mm, torch.Tensor.matmul, torch.Tensor.__matmul__})  # fmt: skip


class SparseProducts(TorchFunctionMode):
    """Within, sparse @ dense is dense ops over the entries of the sparse matrix, which must be constant.

    Raises ModelError for another op of a sparse tensor.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _PRODUCTS and len(args) == 2 and _is_sparse(args[0]):
            return _product(args[0], args[1])
        return func(*args, **(kwargs or {}))


def _is_sparse(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout in (torch.sparse_coo, torch.sparse_csr)


def _product(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """sparse[N,M] @ dense[M,K]."""
    if sparse.requires_grad or sparse.dim() != 2 or dense.dim() != 2 or _is_sparse(dense):
        raise ModelError(
            "forward() multiplies a sparse tensor that is trained, or no matrices: htrain knows constant sparse matrix @ dense matrix"
        )
    with _disable_current_modes():
        entries = sparse.detach().to_sparse_coo().coalesce()
        (rows, columns), values = entries.indices().clone(), entries.values().clone()
    picked = dense.index_select(0, columns) * values[:, None]
    return dense.new_zeros(sparse.shape[0], dense.shape[1]).index_add(0, rows, picked)
