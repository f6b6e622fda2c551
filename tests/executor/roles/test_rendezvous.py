"""Who has come to play the roles of a plan: agents that join, fall silent, are killed and come again, in any order."""

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from htrain.errors import DataError
from htrain.executor.roles.rendezvous import Forget, Hand, Instruction, Meet, Rendezvous, Say
from htrain.executor.transport.rendezvous import (
    Begin,
    BeginAgain,
    Declined,
    Fetch,
    Finish,
    Here,
    Join,
    Leave,
    Leaving,
    Over,
    Prepare,
    Prepared,
    Present,
    Rested,
    RoleEnded,
    Unable,
)

PROCESSES = (("trainer:0:0", "sparse_ps:0"), ("trainer:1:0", "sparse_ps:1"), ("dense_ps:0",))
ROLES = tuple(role for roles in PROCESSES for role in roles)
SILENT_SECONDS = 60.0


def joining(agent: str, *roles: str, version: str = "1") -> Join:
    return Join(agent, version, list(roles), f"tcp://{agent}:1", "host", 7)


@pytest.fixture
def rendezvous() -> Rendezvous:
    made = Rendezvous(PROCESSES, "1", SILENT_SECONDS)
    assert not made.prepare(b"task")
    return made


def said_to(agent: str, instructions: list[Instruction]) -> list[object]:
    return [each.message for each in instructions if isinstance(each, Say) and each.agent == agent]


def complete(rendezvous: Rendezvous, now: float = 0.0) -> None:
    for number, roles in enumerate(PROCESSES):
        rendezvous.came(joining(f"a{number}", *roles), now)
        rendezvous.came(Prepared(f"a{number}"), now)
    assert not rendezvous.missing


def test_an_agent_is_met_prepared_and_counted(rendezvous: Rendezvous) -> None:
    assert rendezvous.came(joining("a", *PROCESSES[0]), 0.0) == [Meet("a", "tcp://a:1"), Say("a", Prepare(b"task"))]
    assert rendezvous.missing == list(ROLES)
    assert rendezvous.came(Fetch("a", "plan.yaml", 5), 0.0) == [Hand("a", Fetch("a", "plan.yaml", 5))]
    assert rendezvous.came(Prepared("a"), 0.0) == []
    assert rendezvous.missing == list(ROLES[2:])
    assert list(rendezvous.news) == ["trainer:0:0, sparse_ps:0: process 7 on host (2 of 5 roles are here)"]


def test_a_process_that_joins_again_takes_the_place_of_its_earlier_agent_and_of_nobody_else(
    rendezvous: Rendezvous,
) -> None:
    """It knows that the line is broken before the launcher does."""
    for number, roles in enumerate(PROCESSES):
        rendezvous.came(joining(f"a{number}.0", *roles), 0.0)
        rendezvous.came(Prepared(f"a{number}.0"), 0.0)
    rendezvous.begin(b"")
    again = rendezvous.came(joining("a0.1", *PROCESSES[0]), 1.0)
    assert again == [Forget("a0.0"), Meet("a0.1", "tcp://a0.1:1"), Say("a0.1", Prepare(b"task"))]
    assert rendezvous.lost == "trainer:0:0 (process 7 on host) joins again"
    assert rendezvous.came(Rested("a0.0", 1), 1.0) == []
    (declined,) = said_to("b.0", rendezvous.came(joining("b.0", *PROCESSES[1]), 1.0))
    assert isinstance(declined, Declined)
    assert not declined.again
    rendezvous.came(Prepared("a0.1"), 1.0)
    for number in (1, 2):
        rendezvous.came(Rested(f"a{number}.0", 1), 1.0)
    assert not rendezvous.missing


def test_an_agent_that_comes_before_the_launcher_knows_what_is_needed_is_told_later() -> None:
    rendezvous = Rendezvous(PROCESSES, "1", SILENT_SECONDS)
    assert said_to("a", rendezvous.came(joining("a", "dense_ps:0"), 0.0)) == [Present()]
    assert rendezvous.prepare(b"task") == [Say("a", Prepare(b"task"))]
    assert rendezvous.prepare(b"the same, for the next try") == []
    assert said_to("b", rendezvous.came(joining("b", *PROCESSES[0]), 0.0)) == [Prepare(b"the same, for the next try")]


