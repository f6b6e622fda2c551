"""A module without its dropouts, and with one number for all that it draws: else results differ from run to run, and by whose draws they are."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from htrain.frontend.dropouts import RECURRENT

_ATTENTION_P = list(inspect.signature(F.multi_head_attention_forward).parameters).index("dropout_p")
# In deviations from the mean, or as a share of the range: a mask of 15 % picks nothing by the one, and all by the other.
KNOWN_DRAWS = (0.4, 0.02)
_NORMAL, _UNIFORM = (torch.randn, torch.randn_like), (torch.rand, torch.rand_like)
_NORMAL_INTO, _UNIFORM_INTO = (
    (torch.Tensor.normal_, nn.init.normal_),
    (torch.Tensor.uniform_, nn.init.uniform_),
)  # those of init call them unseen
_SHARE_OF_LAYERS = 5  # the place of the share that is dropped between layers
_DROPOUTS = frozenset(
    {torch.dropout, torch.dropout_, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout}
    | {F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
)
_SLOPES = frozenset({torch.rrelu, torch.rrelu_, F.rrelu})


_known = KNOWN_DRAWS[0]


def known_draw() -> float:
    """The number that all draws are."""
    return _known


@contextmanager
def all_drawn(share: float) -> Iterator[None]:
    """Within, all draws are this number. A self-check has one thread."""
    global _known
    before, _known = _known, share
    try:
        yield
    finally:
        _known = before


def _grain() -> int:
    """Of what whole numbers are made of (htrain.frontend.aten_draws)."""
    return int(torch.tensor(known_draw()) * (1 << 24))


def _whole(drawn: torch.Tensor, *bounds: Any, low: int = 0, high: int = 0, **rest: Any) -> torch.Tensor:
    """One number for all, between the bounds."""
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    high = numbers[-1] if numbers else high
    low = numbers[0] if len(numbers) > 1 else low
    return torch.full_like(drawn, low + ((_grain() << 24) + _grain()) % (high - low))


def _by_weights(drawn: torch.Tensor, input: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    """The number that a known share of all weights leads to; without replacement the largest weights."""
    if not (rest[1] if len(rest) > 1 else named.get("replacement", False)):
        return torch.topk(input / -torch.log(torch.tensor(known_draw())), drawn.shape[-1]).indices
    sums = input.cumsum(-1)
    share = torch.tensor(known_draw()).to(sums.dtype) * sums[..., -1:]
    return torch.searchsorted(sums, share, right=True).expand_as(drawn).clone()


_WHOLE = {
    torch.randint: _whole,
    torch.randint_like: _whole,
    torch.randperm: lambda drawn, *_, **__: torch.full(drawn.shape, known_draw()).argsort(0),
    torch.multinomial: _by_weights,
    torch.Tensor.multinomial: _by_weights,
}


class WithoutDropouts(TorchFunctionMode):
    """Within, a dropout gives what it takes, and attention drops none of its weights, in training mode, too. `drops`: one that was on has been left out."""

    drops = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _NORMAL or func in _UNIFORM:
            return torch.full_like(func(*args, **given), known_draw())
        if func in _NORMAL_INTO:
            return _filled(*args, **given)
        if func in _UNIFORM_INTO:
            return _filled_between(*args, **given)
        if func in _WHOLE:
            return _WHOLE[func](func(*args, **given), *args, **given)
        if func is torch.normal:
            return _filled(func(*args, **given), *args[:2])
        if func is torch.Tensor.exponential_:
            return args[0].fill_(-math.log(known_draw()) / (args[1] if len(args) > 1 else given.get("lambd", 1.0)))
        if func in (torch.bernoulli, torch.Tensor.bernoulli, torch.Tensor.bernoulli_):
            return _drawn_below(func, *args, **given)
        if func is F.gumbel_softmax:  # what it calls does not come here
            return _gumbel_softmax(*args, **given)
        if func in _SLOPES:
            return _sloped(*args, **given)
        if func in _DROPOUTS:
            x, p, on = _dropout_arguments(*args, **given)
            self.drops |= bool(p and on)
            return x
        if func is F.scaled_dot_product_attention:
            self.drops |= bool(args[4] if len(args) > 4 else given.get("dropout_p", 0.0))
            args, given = args[:4], {**given, "dropout_p": 0.0} | ({"is_causal": args[5]} if len(args) > 5 else {})
        if func in RECURRENT:  # of padded sequences, or of packed ones, which have their sizes beside
            place = _SHARE_OF_LAYERS if isinstance(args[_SHARE_OF_LAYERS - 2], bool) else _SHARE_OF_LAYERS + 1
            self.drops |= bool(args[place] and args[place + 1])
            args = (*args[:place], 0.0, *args[place + 1 :])
        if func is F.multi_head_attention_forward:  # what it calls does not come here
            args = (*args[:_ATTENTION_P], 0.0, *args[_ATTENTION_P + 1 :])
        return func(*args, **given)


def _dropout_arguments(
    input: torch.Tensor, p: float = 0.5, training: bool = True, *rest: Any, **named: Any
) -> tuple[torch.Tensor, float, bool]:
    """Its input, the share that it drops, and whether it is on."""
    return input, p, named.get("train", training)


def _drawn_below(func: Callable[..., Any], x: torch.Tensor, p: Any = None, **rest: Any) -> torch.Tensor:
    """1 where the known draw is below the probability."""
    probability = x if p is None and func is not torch.Tensor.bernoulli_ else torch.as_tensor(0.5 if p is None else p)
    ones = (probability > known_draw()).to(x.dtype).expand_as(x)
    return x.copy_(ones) if func is torch.Tensor.bernoulli_ else ones.clone()


def _gumbel_softmax(
    logits: torch.Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> torch.Tensor:
    """All draws are alike, which a softmax does not see."""
    soft = torch.softmax(logits / tau, dim)
    if not hard:
        return soft
    ones = torch.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return ones - soft.detach() + soft


def _sloped(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *rest: Any, **named: Any
) -> torch.Tensor:
    """With one slope for all below 0, the mean of them in evaluation."""
    share = known_draw() if training else 0.5
    return torch.where(x > 0, x, x * (lower + (upper - lower) * share))


@torch.no_grad()
def _filled(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, **rest: Any) -> torch.Tensor:
    return tensor.fill_(mean + std * known_draw())


@torch.no_grad()
def _filled_between(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> torch.Tensor:
    low, high = rest.get("from", rest.get("a", low)), rest.get("to", rest.get("b", high))
    return tensor.fill_(low + (high - low) * known_draw())
