"""Where a formula for an op has no gradient, and PyTorch gives one, training goes on by PyTorch's."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.frontend.torch_model import capture
from htrain.self_check.ours import Ours
from htrain.self_check.values import Values
from htrain.spec.options import Options

EDGES = torch.tensor([[0.0] * 4, [1.0] * 4, [-1.0, 0.0, 0.0, 2.0], [0.5, 0.5, -0.5, -0.5]])
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "deviation and mean": lambda x: sum(torch.std_mean(x, 1)),  # type: ignore[arg-type, return-value]
    "deviation of all": lambda x: torch.std_mean(x, dim=1, keepdim=True, correction=0)[0].squeeze(1),
    "deviation": lambda x: x.std(1),
    "sinc": lambda x: torch.sinc(x).sum(1),
    "norm": lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, float("inf"), dim=1),
    "distance to itself": lambda x: torch.cdist(x[:, None], x[:, None]).flatten() + x.sum(1),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(1), dim=1),
    "normalized": lambda x: F.normalize(x, dim=1).sum(1),
    "product": lambda x: x.prod(1),
}


class Scaled(nn.Module):
    def __init__(self, score: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale, self.score = nn.Parameter(torch.ones(4)), score

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x * self.scale)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_a_number_where_pytorchs_is(name: str) -> None:
    module, label = Scaled(CASES[name]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    captured = capture(module, {"x": torch.randn(4, 4)})
    ours = Ours(captured, Options())
    seen = ours.run(Values({"scale": module.scale.detach()}, {}), {"x": EDGES}, label)
    loss = F.binary_cross_entropy_with_logits(module(EDGES), label)
    loss.backward()
    assert module.scale.grad is not None
    assert bool(torch.isfinite(module.scale.grad).all())
    assert seen.loss == pytest.approx(loss.item())
    torch.testing.assert_close(seen.gradients["scale"], module.scale.grad)
