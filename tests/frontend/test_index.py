"""Models that pick elements by index tensors and constant masks are trained as by PyTorch, at other batch sizes than the example's."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.self_check.ours import Ours
from htrain.self_check.values import Table, Values
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

Forward = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
UPPER = torch.ones(4, 4).triu(1).bool()


class Indexed(nn.Module):
    """Rows[B,L,K] of ids[B,L], what a test makes of both in several ways, and a layer over the sum of the rows."""

    def __init__(self, *then: Forward) -> None:
        super().__init__()
        self.rows, self.top, self.then = nn.Embedding(50, 4), nn.Linear(4, 1), then
        self.register_buffer("upper", UPPER.clone())
        self.frozen = nn.Parameter(UPPER.clone(), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        made = [then(self, rows, ids).reshape(len(ids), -1).sum(1) for then in self.then]
        return self.top(torch.tanh(rows).sum(1)).squeeze(1) + torch.stack(made, 1).sum(1)


def each(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[0])


def dots(rows: torch.Tensor) -> torch.Tensor:
    return rows @ rows.transpose(1, 2)


def grid(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As transformers builds its masks."""
    example, place = each(rows)[:, None, None, None], torch.arange(4)[None, None, None, :]
    mask = (ids > 9)[example, place] & (torch.arange(4)[:, None] >= place)
    return F.scaled_dot_product_attention(*[rows[:, None]] * 3, attn_mask=mask.expand(-1, -1, 4, 4))


def added(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(len(ids), 1, 4).masked_fill((ids > 30)[:, None], -torch.inf)
    return F.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)


