"""Rows of slots, out of an accelerator and into it, against the same in host memory."""

import numpy as np
import pytest
import torch
from accelerators import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.strategies.lookahead import slot_rows
from htrain.executor.strategies.lookahead.slot_rows import (
    DeviceRows,
    DeviceSlots,
    Filling,
    HostRows,
    SlotRows,
    read_all,
    write_all,
)

TABLES, SLOTS, WIDTH = 3, 20, 3
chosen = st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS)


def parts_of(seed: int) -> list[torch.Tensor]:
    """Of all tables together: rows, a state of each number, and one of each row."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(TABLES * SLOTS, *shape, generator=drawn) for shape in ((WIDTH,), (WIDTH,), ())]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(st.booleans(), st.lists(chosen, min_size=TABLES, max_size=TABLES), st.booleans()), max_size=5),
    at_once=st.integers(1, SLOTS),
    order=st.permutations(range(TABLES)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_leave_slots_and_come_back(
    device: str, moves: list[tuple[bool, list[list[int]], bool]], at_once: int, order: list[int], seed: int
) -> None:
    """In parts of `at_once` rows: more than there is pinned memory for."""
    own, there = parts_of(seed), [part.to(device) for part in parts_of(seed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_rows, "_CHUNK_BYTES", 4 * at_once * (2 * WIDTH + 1))
        whole = DeviceSlots(there)
        host: list[SlotRows] = [HostRows([part[t * SLOTS : (t + 1) * SLOTS] for part in own]) for t in order]
        accelerated: list[SlotRows] = [DeviceRows(whole, t * SLOTS) for t in order]
        assert {table.width for table in (*host, *accelerated)} == {2 * WIDTH + 1}
        draw = np.random.default_rng(seed)
        for writes, asked, by_places in moves:
            slots = [np.array(each, np.int64) for each in asked]
            if not writes:
                seen, wanted = (read_all(list(zip(tables, slots, strict=True))) for tables in (accelerated, host))
                assert all((a == b).all() for a, b in zip(seen, wanted, strict=True))
                assert (accelerated[0].read(slots[0]) == wanted[0]).all()
                continue
            places = [draw.permutation(SLOTS)[: each.size] if by_places else None for each in slots]
            rows = [draw.standard_normal((SLOTS if by_places else each.size, 2 * WIDTH + 1)).astype(np.float32) for each in slots]  # fmt: skip
            for tables in (host, accelerated):
                write_all([Filling(*each) for each in zip(tables, slots, rows, places, strict=True)])
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, own, strict=True))
