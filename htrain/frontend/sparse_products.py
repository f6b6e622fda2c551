"""Products with sparse matrices while a model is captured: rows that are picked, scaled and summed, as no exported graph holds a sparse tensor.

A matrix is constant, or made by forward() of its places and entries, which may be trained, drawn, or picked by a mask (dropout of edges).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from htrain.errors import ModelError
from htrain.frontend.drawn_picks import Picked

_PRODUCTS = frozenset({"mm", "spmm", "matmul", "__matmul__", "__rmatmul__", "mv", "_sparse_mm"})
_SCALED = frozenset({"__mul__", "__rmul__", "mul", "__truediv__", "div"})
_SAME = frozenset({"contiguous", "clone", "coalesce", "to_sparse", "to_sparse_coo"})
_CAST = frozenset({"to", "type", "cpu", "cuda", "float", "double", "detach"})
_LEAST = -1e30  # as a logit, of which nothing is left
_MAKERS = ("FloatTensor", "DoubleTensor")
_NO_MATRICES = (
    "forward() multiplies a sparse tensor that is trained, or no matrices: htrain knows sparse matrix @ dense matrix, and trains the values of one that "
    "forward() makes by torch.sparse_coo_tensor(places, values, size)"
)
_CURE = "htrain multiplies sparse matrix @ dense matrix: write the rest with index_select and index_add over the places of its entries"


class Entries:
    """sparse[N,M] that forward() makes: values[n], or what a mask picks of them, at places[2,n]. Raises ModelError for what is more than a product."""

    is_sparse, layout = True, torch.sparse_coo

    def __init__(self, places: Any, values: Any, shape: Sequence[int]) -> None:
        self._places, self._held, self.shape = places, values, torch.Size(shape)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _PRODUCTS and len(args) == 2 and not kwargs:
            return _product(*args)
        found = next((each for each in args if isinstance(each, Entries)), None)
        if name == "_sparse_softmax" and found is args[0]:
            return found.softmax(*args[1:2], **{name: kwargs[name] for name in kwargs or {} if name == "dim"})
        if found is not None and (name in _SCALED or (name in vars(cls) and found is args[0])):
            return found._scaled(func, args) if name in _SCALED else getattr(found, name)(*args[1:], **(kwargs or {}))
        raise ModelError(f"forward() calls {name}() of a sparse tensor that it makes: {_CURE}")

    def _scaled(self, func: Any, args: Any) -> "Entries":
        others = [each for each in args if each is not self]
        if any(
            isinstance(each, Entries | Picked) or (isinstance(each, torch.Tensor) and each.dim()) for each in others
        ):
            raise ModelError(f"forward() multiplies the entries of a sparse tensor that it makes: {_CURE}")
        return Entries(self._places, func(*(self._held if each is self else each for each in args)), self.shape)

    def t(self) -> "Entries":
        """Transposed."""
        return self.transpose(0, 1)

    T = property(t)

    def transpose(self, first: int, second: int) -> "Entries":
        """Transposed, where these are two dimensions."""
        if first % 2 == second % 2:
            return self
        rows, columns = self._places
        return Entries((columns, rows), self._held, (self.shape[1], self.shape[0]))

    def size(self, dim: int | None = None) -> Any:
        """As torch.Tensor.size."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """It is a matrix."""
        return 2

    def softmax(self, dim: int) -> "Entries":
        """Over the entries of each row, or column: an entry that is not there counts for nothing, as in torch.sparse.softmax."""
        dim = dim % 2
        rows, columns = self._places
        groups, values, size = rows if dim else columns, self._held, self.shape[1 - dim]
        picked = values if isinstance(values, Picked) else None
        if picked is not None:
            groups, values = groups.whole, picked.whole
        seen = values if picked is None else torch.where(picked.mask, values, _LEAST)
        largest = seen.new_zeros(size).scatter_reduce(0, groups, seen.detach(), "amax", include_self=False)
        above = values - largest[groups]
        powers = (above if picked is None else torch.where(picked.mask, above, _LEAST)).exp()
        total = seen.new_zeros(size).index_add(0, groups, powers).clamp(min=1)
        shares = powers / total[groups]
        return Entries(self._places, shares if picked is None else Picked(shares, picked.mask, 0), self.shape)

    def to_dense(self) -> torch.Tensor:
        """float[N,M], with the sum of the entries at each place."""
        rows, columns, values = self._whole()
        flat = values.new_zeros(self.shape.numel()).index_add(0, rows * self.shape[1] + columns, values)
        return flat.reshape(self.shape)

    def _whole(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (rows, columns), values = self._places, self._held
        return (rows.whole, columns.whole, values.filled()) if isinstance(values, Picked) else (rows, columns, values)

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device", "requires_grad"):
            return getattr(self._held, name)
        if name in _SAME:
            return lambda: self
        if name in _CAST:
            return lambda *given: Entries(self._places, getattr(self._held, name)(*given), self.shape)
        raise ModelError(f"forward() asks for {name} of a sparse tensor that it makes: {_CURE}")

    def __matmul__(self, other: Any) -> Any:
        return _product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    mm = matmul = mv = __matmul__

    def __mul__(self, other: Any) -> "Entries":
        return self._scaled(torch.mul, (self, other))

    __rmul__ = mul = __mul__

    def __truediv__(self, other: Any) -> "Entries":
        return self._scaled(torch.div, (self, other))

    div = __truediv__


class SparseProducts(TorchFunctionMode):
    """Within, sparse @ dense is dense ops over the entries of the sparse matrix, which is constant, or made of its places and entries.

    Raises ModelError for another op of a sparse tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers = {name: getattr(torch.sparse, name) for name in _MAKERS}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if func is torch.sparse_coo_tensor and not _are_constant((*args, *given.values())):
            return _made(*args, **given)
        if not any(map(_is_sparse, args[:2])):
            return func(*args, **given)
        if name in _PRODUCTS and len(args) == 2:
            return _product(*args)
        if name in _SCALED and not _are_constant(args):
            matrix = next(each for each in args if _is_sparse(each))
            made = _entries_of(matrix)
            return made._scaled(func, [made if each is matrix else each for each in args])
        if _are_constant((*args, *given.values())) and (name.endswith("__") or not name.endswith("_")):
            with _disable_current_modes():  # what comes of it is constant, too
                result = func(*args, **given)
                return (
                    result.clone() if isinstance(result, torch.Tensor) and not _is_sparse(result) else result
                )  # of a view, torch would keep the matrix
        return func(*args, **given)

    def __enter__(self) -> "SparseProducts":
        super().__enter__()
        for name, maker in self._makers.items():
            setattr(torch.sparse, name, _made_as_before(maker))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for name, maker in self._makers.items():
            setattr(torch.sparse, name, maker)
        super().__exit__(kind, error, trace)


