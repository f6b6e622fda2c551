"""Losses that are read some at a time, as those of an accelerator are: the host in its place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.host.watch import Activity
from htrain.executor.loops import losses
from htrain.executor.loops.losses import CountedStep, Losses


def step(number: int) -> CountedStep:
    return CountedStep(replica=0, step=number, examples=8, positives=3.0)


@given(rests=st.lists(st.integers(0, 70), min_size=1, max_size=4))
def test_each_step_is_counted_once_in_order_and_all_of_them_at_rest(rests: list[int]) -> None:
    read = Losses(Activity("replica 0"))
    seen: list[tuple[int, float]] = []
    number = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_is_at_hand", lambda loss: False)
        for steps in rests:
            for _ in range(steps):
                seen += [(s.step, loss) for s, loss in read.add(step(number), torch.tensor(float(number)))]
                number += 1
                assert number - len(seen) <= 32
            seen += [(s.step, loss) for s, loss in read.rest()]
            assert seen == [(k, float(k)) for k in range(number)]


def test_the_first_loss_is_known_behind_the_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_is_at_hand", lambda loss: False)
    read = Losses(Activity("replica 0"))
    known = [len(list(read.add(step(k), torch.tensor(0.5)))) for k in range(60)]
    assert known.index(1) == 2
    assert max(known) == 16


def test_a_loss_on_the_host_is_read_at_once() -> None:
    read = Losses(Activity("replica 0"))
    assert [(s.step, loss) for s, loss in read.add(step(4), torch.tensor(0.25))] == [(4, 0.25)]
    assert not list(read.rest())
