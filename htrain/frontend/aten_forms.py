"""What the rooms of ATen ops share: the form of a handler, and how arguments are read."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.translation import Translation

Node = Any  # an fx.Node; the types of its arguments are as wide as Python
Handler = Callable[[Translation, Node], object]


def refuse(t: Translation, node: Node, why: str) -> ModelError:
    return ModelError(f"{node.target} in module '{t.module_of(node)}' cannot be compiled: {why}")


def argument(node: Node, position: int, name: str, default: Any) -> Any:
    """An argument that may be given by place, by name, or not at all."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def tensor_of(node: Node) -> torch.Tensor:
    """The first tensor among the operands: a number beside it takes its dtype."""
    return next(a.meta["val"] for a in node.args if isinstance(a, fx.Node) and isinstance(a.meta["val"], torch.Tensor))


def axes_of(node: Node, position: int) -> tuple[int, ...]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rank = len(source.meta["val"].shape)
    given = argument(node, position, "dim", None)
    dims: Sequence[int] = [given] if isinstance(given, int) else (given or range(rank))
    return tuple(sorted(d % rank for d in dims))
