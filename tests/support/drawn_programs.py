"""Models that nobody wrote: by a seed, a drawn program over tables, sequences, masks and numbers, as PyTorch runs it.

Each step of a program is one that a model may have, on values drawn from those before it. A step that PyTorch refuses for them, that makes too much, or no
finite numbers, is drawn anew; so all that is drawn runs in PyTorch. What is never read by another step ends in the logit.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

ROWS, NUM_DENSE, NUM_IDS, LENGTH = 30, 5, 6, 7
WIDTHS: Mapping[str, tuple[int, int]] = {"dense": (NUM_DENSE, 0), "sparse": (NUM_IDS, ROWS), "seq": (LENGTH, ROWS)}
"""Of each input the columns, and below what its whole numbers are; 0 for normal numbers."""
_BATCH = 67  # of the example that steps are tried on; hardly another dimension of a model
_MOST_ELEMENTS, _MOST_DIMS, _LARGEST = 240, 4, 30.0  # of a value, for each example
_MOST_READ = 6  # by the logit
_TRIES = 60  # of a step

Fn = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Step:
    """What makes a value: `fn(model, *values)` of those at `args`."""

    name: str
    fn: Fn
    args: tuple[int, ...]


@dataclass
class Values:
    """Example values of all steps so far, and which of them are whole numbers, masks or numbers."""

    held: list[torch.Tensor] = field(default_factory=list)
    read: set[int] = field(default_factory=set)

    def of(self, *, floats: bool = False, bools: bool = False, ints: bool = False) -> list[int]:
        """The places of values of these kinds."""
        return [
            place
            for place, value in enumerate(self.held)
            if (floats and value.is_floating_point())
            or (bools and value.dtype == torch.bool)
            or (ints and value.dtype == torch.int64)
        ]


class DrawnModel(nn.Module):
    """The program of a seed, of about `num_steps` steps. forward(dense[B,5] float32, sparse[B,6] int64, seq[B,7] int64) gives logits [B].

    Its weights, too, are drawn by the seed alone.
    """

    def __init__(self, seed: int, num_steps: int = 12) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.weights = nn.ParameterList()
        self.steps: list[Step] = []
        rng = random.Random(seed)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            values = Values(list(example(_BATCH).values()))
            for _ in range(rng.randint(2, 4)):
                self._draw(rng, values, LOOKUPS)
            for _ in range(num_steps):
                self._draw(rng, values, STEPS)
            self._read = [p for p in values.of(floats=True) if p not in values.read and p > 2][-_MOST_READ:]
            self._read = self._read or values.of(floats=True)[-1:]
            self.top = nn.Linear(sum(values.held[place][0].numel() for place in self._read), 1)

    def _draw(self, rng: random.Random, values: Values, makers: "Sequence[Maker]") -> None:
        for _ in range(_TRIES):
            num_parts, num_weights = len(self.parts), len(self.weights)
            step = None
            try:
                step = rng.choice(makers)(rng, values, self)
                made = step.fn(self, *(values.held[place] for place in step.args)) if step else None
            except (RuntimeError, IndexError, ValueError, AssertionError):
                made = None
            if step is not None and made is not None and _is_fine(made):
                self.steps.append(step)
                values.held.append(made)
                values.read.update(step.args)
                return
            del self.parts[num_parts:]
            self.weights = nn.ParameterList(list(self.weights)[:num_weights])

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
        values = [dense, sparse, seq]
        for step in self.steps:
            values.append(step.fn(self, *(values[place] for place in step.args)))
        return self.top(torch.cat([values[place].reshape(sparse.shape[0], -1) for place in self._read], 1)).squeeze(1)

    def part(self, module: nn.Module) -> int:
        """The place of another layer of this model."""
        self.parts.append(module)
        return len(self.parts) - 1

    def weight(self, *shape: int) -> int:
        """The place of another weight of this model."""
        self.weights.append(nn.Parameter(torch.randn(shape) * 0.3))
        return len(self.weights) - 1

    def __str__(self) -> str:
        lines = [f"{place + 3}: {step.name}{step.args}" for place, step in enumerate(self.steps)]
        return "\n".join([*lines, f"logit of {self._read}"])


def example(batch_size: int) -> dict[str, torch.Tensor]:
    """Random values of every input, by torch's random numbers."""
    return {
        name: torch.randint(0, rows, (batch_size, width)) if rows else torch.randn(batch_size, width)
        for name, (width, rows) in WIDTHS.items()
    }


