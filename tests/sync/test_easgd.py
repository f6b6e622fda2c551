"""EASGD by its algebra, what the centre gains the groups give; its machines under events twice, late, in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import ClusterError
from htrain.ops import OPS
from htrain.sync.easgd import (
    AppliedRounds,
    ApplyRound,
    Instruction,
    Quiet,
    StartRound,
    SyncPolicy,
    SyncRounds,
    default_alpha,
)

values = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3).map(lambda row: torch.tensor(row, dtype=torch.float64))
alphas = st.floats(0.01, 0.99)
relax = OPS["Relax"].kernel
reproducible = settings(deadline=None, derandomize=True)


def absorb(center: torch.Tensor, snapshot: torch.Tensor, alpha: float) -> torch.Tensor:
    return OPS["ElasticDifference"].kernel(center, snapshot, alpha=alpha)


@reproducible
@given(values, values, alphas)
def test_absorb_and_relax_are_the_update_of_easgd(replica: torch.Tensor, center: torch.Tensor, alpha: float) -> None:
    wanted_replica = (1 - alpha) * replica + alpha * center
    wanted_center = (1 - alpha) * center + alpha * replica
    diff = absorb(center, replica.clone(), alpha)
    relax(replica, diff)
    torch.testing.assert_close(center, wanted_center, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(replica, wanted_replica, rtol=1e-9, atol=1e-9)


@reproducible
@given(
    st.lists(values, min_size=2, max_size=4),
    values,
    st.lists(st.tuples(st.integers(0, 3), values), max_size=20),
    alphas,
)
def test_every_sync_conserves_groups_plus_centre_beside_training(
    groups: list[torch.Tensor], center: torch.Tensor, rounds: list[tuple[int, torch.Tensor]], alpha: float
) -> None:
    total = center + sum(groups)
    for who, trained in rounds:
        group = groups[who % len(groups)]
        snapshot = group.clone()
        group += trained  # the trainers' updates between snapshot and reply
        relax(group, absorb(center, snapshot, alpha))
        total = total + trained
        torch.testing.assert_close(center + sum(groups), total, rtol=1e-12, atol=1e-7)


@reproducible
@given(values, alphas)
def test_equal_replica_and_centre_stay_as_they_are(replica: torch.Tensor, alpha: float) -> None:
    center = replica.clone()
    diff = absorb(center, replica, alpha)
    assert not diff.any()
    assert torch.equal(center, replica)


def test_two_groups_and_their_centre_meet_at_their_mean() -> None:
    groups = [torch.tensor([0.0, 9.0], dtype=torch.float64), torch.tensor([6.0, -3.0], dtype=torch.float64)]
    center = torch.tensor([3.0, 3.0], dtype=torch.float64)
    for _ in range(100):
        for group in groups:
            relax(group, absorb(center, group.clone(), default_alpha(len(groups))))
    for value in (*groups, center):
        torch.testing.assert_close(value, torch.tensor([3.0, 3.0], dtype=torch.float64))


def test_default_alpha_is_the_authors_beta_over_groups_and_never_jumps_past_the_centre() -> None:
    assert [default_alpha(groups) for groups in (1, 2, 3, 9)] == pytest.approx([0.5, 0.45, 0.3, 0.1])
    with pytest.raises(ClusterError, match="0 groups: EASGD needs at least 1"):
        default_alpha(0)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(ClusterError, match=r"EASGD alpha \S+: want 0 < alpha < 1"):
        SyncPolicy(alpha, 1)


def test_period_below_one_step_is_refused() -> None:
    with pytest.raises(ClusterError, match="EASGD period of 0 steps: want at least 1 step"):
        SyncPolicy(0.5, 0)


def test_sync_is_due_a_period_after_the_last_one() -> None:
    policy = SyncPolicy(0.5, 10)
    assert [policy.due(5, step) for step in (5, 14, 15, 40)] == [False, False, True, True]


def test_sync_due_in_flight_starts_with_the_reply() -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 10))
    assert rounds.steps_done(9) == []
    assert rounds.steps_done(10) == [StartRound(0)]
    assert rounds.steps_done(35) == []
    assert rounds.steps_done(12) == []  # late news
    assert rounds.reply(0) == [ApplyRound(0), StartRound(1)]
    assert rounds.reply(1) == [ApplyRound(1)]
    assert rounds.steps_done(44) == []
    assert rounds.steps_done(45) == [StartRound(2)]


def test_duplicated_and_foreign_replies_are_ignored() -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 1))
    assert rounds.reply(0) == []
    assert rounds.steps_done(1) == [StartRound(0)]
    assert rounds.reply(7) == []
    assert rounds.reply(0) == [ApplyRound(0)]
    assert rounds.reply(0) == []
    assert rounds.steps_done(2) == [StartRound(1)]
    assert rounds.reply(0) == []
    assert rounds.in_flight == 1


def test_pause_is_quiet_only_after_the_round_in_flight() -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 1))
    rounds.steps_done(1)
    assert rounds.pause() == []
    assert rounds.steps_done(5) == []
    assert rounds.reply(0) == [ApplyRound(0), Quiet()]
    assert rounds.pause() == [Quiet()]
    assert rounds.steps_done(9) == []
    assert rounds.resume() == [StartRound(1)]


def test_resume_before_the_reply_calls_the_pause_off() -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 1))
    rounds.steps_done(1)
    rounds.pause()
    assert rounds.resume() == []
    assert rounds.reply(0) == [ApplyRound(0)]


def test_rounds_go_on_from_a_checkpoint() -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 10), next_round=7, last_synced_step=70)
    assert rounds.steps_done(79) == []
    assert rounds.steps_done(80) == [StartRound(7)]
    assert (rounds.next_round, rounds.last_synced_step) == (8, 80)


@reproducible
@given(st.lists(st.tuples(st.sampled_from(["steps", "reply", "pause", "resume"]), st.integers(0, 6)), max_size=60))
def test_one_round_in_flight_and_each_applied_once_for_any_events(events: list[tuple[str, int]]) -> None:
    rounds = SyncRounds(SyncPolicy(0.5, 3))
    now = 0
    started: list[int] = []
    applied: list[int] = []
    paused = False
    for event, number in events:
        now += number if event == "steps" else 0
        paused = {"pause": True, "resume": False}.get(event, paused)
        answers: dict[str, list[Instruction]] = {
            "steps": rounds.steps_done(now) if event == "steps" else [],
            "reply": rounds.reply(number) if event == "reply" else [],
            "pause": rounds.pause() if event == "pause" else [],
            "resume": rounds.resume() if event == "resume" else [],
        }
        for instruction in answers[event]:
            if isinstance(instruction, StartRound):
                assert not paused
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
