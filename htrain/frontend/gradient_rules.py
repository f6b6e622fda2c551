"""What a forward pass says about gradients and an exported graph would not: made part of the graph, or refused by name.

torch.export keeps what is computed, and `detach()`. It drops where gradients were switched off (`torch.no_grad()`), takes a `.data` for a
constant, and runs the forward() of an `autograd.Function` without a word of its backward() (`htrain.frontend.custom_functions`).
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from htrain.errors import ModelError

_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})


class GradientRules(TorchFunctionMode):
    """While a module is traced with gradients switched on: values that take no gradient are detached.

    Raises ModelError for what the net cannot follow.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if name in _HOOKS:
            raise ModelError(
                f"forward() calls {name}(): htrain runs no hooks on gradients; write what it does as ops of forward()"
            )
        if name == "detach_" and not args[0].requires_grad:
            return args[0]  # as torch.tensor() calls it
        if name == "detach_":
            raise ModelError("forward() calls detach_(): write x = x.detach()")
        if torch.is_grad_enabled() or not _takes_gradients(args, kwargs):
            return func(*args, **(kwargs or {}))
        if (
            name.endswith("_") and not name.endswith("__") and not args[0].is_leaf
        ):  # a layer that forward() makes sets its weights
            raise ModelError(
                f"forward() calls {name}() under torch.no_grad(), on a value that has a gradient: write it as x = x.{name[:-1]}(..)"
            )
        return _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, func(*args, **(kwargs or {})))


def _takes_gradients(args: Any, kwargs: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in _pytree.tree_leaves((args, kwargs)))
