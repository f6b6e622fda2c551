"""Rounding, remainders and signs are trained as by PyTorch: flat steps, of which a weight behind them gets zeros, not none."""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htrain.data import CRITEO
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

Form = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FORMS: dict[str, Form] = {
    "fmod": torch.fmod,
    "fmod by a number": lambda x, y: torch.fmod(x, 3),
    "remainder": torch.remainder,
    "remainder by a number": lambda x, y: x % 3,
    "towards zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "towards zero by a number": lambda x, y: torch.div(x, 3, rounding_mode="trunc"),
    "down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}
SMOOTH: dict[str, Form] = {
    **FORMS,
    "sign": lambda x, y: torch.sign(x) * y + torch.sgn(y),
    "rounded": lambda x, y: (5 * x).round() + (5 * x).floor() * y + (5 * y).ceil() + (3 * y).trunc() + torch.frac(x),
    "to decimals": lambda x, y: torch.round(x, decimals=1) * y + torch.round(40 * y, decimals=-1) + y.round(decimals=0),
    "added noise": lambda x, y: x + torch.sign(x) * torch.nn.functional.normalize(y, dim=1),
}


SOFT: dict[str, Form] = {
    "sharp": lambda x, y: nn.functional.softplus(4 * x, 2.0, 1.5) * y,
    "flat": lambda x, y: nn.Softplus(0.5, threshold=3)(9 * x),
    "early": lambda x, y: nn.functional.softplus(x - y, threshold=0.2),
    "far": lambda x, y: nn.functional.softplus(30 * x, beta=1.5, threshold=40),
}


class Steps(nn.Module):
    """What a form makes of two numbers for each id, and a way around it."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.rows, self.others, self.top, self.form = nn.Embedding(9, 3), nn.Embedding(9, 3), nn.Linear(3, 1), form

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, y = self.rows(ids), self.others(ids).abs() + 0.5
        return self.top(self.form(x, y) + x).squeeze(1)


@pytest.mark.parametrize("name", [*SMOOTH, *SOFT])
def test_gradients_of_steps_are_pytorchs(name: str) -> None:
    ids = {"ids": torch.zeros(4, dtype=torch.int64)}
    model = capture_model(Steps({**SMOOTH, **SOFT}[name]), schema=CRITEO, example_inputs=ids, logit="", label="")
    assert model.compare(Options()).notes == ()


class Places(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.form(x, y)


@pytest.mark.parametrize("name", [*SOFT, "to decimals"])
def test_what_is_soft_or_rounded_is_pytorchs_at_its_edges(name: str) -> None:
    form = {**SMOOTH, **SOFT}[name]
    x = torch.tensor(
        [-torch.inf, -90.0, -1.5, -0.25, -0.0, 0.1, 0.75, 1.0, 2.5, 6.0, 19.99, 27.5, 1e30, torch.inf, torch.nan]
    )
    for dtype in (torch.float32, torch.float64):
        net = capture(Places(form), {"x": torch.ones(3, dtype=dtype), "y": torch.ones(3, dtype=dtype)}).net
        given = {"x": x.to(dtype), "y": x.flip(0).to(dtype)}
        torch.testing.assert_close(interpret(net, {}, given, len(x)), form(**given), equal_nan=True)


_KINDS = sorted(product(FORMS, (torch.int64, torch.int32, torch.float32)), key=str)


@cache
def _net(name: str, dtype: torch.dtype) -> Net:
    ones = torch.ones(3, dtype=dtype)
    return capture(Places(FORMS[name]), {"x": ones, "y": ones}).net


_WHOLE = st.integers(-(2**31) + 1, 2**31 - 1)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(_KINDS), st.lists(st.tuples(_WHOLE, _WHOLE.filter(bool)), min_size=1, max_size=5))
def test_whole_numbers_of_any_sign_are_divided_as_by_pytorch(
    kind: tuple[str, torch.dtype], pairs: list[tuple[int, int]]
) -> None:
    """The largest ones are no float32."""
    name, dtype = kind
    x, y = (torch.tensor(numbers, dtype=dtype) for numbers in zip(*pairs, strict=True))
    torch.testing.assert_close(
        interpret(_net(name, dtype), {}, {"x": x, "y": y}, len(pairs)), FORMS[name](x, y), rtol=0, atol=0
    )
