"""Optimizers of rows as their authors write them, row by row in double precision: NumPy, with no loop of htrain's."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from htrain.spec.optimizers import LazyMomentum, Optimizer, RowwiseAdam

Numbers = NDArray[np.float64]


class _ByRows(torch.optim.Optimizer):
    """A step for each row of a sparse gradient; others stay, and so do their states."""

    def __init__(self, params: Sequence[nn.Parameter], asked: Optimizer) -> None:
        super().__init__(params, {"lr": asked.lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("weights", p.double().numpy())
                state["step"] = state.get("step", 0) + 1
                sums = p.grad.coalesce().double()
                for row, gradient in zip(sums.indices()[0].tolist(), sums.values().numpy(), strict=True):
                    state["weights"][row] -= group["lr"] * self.direction(state, row, gradient)
                p.copy_(torch.from_numpy(state["weights"]))

    def direction(self, state: dict, row: int, gradient: Numbers) -> Numbers:
        """What a row moves along, at a rate of 1."""
        raise NotImplementedError


class PartialRowwiseAdam(_ByRows):
    """fbgemm's PARTIAL_ROWWISE_ADAM, as its documentation of the optimizers has it, without weight decay."""

    def __init__(self, params: Sequence[nn.Parameter], asked: RowwiseAdam) -> None:
        super().__init__(params, asked)
        self._beta1, self._beta2, self._eps = asked.beta1, asked.beta2, asked.eps

    def direction(self, state: dict, row: int, gradient: Numbers) -> Numbers:
        m, v = (
            state.setdefault("m", np.zeros_like(state["weights"])),
            state.setdefault("v", np.zeros(len(state["weights"]))),
        )
        v[row] = self._beta2 * v[row] + (1 - self._beta2) * (gradient**2).mean()
        m[row] = self._beta1 * m[row] + (1 - self._beta1) * gradient
        v_hat = v[row] / (1 - self._beta2 ** state["step"])
        m_hat = m[row] / (1 - self._beta1 ** state["step"])
        return m_hat / (np.sqrt(v_hat) + self._eps)


class SparseMomentum(_ByRows):
    """TensorFlow's SparseApplyMomentum: accum = accum * momentum + grad; var -= lr * accum, of the rows that have a gradient."""

    def __init__(self, params: Sequence[nn.Parameter], asked: LazyMomentum) -> None:
        super().__init__(params, asked)
        self._momentum = asked.lazy_momentum

    def direction(self, state: dict, row: int, gradient: Numbers) -> Numbers:
        moving = state.setdefault("moving", np.zeros_like(state["weights"]))
        moving[row] = moving[row] * self._momentum + gradient
        return moving[row]
