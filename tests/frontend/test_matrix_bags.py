"""Bags of a matrix that is no table are pooled as by PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.self_check.other_examples import DEPENDS
from htrain.spec.options import Options
from tests.frontend.test_torch_model import interpret

IDS = {"ids": torch.tensor([[0, 1, 2, 1], [3, 2, 0, 0], [2, 2, 2, 2]])}
KNOWN, STARTS = (
    torch.tensor([4, 9, 4, 4, 7, 8, 29]),
    torch.tensor([0, 2, 2, 4]),
)  # the features of four items, of which one has none
Form = Callable[[Any, torch.Tensor], torch.Tensor]
FORMS: dict[str, Form] = {
    "computed": lambda m, ids: F.embedding_bag(ids, m.rows.weight * 2),
    "of the batch": lambda m, ids: F.embedding_bag(ids * 0, m.rows(ids)[:, 0], mode="sum"),
    "read elsewhere": lambda m, ids: F.embedding_bag(ids, m.rows.weight, mode="sum") @ m.rows.weight.T[:, :3],
    "weighted": lambda m, ids: F.embedding_bag(ids, m.rows.weight.tanh(), mode="sum", per_sample_weights=m.rows(ids)[..., 0]),
    "padded sum": lambda m, ids: F.embedding_bag(ids, m.rows.weight.tanh(), mode="sum", padding_idx=2),
    "padded mean": lambda m, ids: F.embedding_bag(ids, m.rows.weight.tanh(), padding_idx=-28),
    "padded and weighted": lambda m, ids: F.embedding_bag(
        ids, m.rows.weight.tanh(), mode="sum", padding_idx=2, per_sample_weights=m.rows(ids)[..., 0]
    ),
    "known sum": lambda m, ids: F.embedding_bag(KNOWN, m.rows.weight, STARTS, mode="sum")[ids[:, 0]],
    "known mean": lambda m, ids: F.embedding_bag(KNOWN, m.rows.weight.tanh(), STARTS)[ids[:, 0]],
    "known and padded": lambda m, ids: F.embedding_bag(KNOWN, m.rows.weight, STARTS, padding_idx=4)[ids[:, 0]],
    "known and weighted": lambda m, ids: F.embedding_bag(
        KNOWN, m.rows.weight, STARTS, mode="sum", padding_idx=4, per_sample_weights=m.rows.weight[:7, 1]
    )[ids[:, 0]],
    "largest": lambda m, ids: F.embedding_bag(ids, m.rows.weight.tanh(), mode="max", padding_idx=2),
}  # fmt: skip


class Bags(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.rows, self.top, self.form = nn.Embedding(30, 3), nn.Linear(3, 1), form

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.form(self, ids)).squeeze(1)


@pytest.mark.parametrize("name", FORMS)
def test_bags_of_a_matrix_are_trained_as_by_pytorch(name: str) -> None:
    module = Bags(FORMS[name])
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ((DEPENDS,) if name == "of the batch" else ())
    values, net = {**dict(module.named_parameters()), **model.captured.values}, model.captured.net
    for batch in (1, 3):
        ids = IDS["ids"][-batch:]
        with torch.no_grad():
            torch.testing.assert_close(interpret(net, values, {"ids": ids}, batch), module(ids))


def test_bags_of_a_matrix_by_offsets_are_refused() -> None:
    bags = Bags(lambda m, ids: F.embedding_bag(ids.reshape(-1), m.rows.weight * 2, torch.arange(0, 4 * len(ids), 4)))
    with pytest.raises(ModelError, match=r"bags by offsets of '\w+', .*: give it ids\[B,W\], filled up"):
        capture(bags, IDS)