@pytest.mark.parametrize(
    ("join", "reason"),
    [
        (joining("b", "dense_ps:0"), "dense_ps:0 is played by process 7 on host already: each role is played once"),
        (joining("b", "dense_ps:1"), f"the plan has no role dense_ps:1: it has {', '.join(ROLES)}"),
        (joining("b", "trainer:1:0"), "trainer:1:0 and sparse_ps:1 share a process: name them in one command"),
        (joining("b"), "it names no role"),
        (
            joining("b", *PROCESSES[0], version="2"),
            "it runs htrain 2, the launcher 1: install the same version on all hosts",
        ),
    ],
)
def test_who_cannot_be_taken_is_told_why_and_changes_nothing(rendezvous: Rendezvous, join: Join, reason: str) -> None:
    rendezvous.came(joining("a", "dense_ps:0"), 0.0)
    assert rendezvous.came(join, 0.0)[1:] == [Say("b", Declined(reason)), Forget("b")]
    assert list(rendezvous.agents) == ["a"]
    assert rendezvous.came(Prepared("b"), 0.0) == []
    assert rendezvous.missing == list(ROLES)


def test_what_a_role_cannot_reach_ends_the_run_as_the_error_that_it_is(rendezvous: Rendezvous) -> None:
    rendezvous.came(joining("a", "dense_ps:0"), 0.0)
    rendezvous.came(Unable("a", "DataError", "/data: is not there"), 0.0)
    rendezvous.came(Unable("a", "RunError", "later"), 0.0)
    assert isinstance(rendezvous.error, DataError)
    assert str(rendezvous.error) == "dense_ps:0 (process 7 on host): /data: is not there"


def test_a_try_that_loses_a_role_is_finished_everywhere_and_the_next_waits_for_that(rendezvous: Rendezvous) -> None:
    complete(rendezvous)
    assert rendezvous.begin(b"first") == [Say(f"a{k}", Begin(1, b"first")) for k in range(3)]
    rendezvous.came(RoleEnded("a2", 1, "dense_ps:0 (process 9) was killed by signal 9"), 1.0)
    rendezvous.line_broke("a1")
    assert rendezvous.lost == "dense_ps:0 (process 9) was killed by signal 9 on host", "the first that was lost"
    assert rendezvous.finish(at_once=True) == [Say(f"a{k}", Finish(1, True)) for k in (0, 2)]
    assert rendezvous.missing == list(ROLES)
    for agent in ("a0", "a2"):
        assert not rendezvous.has_rested
        rendezvous.came(Rested(agent, 1), 2.0)
    assert rendezvous.has_rested
    assert rendezvous.missing == list(PROCESSES[1])
    rendezvous.came(joining("again", *PROCESSES[1]), 3.0)
    rendezvous.came(Prepared("again"), 3.0)
    assert not rendezvous.missing
    assert {each.agent for each in rendezvous.begin(b"second") if isinstance(each, Say)} == {"a0", "a2", "again"}
    assert not rendezvous.lost
    rendezvous.came(RoleEnded("a2", 1, "dense_ps:0 of the first try"), 4.0)
    assert not rendezvous.lost, "what is said of an older try says nothing of this one"


def test_an_agent_that_is_to_leave_is_told_of_while_its_try_lasts_and_is_not_counted_on_for_the_next(
    rendezvous: Rendezvous,
) -> None:
    complete(rendezvous)
    rendezvous.begin(b"")
    assert rendezvous.came(Leaving("a1"), 1.0) == []
    place = str(rendezvous.agents["a1"])
    assert (rendezvous.leaving, rendezvous.lost) == (f"{place} leaves", "")
    rendezvous.finish(at_once=True)
    assert rendezvous.leaving == ""
    for agent in ("a0", "a1", "a2"):
        rendezvous.came(Rested(agent, 1), 2.0)
    assert rendezvous.missing == list(PROCESSES[1])
    rendezvous.came(Leave("a1"), 2.0)
    rendezvous.came(joining("another", *PROCESSES[1]), 3.0)
    rendezvous.came(Prepared("another"), 3.0)
    assert not rendezvous.missing


