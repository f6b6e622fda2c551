"""Masks that are counted with: beside a whole number they are whole numbers, beside a fraction fractions, as in PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from htrain.frontend.torch_model import capture
from tests.frontend.test_torch_model import interpret

Form = Callable[[torch.Tensor], torch.Tensor]
FORMS: dict[str, Form] = {
    "times": lambda c: (c > 5) * 3,
    "plus": lambda c: (c > 5) + 1,
    "plus itself": lambda c: (c > 5) + (c > 2) + 2,
    "less": lambda c: 1 - (c > 5).int() + (c > 7) * 2,
    "plus a half": lambda c: (c > 5) + 0.5,
    "over": lambda c: (c > 5) / 2,
    "squared": lambda c: (c > 5) ** 2,
    "to a power": lambda c: (c > 5) ** 3,
    "remainder": lambda c: (c > 5) % 3,
    "remainder by it": lambda c: c % ((c > 5) + 1),
    "divided": lambda c: (c > 5) // 2,
    "is one": lambda c: (c > 5) == 1,
    "is none": lambda c: (c > 5) != 0,
    "is more": lambda c: (c > 5) > 0,
    "filled by a number": lambda c: (c > 5).masked_fill(c > 7, 1),
    "filled by a fraction": lambda c: (c > 5).masked_fill(c > 7, 0.5),
    "filled by truth": lambda c: (c > 5).masked_fill(c > 7, True),
    "or a number": lambda c: torch.where(c > 7, c > 5, 1),
    "or truth": lambda c: torch.where(c > 7, c > 5, True),
    "padded by a number": lambda c: nn.functional.pad(c > 5, (1, 0), value=1),
    "ones alike": lambda c: torch.ones_like(c > 5),
    "full of a number": lambda c: torch.full_like(c > 5, 1),
    "summed": lambda c: (c > 5).cumsum(1) * 2 + (c > 5),
}


class Masks(nn.Module):
    """What a form makes of whole numbers."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(x)


@pytest.mark.parametrize("name", FORMS)
def test_a_mask_beside_a_number_is_of_the_kind_that_pytorch_makes_it(name: str) -> None:
    net = capture(Masks(FORMS[name]), {"x": torch.zeros(3, 4, dtype=torch.int64)}).net
    given = torch.arange(20).reshape(5, 4) % 11
    found = interpret(net, {}, {"x": given}, 5)
    torch.testing.assert_close(found, FORMS[name](given), rtol=0, atol=0)
