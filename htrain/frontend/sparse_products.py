"""Products with constant sparse matrices while a model is captured: rows that are picked, scaled and summed, as no exported graph holds a sparse tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from htrain.errors import ModelError

_PRODUCTS = frozenset({torch.sparse.mm, torch.mm, torch.spmm, torch.matmul, torch.Tensor.mm, torch.Tensor.matmul, torch.Tensor.__matmul__})  # fmt: skip
_KEPT = frozenset(
    {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.float, torch.Tensor.detach, torch.Tensor.coalesce, torch.Tensor.t}
)


class SparseProducts(TorchFunctionMode):
    """Within, sparse @ dense is dense ops over the entries of the sparse matrix, which must be constant.

    Raises ModelError for another op of a sparse tensor.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _PRODUCTS and len(args) == 2 and _is_sparse(args[0]):
            return _product(args[0], args[1])
        if func in _KEPT and _is_sparse(args[0]) and not isinstance(args[0], FakeTensor):
            with _disable_current_modes():  # what comes of it is constant, too
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def sparse_constants(model: nn.Module) -> Iterator[None]:
    """Within, sparse buffers of `model` are plain attributes, whose entries a capture sees; of a buffer it sees the shape alone."""
    buffers = [
        (module, name, tensor)
        for module in model.modules()
        for name, tensor in module._buffers.items()
        if tensor is not None and _is_sparse(tensor) and not tensor.is_meta
    ]
    orders = [(module, dict(module._buffers)) for module, _, _ in buffers]
    try:
        for module, name, tensor in buffers:
            del module._buffers[name]
            vars(module)[name] = tensor
        yield
    finally:
        for module, name, _ in buffers:
            vars(module).pop(name, None)
        for module, order in orders:
            module._buffers.clear()
            module._buffers.update(order)


def _is_sparse(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout in (torch.sparse_coo, torch.sparse_csr)


def _product(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """sparse[N,M] @ dense[M,K]."""
    if sparse.requires_grad or sparse.dim() != 2 or dense.dim() != 2 or _is_sparse(dense):
        raise ModelError(
            "forward() multiplies a sparse tensor that is trained, or no matrices: htrain knows constant sparse matrix @ dense matrix"
        )
    if isinstance(sparse, FakeTensor):
        raise ModelError(
            "forward() multiplies by a sparse tensor that it makes itself, as dropout of nodes and edges does: htrain knows constant ones; "
            "drop of what is multiplied, by F.dropout, or write it as index_add"
        )
    with _disable_current_modes():
        entries = sparse.detach().to_sparse_coo().coalesce()
        (rows, columns), values = entries.indices().clone(), entries.values().clone()
    picked = dense.index_select(0, columns) * values[:, None]
    return dense.new_zeros(sparse.shape[0], dense.shape[1]).index_add(0, rows, picked)
