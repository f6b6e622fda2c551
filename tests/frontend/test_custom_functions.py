"""An autograd.Function has the gradient of its backward() in what is captured, or is refused by name."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options

X = {"x": torch.zeros(4, 5)}


class Model(nn.Module):
    """Two layers, a weight, and what a test puts between them."""

    def __init__(self, between: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.hidden, self.top = nn.Linear(5, 6), nn.Linear(6, 1)
        self.weight = nn.Parameter(torch.rand(6) + 0.5)
        self._between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self._between(self.hidden(x), self.weight)).squeeze(1)


class Through(Function):
    """1 above 0, straight through."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()

    @staticmethod
    def backward(ctx, dy):
        return dy


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return -ctx.rate * dy, None


class Simplex(Function):
    """The nearest point of the simplex: dx is dy less its mean, where y is above 0."""

    @staticmethod
    def forward(ctx, x):
        x = x - x.max(1, keepdim=True).values
        ordered = x.sort(1, descending=True).values
        beyond = ordered.cumsum(1) - 1
        count = (torch.arange(1, x.shape[1] + 1) * ordered > beyond).sum(1, keepdim=True)
        y = (x - beyond.gather(1, count - 1) / count).clamp(min=0)
        ctx.save_for_backward(y, count)
        return y

    @staticmethod
    def backward(ctx, dy):
        y, count = ctx.saved_tensors
        dx = dy.clone()
        dx[y == 0] = 0
        return torch.where(y != 0, dx - dx.sum(1, keepdim=True) / count, dx)


class Shifted(Simplex):
    """As a well-known sparsemax begins: its input is changed in place, and nobody is told."""

    @staticmethod
    def forward(ctx, x):
        x -= x.max(1, keepdim=True).values
        return Simplex.forward(ctx, x)


class Both(Function):
    """A product, a sum and a mask of two operands, of which one is broadcast; as torch wants it for torch.func."""

    @staticmethod
    def forward(x, weight):
        return x * weight, x + weight, x > 0

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx, product, total, mask):
        x, weight = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, True)
        return product * weight + 3 * total, product * x


class Root(Function):
    """A root whose gradient at 0 is masked: A^T x has no number there."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0).sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, dy / (2 * y), 0.0)


class Rows(Function):
    """Rows of a table, with a gradient of twice its size."""

    @staticmethod
    def forward(ctx, table, ids):
        ctx.rows = len(table)
        ctx.save_for_backward(ids)
        return table[ids]

    @staticmethod
    def backward(ctx, dy):
        (ids,) = ctx.saved_tensors
        return 2 * torch.zeros(ctx.rows, dy.shape[-1]).index_add(0, ids, dy), None


apply = Through.apply


def of_both(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product, total, mask = Both.apply(x, weight)
    return product.tanh() + total * mask


def without_gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        ones = Through.apply(x)
    return ones * x


FOLLOWED = {
    "straight through": lambda x, w: Through.apply(x) * w,
    "its apply, taken before": lambda x, w: apply(x * w),
    "reversed": lambda x, w: Reversed.apply(x, 0.3) * w,
    "of its own support": lambda x, w: Simplex.apply(3 * x) * w,
    "its input changed": lambda x, w: Shifted.apply(3 * x) * w,
    "one in another": lambda x, w: Simplex.apply(Reversed.apply(x, 2.0)) * Through.apply(w),
    "two operands and three outputs": of_both,
    "one of three outputs": lambda x, w: Both.apply(x, w)[1],
    "a division that is masked": lambda x, w: Root.apply(x) * w,
    "rows of a weight": lambda x, w: x + Rows.apply(w[:, None].expand(6, 6) * w, (x[:, 0] > 0).long()),
    "under no_grad": without_gradient,
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_loss_and_gradients_are_those_of_its_backward(name: str) -> None:
    model = Model(FOLLOWED[name])
    found = capture(model, X)
    assert check(found, TorchReference(model, found, ""), X, Options()).notes == ()


class Limited(Through):
    @staticmethod
    def backward(ctx, dy):
        return dy.clamp(-1, 1)


class Hidden(Through):
    @staticmethod
    def backward(ctx, dy):
        with torch.no_grad():
            return 2 * dy


class InPlace(Through):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.relu_()


class Overwritten(Through):
    @staticmethod
    def backward(ctx, dy):
        dx = dy.exp()
        dx.mul_(dx)
        return dx * dy + dx.zero_()


class Sign(Through):
    @staticmethod
    def backward(ctx, dy):
        return dy.sign()


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (Limited, r"Limited, whose backward\(\) is not linear in the gradient that it takes, .* --dense-clip"),
        (Hidden, r"Hidden, whose backward\(\) gives a gradient that does not come of the one it takes"),
        (
            Overwritten,
            r"Overwritten, whose backward\(\) autograd cannot differentiate \(one of the variables .*: have it make new",
        ),
        (InPlace, r"InPlace, which changes its input in place \(mark_dirty\)"),
    ],
)
def test_a_backward_that_no_net_can_follow_is_refused_by_name(refused: type[Function], why: str) -> None:
    with pytest.raises(ModelError, match=r"^forward\(\) uses the autograd.Function \S+\." + why):
        capture(Model(lambda x, w: refused.apply(x) * w), X)


def test_the_self_check_finds_a_backward_that_is_not_linear_where_no_op_reads_the_gradient() -> None:
    model = Model(lambda x, w: Sign.apply(x) * w)
    found = capture(model, X)
    with pytest.raises(ModelError, match="would not be trained as by PyTorch: the gradient of 'hidden"):
        check(found, TorchReference(model, found, ""), X, Options())
