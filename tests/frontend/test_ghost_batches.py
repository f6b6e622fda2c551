"""Batch norms of the chunks of a batch, joined again, are trained and evaluated as by PyTorch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.ops import OPS
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

EXAMPLE = {"x": torch.zeros(7, 3)}
Form = Callable[[Any, torch.Tensor], torch.Tensor]


def tabnets(m: Any, x: torch.Tensor) -> torch.Tensor:
    chunks = x.chunk(int(np.ceil(x.shape[0] / 4)), 0)
    res = [m.norm(x_) for x_ in chunks]
    return torch.cat(res, dim=0)


def at_last(m: Any, x: torch.Tensor) -> torch.Tensor:
    """With another norm before, a list that grows, and sizes that are those of the last batch, too."""
    parts = []
    for part in torch.split(m.first(x), 4):
        parts.append(m.norm(part))
    return torch.concat(parts)


FORMS: dict[str, Form] = {
    "TabNet's": tabnets,
    "split": at_last,
    "halves": lambda m, x: torch.cat([m.norm(part) for part in torch.chunk(x, chunks=2)]),
    "one": lambda m, x: torch.cat([m.norm(part) for part in x.chunk(max(1, len(x) // 100))]),
    "two norms": lambda m, x: torch.cat([m.norm(m.first(part)) for part in x.chunk(math.ceil(len(x) / 4))]),
    "bare": lambda m, x: torch.cat([m.bare(part) for part in x.split(4)]),
    "frozen": lambda m, x: torch.cat([m.frozen(part) for part in x.split(4)]),
}


class Ghosts(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form, self.top, self.below = form, nn.Linear(3, 1), nn.Linear(3, 3)
        self.norm, self.first = nn.BatchNorm1d(3, momentum=0.2), nn.BatchNorm1d(3, affine=False)
        self.bare, self.frozen = nn.BatchNorm1d(3, affine=False, track_running_stats=False), nn.BatchNorm1d(3)
        self.several = nn.ModuleList([nn.BatchNorm1d(3) for _ in range(3)])

    def train(self, mode: bool = True) -> "Ghosts":
        super().train(mode)
        self.frozen.train(False)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.tanh(self.form(self, self.below(x)))).squeeze(1)


def drawn(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)) * 2 + 1


@pytest.mark.parametrize("name", FORMS)
def test_chunks_are_normalized_as_by_pytorch(name: str) -> None:
    """In batches of one chunk, of several, and of a last one that is smaller; and evaluated by the statistics that they leave."""
    module = Ghosts(FORMS[name])
    module.train()
    model = capture_model(module, schema=CRITEO, example_inputs=EXAMPLE, logit="", label="")
    assert model.compare(Options()).notes == ()
    net = model.captured.net
    values = {n: v.detach().clone() for n, v in {**module.state_dict(), **model.captured.values}.items()}
    for rows in (4, 6, 11, 7, 23):
        with torch.no_grad():
            torch.testing.assert_close(interpret(net, values, {"x": drawn(rows)}, rows), module(drawn(rows)))
    statistics = [n for n, p in net.parameters.items() if p.kind == "statistic"]
    assert len(statistics) == {"bare": 0, "frozen": 0, "split": 4, "two norms": 4}.get(name, 2)
    for statistic in statistics:
        torch.testing.assert_close(values[statistic], module.state_dict()[statistic])
    evaluated = net.with_ops(OPS[op.type].in_evaluation(op) for op in net.ops)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(interpret(evaluated, values, {"x": drawn(10)}, 10), module(drawn(10)))


REFUSED: dict[str, Form] = {
    "a norm each": lambda m, x: torch.cat([norm(p) for norm, p in zip(m.several, x.split(4), strict=False)]),
    "but the first": lambda m, x: torch.cat([m.norm(p) for p in list(x.split(4))[1:]]),
    "the other way round": lambda m, x: torch.cat([m.norm(p) for p in x.split(4)][::-1]),
    "by turns": lambda m, x: torch.cat([m.several[i](p) for i, p in enumerate(x.split(4))]),
    "with others": lambda m, x: torch.cat([x, *(m.norm(p) for p in x.split(4))]),
    "along the columns": lambda m, x: torch.cat([m.norm(p) for p in x.split(4)], 1),
    "summed": lambda m, x: x + sum(m.norm(p).sum() for p in x.split(4)),
    "multiplied": lambda m, x: torch.cat([2 * m.norm(p) for p in x.split(4)]),
    "by a layer": lambda m, x: torch.cat([m.below(p) for p in x.split(4)]),
    "by torch": lambda m, x: torch.cat([torch.tanh(p) for p in x.split(4)]),
    "counted": lambda m, x: torch.cat([m.norm(p) for p in x.split(4)]) / len(x.split(4)),
    "picked": lambda m, x: torch.cat([m.norm(x.split(4)[0]), x]),
    "asked": lambda m, x: torch.cat([m.norm(p) for p in x.split(4) if p.shape[0] > 1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_else_is_made_of_chunks_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"forward\(\) cuts a batch into chunks, of which there are more in a larger"):
        capture(Ghosts(REFUSED[name]), EXAMPLE)


def test_a_chunk_of_one_example_and_an_empty_batch_leave_the_statistics() -> None:
    """PyTorch refuses these, of which the last batch of an epoch may have some."""
    net, norm = capture(Ghosts(FORMS["split"]), EXAMPLE).net, nn.BatchNorm1d(3, momentum=0.1)
    op = next(op for op in net.ops if op.type == "GhostBatchNorm")
    mean, variance, ones = torch.zeros(3), torch.ones(3), torch.ones(3)
    kernel = OPS[op.type].kernel
    given = (ones, 2 * ones, torch.tensor(4), mean, variance)
    y = kernel(drawn(5), *given, eps=1e-5, momentum=0.1)
    torch.testing.assert_close(y[:4], norm(drawn(5)[:4]).detach() + 2)
    torch.testing.assert_close(y[4], 2 * ones, rtol=0, atol=1e-4)
    assert kernel(drawn(0), *given, eps=1e-5, momentum=0.1).shape == (0, 3)
    torch.testing.assert_close(mean, norm.running_mean)
    torch.testing.assert_close(variance, norm.running_var)
    gradient = OPS["GhostBatchNormGradient"].kernel
    dx, dscale = gradient(drawn(0), ones, torch.tensor(4), drawn(0), eps=1e-5, wrt=(0, 1))
    assert dx.shape == (0, 3)
    assert not dscale.any()
