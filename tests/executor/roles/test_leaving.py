"""What the launcher does where who plays a role is to leave: all is saved, and the run goes on without a step behind."""

from pathlib import Path

import pytest
from driven import ROLES, SETTINGS, training

from htrain.errors import PeerLost
from htrain.executor.roles.coordination import (
    Leaves,
    OpenCheckpoint,
    Refused,
    TellAll,
)
from htrain.executor.transport.wire import Order, State

LEAVES = Leaves("sparse_ps:0 (process 7 on a) leaves")
FOLDER = Path("runs/a/checkpoints/examples_000000000008")


def test_all_rest_and_are_saved_before_the_try_ends_and_nobody_trains_on_meanwhile() -> None:
    driven = training(SETTINGS)
    assert driven.hear(LEAVES) == [TellAll(Order("pause", number=2))]
    state = {"totals": {"examples": 4}}
    at_rest = [each for role in ROLES for each in driven.hear(State(role, "paused", state, 2, 1), FOLDER)]
    assert [type(each) for each in at_rest] == [OpenCheckpoint, TellAll]
    assert at_rest[1] == TellAll(Order("save", str(FOLDER), "", number=3))
    for role in ROLES:
        assert driven.hear(State(role, "saving", {}, 3, 2)) == []
    *others, last = ROLES
    share = {"file": ["one", 1, "abc"]}
    for role in others:
        assert driven.hear(State(role, "saved", share, 3, 3)) == []
    said = []
    with pytest.raises(
        PeerLost, match=rf"^{LEAVES.what.replace('(', '.').replace(')', '.')}; go on with --resume runs/a$"
    ):
        said += driven.hear(State(last, "saved", share, 3, 3))
    assert said == []


def test_where_the_disk_refuses_the_try_ends_all_the_same() -> None:
    driven = training(SETTINGS)
    driven.hear(LEAVES)
    state = {"totals": {"examples": 4}}
    for role in ROLES[:-1]:
        driven.hear(State(role, "paused", state, 2, 1))
    with pytest.raises(PeerLost, match=r"sparse_ps:0 .process 7 on a. leaves; it has no checkpoint to go on from"):
        driven.hear(State(ROLES[-1], "paused", state, 2, 1), Refused("the disk is full"))