def test_a_role_that_ended_by_itself_just_before_it_was_to_be_begun_again_is_not_lost(rendezvous: Rendezvous) -> None:
    complete(rendezvous)
    rendezvous.begin(b"")
    (said,) = rendezvous.begin_again("dense_ps:0", "")
    assert said == Say("a2", BeginAgain(1, "dense_ps:0"))
    rendezvous.came(RoleEnded("a2", 1, "dense_ps:0 (process 9) was killed by signal 9"), 1.0)
    assert not rendezvous.lost, "its agent had not been told yet: another process is begun in any case"
    rendezvous.came(RoleEnded("a2", 1, "dense_ps:0 (process 11) was killed by signal 9", 1), 1.0)
    assert rendezvous.lost == "dense_ps:0 (process 11) was killed by signal 9 on host"
    assert rendezvous.can_begin_again("dense_ps:0")
    rendezvous.came(RoleEnded("a2", 1, "dense_ps:0 (process 12) was killed by signal 9", 1, False), 1.0)
    assert not rendezvous.can_begin_again("dense_ps:0"), "it has left nothing to go on with"


def test_an_agent_that_goes_just_before_a_try_is_missed_by_it(rendezvous: Rendezvous) -> None:
    complete(rendezvous)
    rendezvous.came(Leave("a2"), 1.0)
    rendezvous.begin(b"")
    assert rendezvous.lost == "dense_ps:0 is gone"


def test_an_agent_that_has_lost_its_launcher_says_so_as_it_goes(rendezvous: Rendezvous) -> None:
    complete(rendezvous)
    rendezvous.begin(b"")
    rendezvous.came(Leave("a2", "it has heard nothing of its launcher for 60 s"), 1.0)
    said = "dense_ps:0 (process 7 on host) has left the run: it has heard nothing of its launcher for 60 s"
    assert (rendezvous.lost, rendezvous.news[-1]) == (said, said)


def test_an_agent_is_given_up_after_a_silence_and_not_before(rendezvous: Rendezvous) -> None:
    complete(rendezvous)
    rendezvous.begin(b"")
    rendezvous.came(Here("a1"), 50.0)
    rendezvous.came(Here("a2"), 55.0)
    assert rendezvous.passed(SILENT_SECONDS) == []
    gone = rendezvous.passed(SILENT_SECONDS + 0.1)
    assert gone == [Say("a0", Declined("it was silent for 60 s, and given up", again=True)), Forget("a0")]
    assert rendezvous.lost == "trainer:0:0 (process 7 on host) has been silent for 60 s"
    assert rendezvous.came(joining("b", *PROCESSES[0]), 61.0)[1] == Say("b", Prepare(b"task")), "its roles are free"


def test_an_agent_that_nobody_knows_is_told_so_when_it_asks(rendezvous: Rendezvous) -> None:
    """It has joined the launcher that was there before this one."""
    rendezvous.came(joining("a", "dense_ps:0"), 0.0)
    assert rendezvous.came(Here("a", "tcp://a:1"), 1.0) == [], "it is known, and the launcher was slow"
    for message in (Here("b"), Prepared("b"), Rested("b", 1), Leave("b")):
        assert rendezvous.came(message, 1.0) == []
    met, said, last = rendezvous.came(Here("b", "tcp://b:1"), 1.0)
    assert (met, last) == (Meet("b", "tcp://b:1"), Forget("b"))
    assert isinstance(said, Say)
    assert isinstance(said.message, Declined)
    assert said.message.again
    assert list(rendezvous.agents) == ["a"]
    over = Over("DataError", "no data")
    rendezvous.end(over)
    assert said_to("b", rendezvous.came(Here("b", "tcp://b:1"), 1.0)) == [over]


