"""torch.optim.SparseAdam over dense gradients: PyTorch's own wants sparse ones, which libraries' models do not ask for."""

from collections.abc import Sequence

import torch
from torch import nn

from htrain.spec.optimizers import SparseAdam


class RowAdam(torch.optim.Optimizer):
    """Adam of the rows that a batch has asked for, as `asked` has them by the id of their table before each step; other rows and their moments stay.

    Raises RuntimeError in `step` for a table with a gradient of which no row has been asked for.
    """

    def __init__(self, tables: Sequence[nn.Parameter], given: SparseAdam) -> None:
        super().__init__(tables, {"lr": given.lr})
        self._given = given
        self._count = 0
        self.asked: dict[int, list[torch.Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One update, with bias correction by the number of updates so far."""
        self._count += 1
        given, count = self._given, self._count
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if not self.asked[id(p)]:
                raise RuntimeError(f"it is not seen which rows of the table {list(p.shape)} a batch asks for")
            rows = torch.cat(self.asked[id(p)]).unique()
            state = self.state[p]
            if not state:
                state |= {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            gradient = p.grad[rows]
            mean, square = state["mean"][rows], state["square"][rows]
            mean = mean + (gradient - mean) * (1 - given.beta1)
            square = square + (gradient.square() - square) * (1 - given.beta2)
            state["mean"][rows], state["square"][rows] = mean, square
            rate = given.lr * (1 - given.beta2**count) ** 0.5 / (1 - given.beta1**count)
            p[rows] -= rate * mean / (square.sqrt() + given.eps)
