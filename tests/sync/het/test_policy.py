"""The next row to leave, against lists sorted by hand."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.sync.het import policy as p

SLOTS = 8


@dataclass
class Plain:
    """What rows there are, how often each was used, and when last it changed its list."""

    policy: int
    uses: dict[int, int] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    now: int = 0

    def use(self, slot: int) -> None:
        self.now += 1
        self.uses[slot] = self.uses.get(slot, 0) + 1
        self.moved[slot] = self.now

    def order(self) -> list[int]:
        if self.policy == p.LRU:
            return sorted(self.uses, key=lambda s: self.moved[s])
        return sorted(self.uses, key=lambda s: (self.uses[s], self.moved[s]))

    def pass_over(self, pinned: list[int]) -> None:
        """Rows that a search for victims has met and not taken go to the new end of their list."""
        for slot in pinned:
            self.now += 1
            self.moved[slot] = self.now


Actions = st.lists(
    st.tuples(st.sampled_from(["use", "use", "use", "drop", "pin"]), st.integers(0, SLOTS - 1)), max_size=120
)


def victims(meta: p.Meta, lists: p.Lists, policy: int) -> list[int]:
    found = np.empty(SLOTS, np.int64)
    return [int(s) for s in found[: p.choose_victims(meta, lists, policy, SLOTS, False, found)]]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([p.LRU, p.LFU]), Actions)
def test_rows_leave_in_the_order_of_their_policy(policy: int, actions: list[tuple[str, int]]) -> None:
    meta, lists, plain = np.zeros((SLOTS, 8), np.int32), p.new_lists(SLOTS), Plain(policy)
    meta[:, p.LIST] = p.UNLISTED
    for action, slot in actions:
        if action == "use":
            p.used(meta, lists, slot, policy, p.FIRST_LIMIT)
            plain.use(slot)
        elif action == "drop" and slot in plain.uses:
            p.forget(meta, lists, slot)
            del plain.uses[slot]
        elif action == "pin":
            meta[slot, p.PINS] ^= 1
        order = plain.order()
        assert victims(meta, lists, policy) == [s for s in order if not meta[s, p.PINS]]
        plain.pass_over([s for s in order if meta[s, p.PINS]])


@settings(max_examples=60, deadline=None)
@given(Actions)
def test_light_lfu_gives_up_a_row_that_was_used_least(actions: list[tuple[str, int]]) -> None:
    meta, lists, plain, limit = np.zeros((SLOTS, 8), np.int32), p.new_lists(SLOTS), Plain(p.LFU), 2
    meta[:, p.LIST] = p.UNLISTED
    for action, slot in actions:
        if action == "use":
            p.used(meta, lists, slot, p.LIGHT_LFU, limit)
            plain.use(slot)
        elif action == "pin":
            meta[slot, p.PINS] ^= 1
        loose = [s for s in plain.uses if not meta[s, p.PINS]]
        if action == "drop" and loose:
            if not victims(meta, lists, p.LIGHT_LFU):
                limit = int(p.bring_back(meta, lists, np.array(list(plain.uses)), limit))
            first = victims(meta, lists, p.LIGHT_LFU)[0]
            assert plain.uses[first] == min(plain.uses[s] for s in loose)
            p.forget(meta, lists, first)
            del plain.uses[first]


@pytest.mark.parametrize("policy", [p.LRU, p.LFU])
def test_rows_of_announced_batches_are_spared(policy: int) -> None:
    meta, lists, found = np.zeros((4, 8), np.int32), p.new_lists(4), np.empty(4, np.int64)
    meta[:, p.LIST] = p.UNLISTED
    for slot in range(4):
        p.used(meta, lists, slot, policy, p.FIRST_LIMIT)
    meta[[0, 2], p.AHEAD] = 1
    assert list(found[: p.choose_victims(meta, lists, policy, 4, True, found)]) == [1, 3]
    assert list(found[: p.choose_victims(meta, lists, policy, 3, False, found)]) == [1, 3, 0]


def test_bring_back_finds_nothing_where_all_rows_are_pinned() -> None:
    meta, lists = np.zeros((2, 8), np.int32), p.new_lists(2)
    meta[:, p.LIST], meta[:, p.PINS] = p.UNLISTED, 1
    assert p.bring_back(meta, lists, np.array([0, 1]), 4) == 0
