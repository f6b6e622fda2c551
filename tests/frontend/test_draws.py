"""Models that draw random numbers: noise of training alone, and draws that evaluation makes, too."""

from collections.abc import Callable
from functools import partial
from typing import Any

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
from htrain.transform.dropout import seed_dropouts
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


def shifted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x + torch.rand_like(x)) if model.training else model.first(x)


def kept(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x * (torch.rand_like(x) > 0.2)) if model.training else model.first(x)


def unknown(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Features, and examples, that a value stands for which is learnt."""
    y = model.first(x)
    if model.training:
        y = torch.where(torch.rand(x.shape[0])[:, None] < torch.tensor([0.1, 0.3, 0.2, 0.1]), model.second.bias, y)
        y = y.masked_fill(torch.empty_like(y).uniform_(-1, 1) >= 0.9, 0.0)
    return y


def scaled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x * (torch.rand_like(x) > 0.2) / 0.8) if model.training else model.first(x)


def dropped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Whole examples, as a residual path is dropped."""
    y = model.first(x)
    kept = x.new_empty(x.shape[0], 1).bernoulli_(0.7) if model.training else 0.7
    return y + torch.tanh(y) * kept / 0.7


def noisier(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """More in evaluation than in training."""
    y = model.first(x)
    return y + torch.randn(4) if model.training else y + torch.randn(4) * torch.rand(4)


def half(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.first(x * (torch.rand_like(x) > 0.5)) if model.training else model.first(x)


def captured(then: Forward) -> Model:
    return capture_model(Noisy(then), schema=CRITEO, example_inputs=X, logit="", label="")


@pytest.mark.parametrize("then", [encode, other, shifted, kept, unknown, scaled, half, dropped, fewer, noisier])
def test_what_is_drawn_in_training_alone_is_left_out_in_evaluation(then: Forward) -> None:
    model = captured(then)
    assert model.compare(Options()).notes == ()
    assert any(note.startswith("forward() does something else in evaluation") for note in model.captured.notes)
    assert model.captured.evaluation is not None
    net, module, x = model.captured.evaluation.net, Noisy(then), torch.randn(9, 3)
    drawn = [op for op in net.ops if op.type.endswith("Draw")]
    assert len(drawn) == {fewer: 1, noisier: 2}.get(then, 0)
    assert (BATCH_KEY.name in net.inputs) == bool(drawn)
    if not drawn:
        values = {name: value.detach() for name, value in module.named_parameters()}
        with torch.no_grad():
            torch.testing.assert_close(interpret(net, values, {"x": x}, len(x)), module.eval()(x))


def test_distributions_are_drawn_and_compared_as_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)  # PyTorch's exporter of ONNX files leaves it off
    assert captured(distributed).compare(Options()).notes == ()
    assert Distribution._validate_args
    with pytest.raises(ValueError, match="Expected parameter scale"):
        Normal(0.0, -1.0)


@pytest.mark.parametrize("then", [attend, initialised])
def test_what_evaluation_draws_too_is_drawn_and_it_is_said(then: Forward) -> None:
    model = captured(then)
    assert model.compare(Options()).notes == ()
    drawn = {op.type: op.attrs["always"] for op in model.captured.net.ops if op.type.endswith("Draw")}
    assert drawn == {"NormalDraw": True, "UniformDraw": True}
    assert model.captured.notes[0].startswith("forward() draws random numbers in evaluation, too")


def test_the_module_keeps_its_modes() -> None:
    module = Noisy(encode)
    module.top.eval()
    capture(module, X)
    assert [module.training, module.first.training, module.top.training] == [True, True, False]


@pytest.mark.parametrize("then", [kept, unknown])
def test_what_a_model_masks_while_it_trains_is_whole_in_evaluation(then: Forward) -> None:
    model = captured(then)
    assert model.compare(Options()).notes[1:] == ()  # but that `second` is not used
    net, x = seed_dropouts(model.captured.net, 0), torch.randn(5000, 3)
    values = {name: torch.ones(p.shape) for name, p in net.parameters.items()}
    by_key = [interpret(net, values, {"x": x, BATCH_KEY.name: torch.tensor([key])}, len(x)) for key in (1, 1, 2)]
    assert torch.equal(by_key[0], by_key[1])
    assert 0.05 < float((by_key[0] != by_key[2]).float().mean()) < 0.9


def sampled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gates = F.gumbel_softmax(model.first(x), 0.7, hard=True) + F.gumbel_softmax(model.second(x), 0.5)
    return gates * model.second(x) * torch.bernoulli(torch.sigmoid(model.first(x)).detach()) + gates.bernoulli(0.3)


def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """By what a model has of layers that draw while they train alone."""
    y = F.rrelu(model.first(x), 0.1, 0.6, model.training).unsqueeze(2) * model.second(x).unsqueeze(1)
    y = F.dropout2d(F.dropout1d(y, 0.4, model.training)[..., None], 0.2, model.training)[..., 0]
    y = nn.AlphaDropout(0.2).train(model.training)(y) + F.feature_alpha_dropout(y, 0.3, model.training)
    return nn.Dropout1d(0.1).train(model.training)(y).sum(1)


@pytest.mark.parametrize("then", [sampled, masked])
def test_what_layers_draw_is_trained_as_by_pytorch(then: Forward) -> None:
    assert captured(then).compare(Options()).notes == ()


class Layer(nn.Module):
    def __init__(self, layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def drawn_by(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, key: int) -> torch.Tensor:
    return drawn_by_each(layer, x, key)[0]


def drawn_by_each(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *keys: int) -> list[torch.Tensor]:
    net = seed_dropouts(capture(Layer(layer), {"x": x[:4]}).net, 0)
    return [interpret(net, {}, {"x": x, BATCH_KEY.name: torch.tensor([key])}, len(x)) for key in keys]


def test_the_largest_of_gumbel_noise_is_as_often_so_as_its_softmax_says() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    layer = partial(F.gumbel_softmax, tau=0.7, hard=True)
    ones, again, other = drawn_by_each(layer, logits.expand(20000, 4), 3, 3, 4)
    assert bool(((ones - 1).abs() < 1e-6).sum(1).eq(1).all())
    torch.testing.assert_close(ones.mean(0), torch.softmax(logits, 0), rtol=0, atol=0.015)
    assert torch.equal(ones, again)
    assert not torch.equal(ones, other)


def test_ones_are_as_often_drawn_as_their_probability_says() -> None:
    shares = torch.tensor([0.0, 0.1, 0.7, 1.0])
    ones = drawn_by(torch.bernoulli, shares.expand(20000, 4), 3)
    torch.testing.assert_close(ones.mean(0), shares, rtol=0, atol=0.015)
    assert set(ones.unique().tolist()) == {0.0, 1.0}


COUNTED = torch.tensor([1.0, 0.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("draw", "shares"),
    [
        (lambda x: torch.randint(5, (x.shape[0], 4)), [0.2] * 5),
        (lambda x: torch.randint(-2, 3, (x.shape[0], 4), dtype=torch.int32) + 2, [0.2] * 5),
        (lambda x: torch.randint_like(x, 5).long(), [0.2] * 5),
        (lambda x: torch.randint(x.shape[0], (x.shape[0], 4)) // (len(x) // 5), [0.2] * 5),
        (lambda x: (torch.randint(-x.shape[0], x.shape[0], (x.shape[0], 4)) + len(x)) // (len(x) // 2), [0.25] * 4),
        (lambda x: torch.randint_like(x[:, :2].long(), 1, 4), [0, 1 / 3, 1 / 3, 1 / 3]),
        (lambda x: torch.multinomial(COUNTED, x.shape[0] * 4, replacement=True).view(-1, 4), [1 / 8, 0, 3 / 8, 1 / 2]),
        (lambda x: COUNTED.double().multinomial(x.shape[0], replacement=True)[:, None], [1 / 8, 0, 3 / 8, 1 / 2]),
        (lambda x: torch.multinomial(COUNTED + x, 3, replacement=True), [1 / 8, 0, 3 / 8, 1 / 2]),
        (lambda x: torch.multinomial(COUNTED + x, 1), [1 / 8, 0, 3 / 8, 1 / 2]),
        (lambda x: torch.multinomial(2 * COUNTED.double() + x, 2)[:, :1], [1 / 8, 0, 3 / 8, 1 / 2]),
        (lambda x: torch.multinomial(x + 1.0, 2)[:, 1:], [1 / 4] * 4),
    ],
)
def test_whole_numbers_are_drawn_as_often_as_pytorch_draws_them(
    draw: Callable[[torch.Tensor], torch.Tensor], shares: list[float]
) -> None:
    drawn = drawn_by_each(lambda x: draw(x) + 0 * x[:, :1].int(), torch.zeros(20_000, 4), 3, 3, 4)
    first, again, other = (each.long() for each in drawn)
    assert first.shape == draw(torch.zeros(20_000, 4)).shape
    assert (torch.bincount(first.flatten()) / first.numel()).tolist() == pytest.approx(shares, abs=0.015)
    assert (first.flatten().bincount() == 0).tolist() == [share == 0 for share in shares]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_none_is_drawn_twice_without_replacement() -> None:
    drawn = drawn_by(lambda x: torch.multinomial(COUNTED + x, 3) + 0 * x[:, :1].int(), torch.zeros(2000, 4), 3)
    assert bool((drawn.sort(1).values == torch.tensor([0, 2, 3])).all())
    behind = drawn[drawn[:, 0] == 3, 1].long()  # of what is left
    assert (torch.bincount(behind) / len(behind)).tolist() == pytest.approx([1 / 4, 0, 3 / 4], abs=0.05)


def test_the_rows_of_the_largest_tables_are_all_drawn() -> None:
    rows = 3 * 10**9
    drawn = drawn_by(lambda x: torch.randint(rows, (x.shape[0], 4)) + 0 * x.int(), torch.zeros(20_000, 4), 1)
    assert drawn.unique().numel() > 79_900, "a float32 alone has 2^24 values"
    assert drawn.min() >= 0
    assert drawn.max() < rows
    assert (torch.bincount((drawn // (rows // 8)).flatten(), minlength=8) / drawn.numel()).tolist() == pytest.approx(
        [1 / 8] * 8, abs=0.01
    )


def test_a_random_order_has_each_example_once() -> None:
    order, other = drawn_by_each(
        lambda x: torch.randperm(x.shape[0])[:, None] + 0 * x[:, :1].int(), torch.zeros(1000, 4), 1, 2
    )
    assert order[:, 0].sort().values.tolist() == list(range(1000))
    assert not torch.equal(order, other)
    assert abs(float(torch.corrcoef(torch.stack([order[:, 0].double(), torch.arange(1000.0).double()]))[0, 1])) < 0.15


class Disturbed(nn.Module):
    """Its loss has noise while it trains, and none in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score = self.first(x)[:, 0]
        noise = torch.randn_like(score) if self.training else torch.zeros_like(score)
        return F.mse_loss(score + noise, label), score


def test_noise_of_a_loss_that_evaluation_leaves_out_is_left_out() -> None:
    inputs = {**X, "label": torch.zeros(4)}
    model = capture_model(Disturbed(), schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own")
    assert model.compare(Options(loss="own")).notes == ()
    assert [op.attrs["always"] for op in model.captured.net.ops if op.type == "NormalDraw"] == [False]


class Ranked(nn.Module):
    """Bayesian personalised ranking, by negatives that forward() draws: `always`, or while it trains alone."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor], *, always: bool = True) -> None:
        super().__init__()
        self.items, self.first, self.draw, self.always = nn.Embedding(50, 4), nn.Linear(3, 4), draw, always

    def forward(self, x: torch.Tensor, item: torch.Tensor) -> Any:
        user, item = self.first(x), item[:, 0]
        score = (user * self.items(item)).sum(1)
        if not (self.training or self.always):
            return score
        worse = (user[:, None] * self.items(self.draw(item))).sum(2)
        return -F.logsigmoid(score[:, None] - worse).mean(), score


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize(
    "draw",
    [
        lambda item: torch.randint(50, (item.shape[0], 3)),
        lambda item: torch.randint_like(item, 50)[:, None],
        lambda item: (torch.rand(item.shape[0], 3) * 50).long(),
        lambda item: item[torch.randperm(item.shape[0])][:, None],
        lambda item: item[torch.randint(0, item.shape[0], (item.shape[0], 2))],
        lambda item: torch.multinomial(torch.arange(50.0), item.shape[0] * 3, replacement=True).view(-1, 3),
        lambda item: torch.multinomial(torch.arange(50.0), 3).expand(len(item), -1),
        lambda item: torch.multinomial((torch.arange(50) - item[:, None]).abs().float(), 3),
        lambda item: torch.multinomial((torch.arange(50) - item[:, None]).abs().float(), 3, replacement=True),
    ],
)
def test_negatives_that_forward_draws_are_trained_as_by_pytorch(
    draw: Callable[[torch.Tensor], torch.Tensor], always: bool
) -> None:
    inputs = {**X, "item": torch.arange(4)[:, None]}
    model = capture_model(
        Ranked(draw, always=always), schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own"
    )
    assert model.compare(Options(loss="own")).notes == ()
    assert model.captured.notes == ()
    assert [name for name, p in model.captured.net.parameters.items() if p.kind == "table"] == ["items.weight"]


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout1d(0.3), (6, 5)), (nn.Dropout2d(0.3), (6, 5, 2)), (nn.Dropout3d(0.3), (6, 1, 5, 2))]
)
def test_channels_are_dropped_whole_and_the_others_scaled(layer: nn.Module, shape: tuple[int, ...]) -> None:
    made = drawn_by(layer, torch.ones(2000, *shape), 5).flatten(2)
    assert bool((made == made[:, :, :1]).all())
    assert sorted(made.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float((made[:, :, 0] == 0).float().mean()) == pytest.approx(0.3, abs=0.015)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("layer", "shape"), [(nn.AlphaDropout, (6,)), (nn.FeatureAlphaDropout, (6, 5))])
def test_alpha_dropouts_keep_the_mean_and_the_variance_as_those_of_pytorch(
    layer: Callable[[float], nn.Module], shape: tuple[int, ...], p: float
) -> None:
    x = torch.full((20_000, *shape), 0.7)
    made, theirs = drawn_by(layer(p), x, 5), layer(p)(x)
    assert made.unique().tolist() == pytest.approx(theirs.unique().tolist(), abs=1e-6)
    dropped = [float((y == y.min()).float().mean()) for y in (made, theirs)]
    assert dropped[0] == pytest.approx(dropped[1], abs=0.015)
    assert len(shape) == 1 or bool((made == made[:, :, :1]).all())
    net = capture(Layer(layer(p)), {"x": x[:4]}).net
    evaluation = net.with_ops(OPS[op.type].in_evaluation(op) for op in net.ops)
    assert torch.equal(interpret(evaluation, {}, {"x": x}, len(x)), x)


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


class MixedNegatives(nn.Module):
    """Negatives of the batch, and some that are drawn for all (Yang et al. 2020), in one lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(50, 8)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        users = self.users(user[:, 0])
        scores = users @ self.items(torch.cat([item[:, 0], torch.randint(0, 50, (16,))])).T
        return F.cross_entropy(scores, torch.arange(len(users))), scores[:, 0]


def test_what_is_drawn_in_evaluation_alike_is_not_why_a_model_is_refused() -> None:
    inputs = {name: torch.zeros(4, 1, dtype=torch.int64) for name in ("user", "item")}
    why = r"^aten\.cat\.default in forward\(\) of MixedNegatives: a dimension of B \+ 16 is not a multiple of the batch size B: .* compute both apart"
    with pytest.raises(ModelError, match=why):
        capture(MixedNegatives(), inputs, own_loss=True)