@contextmanager
def sparse_constants(model: nn.Module) -> Iterator[None]:
    """Within, sparse buffers of `model`, and parameters that are not trained, are plain attributes, whose entries a capture sees."""
    kept: list[tuple[nn.Module, dict[str, Any], str, torch.Tensor]] = [
        (module, space, name, tensor)
        for module in model.modules()
        for space in _spaces(module)
        for name, tensor in space.items()
        if tensor is not None and _is_sparse(tensor) and not tensor.is_meta and not tensor.requires_grad
    ]
    orders = [(space, dict(space)) for _, space, _, _ in kept]
    try:
        for module, space, name, tensor in kept:
            del space[name]
            vars(module)[name] = tensor.detach()
        yield
    finally:
        for module, _, name, _ in kept:
            vars(module).pop(name, None)
        for space, order in orders:
            space.clear()
            space.update(order)


def _spaces(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a module keeps buffers and parameters; one of torch.jit has something else than dicts in the place of these."""
    return module._buffers, module._parameters


def _is_sparse(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout in (torch.sparse_coo, torch.sparse_csr)


def _are_constant(values: Any) -> bool:
    """Whether none is made of a batch, or of what is trained or drawn."""
    return not any(isinstance(each, FakeTensor | Picked | Entries) for each in values)


def _made_as_before(maker: Any) -> Any:
    """torch.sparse.FloatTensor(places, values, size), which torch makes without asking any mode."""

    def make(*args: Any) -> Any:
        if _are_constant(args):
            with _disable_current_modes():
                return maker(*args)
        return _made(*args)

    return make


def _made(indices: Any = None, values: Any = None, size: Any = None, **given: Any) -> Entries:
    """Raises ModelError for what is no matrix of as many values as places."""
    shape = tuple(size or ())
    if len(shape) != 2 or not all(isinstance(each, int) for each in shape):
        raise ModelError(f"forward() makes a sparse tensor that is no matrix of a given size: {_CURE}")
    masks = [each.mask for each in (indices, values) if isinstance(each, Picked)]
    if len(masks) == 1 or (masks and masks[0] is not masks[1]):
        raise ModelError(f"forward() makes a sparse tensor of what another mask picks, or none: {_CURE}")
    rows, columns = indices
    return Entries((rows, columns), values, shape)


def _entries_of(sparse: Any) -> Entries:
    """Raises ModelError for a tensor that is no matrix, or whose entries are not known."""
    if isinstance(sparse, Entries):
        return sparse
    if isinstance(sparse, FakeTensor) and not isinstance(sparse, nn.Parameter):
        raise ModelError(
            "forward() multiplies by a sparse tensor that it makes of a dense one: make it by torch.sparse_coo_tensor(places, values, size)"
        )
    if sparse.requires_grad or sparse.dim() != 2:
        raise ModelError(_NO_MATRICES)
    with _disable_current_modes():
        entries = sparse.detach().to_sparse_coo().coalesce()
        (rows, columns), values = entries.indices().clone(), entries.values().clone()
    return Entries((rows, columns), values, sparse.shape)


def _product(first: Any, second: Any) -> Any:
    """sparse[N,M] @ dense[M,K] or dense[M], or dense[K,N] @ sparse[N,M]. Raises ModelError for other tensors."""
    if not (_is_sparse(first) or isinstance(first, Entries)):
        return (
            _product(_entries_of(second).t(), first.t()).t()
            if first.dim() == 2
            else _product(_entries_of(second).t(), first)
        )
    if isinstance(second, Entries) or not isinstance(second, torch.Tensor) or _is_sparse(second) or second.dim() > 2:
        raise ModelError(_NO_MATRICES)
    if second.dim() == 1:
        return _product(first, second[:, None])[:, 0]
    entries = _entries_of(first)
    rows, columns, values = entries._whole()
    picked = second.index_select(0, columns) * values[:, None]
    return second.new_zeros(entries.shape[0], second.shape[1]).index_add(0, rows, picked)
