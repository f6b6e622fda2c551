"""Background rounds: their machines under events twice, late, in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import ClusterError
from htrain.sync.rounds import AppliedRounds, ApplyRound, Instruction, Quiet, StartRound, SyncRounds

reproducible = settings(deadline=None, derandomize=True)


def test_a_period_below_one_step_is_refused() -> None:
    with pytest.raises(ClusterError, match="a period of 0 steps: want at least 1 step between two rounds"):
        SyncRounds(0)


def test_sync_due_in_flight_starts_with_the_reply() -> None:
    rounds = SyncRounds(10)
    assert rounds.steps_done(9) == []
    assert rounds.steps_done(10) == [StartRound(0)]
    assert rounds.steps_done(35) == []
    assert rounds.steps_done(12) == []  # late news
    assert rounds.reply(0) == [ApplyRound(0), StartRound(1)]
    assert rounds.reply(1) == [ApplyRound(1)]
    assert rounds.steps_done(44) == []
    assert rounds.steps_done(45) == [StartRound(2)]


def test_who_goes_on_for_another_counts_its_rounds_on_and_steps_anew() -> None:
    rounds = SyncRounds(10)
    rounds.go_on_from(4)
    assert rounds.invited(3) == []  # a late one
    assert rounds.steps_done(9) == []
    assert rounds.steps_done(10) == [StartRound(4)]
    assert rounds.reply(4) == [ApplyRound(4)]
    assert rounds.invited(5) == [StartRound(5)]


def test_duplicated_and_foreign_replies_are_ignored() -> None:
    rounds = SyncRounds(1)
    assert rounds.reply(0) == []
    assert rounds.steps_done(1) == [StartRound(0)]
    assert rounds.reply(7) == []
    assert rounds.reply(0) == [ApplyRound(0)]
    assert rounds.reply(0) == []
    assert rounds.steps_done(2) == [StartRound(1)]
    assert rounds.reply(0) == []
    assert rounds.in_flight == 1


def test_pause_is_quiet_only_after_the_round_in_flight() -> None:
    rounds = SyncRounds(1)
    rounds.steps_done(1)
    assert rounds.pause() == []
    assert rounds.steps_done(5) == []
    assert rounds.reply(0) == [ApplyRound(0), Quiet()]
    assert rounds.pause() == [Quiet()]
    assert rounds.steps_done(9) == []
    assert rounds.resume() == [StartRound(1)]


def test_what_was_due_before_a_pause_is_done_before_it_is_quiet() -> None:
    """The last steps of a run are in a round before its last checkpoint."""
    rounds = SyncRounds(1)
    rounds.steps_done(1)
    rounds.steps_done(2)
    assert rounds.pause() == []
    assert rounds.steps_done(3) == []
    assert rounds.reply(0) == [ApplyRound(0), StartRound(1)]
    assert rounds.reply(1) == [ApplyRound(1), Quiet()]
    assert rounds.resume() == [StartRound(2)]


def test_resume_before_the_reply_calls_the_pause_off() -> None:
    rounds = SyncRounds(1)
    rounds.steps_done(1)
    rounds.pause()
    assert rounds.resume() == []
    assert rounds.reply(0) == [ApplyRound(0)]


def test_rounds_go_on_from_a_checkpoint() -> None:
    rounds = SyncRounds(10, next_round=7, last_synced_step=70)
    assert rounds.steps_done(79) == []
    assert rounds.steps_done(80) == [StartRound(7)]
    assert (rounds.next_round, rounds.last_synced_step) == (8, 80)


@reproducible
@given(st.lists(st.tuples(st.sampled_from(["steps", "reply", "pause", "resume"]), st.integers(0, 6)), max_size=60))
def test_one_round_in_flight_and_each_applied_once_for_any_events(events: list[tuple[str, int]]) -> None:
    rounds = SyncRounds(3)
    now = 0
    started: list[int] = []
    applied: list[int] = []
    paused = False
    since_pause = 0
    for event, number in events:
        now += number if event == "steps" else 0
        paused = {"pause": True, "resume": False}.get(event, paused)
        since_pause = 0 if event in ("pause", "resume") else since_pause
        answers: dict[str, list[Instruction]] = {
            "steps": rounds.steps_done(now) if event == "steps" else [],
            "reply": rounds.reply(number) if event == "reply" else [],
            "pause": rounds.pause() if event == "pause" else [],
            "resume": rounds.resume() if event == "resume" else [],
        }
        for instruction in answers[event]:
            if isinstance(instruction, StartRound):
                since_pause += paused
                assert since_pause <= 1  # what was due
                started.append(instruction.round)
            elif isinstance(instruction, ApplyRound):
                applied.append(instruction.round)
            else:
                assert paused
                assert started == applied
        assert started == list(range(len(started)))
        assert applied in (started, started[:-1])


def test_dense_ps_absorbs_a_duplicated_round_once_per_source() -> None:
    applied = AppliedRounds({"group 1 group_ps:0": 4})
    assert applied.admit("group 0 group_ps:0", 0)
    assert not applied.admit("group 0 group_ps:0", 0)
    assert not applied.admit("group 1 group_ps:0", 4)
    assert applied.admit("group 1 group_ps:0", 5)
    assert not applied.admit("group 1 group_ps:0", 4)
    assert applied.last_round == {"group 0 group_ps:0": 0, "group 1 group_ps:0": 5}


@reproducible
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=40))
def test_no_round_is_admitted_twice_across_a_restart(messages: list[tuple[str, int]]) -> None:
    applied: AppliedRounds[str] = AppliedRounds({})
    admitted = []
    for source, round in messages:
        if applied.admit(source, round):
            admitted.append((source, round))
        applied = AppliedRounds(applied.last_round)
    assert len(admitted) == len(set(admitted))
    assert {source for source, _ in admitted} == {source for source, _ in messages}