def put(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As recommenders build a row of ratings for each user: flat indices, and what comes for each."""
    line = torch.arange(ids.shape[0]).repeat_interleave(ids.shape[1], dim=0)
    ratings = torch.zeros(1).repeat(ids.shape[0], 50)
    ratings.index_put_((line, ids.flatten()), torch.ones(1).expand(ids.numel()))
    return ratings @ model.rows.weight


def added_to(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(len(ids), 5, 4)
    return zeros.index_put((each(ids)[:, None], ids % 5), rows, accumulate=True).square()


def cells(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Two dimensions behind the batch, one of the places constant."""
    put = torch.zeros(len(ids), 4, 3, 4).index_put((each(ids)[:, None], torch.arange(4), ids % 3), rows)
    return put[each(ids)[:, None], torch.arange(4), ids % 3] * put[each(ids)[:, None], torch.arange(4), -1]


def assigned(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    y = 2 * rows
    y[:, [0, 2]] = 0.0
    y[:, :, [3, 1]] = rows[:, :1, :2]
    y[:, torch.tensor([-1, 1])] += rows[:, :1]
    y[:, UPPER[2]] = rows[:, 0, None] * 3
    return y.square()


def sorted_and_back(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As experts take what is theirs together, and packed sequences are put back."""
    order = torch.argsort(ids[:, 0], stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    made = torch.zeros_like(rows)
    made[order, :] = torch.tanh(rows[order]) * torch.arange(len(rows))[:, None, None]
    return made + rows[order].cumsum(0)[back] + made.index_copy(0, order.flip(0), 2 * rows[order])


def of_domains(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Examples that are another domain's each, by their numbers, and a number for all of one; sums at places of no batch."""
    made, sums = torch.zeros(len(ids), 4), torch.zeros(50, 4)
    for domain in range(3):
        places = torch.where(ids[:, 0] % 3 == domain)[0]
        made[places] = (domain + 1) * torch.tanh(rows[places, 0])
    made[torch.argsort(ids[:, 1], stable=True)] += 0.5
    sums = sums.index_put((ids[:, 0],), rows[:, 1], accumulate=True)
    return made + sums[ids[:, 0]]


FORWARDS: dict[str, Forward] = {
    "a grid": grid,
    "a mask that is added": added,
    "constant places of each": lambda m, rows, ids: rows[each(rows)[:, None], torch.tensor([[2, -1, 0]])],
    "computed places of each": lambda m, rows, ids: rows[each(rows).unsqueeze(1).expand(-1, 3), (ids % 4)[:, 1:]],
    "flat places": lambda m, rows, ids: rows[each(rows).repeat_interleave(2), (ids[:, :2] % 4).flatten()].square(),
    "places of places": lambda m, rows, ids: rows[each(rows)[:, None, None], (ids % 4)[:, :, None], torch.arange(2)].square(),
    "a list for the length": lambda m, rows, ids: rows[[torch.arange(len(ids)), ids[:, 0] % 4]],
    "computed places from the end": lambda m, rows, ids: rows[each(rows)[:, None], (ids % 8) - 4],
    "the last of each": lambda m, rows, ids: rows[each(rows), (ids > 20).sum(1) - 1],
    "places of a weight from the end": lambda m, rows, ids: m.top.weight[0][(ids % 4) - 4] + UPPER.float()[(ids % 4) - 4, (ids % 8) - 4],
    "two computed places of a table": lambda m, rows, ids: m.rows.weight.view(5, 10, 4)[ids % 5, ids % 10].square(),
    "examples themselves": lambda m, rows, ids: rows[each(rows)].square(),
    "a mask in a buffer": lambda m, rows, ids: torch.masked_select(dots(rows), m.upper).view(-1, 6).square(),
    "a mask in a parameter": lambda m, rows, ids: torch.masked_select(dots(rows), m.frozen).view(len(ids), -1).square(),
    "a mask that is computed": lambda m, rows, ids: dots(rows).masked_select(torch.ones(4, 4).tril().bool() & ~UPPER.t()),
    "a mask over some": lambda m, rows, ids: torch.masked_select(rows[:, :, None] * rows[:, None], m.upper[..., None]).view(-1, 6, 4),
    "an index by a mask": lambda m, rows, ids: dots(rows)[:, m.upper].square(),
    "places of a mask": lambda m, rows, ids: rows[:, m.upper[0].nonzero()[:, 0]].square(),
    "ratings": put,
    "sums at places": added_to,
    "cells": cells,
    "assignments": assigned,
    "filled": lambda m, rows, ids: rows.index_fill(2, torch.tensor([0, 2]), 0.5).square() + rows.index_copy(1, torch.tensor([3, 0]), rows[:, 1:3]).square(),
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, len(FORWARDS), 6))
def test_what_is_picked_and_put_is_trained_as_by_pytorch(first: int) -> None:
    check(*list(FORWARDS.values())[first : first + 6])


def test_rows_at_computed_places_are_put_as_by_pytorch() -> None:
    check(sorted_and_back, of_domains, of_others=True)


def each_side(rows: torch.Tensor) -> torch.Tensor:
    """The example before, which is the last one of the first, and the one behind it."""
    return torch.stack([each(rows) - 1, (each(rows) + 1) % len(rows)], 1)


OF_OTHERS: dict[str, Forward] = {
    "places of another": lambda m, rows, ids: rows[each(rows).flip(0), ids[:, 0] % 4].square(),
    "both neighbours": lambda m, rows, ids: rows[each_side(rows)].flatten(1).square(),
    "places of neighbours": lambda m, rows, ids: rows[each_side(rows), ids[:, :2] % 4].square(),
    "lines of all": lambda m, rows, ids: rows[each(rows).repeat(2), (ids[:, :2] % 4).flatten()].view(2, -1, 4).sum(0).square(),
}  # fmt: skip


def test_what_is_picked_of_other_examples_is_trained_as_by_pytorch_with_a_note() -> None:
    check(*OF_OTHERS.values(), of_others=True)


def check(*then: Forward, of_others: bool = False) -> None:
    model = capture_model(
        Indexed(*then),
        schema=CRITEO,
        example_inputs={"ids": torch.zeros(3, 4, dtype=torch.int64)},
        logit="",
        label="",
    )
    assert model.compare(Options()).notes == ()
    assert any("depend on each other" in note for note in model.captured.notes) == of_others


@pytest.mark.parametrize(
    "then",
    [
        lambda m, rows, ids: rows[each(rows), ids[:, 0]],
        lambda m, rows, ids: rows[each(rows).flip(0), ids[:, 0]],
        lambda m, rows, ids: m.top.weight[0][ids],
        lambda m, rows, ids: UPPER.float()[ids % 4, ids] * m.top.weight[0],
        lambda m, rows, ids: m.rows.weight.view(5, 10, 4)[ids, ids % 10],
    ],
)
@pytest.mark.parametrize("place", [4, 5, -6, 9])
def test_a_place_that_is_not_there_is_an_error(then: Forward, place: int) -> None:
    """It was another's, modulo the size."""
    model = Indexed(then)
    ours = Ours(capture(model, {"ids": torch.zeros(3, 4, dtype=torch.int64)}), Options())
    values = Values(dict(model.named_parameters()), {"rows.weight": Table(50, model.rows.weight.detach())})
    ids = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1]])
    ours.run(values, {"ids": ids}, torch.zeros(2))
    ids[1, 0] = place
    if place == 4 and "view" in then.__code__.co_names:
        return  # there it is
    with pytest.raises((ModelError, IndexError)):
        ours.run(values, {"ids": ids}, torch.zeros(2))


