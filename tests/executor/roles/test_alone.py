"""What the launcher does about a trainer that dies while others go on: whatever comes late, and whoever hears of it late."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from driven import METRICS, PLAN, ROLES, SETTINGS, Driven, hello, training
from ledger import ledger_plan
from small_dlrm import small_plan

from htrain.errors import PeerLost
from htrain.executor.assembly import Assembly
from htrain.executor.roles.alone import Alone, can_be_alone, taken_along, why_not_partial
from htrain.executor.roles.coordination import (  # fmt: skip
    AskWhetherReplaceable,
    Await,
    BeginAgain,
    Came,
    Ended,
    Listened,
    Reach,
    TellAll,
)
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.transport.wire import Beat, Failed, Order, Ready, State
from htrain.ops import OPS
from htrain.publishing.shares import Publishing
from htrain.spec.cluster import this_machine

TRAINER, OTHER, GROUP_PS = can_be_alone(PLAN, SETTINGS)
KILLED = Ended(f"{TRAINER} (process 7) was killed by signal 9", is_replaceable=True)


@pytest.fixture
def driven() -> Driven:
    return training(SETTINGS)


def test_a_trainer_that_dies_is_begun_again_and_begins_once_all_others_know_where_it_is(driven: Driven) -> None:
    lost = Order("lost", number=2, role=TRAINER, incarnation=1)
    assert driven.hear(KILLED) == [TellAll(lost), BeginAgain(TRAINER)]
    (reach,) = driven.hear(hello(TRAINER, 1))
    assert isinstance(reach, Reach)
    assert (reach.role, reach.endpoints, reach.ordered) == (TRAINER, {f"{TRAINER}/control": "tcp://1"}, 2)
    assert set(reach.book) == {f"{role}/control" for role in ROLES}
    found = Order("found", number=3, role=TRAINER, incarnation=1, book=reach.endpoints)
    assert driven.hear(Ready(TRAINER, METRICS, 1)) == [TellAll(found)]
    *some, last = [role for role in ROLES if role != TRAINER]
    assert [driven.hear(State(role, "found", {}, 3, 1)) for role in some] == [[]] * len(some)
    assert driven.hear(Beat(TRAINER, METRICS, 0, 3, 1)) == []
    assert driven.hear(State(last, "found", {}, 3, 1)) == [TellAll(Order("start", number=4, role=TRAINER))]


def test_what_a_trainer_has_said_before_it_died_is_not_taken_for_what_it_says_now(driven: Driven) -> None:
    driven.hear(KILLED)
    late = [
        hello(TRAINER), Ready(TRAINER, METRICS), Beat(TRAINER, METRICS, 9, 1), State(TRAINER, "finished", {}, 0, 5), Failed(TRAINER, "PeerLost", "gone"),
    ]  # fmt: skip
    assert [driven.hear(each) for each in late] == [[]] * len(late)
    (reach,) = driven.hear(hello(TRAINER, 1))
    assert isinstance(reach, Reach)


def test_of_two_that_are_away_the_one_that_comes_later_need_not_be_told_of_the_other(driven: Driven) -> None:
    driven.hear(KILLED)
    driven.hear(hello(TRAINER, 1))
    driven.hear(Ready(TRAINER, METRICS, 1))  # order 3
    for role in ROLES:
        if role not in (TRAINER, OTHER):
            assert driven.hear(State(role, "found", {}, 3, 1)) == []
    said = driven.hear(Ended(f"{OTHER} (process 8) ended", is_replaceable=True))
    assert [type(each) for each in said] == [TellAll, BeginAgain, TellAll]
    assert said[2] == TellAll(Order("start", number=5, role=TRAINER)), "it has waited for the other's answer alone"
    (reach,) = driven.hear(hello(OTHER, 1))
    assert isinstance(reach, Reach)


WAITED = Failed(OTHER, "PeerLost", f"{OTHER}/0: nothing from group_ps:0:0 for 60 s at step 9")


def test_a_trainer_that_has_waited_too_long_for_one_that_is_away_is_begun_again_too(driven: Driven) -> None:
    """One that is silent holds up its group: as long as it may be silent, others wait for an answer."""
    driven.hear(KILLED)
    lost = Order("lost", number=3, role=OTHER, incarnation=1)
    assert driven.hear(WAITED, answer=True) == [AskWhetherReplaceable(OTHER), TellAll(lost), BeginAgain(OTHER)]
    (reach,) = driven.hear(hello(OTHER, 1))
    assert isinstance(reach, Reach)


def test_a_trainer_that_has_waited_too_long_ends_the_try_where_nobody_is_away(driven: Driven) -> None:
    assert driven.fails(WAITED).startswith(WAITED.error)


PARTIAL = replace(SETTINGS, retry="partial", restore="runs/a/checkpoints/one")
SERVER = "sparse_ps:0"


def test_of_a_sparse_ps_trainers_are_begun_again_with_it_and_begin_once_all_know_of_all() -> None:
    driven = training(PARTIAL)
    said = driven.hear(PS_KILLED)
    again = [TRAINER, OTHER, SERVER]
    assert said == [
        each
        for number, role in enumerate(again, 2)
        for each in (
            TellAll(Order("lost", number=number, role=role, incarnation=1)),
            BeginAgain(role, PARTIAL.restore if role == SERVER else ""),
        )
    ]
    assert driven.hear(hello(TRAINER, 1)) == [], "it would be told where the last server was"
    said = driven.hear(hello(SERVER, 1))
    assert [each.role for each in said if isinstance(each, Reach)] == [TRAINER, SERVER]
    assert all(each.book[f"{SERVER}/control"] == "tcp://1" for each in said if isinstance(each, Reach))
    (reach,) = driven.hear(hello(OTHER, 1))
    assert isinstance(reach, Reach)
    for number, role in enumerate((OTHER, TRAINER, SERVER), 5):
        found = Order("found", number=number, role=role, incarnation=1, book={f"{role}/control": "tcp://1"})
        assert driven.hear(Ready(role, METRICS, 1)) == [TellAll(found)]
    knows = [(role, number) for role in ROLES for number in (5, 6, 7)]
    *some, (last, number) = knows
    for role, of in some:
        assert driven.hear(State(role, "found", {}, of, of - 4, int(role in again))) == []
    said = driven.hear(State(last, "found", {}, number, 3, int(last in again)))
    assert said == [TellAll(Order("start", number=8 + place, role=role)) for place, role in enumerate(again)]


GROUP_PS_KILLED = Ended(f"{GROUP_PS} (process 6) was killed by signal 9", is_replaceable=True)


def test_of_a_group_ps_the_trainers_of_its_group_are_begun_again_with_it_and_no_checkpoint_is_needed() -> None:
    driven = training(SETTINGS)
    said = driven.hear(GROUP_PS_KILLED)
    again = [TRAINER, OTHER, GROUP_PS]
    assert said == [
        each
        for number, role in enumerate(again, 2)
        for each in (TellAll(Order("lost", number=number, role=role, incarnation=1)), BeginAgain(role))
    ]
    assert driven.hear(hello(TRAINER, 1)) == [], "it would be told where the last server was"
    said = driven.hear(hello(GROUP_PS, 1))
    assert [each.role for each in said if isinstance(each, Reach)] == [TRAINER, GROUP_PS]


def test_of_two_groups_the_other_goes_on() -> None:
    roles = ["trainer:0:0", "trainer:0:1", "trainer:1:0", "group_ps:0:0", "group_ps:1:0", "sparse_ps:0", "dense_ps:0"]
    assert taken_along("group_ps:0:0", roles) == ("trainer:0:0", "trainer:0:1")
    assert taken_along("group_ps:1:0", roles) == ("trainer:1:0",)
    assert taken_along("sparse_ps:0", roles) == ("trainer:0:0", "trainer:0:1", "trainer:1:0")
    assert taken_along("trainer:0:0", roles) == ()


@pytest.mark.parametrize("case", ["a round was under way", "one is away", "it is silent"])
def test_a_group_ps_that_has_left_nothing_whole_or_nobody_knows_whether_takes_all_back(case: str) -> None:
    driven = training(SETTINGS)
    if case == "one is away":
        driven.hear(KILLED)
    if case == "it is silent":
        waited = Failed(GROUP_PS, "PeerLost", f"{GROUP_PS}: nothing")
        assert driven.fails(waited).startswith(waited.error)
        return
    ended = replace(GROUP_PS_KILLED, is_replaceable=case != "a round was under way")
    assert driven.fails(ended).startswith(ended.what)


@pytest.mark.parametrize("owes", [TRAINER, GROUP_PS, "nobody"])
def test_a_group_ps_takes_nobody_along_who_owes_a_part_of_a_version(owes: str) -> None:
    driven = training(replace(SETTINGS, publishing=Publishing("s3://a", {}), publish_seconds=0.5))
    driven.now = 2.0
    assert driven.hear(Listened())[-1] == TellAll(Order("pause", number=2))
    states = {role: {"totals": {"examples": 8}} if role in (TRAINER, OTHER) else {} for role in ROLES}
    said = [each for role in ROLES for each in driven.hear(State(role, "paused", states[role], 2, 1), ("v1", ""))]
    assert TellAll(Order("publish", "v1", "", number=3)) in said
    for role in ROLES:
        driven.hear(State(role, "publishing", {}, 3, 2))
    for role in ROLES:
        if role != owes:
            driven.hear(State(role, "published", {"objects": []}, 0, 3))
    if owes == "nobody":
        assert BeginAgain(GROUP_PS) in driven.hear(GROUP_PS_KILLED)
    else:
        assert driven.fails(GROUP_PS_KILLED).startswith(GROUP_PS_KILLED.what)


@pytest.mark.parametrize(
    ("cluster", "options", "keeps"),
    [
        ({}, {}, True),
        ({"groups": 2, "dense_ps": 1}, {}, True),
        ({"groups": 2, "dense_ps": 1}, {"dense_sync": "easgd"}, True),
        (
            {"groups": 2, "dense_ps": 1},
            {"dense_sync": "easgd", "sync_dtype": "bfloat16", "dense_optimizer": "adam"},
            True,
        ),
        ({"groups": 2}, {"sync_through": "groups"}, False),
    ],
)
def test_a_group_ps_leaves_its_weights_to_the_next_where_it_holds_nothing_else(
    cluster: dict[str, int], options: dict[str, Any], keeps: bool
) -> None:
    shape = this_machine(**{"groups": 1, "trainers": 2, "group_ps": 2, "sparse_ps": 1, **cluster})
    plan = ledger_plan(shape, **options)
    assert ("group_ps:0:1" in can_be_alone(plan, SETTINGS)) == keeps


def test_it_does_so_where_they_are_few_enough_to_be_copied_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(groups=2, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1)
    parts = Assembly(plan, "group_ps:0:0", replicas=1)
    parts.sync()
    copied = sum(tensor.nbytes for tensor in parts.store.values())
    monkeypatch.setattr("htrain.executor.roles.alone.MOST_COPIED_BYTES", copied)
    assert "group_ps:0:0" in can_be_alone(plan, SETTINGS)
    monkeypatch.setattr("htrain.executor.roles.alone.MOST_COPIED_BYTES", copied - 1)
    assert "group_ps:0:0" not in can_be_alone(plan, SETTINGS)


def test_a_group_ps_whose_ops_keep_something_beside_its_parameters_goes_back_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert GROUP_PS in can_be_alone(PLAN, SETTINGS)
    kind = PLAN.net_of("group_ps:0").ops[-1].type
    monkeypatch.setitem(OPS, kind, replace(OPS[kind], keeps=lambda *_: 8.0))
    assert GROUP_PS not in can_be_alone(PLAN, SETTINGS)


PS_KILLED = Ended(f"{SERVER} (process 9) was killed by signal 9", is_replaceable=True)


@pytest.mark.parametrize("case", ["no checkpoint", "one of another cluster", "not asked for", "one is away"])
def test_a_sparse_ps_that_cannot_go_on_with_its_last_rows_ends_the_try(case: str) -> None:
    settings = {
        "no checkpoint": replace(PARTIAL, restore=""),
        "one of another cluster": replace(PARTIAL, begin_with=("another plan", PARTIAL.restore)),
    }
    driven = training(settings.get(case, PARTIAL))
    if case == "one is away":
        driven.hear(KILLED)
    ended = replace(PS_KILLED, is_replaceable=case != "not asked for")
    no_rows = " while no checkpoint had the rows that it would go on with"
    why = {"not asked for": "", "one is away": " while others were begun again"}.get(case, no_rows)
    assert driven.fails(ended).startswith(f"{SERVER} (process 9) was killed by signal 9{why} (its last step: ")


@pytest.mark.parametrize("kind", ["CheckpointError", "DamagedCheckpoint"])
def test_who_cannot_read_the_checkpoint_that_it_was_to_go_on_with_takes_all_back_and_does_not_end_the_run(
    kind: str,
) -> None:
    driven = training(PARTIAL)
    driven.hear(PS_KILLED)
    said = driven.fails(Failed(SERVER, kind, f"{SERVER}: its file is damaged", 1))
    assert said == f"{SERVER}: its file is damaged; go on with --resume runs/a"


def test_whoever_dies_while_trainers_are_away_with_a_sparse_ps_takes_all_back() -> None:
    for event in (PS_KILLED, KILLED, Ended(f"{OTHER} (process 8) ended with status 1", is_replaceable=True)):
        driven = training(PARTIAL)
        driven.hear(PS_KILLED)
        assert driven.fails(event).startswith(event.what)


@pytest.mark.parametrize("can_be", [True, False])
def test_a_trainer_that_is_silent_for_too_long_is_followed_by_another_where_one_can_be_begun(can_be: bool) -> None:
    machine = CoordinatorMachine(PLAN, SETTINGS, tells_of_ends=True, alone=Alone(3)).run(0.0)
    said: object = next(machine)
    for role in ROLES:
        said = machine.send((0.0, Came(hello(role))))
    while not isinstance(said, Await):
        said = machine.send((0.0, None))
    for role in ROLES:
        said = machine.send((0.0, Came(Ready(role, METRICS))))
    now, asked = 0.0, []
    with nullcontext() if can_be else pytest.raises(PeerLost, match=rf"^{TRAINER} has been silent for 600 s"):
        while not isinstance(said, BeginAgain):
            if isinstance(said, AskWhetherReplaceable):
                asked.append(said.role)
                said = machine.send((now, can_be))
            elif isinstance(said, Await):
                now += 0.5
                for role in ROLES:
                    if role != TRAINER:
                        said = machine.send((now, Came(Beat(role, METRICS))))
                        while not isinstance(said, Await):
                            said = machine.send((now, None))
                said = machine.send((now, Listened()))
            else:
                said = machine.send((now, None))
    assert asked == [TRAINER]
    assert not can_be or said == BeginAgain(TRAINER)


@pytest.mark.parametrize(
    ("cluster", "options", "settings", "why"),
    [
        ({}, {}, {}, ""),
        ({}, {}, {"deterministic": True}, "the run is deterministic, or stops after a step"),
        ({}, {}, {"publishing": Publishing("s3://a", {})}, "the run publishes versions"),
        ({}, {}, {"checkpoint_seconds": "end", "restore": ""}, "no checkpoint is made before the end"),
        ({}, {}, {"checkpoint_seconds": "end", "restore": "", "valid_every": 100}, ""),
        ({}, {}, {"checkpoint_seconds": "end"}, ""),
        ({"group_ps": 0, "trainers": 1}, {}, {}, "trainers keep weights, as without group PSs"),
        ({"group_ps": 0, "trainers": 1, "groups": 2}, {"dense_sync": "allreduce"}, {}, "trainers step together"),
        ({}, {"cache": "het", "cache_capacity": "40%"}, {}, "trainers keep rows"),
    ],
)
def test_a_run_in_which_no_sparse_ps_can_go_back_alone_says_why(
    cluster: dict[str, int], options: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    shape = this_machine(**{"groups": 1, "trainers": 2, "group_ps": 1, "sparse_ps": 1, **cluster})
    plan, said = ledger_plan(shape, **options), replace(PARTIAL, **settings)
    assert why_not_partial(plan, said) == why
    roles = can_be_alone(plan, said)
    assert ("sparse_ps:0" in roles) == (not why)
    assert ("trainer:0:0" in roles) == (
        why in ("", "the run publishes versions", "no checkpoint is made before the end")
    )
    assert can_be_alone(plan, replace(said, retry="whole")) == ()


def test_who_is_lost_while_it_is_away_or_cannot_be_replaced_ends_the_try(driven: Driven) -> None:
    driven.hear(KILLED)
    assert driven.fails(KILLED).startswith(f"{TRAINER} (process 7) was killed by signal 9")
