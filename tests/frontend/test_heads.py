"""Heads: which outputs of a model are told beside its score, by which names, and that what is trained is the same without them."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

Named = namedtuple("Named", "loss click buy")
INPUTS = {"user": torch.tensor([[1], [2], [3]]), "x": torch.randn(3, 4), "label": torch.ones(3)}
Values = dict[str, torch.Tensor]
Returns = Callable[["Tasks", Values], Any]


class Tasks(nn.Module):
    """Two tasks over a table and numbers; `returned` says what of them forward() returns."""

    def __init__(self, returned: Returns) -> None:
        super().__init__()
        self.table, self.click, self.buy, self.spare = (
            nn.Embedding(9, 4),
            nn.Linear(8, 1),
            nn.Linear(8, 1),
            nn.Linear(8, 1),
        )
        self.drop, self.returned = nn.Dropout(0.5), returned

    def forward(self, user: torch.Tensor, x: torch.Tensor, label: torch.Tensor) -> Any:
        vector = self.table(user[:, 0])
        hidden = torch.cat([vector, x], 1)
        click, buy = self.click(hidden)[:, 0], self.buy(hidden)[:, 0]
        loss = F.binary_cross_entropy_with_logits(click, label) + F.binary_cross_entropy_with_logits(buy, 1 - label)
        values = {"loss": loss, "click": click, "buy": buy, "vector": vector, "hidden": hidden}
        return self.returned(self, values)


def captured(returned: Returns, logit: str | int = "click") -> Captured:
    return capture(Tasks(returned), INPUTS, logit=logit, own_loss=True)


@pytest.mark.parametrize(
    ("returned", "logit", "heads"),
    [
        (lambda m, v: (v["loss"], v["click"]), "", ()),
        (lambda m, v: (v["loss"], v["click"], v["buy"]), 1, ("output_2",)),
        (lambda m, v: (v["loss"], {"click": v["click"], "buy": v["buy"]}), "click", ("buy",)),
        (lambda m, v: (v["click"], None, {"buy": v["buy"]}, v["loss"]), "buy", ("output_0",)),
        (lambda m, v: {"buy": v["buy"], "loss": v["loss"], "click": v["click"], "user": v["vector"]}, "click", ("buy", "user")),
        (lambda m, v: Named(v["loss"], v["click"], v["buy"]), "click", ("buy",)),
        (lambda m, v: {"loss": v["loss"], "click": v["click"], "score": v["buy"], "label": v["buy"] * 2}, "click", ("output_score", "output_label")),
        (lambda m, v: {"a": {"click": v["click"]}, "b": {"click": v["buy"]}, "loss": v["loss"]}, 0, ("output_1",)),
    ],
)  # fmt: skip
def test_heads_are_named_by_their_keys_or_places(returned: Returns, logit: str | int, heads: tuple[str, ...]) -> None:
    assert captured(returned, logit).heads == heads


@pytest.mark.parametrize(
    "extra",
    [
        lambda m, v: v["buy"].sum(),  # of a batch
        lambda m, v: v["hidden"].unsqueeze(1) * v["hidden"].unsqueeze(2),
        lambda m, v: v["click"] > 0,
        lambda m, v: v["click"].double(),
        lambda m, v: torch.ones(3),
    ],
)
def test_what_is_no_number_or_vector_of_each_example_is_no_head(extra: Returns) -> None:
    found = captured(lambda m, v: {"loss": v["loss"], "click": v["click"], "extra": extra(m, v), "buy": v["buy"]})
    assert found.heads == ("buy",)
    assert not any("extra" in note for note in found.notes)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (lambda m, v: m.spare(v["hidden"]), "takes spare.weight for it alone"),
        (lambda m, v: m.click(2 * v["hidden"]), "takes click.weight for it alone"),
        (lambda m, v: v["vector"] @ m.table.weight.T, "takes table.weight for it alone"),
        (lambda m, v: torch.rand_like(v["click"]), "draws random numbers for it alone"),
        (lambda m, v: torch.linalg.eigvalsh(v["hidden"].unsqueeze(2) @ v["hidden"].unsqueeze(1)), "htrain has no such op"),
    ],
)  # fmt: skip
def test_a_head_that_cannot_be_told_is_left_out_with_a_note_and_the_model_compiles(extra: Returns, why: str) -> None:
    found = captured(lambda m, v: {"loss": v["loss"], "click": v["click"], "extra": extra(m, v), "buy": v["buy"]})
    assert found.heads == ("buy",)
    (note,) = (
        note for note in found.notes if note.startswith("output 'extra' is left out by eval, predict and export: ")
    )
    assert why in note
    alone = captured(lambda m, v: {"loss": v["loss"], "click": v["click"], "buy": v["buy"]})
    assert [str(op) for op in found.net.ops] == [str(op) for op in alone.net.ops]
    assert found.net.parameters == alone.net.parameters


def plan_of(captured: Captured, loss: str, **cluster: int) -> Plan:
    options = with_flags(batch_size=4, loss=loss, dense_sync="easgd")
    return compile_net(captured, this_machine(**cluster), options, name="m")


@pytest.mark.parametrize(
    "cluster", [{"group_ps": 1, "sparse_ps": 2}, {"groups": 2, "trainers": 2, "group_ps": 2, "sparse_ps": 1}]
)
def test_steps_are_those_of_the_model_without_heads(cluster: dict[str, int]) -> None:
    def told(model: Tasks, v: Values) -> Any:
        return {
            "loss": v["loss"], "click": v["click"], "buy": v["buy"], "user": F.normalize(v["vector"]),
            "both": v["click"].sigmoid() * v["buy"].sigmoid(), "dropped": model.drop(v["hidden"]),
        }  # fmt: skip

    with_heads = plan_of(captured(told), "own", **cluster)
    without = plan_of(captured(lambda m, v: {"loss": v["loss"], "click": v["click"]}), "own", **cluster)
    assert with_heads.heads is not None
    assert with_heads.heads.outputs == ("heads/buy", "heads/user", "heads/both", "heads/dropped")
    assert not with_heads.heads.parameters
    assert {"Dropout", "BatchKey"}.isdisjoint(op.type for op in with_heads.heads.ops)
    of_steps = {name: net for name, net in with_heads.nets.items() if name not in ("train", "heads")}
    kinds = {name: sorted(op.type for op in net.ops) for name, net in of_steps.items()}
    assert kinds == {name: sorted(op.type for op in net.ops) for name, net in without.nets.items() if name != "train"}
    assert all(len(net.outputs) <= 2 for net in of_steps.values())
    assert with_heads.predicted_eps == without.predicted_eps


def test_a_probability_is_a_head_of_the_logit_that_is_trained_without_its_sigmoid() -> None:
    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(8, 1)

        def forward(self, user: torch.Tensor, x: torch.Tensor) -> Any:
            vector = self.table(user[:, 0])
            probability = self.out(torch.cat([vector, x], 1)).sigmoid()
            return {"p": probability.reshape(-1), "square": probability * probability, "user": vector}

    inputs = {name: value for name, value in INPUTS.items() if name != "label"}
    found = plan_of(capture(Clicks(), inputs, logit="p"), "bce", group_ps=1, sparse_ps=1)
    assert found.heads is not None
    assert [op.type for op in found.heads.ops] == ["Sigmoid", "Mul", "Identity", "Identity"]
    assert "Sigmoid" not in {op.type for op in found.train.ops}