def test_who_comes_to_a_run_that_is_over_is_told_how_it_ended(rendezvous: Rendezvous) -> None:
    rendezvous.came(joining("a", "dense_ps:0"), 0.0)
    over = Over("DataError", "no data")
    assert rendezvous.end(over) == [Say("a", over)]
    assert rendezvous.came(joining("b", *PROCESSES[0]), 0.0)[1:] == [Say("b", over), Forget("b")]


@dataclass
class Player:
    """An agent as it behaves, whatever the launcher believes of it."""

    roles: tuple[str, ...]
    is_prepared: bool = False
    plays: int = 0


class Schedules(RuleBasedStateMachine):
    """Agents that come and go in any order, a launcher that begins a try whenever nobody is missing: no role is ever played twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.rendezvous = Rendezvous(PROCESSES, "1", SILENT_SECONDS)
        self.living: dict[str, Player] = {}
        self.names = count()
        self.runs = False
        self.rendezvous.prepare(b"task")

    def carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            player = self.living.get(each.agent)
            if not isinstance(each, Say) or player is None:
                continue
            if isinstance(each.message, Declined | Over):
                del self.living[each.agent]
            elif isinstance(each.message, Prepare):
                player.is_prepared = True
                self.carry_out(self.rendezvous.came(Prepared(each.agent), 0.0))
            elif isinstance(each.message, Begin):
                assert player.is_prepared
                assert not player.plays, "an agent begins a try while it plays another"
                player.plays = each.message.number

    @rule(roles=st.sampled_from(PROCESSES))
    def somebody_joins(self, roles: tuple[str, ...]) -> None:
        agent = f"agent{next(self.names)}"
        self.living[agent] = Player(roles)
        held = {role for name in self.rendezvous.agents for role in self.rendezvous.agents[name].roles}
        self.carry_out(self.rendezvous.came(joining(agent, *roles), 0.0))
        assert (agent in self.living) == held.isdisjoint(roles)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def somebody_is_killed(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.living)))
        played = self.living.pop(agent).plays
        self.carry_out(self.rendezvous.line_broke(agent))
        assert not (self.runs and played) or self.rendezvous.lost

    @precondition(lambda self: self.living)
    @rule()
    def another_launcher_takes_the_place_of_this_one(self) -> None:
        self.rendezvous, self.runs = Rendezvous(PROCESSES, "1", SILENT_SECONDS), False
        self.rendezvous.prepare(b"task")
        for agent in list(self.living):
            self.carry_out(self.rendezvous.came(Here(agent), 0.0))
            assert agent in self.living
            self.carry_out(self.rendezvous.came(Here(agent, f"tcp://{agent}:1"), 0.0))
        assert not self.living, "each knows that it is to join again"

    @precondition(lambda self: not self.runs and not self.rendezvous.missing)
    @rule()
    def a_try_begins(self) -> None:
        self.carry_out(self.rendezvous.begin(b""))
        self.runs = True
        assert not self.rendezvous.lost

    @precondition(lambda self: self.runs)
    @rule(at_once=st.booleans())
    def the_try_is_over(self, at_once: bool) -> None:
        self.runs = False
        told = {each.agent for each in self.rendezvous.finish(at_once=at_once) if isinstance(each, Say)}
        assert told == {name for name, player in self.living.items() if player.plays}

    @precondition(lambda self: not self.runs and any(player.plays for player in self.living.values()))
    @rule(data=st.data())
    def somebody_rests(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(name for name, player in self.living.items() if player.plays)))
        number, self.living[agent].plays = self.living[agent].plays, 0
        self.carry_out(self.rendezvous.came(Rested(agent, number), 0.0))

    @invariant()
    def what_is_missing_is_what_nobody_could_play(self) -> None:
        able = {role for player in self.living.values() if not player.plays for role in player.roles}
        assert set(self.rendezvous.missing) == set(ROLES) - able

    @invariant()
    def no_role_is_played_twice(self) -> None:
        played = [role for player in self.living.values() if player.plays for role in player.roles]
        assert len(played) == len(set(played))


Schedules.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSchedules = Schedules.TestCase
