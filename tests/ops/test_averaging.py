"""What a dense PS does with the snapshots of all groups, against the formulas of the papers in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.ops import OPS

quick = settings(max_examples=60, deadline=None, derandomize=True)


class Filter:
    """BMUF as Chen and Huo write it: W(t) = W(t-1) + D(t), D(t) = decay D(t-1) + lr (mean - start), start = W or W + decay D."""

    def __init__(self, first: np.ndarray, decay: float, lr: float, *, nesterov: bool) -> None:
        self.model, self.step, self.start = first.copy(), np.zeros_like(first), first.copy()
        self._decay, self._lr, self._nesterov = decay, lr, nesterov

    def block(self, mean: np.ndarray) -> None:
        self.step = self._decay * self.step + self._lr * (mean - self.start)
        self.model = self.model + self.step
        self.start = self.model + self._decay * self.step if self._nesterov else self.model


def held(size: int, count: int) -> list[torch.Tensor]:
    return [torch.zeros(size) for _ in range(count)] + [torch.zeros(1)]


@quick
@given(st.integers(1, 5), st.integers(0, 2**31), st.floats(0, 0.95), st.floats(0.1, 2.0), st.booleans())
def test_a_block_step_is_that_of_the_paper(groups: int, seed: int, decay: float, lr: float, nesterov: bool) -> None:
    draw = np.random.default_rng(seed)
    centre = torch.from_numpy(draw.normal(size=7).astype(np.float32))
    wanted = Filter(centre.numpy().astype(np.float64), decay, lr, nesterov=nesterov)
    momentum, total, arrived = held(7, 2)
    for _ in range(6):
        snapshots = [
            torch.from_numpy(wanted.start.astype(np.float32) + 0.1 * draw.normal(size=7).astype(np.float32))
            for _ in range(groups)
        ]
        for number, snapshot in enumerate(snapshots):
            before = centre.clone()
            OPS["BlockStep"].kernel(
                centre, momentum, total, arrived, snapshot, groups=groups, decay=decay, lr=lr, nesterov=nesterov
            )
            assert torch.equal(before, centre) == (number < groups - 1)
        wanted.block(np.mean([s.numpy().astype(np.float64) for s in snapshots], axis=0))
        np.testing.assert_allclose(centre.numpy(), wanted.start, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(momentum.numpy(), wanted.step, rtol=2e-4, atol=2e-5)
        assert (float(total.abs().sum()), float(arrived)) == (0, 0)


@pytest.mark.parametrize("groups", [1, 3])
def test_an_average_is_the_mean_of_all_snapshots_and_waits_for_the_last(groups: int) -> None:
    centre, (total, arrived) = torch.full((4,), 9.0), held(4, 1)
    snapshots = torch.arange(4.0 * groups).view(groups, 4)
    for snapshot in snapshots[:-1]:
        OPS["AverageSnapshots"].kernel(centre, total, arrived, snapshot, groups=groups)
    assert centre.tolist() == [9.0] * 4
    OPS["AverageSnapshots"].kernel(centre, total, arrived, snapshots[-1], groups=groups)
    torch.testing.assert_close(centre, snapshots.mean(0))


def test_block_steps_without_momentum_are_averages() -> None:
    first = torch.randn(5)
    centres = first.clone(), first.clone()
    states = held(5, 2), held(5, 1)
    for _ in range(4):
        for snapshot in torch.randn(3, 5):
            OPS["BlockStep"].kernel(centres[0], *states[0], snapshot, groups=3, decay=0.0, lr=1.0, nesterov=False)
            OPS["AverageSnapshots"].kernel(centres[1], *states[1], snapshot, groups=3)
    torch.testing.assert_close(centres[0], centres[1])


def test_what_a_group_is_off_its_centre_by() -> None:
    off = OPS["OffCentre"].kernel(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), alpha=0.5, barrier=True)
    assert off.tolist() == [0.5, -1.0]
