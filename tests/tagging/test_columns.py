"""What of the data looks up a table, told from the ops that lead to its ids."""

import pytest
import torch
from torch import nn

from htrain.compiler.lowering import forward_net
from htrain.data import Input
from htrain.frontend.torch_model import capture
from htrain.spec.tree import with_flags
from htrain.tagging.columns import Piece, columns_of

INPUTS = (
    Input("dense", "dense", 2, ("x", "y")),
    Input("ids", "ids", 3, ("u", "v", "w"), rows=(10, 20, 30), tables=("u", "v", "w")),
    Input("list", "padded", 4, ("t",), rows=(40,), tables=("t",)),
)


class Model(nn.Module):
    """A table whose ids are made of the inputs by `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.table, self.top = way, nn.Embedding(100, 2), nn.Linear(2, 1)
        self.register_buffer("group_of", torch.arange(20) % 7)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, list: torch.Tensor) -> torch.Tensor:
        made = {
            "column": lambda: ids[:, 1],
            "turned": lambda: ids.flip(1)[:, 0:2],
            "reshaped": lambda: ids[:, :1].reshape(-1, 1, 1).squeeze(2),
            "joined": lambda: torch.cat([list, ids[:, :1] + 40], dim=1),
            "offsets": lambda: ids + torch.tensor([0, 10, 30]),
            "hashed": lambda: ids % 7,
            "added": lambda: ids[:, 0] + ids[:, 1],
            "doubled": lambda: 2 * ids[:, 0],
            "grouped": lambda: self.group_of[ids[:, 1]],
            "one hot": lambda: nn.functional.one_hot(ids[:, 1], 20),
            "counted": lambda: torch.arange(ids.shape[1]).expand(ids.shape[0], 3),
        }[self.way]()
        return self.top(self.table(made).reshape(ids.shape[0], -1, 2).sum(1) + dense)


def pieces(way: str) -> tuple[Piece, ...] | None:
    inputs = {
        "dense": torch.zeros(2, 2), "ids": torch.zeros(2, 3, dtype=torch.int64), "list": torch.zeros(2, 4, dtype=torch.int64),
    }  # fmt: skip
    net = forward_net(capture(Model(way), inputs), with_flags())
    return columns_of(net, INPUTS).get("table.weight")


@pytest.mark.parametrize(("way", "wanted"), [
    ("column", [("v", 0)]), ("turned", [("v", 0), ("w", 0)]), ("reshaped", [("u", 0)]), ("joined", [("t", 0), ("u", 40)]),
    ("offsets", [("u", 0), ("v", 10), ("w", 30)]),
])  # fmt: skip
def test_columns_and_columns_with_a_number_added_are_told(way: str, wanted: list[tuple[str, int]]) -> None:
    assert pieces(way) == tuple(Piece(*each) for each in wanted)


@pytest.mark.parametrize("way", ["hashed", "added", "doubled", "counted", "grouped", "one hot"])
def test_ids_that_are_computed_are_nobodys(way: str) -> None:
    assert pieces(way) is None
