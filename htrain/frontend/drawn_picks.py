"""What a mask picks whose length is no batch's, as one that is drawn for the edges of a graph, while a model is captured: kept whole, beside the mask.

How many such a mask picks has no shape in a net. But what is made of each one that is picked can be made of all, and what is summed in the end is 0 where
the mask is not true.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from htrain.errors import ModelError

_EACH = frozenset(
    {"__mul__", "__rmul__", "mul", "multiply", "__truediv__", "__rtruediv__", "div", "divide", "true_divide", "__add__", "__radd__", "add", "__sub__",
     "__rsub__", "sub", "subtract", "rsub", "neg", "__neg__", "pow", "__pow__", "sqrt", "rsqrt", "exp", "log", "sigmoid", "tanh", "relu", "leaky_relu", "abs",
     "reciprocal", "square", "dropout", "to", "type", "float", "double", "long", "int", "detach", "clone", "contiguous", "cpu"}
)  # fmt: skip  # which make something of each element alone
_LOOKING = frozenset({"__getitem__", "index_select", "embedding"})
_ADDING = frozenset({"index_add", "index_add_", "scatter_add", "scatter_add_"})
_FOUND = frozenset({"nonzero", "argwhere", "where"})
_CURE = (
    "what such a mask picks may be computed with, look up rows, be summed, added at places or be the entries of a sparse matrix: for all else write "
    "x * mask, or torch.where"
)


class Picked:
    """x[mask], with the mask along dimension `axis` of `whole`: torch functions of it are those of the whole. Raises ModelError for one that is not."""

    def __init__(self, whole: torch.Tensor, mask: torch.Tensor, axis: int) -> None:
        self._whole, self.mask, self.axis = whole, mask, axis
        self._versions = whole._version, mask._version

    @property
    def whole(self) -> torch.Tensor:
        """What the mask picks from. Raises ModelError as `require_unchanged` does."""
        self.require_unchanged()
        return self._whole

    def require_unchanged(self) -> None:
        """Raises ModelError where what the mask picks from, of which PyTorch has made a copy, or the mask was changed in place since."""
        if (self._whole._version, self.mask._version) != self._versions:
            raise ModelError(
                f"forward() changes in place what a mask has picked from that is no batch's, or the mask: {_CURE}"
            )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", str(func)), kwargs or {}
        if name in _EACH:
            return _of_each(func, args, given)
        for names, handler in ((_LOOKING, _looked_up), (_ADDING, _added)):
            if name in names:
                return handler(func, *args, **given)
        if name in ("sum", "mean") and isinstance(args[0], Picked):
            return args[0]._summed(*args[1:], **given, mean=name == "mean")
        raise ModelError(f"forward() calls {name}() of what a mask picks that is no batch's: {_CURE}")

    def filled(self) -> torch.Tensor:
        """The whole, with 0 where nothing is picked."""
        mask = self.mask.reshape([-1 if axis == self.axis else 1 for axis in range(self.whole.dim())])
        return torch.where(mask, self.whole, torch.zeros((), dtype=self.whole.dtype))

    def _summed(self, dim: Any = None, keepdim: bool = False, *, mean: bool = False, **given: Any) -> Any:
        rank = self.whole.dim()
        axes = [axis % rank for axis in ([dim] if isinstance(dim, int) else range(rank) if dim is None else dim)]
        if self.axis not in axes:
            behind = 0 if keepdim else sum(axis < self.axis for axis in axes)
            whole = (torch.mean if mean else torch.sum)(self.whole, axes, keepdim, **given)
            return Picked(whole, self.mask, self.axis - behind)
        total = self.filled().sum(axes, keepdim, **given)
        others = prod(self.whole.shape[axis] for axis in axes if axis != self.axis)
        return total / (self.mask.sum() * others) if mean else total

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        axis, at = self.axis, 0
        for each in index:
            if each is None:
                axis += at <= axis
                at += 1
            elif isinstance(each, int) and at != axis:
                axis -= at < axis
            elif isinstance(each, slice) and (at != axis or _is_all(each)):
                at += 1
            else:
                raise ModelError(f"forward() takes a part of what a mask picks that is no batch's: {_CURE}")
        return Picked(self.whole[index], self.mask, axis)

    def __iter__(self) -> Any:
        if not self.axis:
            raise ModelError(f"forward() goes through what a mask picks that is no batch's: {_CURE}")
        return iter([self[place] for place in range(self.whole.shape[0])])

    def __len__(self) -> int:
        if self.axis:
            return int(self.whole.shape[0])
        raise ModelError(f"forward() asks how many a mask picks that is no batch's, which mask.sum() says: {_CURE}")

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Its parts along another dimension. Raises ModelError along the one that is picked from."""
        axis = dim % self.whole.dim()
        if axis == self.axis:
            raise ModelError(f"forward() goes through what a mask picks that is no batch's: {_CURE}")
        return tuple(self[(slice(None),) * axis + (place,)] for place in range(self.whole.shape[axis]))

    def t(self) -> "Picked":
        """Transposed, as torch.Tensor.t."""
        return self if self.whole.dim() < 2 else self.transpose(0, 1)

    T = property(t)

    def transpose(self, first: int, second: int) -> "Picked":
        """As torch.Tensor.transpose."""
        rank = self.whole.dim()
        pair = (first % rank, second % rank)
        axis = pair[1 - pair.index(self.axis)] if self.axis in pair else self.axis
        return Picked(self.whole.transpose(*pair), self.mask, axis)

    def unsqueeze(self, dim: int) -> "Picked":
        """As torch.Tensor.unsqueeze."""
        place = dim % (self.whole.dim() + 1)
        return Picked(self.whole.unsqueeze(place), self.mask, self.axis + (place <= self.axis))

    def squeeze(self, *dims: Any) -> "Picked":
        """As torch.Tensor.squeeze: the dimension that is picked from stays."""
        axes = [
            axis % self.whole.dim()
            for axis in (dims or range(self.whole.dim()))
            if axis % self.whole.dim() != self.axis
        ]
        gone = [axis for axis in axes if self.whole.shape[axis] == 1]
        return Picked(self.whole.squeeze(gone), self.mask, self.axis - sum(axis < self.axis for axis in gone))

    def view(self, *shape: Any) -> "Picked":
        """As a line or a column: all else that asks how many are picked has no answer. Raises ModelError for it."""
        wanted, line = _sizes(shape), self.squeeze()
        if line.whole.dim() == 1 and wanted in ((-1, 1), (1, -1), (-1,)):
            return line if wanted == (-1,) else line.unsqueeze(wanted.index(1))
        raise ModelError(f"forward() gives what a mask picks that is no batch's another shape: {_CURE}")

    reshape = view

    def flatten(self) -> "Picked":
        """As a line. Raises ModelError for what has more dimensions than one."""
        return self.view(-1)

    def expand(self, *sizes: Any) -> "Picked":
        """Raises ModelError for a size in the place of how many are picked."""
        wanted = _sizes(sizes)
        axis = self.axis + len(wanted) - self.whole.dim()
        if wanted[axis] != -1:
            raise ModelError(f"forward() gives what a mask picks that is no batch's another shape: {_CURE}")
        return Picked(self.whole.expand(wanted), self.mask, axis)

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device", "requires_grad", "is_sparse"):
            return getattr(self.whole, name)
        function = getattr(torch.Tensor, name, None)
        if not callable(function):
            raise ModelError(f"forward() asks for {name} of what a mask picks that is no batch's: {_CURE}")

        def call(*args: Any, **given: Any) -> Any:
            return Picked.__torch_function__(function, (), (self, *args), given)

        return call


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape


def _operator(name: str) -> Callable[..., Any]:
    def call(self: Picked, *args: Any) -> Any:
        return Picked.__torch_function__(getattr(torch.Tensor, name), (), (self, *args))

    return call


for _name in sorted(each for each in _EACH if each.startswith("__")):
    setattr(Picked, _name, _operator(_name))


class DrawnPicks(TorchFunctionMode):
    """Within, what a mask of one dimension picks that is no batch's, and that is not known, is kept whole beside the mask."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.__getitem__ and isinstance(args[0], torch.Tensor) and not kwargs:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, Picked) for each in index):
                return _looked_up(func, *args)
            axis = _masked_axis(index)
            if axis is not None and axis < args[0].dim():
                return Picked(args[0], index[axis], axis)
        if name in _FOUND and _masked_axis(args) == 0 and len(args) == 1:
            return _found(args[0], as_tuple=name == "where" or bool((kwargs or {}).get("as_tuple")))
        if func is torch.masked_select or func is torch.Tensor.masked_select:
            x, *masks = (*args, *(kwargs or {}).values())
            if _masked_axis(masks) == 0 and isinstance(x, torch.Tensor) and x.dim() == 1:
                return Picked(x, masks[0], 0)
        return func(*args, **(kwargs or {}))


def _found(mask: torch.Tensor, *, as_tuple: bool) -> Any:
    """The places where a mask is true."""
    places = Picked(torch.arange(mask.shape[0]), mask, 0)
    return (places,) if as_tuple else places.unsqueeze(1)


def _masked_axis(index: Sequence[Any]) -> int | None:
    """The dimension that a mask picks from, where nothing else says what is taken."""
    axis = next((place for place, each in enumerate(index) if isinstance(each, torch.Tensor)), None)
    if axis is None or not all(_is_all(each) for place, each in enumerate(index) if place != axis):
        return None
    mask = index[axis]
    drawn = isinstance(mask, FakeTensor) and mask.dtype == torch.bool and mask.dim() == 1
    return axis if drawn and isinstance(mask.shape[0], int) else None


def _is_all(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _of_each(func: Any, args: Any, given: Any) -> Picked:
    """Raises ModelError for two masks, and for dimensions that do not lie side by side."""
    found = [leaf for leaf in _pytree.tree_leaves((args, given)) if isinstance(leaf, Picked)]
    first = found[0]
    behind = first.whole.dim() - first.axis
    if any(each.mask is not first.mask or each.whole.dim() - each.axis != behind for each in found):
        raise ModelError(f"forward() computes with what two masks pick that are no batch's: {_CURE}")
    args, given = _pytree.tree_map(lambda leaf: leaf.whole if isinstance(leaf, Picked) else leaf, (args, given))
    whole = func(*args, **given)
    for each in found:  # as by F.relu(x, inplace=True)
        each.require_unchanged()
    return Picked(whole, first.mask, whole.dim() - behind)


def _looked_up(func: Any, *args: Any, **given: Any) -> Picked:
    """Rows of a tensor by numbers that a mask picks. Raises ModelError for another part."""
    name = func.__name__
    rows = [leaf for leaf in _pytree.tree_leaves((args, given)) if isinstance(leaf, Picked)]
    dim = args[1] if name == "index_select" and len(args) > 1 else given.get("dim", 0)
    if len(rows) != 1 or rows[0].whole.dim() != 1 or isinstance(args[0], Picked) is not (name == "embedding"):
        raise ModelError(
            f"forward() looks up by what a mask picks that is no batch's in a way that has no net: {_CURE}"
        )
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        before = list(index[: next(place for place, each in enumerate(index) if each is rows[0])])
        others = [each for each in (*before, *index[len(before) + 1 :]) if not _is_all(each)]
        dim = len(before) if not others else 0
        if others and others != [each for each in before if isinstance(each, int)]:
            raise ModelError(
                f"forward() looks up by what a mask picks that is no batch's in a way that has no net: {_CURE}"
            )
    args, given = _pytree.tree_map(lambda leaf: leaf.whole if leaf is rows[0] else leaf, (args, given))
    whole = func(*args, **given)
    return Picked(whole, rows[0].mask, dim % whole.dim() if name != "embedding" else 0)


def _added(func: Any, x: Any, dim: int, index: Any, source: Any = None, **given: Any) -> torch.Tensor:
    """x with what a mask picks added at the places that it picks, too. Raises ModelError where only one of both is picked, or by another mask."""
    source = given.pop("src", source) if source is None else source
    both = isinstance(index, Picked) and isinstance(source, Picked) and index.mask is source.mask
    if isinstance(x, Picked) or not both:
        raise ModelError(
            f"forward() calls {func.__name__}() with what another mask picks that is no batch's, or no mask: {_CURE}"
        )
    added: torch.Tensor = func(x, dim, index.whole, source.filled(), **given)
    return added
