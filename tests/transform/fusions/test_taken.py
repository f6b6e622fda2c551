"""Tables that are read and stepped in place by lists of ids of any shape: only those of SGD, on the device of what reads them."""

from collections.abc import Mapping

import pytest
import torch
from fused import PLAIN, SGD, types
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import run_net
from torch import nn
from torch.nn import functional as F

from htrain.compiler.pipeline import compile_net
from htrain.errors import DataError
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

ROWS, SHARED, WIDTH = 20, 9, 3


class Lists(nn.Module):
    """A table read whole, in one list; one that two lists of another shape share; and one that is pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.Embedding(ROWS, WIDTH)
        self.linear = nn.Embedding(ROWS, 1)
        self.items = nn.Embedding(SHARED, WIDTH)
        self.bags = nn.EmbeddingBag(SHARED, WIDTH, mode="sum")

    def forward(self, sparse: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        """sparse[B,2], history[B,3] -> logit[B]."""
        item = self.items(history[:, 0])
        attended = (self.items(history[:, 1:]) * item.unsqueeze(1)).sum(dim=(1, 2))
        crossed = self.fields(sparse).prod(dim=1).sum(dim=1)
        return attended + crossed + self.linear(sparse).sum(dim=(1, 2)) + self.bags(history).sum(dim=1)


def net_of(options: Options, **counts: int) -> Net:
    example = {"sparse": torch.zeros(6, 2, dtype=torch.int64), "history": torch.zeros(6, 3, dtype=torch.int64)}
    cluster = this_machine(**{"trainers": 1, "group_ps": 0, "sparse_ps": 0, **counts})
    return compile_net(capture(Lists(), example), cluster, options, name="m", solver="rules").nets["train"]


def test_tables_that_are_taken_from_are_read_and_stepped_by_one_op_each() -> None:
    net = net_of(SGD)
    (take,) = (op for op in net.ops if op.type == "TakeTables")
    (step,) = (op for op in net.ops if op.type == "StepTakenTables")
    assert take.attrs["tables"] == step.attrs["tables"]
    assert len(take.outputs) == 4  # fields, linear, and items twice
    found = types(net)
    assert (found["Lookup"], found["PoolRows"], found["TakeRows"], found["SparseSgd"]) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        (with_flags(SGD, sparse_optimizer="adagrad"), {}),
        (with_flags(SGD, fuse_tables=False), {}),
        (with_flags(SGD, cache="lookahead"), {}),
        (SGD, {"sparse_ps": 1}),
    ],
    ids=["adagrad", "off", "cache", "elsewhere"],
)
def test_tables_of_other_steps_and_other_devices_are_looked_up_id_by_distinct_id(options: Options, counts: Mapping[str, int]) -> None:  # fmt: skip
    found = types(net_of(options, **counts))
    assert "TakeTables" not in found
    assert "StepTakenTables" not in found
    assert found["TakeRows"] == 4


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.data())
def test_a_step_is_pytorchs(batch: int, data: st.DataObject) -> None:
    def ids(rows: int, width: int) -> torch.Tensor:
        drawn = data.draw(st.lists(st.integers(0, rows - 1), min_size=batch * width, max_size=batch * width))
        return torch.tensor(drawn).reshape(batch, width)

    torch.manual_seed(0)
    model = Lists()
    inputs = {"sparse": ids(ROWS, 2), "history": ids(SHARED, 3)}
    label = ids(2, 1).reshape(-1).float()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    run_net(net_of(with_flags(PLAIN, fuse_tables=True)), parameters, {**inputs, "label": label})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    F.binary_cross_entropy_with_logits(model(**inputs), label).backward()
    optimizer.step()
    for name, wanted in model.named_parameters():
        torch.testing.assert_close(parameters[name], wanted.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [-1, 5])
def test_an_id_that_its_table_has_no_row_for_is_refused_before_anything_is_stepped(bad: int) -> None:
    tables, ids = [torch.ones(6, 2), torch.ones(5, 3)], [torch.zeros(4, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64)]  # fmt: skip
    ids[1][1, 0] = bad
    said = rf"id {bad} at position 2 is outside the table's rows \[0, 5\)"
    with pytest.raises(DataError, match=said):
        OPS["TakeTables"].kernel(*tables, *ids, tables=(0, 1))
    with pytest.raises(DataError, match=said):
        OPS["StepTakenTables"].kernel(*tables, *ids, torch.ones(4, 2), torch.ones(2, 2, 3), tables=(0, 1), lr=1.0)
    assert all((table == 1).all() for table in tables)


def test_what_loops_over_addresses_would_read_wrongly_is_refused() -> None:
    table, ids = torch.ones(6, 2), torch.zeros(4, dtype=torch.int64)
    take, step = OPS["TakeTables"].kernel, OPS["StepTakenTables"].kernel
    with pytest.raises(DataError, match=r"want torch\.int64"):
        take(table, ids.int(), tables=(0,))
    with pytest.raises(DataError, match=r"want contiguous float32 rows"):
        take(table.double(), ids, tables=(0,))
    with pytest.raises(DataError, match="want numbers below 1"):
        take(table, ids, tables=(1,))
    with pytest.raises(
        DataError, match=r"rows of ids are torch.float32\[4, 3\], want contiguous torch.float32\[4, 2\]"
    ):
        step(table, ids, torch.ones(4, 3), tables=(0,), lr=1.0)
