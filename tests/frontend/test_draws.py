"""Models that draw random numbers: noise of training alone, and draws that evaluation makes, too."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal, kl_divergence

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import Model, capture_model
from htrain.spec.options import Options

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]
X = {"x": torch.zeros(4, 3)}


class Noisy(nn.Module):
    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.first, self.second, self.top = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.then(self, x)).squeeze(1)


def encode(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A variational autoencoder's."""
    mean, deviation = model.first(x), torch.exp(model.second(x))
    if model.training:
        return mean + torch.zeros_like(deviation).normal_(mean=0, std=0.01) * deviation
    return mean


def attend(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Capsules begin anywhere, whether they are trained or not."""
    weights = torch.softmax(torch.randn(x.shape[0], 4) + torch.randn(4), 1)
    return (
        (model.first(x) + model.second(x)) * weights
        + torch.rand_like(x)[:, :1]
        + x.new_empty(len(x), 1).uniform_(-1, 1)
    )


def other(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) + torch.randn(4) if model.training else 2 * model.first(x)


def distributed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As variational autoencoders are written with torch.distributions."""
    posterior = Normal(model.first(x), torch.exp(model.second(x)))
    far = kl_divergence(posterior, Normal(torch.zeros(4), torch.ones(4)))
    return posterior.rsample() + far + Categorical(logits=posterior.loc).entropy()[:, None]


def fewer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x) + torch.randn(4)
    return y + torch.randn(4) if model.training else y


def dropped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x * (torch.rand_like(x) > 0.2)) if model.training else model.first(x)


def captured(then: Forward) -> Model:
    return capture_model(Noisy(then), schema=CRITEO, example_inputs=X, logit="", label="")


def test_noise_of_training_is_trained_as_by_pytorch_and_left_out_in_evaluation() -> None:
    model = captured(encode)
    assert model.compare(Options()) == ()
    assert [op.attrs["always"] for op in model.captured.net.ops if op.type == "NormalDraw"] == [False]
    assert model.captured.notes == ()


def test_distributions_are_drawn_and_compared_as_by_pytorch() -> None:
    assert captured(distributed).compare(Options()) == ()
    assert Distribution._validate_args
    with pytest.raises(ValueError, match="Expected parameter scale"):
        Normal(0.0, -1.0)


def test_what_evaluation_draws_too_is_drawn_and_it_is_said() -> None:
    model = captured(attend)
    assert model.compare(Options()) == ()
    drawn = {op.type: op.attrs["always"] for op in model.captured.net.ops if op.type.endswith("Draw")}
    assert drawn == {"NormalDraw": True, "UniformDraw": True}
    assert model.captured.notes[0].startswith("forward() draws random numbers in evaluation, too")


def test_the_module_keeps_its_modes() -> None:
    module = Noisy(encode)
    module.top.eval()
    capture(module, X)
    assert [module.training, module.first.training, module.top.training] == [True, True, False]


def test_evaluation_that_does_something_else_is_found() -> None:
    with pytest.raises(ModelError, match=r"in evaluation \(model.eval\(\)\) gives something else than without them"):
        captured(other).compare(Options())


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (fewer, "2 times while it trains, and 1 times in evaluation"),
        (dropped, "uniform numbers that are drawn in training alone"),
    ],
)
def test_what_evaluation_has_no_value_for_is_refused(then: Forward, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        captured(then)


def test_what_was_never_written_is_not_read() -> None:
    with pytest.raises(ModelError, match="is not a tensor that the net computes"):
        captured(lambda model, x: model.first(x) + torch.empty(4))
