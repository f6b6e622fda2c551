"""What windows change of slots on an accelerator, against the same in host memory."""

import numpy as np
import pytest
import torch
from accelerators import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.strategies.lookahead import slot_rows, turnover
from htrain.executor.strategies.lookahead.slot_rows import DeviceRows, DeviceSlots, HostRows, SlotRows
from htrain.executor.strategies.lookahead.turnover import Turning, Turnover

TABLES, SLOTS, WIDTH = 3, 20, 3
chosen = st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS)


def parts_of(seed: int) -> list[torch.Tensor]:
    """Of all tables together: rows, a state of each number, and one of each row."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(TABLES * SLOTS, *shape, generator=drawn) for shape in ((WIDTH,), (WIDTH,), ())]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.tuples(*[st.lists(chosen, min_size=TABLES, max_size=TABLES)] * 2), max_size=5),
    at_once=st.integers(1, SLOTS),
    ahead=st.integers(0, 2 * TABLES * SLOTS),
    order=st.permutations(range(TABLES)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_leave_slots_and_others_come(
    device: str,
    windows: list[tuple[list[list[int]], list[list[int]]]],
    at_once: int,
    ahead: int,
    order: list[int],
    seed: int,
) -> None:
    """Those of a window that has more than `ahead` rows in parts of `at_once` rows: more than there is pinned memory for."""
    own, there = parts_of(seed), [part.to(device) for part in parts_of(seed)]
    width = 2 * WIDTH + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_rows, "_CHUNK_BYTES", 4 * at_once * width)
        patch.setattr(turnover, "_AHEAD_BYTES", 4 * ahead * width)
        whole = DeviceSlots(there)
        host: list[SlotRows] = [HostRows([part[t * SLOTS : (t + 1) * SLOTS] for part in own]) for t in order]
        accelerated: list[SlotRows] = [DeviceRows(whole, t * SLOTS) for t in order]
        assert {table.width for table in (*host, *accelerated)} == {width}
        draw = np.random.default_rng(seed)
        brought, seen, wanted = [], [], []
        for window in windows:
            leaving, entering = ([np.array(each, np.int64) for each in side] for side in window)
            rows = [draw.standard_normal((each.size, width)).astype(np.float32) for each in entering]
            for tables in (accelerated, host):
                brought.append(Turnover([Turning(*each) for each in zip(tables, leaving, entering, rows, strict=True)]))
        for number, each in enumerate(brought):  # all of them were brought before the first one takes its turn
            (wanted if number % 2 else seen).append(each.leave())
            each.enter()
            step(own if number % 2 else there)
        for mine, theirs in zip(seen, wanted, strict=True):
            for left, same in zip(mine, theirs, strict=True):
                left.arrived()
                np.testing.assert_array_equal(left.rows, same.rows)
        some = np.array(sorted(set(draw.integers(0, SLOTS, 5).tolist())), np.int64)
        accelerated[0].write(some, accelerated[1].read(some))
        host[0].write(some, host[1].read(some))
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, own, strict=True))


def step(parts: list[torch.Tensor]) -> None:
    """Change all slots, as steps of training do while rows that have left are on their way."""
    for part in parts:
        part.mul_(2)
