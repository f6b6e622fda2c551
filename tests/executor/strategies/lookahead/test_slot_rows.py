"""Rows of slots, out of an accelerator and into it, against the same in host memory."""

import numpy as np
import pytest
import torch
from accelerators import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.executor.strategies.lookahead import slot_rows
from htrain.executor.strategies.lookahead.slot_rows import DeviceRows, HostRows, Staging

SLOTS, WIDTH = 40, 3


def parts_of(seed: int) -> list[torch.Tensor]:
    """Rows, a state of each number, and one of each row."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=drawn) for shape in ((SLOTS, WIDTH), (SLOTS, WIDTH), (SLOTS,))]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS), st.booleans()),
        max_size=6,
    ),
    at_once=st.integers(1, SLOTS),
    seed=st.integers(0, 99),
)
def test_rows_leave_slots_and_come_back(
    device: str, moves: list[tuple[bool, list[int], bool]], at_once: int, seed: int
) -> None:
    """In parts of `at_once` rows: more than there is pinned memory for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_rows, "_CHUNK_BYTES", 4 * at_once * (2 * WIDTH + 1))
        own, there = parts_of(seed), [part.to(device) for part in parts_of(seed)]
        host, accelerated = HostRows(own), DeviceRows(there, Staging(torch.device(device)))
        assert host.width == accelerated.width == 2 * WIDTH + 1
        draw = np.random.default_rng(seed)
        for writes, chosen, by_places in moves:
            slots = np.array(chosen, np.int64)
            if not writes:
                assert (accelerated.read(slots) == host.read(slots)).all()
                continue
            places = draw.permutation(SLOTS)[: slots.size] if by_places else None
            rows = draw.standard_normal((SLOTS if by_places else slots.size, host.width)).astype(np.float32)
            host.write(slots, rows, places)
            accelerated.write(slots, rows, places)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, own, strict=True))
