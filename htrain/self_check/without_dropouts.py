"""A module without its dropouts, and with one number for all that it draws: else results differ from run to run, and by whose draws they are."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_ATTENTION_P = list(inspect.signature(F.multi_head_attention_forward).parameters).index("dropout_p")
KNOWN_DRAW = 0.4  # in deviations from the mean, or as a share of the range
_NORMAL, _UNIFORM = (torch.randn, torch.randn_like), (torch.rand, torch.rand_like)
_DROPOUTS = frozenset({torch.dropout, torch.dropout_, F.dropout})


class WithoutDropouts(TorchFunctionMode):
    """Within, a dropout gives what it takes, and attention drops none of its weights, in training mode, too."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _NORMAL or func in _UNIFORM:
            return torch.full_like(func(*args, **given), KNOWN_DRAW)
        if func is torch.Tensor.normal_:
            return _filled(*args, **given)
        if func is torch.Tensor.uniform_:
            return _filled_between(*args, **given)
        if func is torch.normal:
            return _filled(func(*args, **given), *args[:2])
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        if func is F.scaled_dot_product_attention:
            args, given = args[:4], {**given, "dropout_p": 0.0} | ({"is_causal": args[5]} if len(args) > 5 else {})
        if func is F.multi_head_attention_forward:  # what it calls does not come here
            args = (*args[:_ATTENTION_P], 0.0, *args[_ATTENTION_P + 1 :])
        return func(*args, **given)


def _filled(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, **rest: Any) -> torch.Tensor:
    return x.fill_(mean + std * KNOWN_DRAW)


def _filled_between(x: torch.Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> torch.Tensor:
    low, high = rest.get("from", low), rest.get("to", high)
    return x.fill_(low + (high - low) * KNOWN_DRAW)
