"""Models that draw random numbers: noise of training alone, and draws that evaluation makes, too."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal, kl_divergence
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.net.blobs import BATCH_KEY
from htrain.ops import OPS
from htrain.self_check.capture import Model, capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

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


def initialised(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """By the functions that are for weights, as dynamic routing begins its logits, whether it is trained or not."""
    y = torch.softmax(nn.init.normal_(torch.empty(x.shape[0], 4), std=0.5), 1)
    return model.first(x) * y + nn.init.uniform_(x.new_empty(x.shape[0], 1), a=-1.0, b=2.0) * model.second(x)


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


@pytest.mark.parametrize("then", [attend, initialised])
def test_what_evaluation_draws_too_is_drawn_and_it_is_said(then: Forward) -> None:
    model = captured(then)
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


def sampled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gates = F.gumbel_softmax(model.first(x), 0.7, hard=True) + F.gumbel_softmax(model.second(x), 0.5)
    return gates * model.second(x) * torch.bernoulli(torch.sigmoid(model.first(x)).detach()) + gates.bernoulli(0.3)


def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """By what a model has of layers that draw while they train alone."""
    y = F.rrelu(model.first(x), 0.1, 0.6, model.training).unsqueeze(2) * model.second(x).unsqueeze(1)
    y = F.dropout2d(F.dropout1d(y, 0.4, model.training)[..., None], 0.2, model.training)[..., 0]
    return nn.Dropout1d(0.1).train(model.training)(y).sum(1)


@pytest.mark.parametrize("then", [sampled, masked])
def test_what_layers_draw_is_trained_as_by_pytorch(then: Forward) -> None:
    assert captured(then).compare(Options()) == ()


class Layer(nn.Module):
    def __init__(self, layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def drawn_by(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, key: int) -> torch.Tensor:
    net = capture(Layer(layer), {"x": x[:4]}).net
    return interpret(net, {}, {"x": x, BATCH_KEY.name: torch.tensor([key])}, len(x))


def test_the_largest_of_gumbel_noise_is_as_often_so_as_its_softmax_says() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    ones = drawn_by(lambda x: F.gumbel_softmax(x, 0.7, hard=True), logits.expand(20000, 4), 3)
    assert bool(((ones - 1).abs() < 1e-6).sum(1).eq(1).all())
    torch.testing.assert_close(ones.mean(0), torch.softmax(logits, 0), rtol=0, atol=0.015)
    again = drawn_by(lambda x: F.gumbel_softmax(x, 0.7, hard=True), logits.expand(20000, 4), 3)
    assert torch.equal(ones, again)
    assert not torch.equal(ones, drawn_by(lambda x: F.gumbel_softmax(x, 0.7, hard=True), logits.expand(20000, 4), 4))


def test_ones_are_as_often_drawn_as_their_probability_says() -> None:
    shares = torch.tensor([0.0, 0.1, 0.7, 1.0])
    ones = drawn_by(torch.bernoulli, shares.expand(20000, 4), 3)
    torch.testing.assert_close(ones.mean(0), shares, rtol=0, atol=0.015)
    assert set(ones.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout1d(0.3), (6, 5)), (nn.Dropout2d(0.3), (6, 5, 2)), (nn.Dropout3d(0.3), (6, 1, 5, 2))]
)
def test_channels_are_dropped_whole_and_the_others_scaled(layer: nn.Module, shape: tuple[int, ...]) -> None:
    made = drawn_by(layer, torch.ones(2000, *shape), 5).flatten(2)
    assert bool((made == made[:, :, :1]).all())
    assert sorted(made.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float((made[:, :, 0] == 0).float().mean()) == pytest.approx(0.3, abs=0.015)


def test_slopes_are_drawn_for_each_number_and_evaluation_takes_their_mean() -> None:
    x = torch.tensor([-1.0, 2.0]).expand(5000, 2)
    net = capture(Layer(nn.RReLU(0.1, 0.5)), {"x": x[:4]}).net
    made = interpret(net, {}, {"x": x, BATCH_KEY.name: torch.tensor([5])}, len(x))
    assert bool((made[:, 1] == 2).all())
    assert 0.1 <= float(-made[:, 0].max()) < 0.11 < 0.49 < float(-made[:, 0].min()) <= 0.5
    assert float(made[:, 0].mean()) == pytest.approx(-0.3, abs=0.01)
    evaluation = net.with_ops(OPS[op.type].in_evaluation(op) for op in net.ops)
    torch.testing.assert_close(interpret(evaluation, {}, {"x": x}, len(x)), F.rrelu(x, 0.1, 0.5, training=False))


def test_what_was_never_written_is_not_read() -> None:
    with pytest.raises(ModelError, match="is not a tensor that the net computes"):
        captured(lambda model, x: model.first(x) + torch.empty(4))
