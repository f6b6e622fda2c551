"""Functions that look at values, as torch computes them, and their gradients."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.frontend.formulas import Formulas
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options


def _with_diagonal(x: torch.Tensor) -> torch.Tensor:
    """Each example's matrix with another diagonal, as masks of attention are merged."""
    found = x[:, :, None] * x[:, None]
    found.diagonal(1, 1, 2).copy_(x[:, :3].exp())
    torch.diagonal(found, dim1=1, dim2=2).zero_()
    return found


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
VARIANCE = torch.tensor([1e-9, 0.3, 2.0, 1.0, 0.5, 4.0], dtype=torch.float64)  # the first is clamped
LABELS = (torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) > 0.5).double()
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cov": torch.cov,
    "cov of examples": lambda x: x.T.cov(correction=0),
    "variance": lambda x: torch.cov(x[0]),
    "weighted cov": lambda x: torch.cov(x, aweights=torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=x.dtype)),
    "corrcoef": torch.corrcoef,
    "corrcoef of one": lambda x: x[0].corrcoef(),
    "nll": lambda x: F.gaussian_nll_loss(x[:, 0], x[:, 1], VARIANCE * x[:, 2].exp()),
    "full nll": lambda x: F.gaussian_nll_loss(x[:, 0], x[:, 1], x[:, 2].exp(), full=True, eps=0.9, reduction="none"),
    "nll of rows": lambda x: F.gaussian_nll_loss(x, x.roll(1, 0), x[:, 2].exp(), reduction="sum"),
    "nll of a number": lambda x: F.gaussian_nll_loss(x, x.roll(1, 0), 0.7),
    "filled diagonal": lambda x: (x.T @ x).fill_diagonal_(2.0),
    "filled diagonal of examples": lambda x: (x @ x.T).fill_diagonal_(-1.0),
    "filled diagonals": lambda x: x[:4, :, None, None].repeat(1, 1, 4, 4).fill_diagonal_(0.5),
    "diagonal set": lambda x: _with_diagonal(x),
    "taken along": lambda x: torch.take_along_dim(x, x.argsort(0)[:2], 0) * x[0].take_along_dim(x[0].argsort()),
    "taken along for all": lambda x: (
        torch.take_along_dim(x[:1], x.argsort(1), -1)
        + x[:, None].take_along_dim(torch.tensor([[[0]], [[1]]]).sum(0)[None], 2)[:, 0]
    ),
    "taken": lambda x: torch.take_along_dim(x, torch.tensor([3, 1])),
    "times a vector": lambda x: torch.addmv(x[:, 0], x, x[0], beta=0.5, alpha=2) + x[:, 1].addmv(x, x[1]),
    "a chain": lambda x: torch.linalg.multi_dot([x, x.T, x]) + torch.linalg.multi_dot([x[:, 0], x, x.T]).sum(),
    **{
        f"cross entropy of certain {reduction}s": partial(
            lambda x, reduction: F.binary_cross_entropy(x.mul(40).sigmoid(), LABELS.to(x.dtype), reduction=reduction),
            reduction=reduction,
        )
        for reduction in ("mean", "sum", "none")
    },
    "weighted cross entropy": lambda x: nn.BCELoss(weight=torch.tensor([1.0, 0.5, 2.0, 3.0], dtype=x.dtype))(
        torch.softmax(x * 50, 1), LABELS.to(x.dtype)
    ),
    "cross entropy of a label that is learnt": lambda x: F.binary_cross_entropy(x[:, :2].sigmoid(), x[:, 2:].sigmoid()),
    "module": lambda x: nn.GaussianNLLLoss()(x, x.roll(1, 0), x.exp()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_formula_is_what_torch_computes_and_so_is_its_gradient(name: str) -> None:
    theirs, ours = (X.clone().requires_grad_() for _ in range(2))
    wanted = CASES[name](theirs)
    with Formulas():
        found = CASES[name](ours)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(made.sum(), leaf)[0] for made, leaf in ((wanted, theirs), (found, ours))]
    torch.testing.assert_close(*gradients)


class Regularised(nn.Module):
    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.loss = nn.Linear(3, 4), loss

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        return self.loss(y, y[:, 0], label), y[:, 0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, score, label: F.gaussian_nll_loss(score, label, F.softplus(y[:, 1])),
        lambda y, score, label: (
            (_with_diagonal(y) - label[:, None, None]).square().mean() + (y @ y.T).fill_diagonal_(0.0).square().mean()
        ),
        lambda y, score, label: F.binary_cross_entropy(torch.sigmoid(score * 30 + 17), label),
        lambda y, score, label: nn.BCELoss(reduction="sum")(
            torch.softmax(y * 90, 1), F.one_hot(label.long(), 4).float()
        ),
        lambda y, score, label: F.mse_loss(score, label) + torch.cov(y.T).triu(1).pow(2).sum(),
        lambda y, score, label: 1 - torch.corrcoef(torch.stack([score, label + y[:, 1]]))[0, 1],
        lambda y, score, label: (
            torch.logcumsumexp(score[label.argsort(stable=True)], 0) - score[label.argsort(stable=True)]
        ).mean(),
    ],
)
def test_losses_of_them_are_trained_as_by_pytorch(loss: Callable[..., torch.Tensor]) -> None:
    inputs = {"x": torch.randn(4, 3), "label": torch.tensor([0.0, 1, 1, 0])}
    model = capture_model(Regularised(loss), schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own")
    assert model.compare(Options(loss="own")).notes == ()
