"""A module without its dropouts: what is drawn differs from run to run, and by whose numbers it is drawn."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_ATTENTION_P = list(inspect.signature(F.multi_head_attention_forward).parameters).index("dropout_p")
_DROPOUTS = frozenset({torch.dropout, torch.dropout_, F.dropout})


class WithoutDropouts(TorchFunctionMode):
    """Within, a dropout gives what it takes, and attention drops none of its weights, in training mode, too."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        if func is F.scaled_dot_product_attention:
            args, given = args[:4], {**given, "dropout_p": 0.0} | ({"is_causal": args[5]} if len(args) > 5 else {})
        if func is F.multi_head_attention_forward:  # what it calls does not come here
            args = (*args[:_ATTENTION_P], 0.0, *args[_ATTENTION_P + 1 :])
        return func(*args, **given)
