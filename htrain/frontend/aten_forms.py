"""What the rooms of ATen ops share: the form of a handler, and a call whose arguments it reads.

No argument can be forgotten: a `Call` remembers which of them its handler has looked at, and one that was given, is not torch's default
and was not looked at, refuses the op (`unread`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.translation import Translation, dtype_name
from htrain.net.net import BatchDim

# Where a tensor lies and how, who may have made it, and the dtype of the result, which the translation compares with torch's.
_NO_VALUE = frozenset(
    {"cudnn_enable", "copy", "device", "dtype", "half_to_float", "implicit", "layout", "memory_format", "non_blocking",
     "path", "pin_memory", "sparse", "sparse_grad"}
)  # fmt: skip


class Arguments(Sequence[Any]):
    """The positional arguments of a call; `read` holds the places that somebody has looked at."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        self.read.update(range(len(self))[place] if isinstance(place, slice) else [range(len(self))[place]])
        return self._values[place]

    def __iter__(self) -> Iterator[Any]:
        self.read.update(range(len(self)))
        return iter(self._values)


class Keywords(Mapping[str, Any]):
    """The keyword arguments of a call; `read` holds the names that somebody has looked at."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._values[name]


class Call:
    """A node of the exported graph as its handler sees it: `args` and `kwargs` remember what was read."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.target, self.name, self.meta = node.target, node.name, node.meta
        self.args, self.kwargs = Arguments(node.args), Keywords(node.kwargs)
        schema = getattr(node.target, "_schema", None)
        self.arguments: Sequence[Any] = schema.arguments if schema else ()  # as torch declares them

    @property
    def tensor(self) -> torch.Tensor:
        """The first tensor among the operands: a number beside it takes its dtype."""
        return next(
            a.meta["val"] for a in self.node.args if isinstance(a, fx.Node) and isinstance(a.meta["val"], torch.Tensor)
        )

    def operands(self) -> list[Any]:
        """The arguments that the op cannot do without and that are tensors, or numbers in their place, in order."""
        taken = [str(a.type) in ("Tensor", "number") and not a.has_default_value() for a in self.arguments]
        return [self.args[place] for place, is_operand in enumerate(taken[: len(self.args)]) if is_operand]

    def argument(self, name: str) -> Any:
        """The argument called `name`, wherever it is given, or torch's default. Raises StopIteration where the op has none of this name."""
        place, declared = next((i, a) for i, a in enumerate(self.arguments) if a.name == name)
        return argument(self, place, name, declared.default_value)

    def told_by_shape(self) -> None:
        """Whatever else was given, the shape of the result says it all."""
        self.args.read.update(range(len(self.args)))
        self.kwargs.read.update(self.kwargs)

    def unread(self) -> dict[str, Any]:
        """The arguments that were given, are not torch's defaults and were not read, by name."""
        given = {argument.name: (place, argument) for place, argument in enumerate(self.arguments)}
        left = {}
        for name, (place, argument) in given.items():
            positional = place < len(self.node.args)
            value = self.node.args[place] if positional else self.node.kwargs.get(name, argument.default_value)
            read = place in self.args.read if positional else name not in self.node.kwargs or name in self.kwargs.read
            if (
                not read
                and name not in _NO_VALUE
                and not (argument.has_default_value() and value == argument.default_value)
            ):
                left[name] = value
        return left


Handler = Callable[[Translation, Call], object]


def in_its_dtype(t: Translation, call: Call, source: fx.Node) -> str:
    """The blob of an operand in the dtype of the result: a softmax may be told to cast, and integers are clamped by fractions as floats."""
    dtype = call.meta["val"].dtype
    name = t.blob(source)
    return name if source.meta["val"].dtype == dtype else t.step(call.node, "Cast", (name,), {"to": dtype_name(dtype)})


def refuse(t: Translation, call: Call, why: str) -> ModelError:
    """The error for a call that htrain cannot compile, naming op and module."""
    return ModelError(f"{call.target} in {t.where(call.node)} cannot be compiled: {why}")


def mixes_batch(t: Translation, call: Call, axes: Sequence[int], what: str = "") -> None:
    """Note an op, `what` or as ATen calls it, that is over the examples of a batch: what a batch is depends on who trains."""
    source = call.node.args[0]
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    if any(isinstance(shape[axis], BatchDim) for axis in axes if -len(shape) <= axis < len(shape)):
        t.mixing.setdefault(f"{what or call.target} in {t.where(call.node)}")


def argument(call: Call, position: int, name: str, default: Any) -> Any:
    """An argument that may be given by place, by name, or not at all."""
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def axes_of(call: Call, position: int) -> tuple[int, ...]:
    """The axes that a reduction is over, from 0, in ascending order: argument `position`, called `dim`; all where it is
    left out.
    """
    source = call.args[0]
    assert isinstance(source, fx.Node)
    rank = len(source.meta["val"].shape)
    given = argument(call, position, "dim", None)
    dims: Sequence[int] = [given] if isinstance(given, int) else (given or range(rank))
    return tuple(sorted(d % rank for d in dims))