def test_a_place_that_was_found_in_something_wider_is_an_error() -> None:
    """It was one of the next example."""
    model = Indexed(lambda m, rows, ids: rows[torch.where(torch.cat([ids > 60, ids > 40], 1))].sum() + rows)
    ours = Ours(capture(model, {"ids": torch.zeros(3, 4, dtype=torch.int64)}), Options())
    values = Values(dict(model.named_parameters()), {"rows.weight": Table(50, model.rows.weight.detach())})
    ids = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1]])
    ours.run(values, {"ids": ids}, torch.zeros(2))
    ids[0, 1] = 45
    with pytest.raises((ModelError, IndexError)):
        ours.run(values, {"ids": ids}, torch.zeros(2))


def test_a_constant_place_that_is_not_there_is_refused() -> None:
    forward = Indexed(lambda m, rows, ids: rows[:, torch.tensor([0, 4])])
    with pytest.raises(ModelError, match="a dimension of 4 has no place 4"):
        capture(forward, {"ids": torch.zeros(3, 4, dtype=torch.int64)})


REFUSED: dict[str, tuple[Forward, str]] = {
    "all examples with each": (lambda m, rows, ids: rows[each(rows)[None], ids[:, :1] % 4], "two dimensions of .* depend on the batch"),
    "dimensions apart": (lambda m, rows, ids: dots(rows)[:, ids[0] % 4], "it picks an example of the batch"),
    "put twice": (lambda m, rows, ids: rows.index_copy(1, torch.tensor([1, 1]), rows[:, 1:3]), "it assigns to one place twice"),
    "put to another": (lambda m, rows, ids: rows.index_put((each(rows).flip(0), ids[:, 0] % 4), rows[:, 0]), "what is assigned to"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_of_other_examples_is_refused(name: str) -> None:
    forward, why = REFUSED[name]
    with pytest.raises(ModelError, match=why):
        capture(Indexed(forward), {"ids": torch.zeros(3, 4, dtype=torch.int64)})


def test_softmax_casts_before() -> None:
    def weigh(model: nn.Module, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores = torch.where(ids > 5, rows.sum(2).double(), -9e15)
        return rows * torch.softmax(scores, dim=1, dtype=torch.float32)[..., None]

    check(weigh)


def test_len_is_python_s_own_afterwards() -> None:
    before = len
    capture(Indexed(FORWARDS["flat places"]), {"ids": torch.zeros(3, 4, dtype=torch.int64)})
    assert len is before
    assert len(torch.zeros(3)) == 3


ASSIGNED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, m: x.masked_scatter((m > 0)[:, None], x[m > 0] * 2),
    "places": lambda x, m: torch.masked_scatter(x * 1, x > 0.3, x.flip(1).exp()),
    "the same of all": lambda x, m: x.masked_scatter(torch.tensor([True, False, True]), x.reshape(-1)),
    "a column to rows": lambda x, m: x[:, :1].masked_scatter(x.flip(1) > 0.3, x.exp()),
    "in place": lambda x, m: (x * 2).masked_scatter_((m > 0)[:, None].expand_as(x), x[m > 0][:, [2, 0, 1]]),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_elements_that_a_mask_scatters_are_pytorchs(name: str) -> None:
    class Scattered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return ASSIGNED[name](self.top(x), m).sum(1)

    module, example = Scattered(), {"x": torch.ones(4, 3), "m": torch.ones(4, dtype=torch.int64)}
    captured = capture(module, example)
    values, drawn = {**dict(module.named_parameters()), **captured.values}, torch.Generator().manual_seed(0)
    for batch, share in ((1, 0), (1, 1), (5, 0), (5, 2), (4, 1)):
        given = {
            "x": torch.randn(batch, 3, generator=drawn),
            "m": torch.arange(batch) % max(share, 1) * (share > 1) + (share == 1),
        }
        with torch.no_grad():
            torch.testing.assert_close(interpret(captured.net, values, given, batch), module(**given))
    model = capture_model(module, schema=CRITEO, example_inputs=example, logit="", label="")
    assert model.compare(Options()).notes == ()
