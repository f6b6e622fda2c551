"""Embedding tables without memory under PyTorch: what a lookup reads is drawn when it reads it, and is a leaf of autograd by itself."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from htrain.self_check.values import Table

Leaf = tuple[torch.Tensor, torch.Tensor]  # distinct ids, and the rows that stand for them


def stand_in(table: Table) -> torch.Tensor:
    """A tensor of the table's shape that holds one number."""
    return torch.zeros(1).expand(table.num_rows, *table.base.shape[1:])


def read(table: Table, ids: torch.Tensor, *, hooks: Sequence[Callable] = ()) -> tuple[Leaf, torch.Tensor]:
    """The rows of the distinct ids as a leaf that takes a gradient, and the place of each id among them."""
    unique, places = ids.unique(return_inverse=True)
    rows = table.rows(unique).requires_grad_()
    for hook in hooks:
        rows.register_hook(hook)
    return (unique, rows), places


def place_of(unique: torch.Tensor, row: int | None, num_rows: int) -> int | None:
    """The place of a padding row among the distinct ids; None where it is not there."""
    if row is None:
        return None
    found = torch.nonzero(unique == row % num_rows)
    return int(found[0]) if len(found) else None


class LazyTables(TorchFunctionMode):
    """Within, lookups in the stand-ins read their tables. `leaves` are the rows that were read, by the table's name."""

    def __init__(self, tables: Mapping[int, tuple[str, Table, nn.Parameter]]) -> None:
        """`tables`: by the id of its stand-in, a table's name, its rows, and the parameter whose hooks its gradients go through."""
        super().__init__()
        self._tables = tables
        self.leaves: dict[str, list[Leaf]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.embedding and id(args[0]) in self._tables:
            padding = args[2] if len(args) > 2 else kwargs.get("padding_idx", -1)
            rest = dict(zip(("scale_grad_by_freq", "sparse"), args[3:], strict=False)) | {
                k: v for k, v in kwargs.items() if k != "padding_idx"
            }
            return self._look_up(F.embedding, args[0], args[1], None if padding < 0 else padding, rest)
        if func in (F.embedding, F.embedding_bag):
            given = inspect.signature(func).bind(*args, **kwargs).arguments
            if id(given["weight"]) in self._tables:
                weight, ids, padding = given.pop("weight"), given.pop("input"), given.pop("padding_idx", None)
                return self._look_up(func, weight, ids, padding, given)
        return func(*args, **kwargs)

    def _look_up(
        self, func: Callable, weight: torch.Tensor, ids: torch.Tensor, padding: int | None, rest: Mapping[str, Any]
    ) -> torch.Tensor:
        name, table, parameter = self._tables[id(weight)]
        leaf, places = read(
            table, ids, hooks=tuple((parameter._backward_hooks or {}).values()) if parameter.requires_grad else ()
        )
        if not weight.requires_grad:
            leaf[1].requires_grad_(False)
        self.leaves.setdefault(name, []).append(leaf)
        found: torch.Tensor = func(places, leaf[1], padding_idx=place_of(leaf[0], padding, table.num_rows), **rest)
        return found
