"""Bags whose rows are pooled by their maximum are trained as by PyTorch, whichever of equal rows it takes."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.self_check.ours import Ours
from htrain.self_check.outcome import Rows
from htrain.self_check.values import Table, Values
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(4, 3, dtype=torch.int64)}


class Pooled(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.bags, self.top = nn.EmbeddingBag(6, 2, mode="max", **options), nn.Linear(2, 1)  # type: ignore[arg-type]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.bags(ids)).squeeze(1)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 0}, {"padding_idx": -1}, {"max_norm": 0.5}], ids=str)
def test_a_maximum_is_trained_as_by_pytorch(options: dict[str, object]) -> None:
    model = capture_model(Pooled(**options), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert [p.name for p in model.captured.net.parameters.values() if p.kind == "table"] == ["bags.weight"]


_ROWS = st.lists(st.lists(st.integers(-1, 1), min_size=2, max_size=2), min_size=6, max_size=6)
_BAGS = st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=2, max_size=5)


@cache
def _captured(padding: int | None) -> Captured:
    return capture(Pooled(padding_idx=padding), IDS)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([None, 2]), _ROWS, _BAGS)
def test_of_equal_rows_the_one_is_stepped_that_pytorch_steps(
    padding: int | None, rows: list[list[int]], bags: list[list[int]]
) -> None:
    """Rows of few numbers, of which many are equal."""
    module, ids = Pooled(padding_idx=padding), torch.tensor(bags)
    with torch.no_grad():
        module.bags.weight.copy_(torch.tensor(rows))
    dense = {name: p.detach() for name, p in module.named_parameters() if name != "bags.weight"}
    values = Values(dense, {"bags.weight": Table(6, module.bags.weight.detach())})
    ours = Ours(_captured(padding), Options()).run(values, {"ids": ids}, torch.zeros(len(ids)))
    nn.functional.binary_cross_entropy_with_logits(module(ids), torch.zeros(len(ids))).backward()  # type: ignore[no-untyped-call]
    found, wanted = ours.gradients["bags.weight"], module.bags.weight.grad
    assert isinstance(found, Rows)
    whole = torch.zeros(6, 2).index_add(0, found.ids, found.rows)
    torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-6)


def test_lists_by_offsets_are_refused() -> None:
    class Lists(Pooled):
        def forward(self, ids: torch.Tensor, ids_offsets: torch.Tensor) -> torch.Tensor:
            return self.top(self.bags(ids, ids_offsets)).squeeze(1)

    inputs = {"ids": torch.zeros(8, dtype=torch.int64), "ids_offsets": torch.arange(4) * 2}
    with pytest.raises(ModelError, match=r"mode='max' over lists by offsets cannot be compiled: give it ids\[B,W\]"):
        capture(Lists(), inputs)


def test_bags_with_the_end_of_the_last_are_refused_with_what_to_do() -> None:
    """torch.export takes the bags, one fewer than starts, for a batch of another size."""

    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.top = nn.EmbeddingBag(6, 2, mode="sum", include_last_offset=True), nn.Linear(2, 1)

        def forward(self, tags: torch.Tensor, tags_offsets: torch.Tensor) -> torch.Tensor:
            return self.top(self.bags(tags, tags_offsets)).squeeze(1)

    bags = {"tags": torch.zeros(8, dtype=torch.int64), "tags_offsets": torch.arange(4) * 2}
    with pytest.raises(
        ModelError, match=r"an EmbeddingBag with include_last_offset=True cannot be compiled: .*: build it without"
    ):
        capture(Closed(), bags)