def _is_fine(value: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dim() < 1 or value.shape[0] != _BATCH or value.dim() > _MOST_DIMS:
        return False
    if value.numel() == 0 or value[0].numel() > _MOST_ELEMENTS or _BATCH in value.shape[1:]:
        return False  # what pairs examples with each other is of another kind
    return not value.is_floating_point() or bool(value.abs().max() <= _LARGEST)


Maker = Callable[[random.Random, Values, DrawnModel], Step | None]


# -- lookups


def _lookup(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    """Rows of a table, its own or one of before, by a column, some columns, or the sequence."""
    tables = [place for place, part in enumerate(model.parts) if isinstance(part, nn.Embedding)]
    if tables and rng.random() < 0.3:
        table = rng.choice(tables)
    else:
        table = model.part(nn.Embedding(ROWS, rng.choice([1, 2, 3, 4, 8]), padding_idx=rng.choice([None, None, 0])))
    ids = rng.choice(values.of(ints=True))
    width = values.held[ids].shape[-1]
    first = rng.randrange(width)
    last = rng.randint(first + 1, width)
    ways: list[tuple[str, Fn]] = [
        ("lookup of a column", lambda m, c: m.parts[table](c[:, first] % ROWS)),
        ("lookup of columns", lambda m, c: m.parts[table](c[:, first:last] % ROWS)),
        ("lookup of all", lambda m, c: m.parts[table](c % ROWS)),
        ("F.embedding", lambda m, c: F.embedding(c[:, first] % ROWS, m.parts[table].weight)),
        ("indexed table", lambda m, c: m.parts[table].weight[c[:, first] % ROWS]),
        ("lookup of absolute ids", lambda m, c: m.parts[table](c.abs().clamp(max=ROWS - 1))),
        ("scores of all rows", lambda m, c: m.parts[table](c[:, first] % ROWS) @ m.parts[table].weight.T),
    ]
    name, fn = rng.choice(ways)
    return Step(name, fn, (ids,))


def _bag(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    mode = rng.choice(["sum", "mean", "max"])
    padding = rng.choice([None, 0, 3])
    table = model.part(nn.EmbeddingBag(ROWS, rng.choice([2, 3, 4]), mode=mode, padding_idx=padding))
    ids = rng.choice(values.of(ints=True))
    numbers = [place for place in values.of(floats=True) if values.held[place].shape == values.held[ids].shape]
    if mode == "sum" and numbers and rng.random() < 0.5:
        weights = rng.choice(numbers)
        return Step("weighted bag", lambda m, c, w: m.parts[table](c % ROWS, per_sample_weights=w), (ids, weights))
    return Step(f"bag of {mode}", lambda m, c: m.parts[table](c % ROWS), (ids,))


LOOKUPS: Sequence[Maker] = (_lookup, _lookup, _bag)


# -- steps of one value


def _unary(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    low = round(rng.uniform(-1.0, 0.5), 2)
    slope = round(rng.uniform(0.01, 0.5), 2)
    power = rng.choice([2, 3])
    ways: list[tuple[str, Fn]] = [
        ("relu", lambda m, x: x.relu()),
        ("sigmoid", lambda m, x: x.sigmoid()),
        ("tanh", lambda m, x: x.tanh()),
        ("gelu", lambda m, x: F.gelu(x)),
        ("silu", lambda m, x: F.silu(x)),
        ("softplus", lambda m, x: F.softplus(x)),
        ("exp", lambda m, x: x.clamp(max=2.0).exp()),
        ("log1p", lambda m, x: x.abs().log1p()),
        ("sqrt", lambda m, x: (x.abs() + 0.1).sqrt()),
        ("rsqrt", lambda m, x: (x * x + 0.5).rsqrt()),
        ("pow", lambda m, x: x**power),
        ("abs", lambda m, x: x.abs()),
        ("neg", lambda m, x: -x),
        ("clamp", lambda m, x: x.clamp(low, low + 1)),
        ("leaky", lambda m, x: F.leaky_relu(x, slope)),
        ("elu", lambda m, x: F.elu(x, slope)),
        ("sin", lambda m, x: x.sin()),
        ("hardtanh", lambda m, x: F.hardtanh(x, low, low + 2)),
        ("one minus", lambda m, x: 1 - x),
        ("over", lambda m, x: slope / (x.abs() + 1)),
        ("sign", lambda m, x: torch.sign(x) * x),
        ("selu", lambda m, x: F.selu(x)),
        ("logsigmoid", lambda m, x: F.logsigmoid(x)),
        ("erf", lambda m, x: x.erf()),
        ("mish", lambda m, x: F.mish(x)),
        ("hardswish", lambda m, x: F.hardswish(x)),
        ("times", lambda m, x: x * slope),
        ("lerp", lambda m, x: torch.lerp(x, x.tanh(), slope)),
        ("detach", lambda m, x: x * x.detach()),
        ("double", lambda m, x: x.double().tanh().float()),
        ("nan_to_num", lambda m, x: torch.nan_to_num(x)),
        ("relu6", lambda m, x: F.relu6(x * 3)),
        ("atan", lambda m, x: torch.atan(x)),
    ]
    name, fn = rng.choice(ways)
    return Step(name, fn, (rng.choice(values.of(floats=True)),))


def _shaped(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    place = rng.choice(values.of(floats=True))
    shape = values.held[place].shape
    dim = rng.randrange(1, len(shape)) if len(shape) > 1 else 0
    other = rng.randrange(1, len(shape)) if len(shape) > 1 else 0
    size = shape[dim] if dim else 1
    index = rng.randrange(size)
    end = rng.randint(index + 1, size)
    order = rng.sample(range(size), size)
    times = rng.randint(2, 3)
    shift = rng.randint(1, 3)
    dims = [0, *rng.sample(range(1, len(shape)), len(shape) - 1)]
    k = rng.randint(1, size)
    ways: list[tuple[str, Fn]] = [
        ("flatten", lambda m, x: x.flatten(1)),
        ("unsqueeze", lambda m, x: x.unsqueeze(dim or 1)),
        ("transpose", lambda m, x: x.transpose(dim, other)),
        ("permute", lambda m, x: x.permute(dims)),
        ("select", lambda m, x: x.select(dim, index)),
        ("narrow", lambda m, x: x.narrow(dim, index, end - index)),
        ("chunk", lambda m, x: x.chunk(2, dim)[-1]),
        ("unbind", lambda m, x: sum(x.unbind(dim))),
        ("split", lambda m, x: x.split(max(1, size // 2), dim)[0]),
        ("picked", lambda m, x: x.index_select(dim, torch.tensor(order[:3]))),
        ("indexed", lambda m, x: x[:, order[:2]]),
        ("repeat", lambda m, x: x.repeat_interleave(times, dim)),
        ("tile", lambda m, x: x.repeat(1, *[times] * (x.dim() - 1))),
        ("flip", lambda m, x: x.flip(dim)),
        ("roll", lambda m, x: x.roll(shift, dim)),
        ("pad", lambda m, x: F.pad(x, (1, shift))),
        ("view", lambda m, x: x.reshape(x.shape[0], size, -1)),
        ("view of last", lambda m, x: x.reshape(x.shape[0], -1, 2)),
        ("squeeze", lambda m, x: x.squeeze(dim)),
        ("expand", lambda m, x: x.unsqueeze(1).expand(-1, times, *x.shape[1:])),
        ("every other", lambda m, x: x[..., ::2]),
        ("back", lambda m, x: x[:, -1]),
        ("topk", lambda m, x: x.topk(k, dim).values),
        ("sort", lambda m, x: x.sort(dim).values),
        ("cumsum", lambda m, x: x.cumsum(dim)),
        ("softmax", lambda m, x: x.softmax(dim)),
        ("log_softmax", lambda m, x: x.log_softmax(dim)),
        ("normalize", lambda m, x: F.normalize(x, dim=dim)),
        ("triu", lambda m, x: torch.triu(x)),
        ("diff", lambda m, x: x.diff(dim=dim)),
        ("unfold", lambda m, x: x.unfold(dim, 2, 1)),
        ("diagonal", lambda m, x: torch.diagonal(x, 0, dim, other)),
        ("stacked", lambda m, x: torch.stack([x, x.tanh()], dim)),
    ]
    name, fn = rng.choice(ways)
    return Step(f"{name} of {dim}", fn, (place,))


def _reduced(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    place = rng.choice([p for p in values.of(floats=True) if values.held[p].dim() > 1])
    dim = rng.randrange(1, values.held[place].dim())
    keep = rng.random() < 0.4
    ways: list[tuple[str, Fn]] = [
        ("sum", lambda m, x: x.sum(dim, keepdim=keep)),
        ("mean", lambda m, x: x.mean(dim, keepdim=keep)),
        ("max", lambda m, x: x.max(dim, keepdim=keep).values),
        ("min", lambda m, x: x.min(dim, keepdim=keep)[0]),
        ("amax", lambda m, x: x.amax(dim, keepdim=keep)),
        ("logsumexp", lambda m, x: x.logsumexp(dim, keepdim=keep)),
        ("norm", lambda m, x: (x + 0.1).norm(dim=dim, keepdim=keep)),
        ("var", lambda m, x: x.var(dim, unbiased=False, keepdim=keep)),
        (
            "std",
            lambda m, x: (x + torch.arange(x.shape[dim]).reshape(-1, *[1] * (x.dim() - 1 - dim))).std(
                dim, keepdim=keep
            ),
        ),
        ("prod", lambda m, x: x.prod(dim, keepdim=keep)),
        ("less its mean", lambda m, x: x - x.mean(dim, keepdim=True)),
        ("sum of all", lambda m, x: x.sum(tuple(range(1, x.dim())), keepdim=keep)),
        ("median-free", lambda m, x: x.abs().sum(dim).clamp(min=0.5).log()),
        ("over its sum", lambda m, x: x / (x.abs().sum(dim, keepdim=True) + 0.5)),
    ]
    name, fn = rng.choice(ways)
    return Step(f"{name} of {dim}", fn, (place,))


# -- steps of two values, and of masks


def _binary(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    first, second = rng.choice(values.of(floats=True)), rng.choice(values.of(floats=True))
    ways: list[tuple[str, Fn]] = [
        ("add", lambda m, x, y: x + y),
        ("sub", lambda m, x, y: x - 2 * y),
        ("mul", lambda m, x, y: x * y),
        ("div", lambda m, x, y: x / (y.abs() + 0.5)),
        ("maximum", lambda m, x, y: torch.maximum(x, y)),
        ("minimum", lambda m, x, y: torch.minimum(x, y)),
        ("where", lambda m, x, y: torch.where(x > y, x, y * 0.5)),
        ("matmul", lambda m, x, y: x @ y),
        ("matmul of the other way", lambda m, x, y: x @ y.transpose(1, -1)),
        ("bmm of itself", lambda m, x, y: x @ x.transpose(1, 2)),
        ("outer", lambda m, x, y: x.flatten(1).unsqueeze(2) * y.flatten(1).unsqueeze(1)),
        ("cat", lambda m, x, y: torch.cat([x, y], -1)),
        ("cat of 1", lambda m, x, y: torch.cat([x, y], 1)),
        ("stack", lambda m, x, y: torch.stack([x, y], 1)),
        ("cosine", lambda m, x, y: F.cosine_similarity(x, y, -1)),
        ("einsum", lambda m, x, y: torch.einsum("bi,bj->bij", x, y)),
        ("einsum of rows", lambda m, x, y: torch.einsum("bld,bd->bl", x, y)),
        ("addcmul", lambda m, x, y: torch.addcmul(x, y, y, value=0.5)),
        ("hypot", lambda m, x, y: (x * x + y * y + 0.1).sqrt()),
        ("baddbmm", lambda m, x, y: torch.baddbmm(x, y, y.transpose(1, 2)) if x.dim() == 3 else x * y),
        ("gate", lambda m, x, y: x * y.sigmoid()),
        ("attention", lambda m, x, y: F.scaled_dot_product_attention(x, y, y)),
        ("dot", lambda m, x, y: (x * y).sum(-1)),
        ("as shaped", lambda m, x, y: x.reshape(y.shape) - y),
        ("broadcast", lambda m, x, y: x.unsqueeze(-1) + y.unsqueeze(1)),
    ]
    name, fn = rng.choice(ways)
    return Step(name, fn, (first, second))


def _masked(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    ids = rng.choice(values.of(ints=True, bools=True))
    number = rng.choice(values.of(floats=True))
    bound = rng.randrange(ROWS)
    where: Fn = rng.choice(
        [
            lambda c: c > bound,
            lambda c: c != 0,
            lambda c: c == bound,
            lambda c: (c % 3) == 1,
            lambda c: ~(c < bound) if c.dtype != torch.bool else ~c,
        ]
    )

    def alike(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))

    ways: list[tuple[str, Fn]] = [
        ("mask", lambda m, c, x: where(c)),
        ("masked", lambda m, c, x: x * alike(where(c), x)),
        ("filled", lambda m, c, x: x.masked_fill(alike(where(c), x), -2.0)),
        ("chosen", lambda m, c, x: torch.where(alike(where(c), x), x, x.tanh())),
        ("masked softmax", lambda m, c, x: x.masked_fill(alike(where(c), x), -1e4).softmax(1)),
        (
            "mean of some",
            lambda m, c, x: (
                (x * alike(where(c), x)).sum(1)
                / where(c).sum(1, keepdim=True).clamp(min=1).float().reshape(-1, *[1] * (x.dim() - 2))
            ),
        ),
        ("gathered", lambda m, c, x: x.gather(1, c % x.shape[1])),
        ("row of each", lambda m, c, x: x[torch.arange(x.shape[0]), c[:, 0] % x.shape[1]]),
        ("one hot", lambda m, c, x: F.one_hot(c[:, 0] % 5, 5).float()),
        ("as numbers", lambda m, c, x: c.float() / ROWS),
        ("last of some", lambda m, c, x: x[torch.arange(x.shape[0]), (where(c).sum(1) - 1).clamp(0, x.shape[1] - 1)]),
        ("hashed", lambda m, c, x: (c * 7 + 3) % ROWS),
        ("largest place", lambda m, c, x: x.argmax(1).reshape(x.shape[0], -1) % ROWS),
        ("scattered", lambda m, c, x: torch.zeros(x.shape[0], ROWS).scatter_add(1, c % ROWS, x)),
        ("shifted", lambda m, c, x: torch.cat([c[:, 1:], torch.zeros_like(c[:, :1])], 1)),
        ("crossed", lambda m, c, x: (c[:, :1] * 5 + c) % ROWS),
        ("bucketized", lambda m, c, x: torch.bucketize(x.flatten(1), torch.tensor([-0.5, 0.0, 0.7]))),
    ]
    name, fn = rng.choice(ways)
    return Step(name, fn, (ids, number))


# -- layers and weights


def _layer(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    place = rng.choice([p for p in values.of(floats=True) if values.held[p].dim() > 1])
    shape = values.held[place].shape
    last, out = shape[-1], rng.choice([1, 2, 4, 6])
    layers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(last, out, bias=rng.random() < 0.7),
        "tower": lambda: nn.Sequential(
            nn.Linear(last, 4), rng.choice([nn.ReLU, nn.PReLU, nn.Tanh])(), nn.Linear(4, out)
        ),
        "layer norm": lambda: nn.LayerNorm(last),
        "batch norm": lambda: nn.BatchNorm1d(shape[1]),
        "prelu": lambda: nn.PReLU(rng.choice([1, shape[1]])),
        "conv1d": lambda: nn.Conv1d(shape[1], out, rng.choice([1, 2, 3]), padding=1),
        "conv2d": lambda: nn.Conv2d(shape[1], 2, (1, 2)),
        "batch norm of linear": lambda: nn.Sequential(
            nn.Linear(last, 4), nn.BatchNorm1d(4 if len(shape) == 2 else shape[1]), nn.ReLU()
        ),
        "max pool": lambda: nn.MaxPool1d(2),
        "mean pool": lambda: nn.AdaptiveAvgPool1d(2),
        "group norm": lambda: nn.GroupNorm(1, shape[1]),
        "rms norm": lambda: nn.RMSNorm(last, eps=1e-5),
        "glu": lambda: nn.GLU(-1),
    }
    name = rng.choice(list(layers))
    part = model.part(layers[name]())
    return Step(name, lambda m, x: m.parts[part](x), (place,))


def _recurrent(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    places = [place for place in values.of(floats=True) if values.held[place].dim() == 3]
    place = rng.choice(places)
    last, width = values.held[place].shape[-1], rng.choice([2, 3])
    kind = rng.choice([nn.GRU, nn.LSTM, nn.RNN])
    if rng.random() < 0.3:
        part = model.part(nn.MultiheadAttention(last, 1, batch_first=True))
        return Step("self attention", lambda m, x: m.parts[part](x, x, x)[0], (place,))
    part = model.part(kind(last, width, batch_first=True, bidirectional=rng.random() < 0.3))
    if rng.random() < 0.5:
        return Step(f"{kind.__name__}", lambda m, x: m.parts[part](x)[0], (place,))
    return Step(f"last of {kind.__name__}", lambda m, x: m.parts[part](x)[0][:, -1], (place,))


def _weighted(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    place = rng.choice([p for p in values.of(floats=True) if values.held[p].dim() > 1])
    shape = values.held[place].shape
    last, out = shape[-1], rng.choice([1, 2, 4])
    ways: list[tuple[str, tuple[int, ...], Callable[[int], Fn]]] = [
        ("times a weight", (last,), lambda w: lambda m, x: x * m.weights[w]),
        ("plus a weight", shape[1:], lambda w: lambda m, x: x + m.weights[w]),
        ("product with a weight", (last, out), lambda w: lambda m, x: x @ m.weights[w]),
        ("gate of a weight", (1,), lambda w: lambda m, x: x * m.weights[w].sigmoid()),
        ("cross", (last,), lambda w: lambda m, x: x * (x * m.weights[w]).sum(-1, keepdim=True) + x),
        ("linear of a weight", (out, last), lambda w: lambda m, x: F.linear(x, m.weights[w])),
        ("softmax of a weight", (last,), lambda w: lambda m, x: (x * m.weights[w].softmax(0)).sum(-1, keepdim=True)),
        (
            "bilinear",
            (last, last),
            lambda w: lambda m, x: torch.einsum("...i,ij,...j->...", x, m.weights[w], x).unsqueeze(-1),
        ),
        (
            "attention over weights",
            (out + 1, last),
            lambda w: lambda m, x: F.scaled_dot_product_attention(x, m.weights[w], m.weights[w]),
        ),
        ("cosine with a weight", (last,), lambda w: lambda m, x: F.cosine_similarity(x, m.weights[w], -1)),
        (
            "cosines with weights",
            (out + 1, last),
            lambda w: lambda m, x: F.cosine_similarity(x.unsqueeze(-2), m.weights[w], -1),
        ),
        ("distances", (out + 1, last), lambda w: lambda m, x: (x.unsqueeze(-2) - m.weights[w] - 0.2).norm(dim=-1)),
        ("cdist", (out + 1, last), lambda w: lambda m, x: torch.cdist(x, m.weights[w] + 3)),
        ("the larger", (last,), lambda w: lambda m, x: torch.maximum(x, m.weights[w])),
        ("or a weight", (last,), lambda w: lambda m, x: torch.where(x > 0.1, x, m.weights[w])),
        ("lerp by a weight", (last,), lambda w: lambda m, x: torch.lerp(x, x.tanh(), m.weights[w])),
        ("weights times it", (out, shape[1]), lambda w: lambda m, x: m.weights[w] @ x),
        ("einsum with weights", (out, last), lambda w: lambda m, x: torch.einsum("...d,kd->...k", x, m.weights[w])),
        ("tensordot", (last, out, 2), lambda w: lambda m, x: torch.tensordot(x, m.weights[w], dims=1)),
        (
            "a token before",
            (1, *shape[2:]),
            lambda w: lambda m, x: torch.cat([m.weights[w].expand(x.shape[0], *m.weights[w].shape), x], 1),
        ),
        ("addmm", (last, out), lambda w: lambda m, x: torch.addmm(x[:, :out], x, m.weights[w], beta=0.5, alpha=2)),
        ("conv by weights", (out, shape[1], 2), lambda w: lambda m, x: F.conv1d(x, m.weights[w])),
        ("norm by weights", (last,), lambda w: lambda m, x: F.layer_norm(x, (x.shape[-1],), m.weights[w], None)),
        (
            "softmax over weights",
            (out + 1, last),
            lambda w: lambda m, x: (x @ m.weights[w].T).softmax(-1) @ m.weights[w],
        ),
        ("row weights", (ROWS, last), lambda w: lambda m, x: x * m.weights[w][: x.shape[-1]].sum(0)),
        ("prelu by a weight", (1,), lambda w: lambda m, x: F.prelu(x, m.weights[w])),
        ("kron", (2, 2), lambda w: lambda m, x: torch.einsum("bi,jk->bijk", x, m.weights[w])),
        ("one weight twice", (last, last), lambda w: lambda m, x: (x @ m.weights[w]).tanh() @ m.weights[w].T),
    ]
    name, sizes, fn = rng.choice(ways)
    return Step(name, fn(model.weight(*sizes)), (place,))


def _of_mode(rng: random.Random, values: Values, model: DrawnModel) -> Step | None:
    """Something else in training than in evaluation."""
    place = rng.choice([p for p in values.of(floats=True) if values.held[p].dim() > 1])
    shape = values.held[place].shape
    layer = model.part(nn.Linear(shape[-1], shape[-1]))
    ones = (1,) * (len(shape) - 1)
    in_training: list[tuple[str, Fn]] = [
        ("dropout", lambda m, x: F.dropout(x, 0.3, m.training)),
        ("scale", lambda m, x: 1.5 * x if m.training else x),
        ("tanh in evaluation", lambda m, x: x if m.training else x.tanh()),
        ("layer", lambda m, x: m.parts[layer](x) if m.training else x),
        ("residual layer", lambda m, x: x + m.parts[layer](x) if m.training else x + 0.8 * m.parts[layer](x)),
        ("mask", lambda m, x: x * (torch.rand_like(x) > 0.3) / 0.7 if m.training else x),
        ("mask of examples", lambda m, x: x * (torch.rand(x.shape[0], *ones) < 0.8) if m.training else 0.8 * x),
        ("noise", lambda m, x: x + 0.1 * torch.randn_like(x) if m.training else x),
        ("order", lambda m, x: x if m.training else x.flip(1)),
    ]
    name, fn = rng.choice(in_training)
    return Step(f"{name} of mode", fn, (place,))


STEPS: Sequence[Maker] = (
    _lookup,
    _bag,
    _unary,
    _unary,
    _shaped,
    _shaped,
    _shaped,
    _reduced,
    _reduced,
    _binary,
    _binary,
    _binary,
    _masked,
    _masked,
    _layer,
    _layer,
    _recurrent,
    _weighted,
    _of_mode,
)
