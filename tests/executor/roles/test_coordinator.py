"""What the launcher decides: in whatever order roles answer, fail and end, and whenever the user asks, the disk refuses or the launcher itself sleeps."""

import itertools
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import BEGIN, FOLDER, PlayedRun
from played_values import Seen, Troubles
from small_dlrm import small_plan

from htrain.errors import CheckpointError, DataError, Interrupted, PeerLost, PublishError, RunError
from htrain.executor.roles.coordination import (
    Await,
    Came,
    CloseCheckpoint,
    Connect,
    Ended,
    KeepMeasured,
    ShowTotals,
    TellAll,
)
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Order

quick = settings(max_examples=80, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
PLAN = small_plan(groups=2, trainers=1, group_ps=1, sparse_ps=1)
ROLES = PLAN.cluster.roles
FAULTS = ("dies", "freezes", "fails", "loses", "unreadable", "hello", "ready", "pause", "save", "saved")
SETTINGS = RunSettings(Path("plan"), "data", FOLDER)
TRAINERS = [role for role in ROLES if role.startswith("trainer")]
REPLACEABLE = [*TRAINERS, "sparse_ps:0"]
EVERY = ("end", 300.0, 20.0, 7.0, 1.0)


def run_of(seed: int, troubles: Troubles) -> Seen:
    """A run of about 50 s, some of it gathering, with checkpoints as often as is drawn."""
    draw = random.Random(seed + 1)
    return PlayedRun(
        PLAN, seed, troubles, train_seconds=draw.uniform(5, 40), every=draw.choice(EVERY), valid_every=draw.choice((0, 0, 8, 100, 300)),
        publish_every=draw.choice((None, None, "end", 9.0, 1.0)),
    ).play()  # fmt: skip


def named(seen: Seen) -> str:
    """The role with whose name an error begins."""
    first = str(seen.error).split(" ")[0].rstrip(":")
    return first if first in ROLES else ""


def drawn_troubles(draw: random.Random) -> Troubles:
    full = draw.uniform(0, 80)
    return Troubles(
        asks=draw.choice((None, draw.uniform(0, 60))),
        faults=tuple((draw.uniform(0, 60), draw.choice(ROLES), draw.choice(FAULTS)) for _ in range(draw.choice((0, 1, 1, 2, 3)))),
        full=draw.choice(((0.0, 0.0), (full, full + draw.uniform(0, 150)))),
        sleeps=draw.choice(((), (draw.uniform(0, 60),))),
        tells_of_ends=draw.random() < 0.7, replaces=draw.choice((0, 0, 1, 3)), partial=draw.random() < 0.5,
    )  # fmt: skip


@given(seed=seeds)
@settings(quick, max_examples=300)
def test_whatever_happens_the_rules_hold_and_the_run_ends_for_a_reason_that_it_names(seed: int) -> None:
    """The rules themselves are asserted at each instruction, by PlayedRun."""
    troubles = drawn_troubles(random.Random(seed))
    seen = run_of(seed, troubles)
    if seen.result:
        assert not seen.unreadable
        assert seen.orders[-1] == "stop"
        assert seen.valid[-1].finished
        assert seen.result.checkpoint == seen.folders[-1]
    elif isinstance(seen.error, Interrupted):
        assert troubles.asks is not None
    elif isinstance(seen.error, CheckpointError):
        assert troubles.full[1] > troubles.full[0] or named(seen) in seen.guilty
    elif isinstance(seen.error, DataError):
        assert any(what == "unreadable" for *_, what in troubles.faults)
    else:
        assert isinstance(seen.error, RunError)
        assert named(seen) in seen.guilty, f"{seen.error}, and the guilty are {seen.guilty}"


@given(seed=seeds, role=st.sampled_from(ROLES), every=st.sampled_from(("end", 7.0)))
@quick
def test_a_word_that_is_lost_with_its_connection_ends_the_run_with_the_name_of_the_role(
    seed: int, role: str, every: object
) -> None:
    """Else a trainer that has finished, and is not heard to say so, is waited for without end."""
    seen = PlayedRun(PLAN, seed, Troubles(faults=((4.0, role, "loses"),)), train_seconds=20.0, every=every).play()
    assert isinstance(seen.error, PeerLost)
    assert named(seen) == role


@given(seed=seeds, sleeps=st.lists(st.floats(0, 60), max_size=3).map(sorted))
@quick
def test_roles_that_answer_late_and_a_launcher_that_sleeps_do_a_run_no_harm(seed: int, sleeps: list[float]) -> None:
    seen = run_of(seed, Troubles(sleeps=tuple(sleeps)))
    assert seen.result, seen.error
    assert seen.result.train_examples == seen.result.totals.examples == seen.examples
    assert [type(each) for _, each in seen.log if isinstance(each, ShowTotals | KeepMeasured)][-2:] == [
        ShowTotals,
        KeepMeasured,
    ]
    assert "abort" not in seen.orders


@given(seed=seeds, asks=st.floats(0, 60), full=st.floats(0, 60), full_seconds=st.floats(0, 40))
@quick
def test_a_run_that_is_asked_to_stop_ends_with_a_checkpoint_of_all_that_it_trained(
    seed: int, asks: float, full: float, full_seconds: float
) -> None:
    seen = run_of(seed, Troubles(asks=asks, full=(full, full + full_seconds)))
    if seen.result:  # the data was over before
        assert not seen.asked_in_training
        return
    assert isinstance(seen.error, Interrupted), seen.error
    if "start" not in seen.orders:
        assert str(seen.error).startswith("stopped before training began; it has no checkpoint to go on from: ")
        assert seen.orders in ([], ["abort"])
        return
    assert seen.asked_at is not None
    if seen.valid and seen.valid[-1].finished:  # all was trained, and saved
        saved = f"all is trained and saved in {FOLDER}"
        assert str(seen.error) == f"stopped while its last version was published; {saved}"
        return
    assert seen.valid_at[-1] >= seen.asked_at
    examples = sum(state["totals"]["examples"] for state in seen.valid[-1].trainers.values())
    assert str(seen.error) == f"stopped after {examples:,} examples; go on with --resume {FOLDER}"
    assert not seen.valid[-1].finished
    assert seen.orders[-1] == "stop"


@given(seed=seeds, at=st.floats(0, 70), role=st.sampled_from(ROLES), sleeps=st.lists(st.floats(0, 60), max_size=1))
@quick
def test_a_role_whose_process_ends_is_named_and_not_whoever_misses_it(
    seed: int, at: float, role: str, sleeps: list[float]
) -> None:
    seen = run_of(seed, Troubles(faults=((at, role, "dies"),), sleeps=tuple(sleeps)))
    if not seen.result:
        assert isinstance(seen.error, PeerLost)
        assert str(seen.error).startswith(f"{role} (process 7) was killed by signal 9")
        assert seen.error.args[0].endswith(advice_of(seen))


def advice_of(seen: Seen) -> str:
    if seen.valid:
        return f"; go on with --resume {FOLDER}"
    return f"; it has no checkpoint to go on from: remove {FOLDER} and start again"


@given(
    seed=seeds,
    at=st.floats(0, 40),
    role=st.sampled_from(ROLES),
    what=st.sampled_from(("freezes", "hello", "ready", "pause", "save", "fails")),
)
@quick
def test_a_role_that_hangs_falls_mute_or_fails_ends_the_run_by_its_name_within_the_patience(
    seed: int, at: float, role: str, what: str
) -> None:
    seen = run_of(seed, Troubles(faults=((at, role, what),)))
    if not seen.result:  # mute at a step that was over
        assert named(seen) == role, seen.error
        assert seen.seconds < 150
        assert seen.orders[-1:] in (["abort"], [])


@given(seed=seeds, full=st.floats(0, 70), full_seconds=st.floats(0, 200))
@quick
def test_the_last_save_is_tried_again_for_a_minute(seed: int, full: float, full_seconds: float) -> None:
    seen = run_of(seed, Troubles(full=(full, full + full_seconds)))
    tries = tries_of_the_last_save(seen)
    assert tries[-1] - tries[0] < 66
    if seen.result:
        assert seen.valid[-1].finished
        return
    assert isinstance(seen.error, CheckpointError)
    assert str(seen.error).startswith("what was trained last could not be saved (")
    assert str(seen.error).endswith(advice_of(seen)[2:])
    assert seen.refusals[-1] - tries[0] > 60
    assert len(tries) >= 2
    assert seen.refusals[-len(tries)] - BEGIN < full + full_seconds + 40, (
        "the first try was made while the disk was full"
    )
    for refused, again in zip(seen.refusals[-len(tries) :], tries[1:], strict=False):
        assert 5 <= again - refused < 6


def tries_of_the_last_save(seen: Seen) -> list[float]:
    """When the roles were told to pause for it."""
    orders = [(at, each.order.verb) for at, each in seen.log if isinstance(each, TellAll)]
    last = max(index for index, (_, verb) in enumerate(orders) if verb in ("start", "resume"))
    return [at for at, verb in orders[last:] if verb == "pause"]


@given(seed=seeds, at=st.floats(0, 50), full_seconds=st.floats(0, 50))
@settings(quick, max_examples=300)
def test_a_row_that_cannot_be_read_is_told_once_all_until_there_is_saved(
    seed: int, at: float, full_seconds: float
) -> None:
    seen = run_of(seed, Troubles(faults=((at, "trainer:1:0", "unreadable"),), full=(at, at + full_seconds)))
    if not seen.unreadable or isinstance(
        seen.error, CheckpointError
    ):  # the trainer had read all of it before; the disk was full for too long
        return
    assert isinstance(seen.error, DataError)
    assert str(seen.error).startswith("trainer:1:0: line 7: not a row")
    if seen.valid:
        assert str(seen.error).endswith(f"once the same data can be read, go on with --resume {FOLDER}")
        assert not seen.valid[-1].finished
    else:
        assert str(seen.error) == "trainer:1:0: line 7: not a row"
    assert bool(seen.valid) == (seen.examples > 0), "what had been trained is saved, though no report had told of it"


@given(seed=seeds, at=st.floats(20, 50))
@quick
def test_data_that_could_not_be_read_to_its_end_is_not_called_trained_although_all_trainers_say_so_during_a_checkpoint(
    seed: int, at: float
) -> None:
    faults = tuple((at, role, "unreadable") for role in ROLES if role.startswith("trainer"))
    seen = PlayedRun(PLAN, seed, Troubles(faults=faults), train_seconds=90, every=1.0).play()
    assert isinstance(seen.error, DataError) or not seen.unreadable
    assert not any(close.finished for close in seen.valid if seen.unreadable)


@given(seed=seeds)
@settings(quick, max_examples=10)
def test_no_checkpoint_is_made_of_a_run_that_could_not_read_a_single_row(seed: int) -> None:
    troubles = Troubles(faults=tuple((0.0, role, "data") for role in ROLES if role.startswith("trainer")))
    seen = run_of(seed, troubles)
    assert re.fullmatch(r"trainer:\d:0: line 7: not a row", str(seen.error))
    assert seen.orders == ["start", "pause", "abort"]


@given(seed=seeds)
@settings(quick, max_examples=10)
def test_steps_that_no_report_has_told_of_are_saved_before_the_row_that_cannot_be_read_is_told(seed: int) -> None:
    faults = ((0.0, "trainer:0:0", "data"), (0.0, "trainer:1:0", "rows"))
    seen = run_of(seed, Troubles(faults=faults))
    assert str(seen.error).endswith(f"once the same data can be read, go on with --resume {FOLDER}")
    assert seen.valid[-1].trainers["trainer:1:0"]["totals"]["examples"] == 16
    assert seen.orders == ["start", "pause", "save", "stop"]


@pytest.mark.parametrize("seed", range(12))
def test_a_frozen_role_is_told_of_as_slow_once_and_named_with_its_last_step_when_its_time_is_over(seed: int) -> None:
    seen = PlayedRun(PLAN, seed, Troubles(faults=((45.0, "trainer:1:0", "freezes"),)), train_seconds=200).play()
    (told,) = seen.told
    assert re.fullmatch(
        r"trainer:1:0 has been silent for [45] s, though its process lives", told
    )  # a launcher may wake late
    said, _, last = str(seen.error).partition(" (its last step: ")
    assert re.fullmatch(r"trainer:1:0 has been silent for 8 s, though its process lives", said)
    assert re.fullmatch(r"\d+; --liveness-seconds gives it longer\)" + re.escape(advice_of(seen)), last)
    assert seen.orders == ["start", "abort"]


@pytest.mark.parametrize("seed", range(12))
def test_of_roles_that_all_fall_silent_one_is_given_up_when_its_time_is_over(seed: int) -> None:
    faults = tuple((45.0, role, "freezes") for role in ROLES)
    seen = PlayedRun(PLAN, seed, Troubles(faults=faults), train_seconds=200).play()
    assert " has been silent for 8 s, though its process lives" in str(seen.error)


def test_a_role_that_never_comes_up_or_never_loads_is_named() -> None:
    for fault, words in (("hello", "did not come up"), ("ready", "did not load its parameters")):
        seen = PlayedRun(PLAN, 0, Troubles(faults=((0.0, "sparse_ps:0", fault),)), train_seconds=9).play()
        assert str(seen.error) == f"sparse_ps:0 {words} within 20 s"


def test_a_role_that_does_not_answer_an_order_is_named_with_it() -> None:
    seen = PlayedRun(PLAN, 0, Troubles(faults=((0.0, "sparse_ps:0", "save"),)), train_seconds=9).play()
    assert str(seen.error) == f"sparse_ps:0 did not answer the order to save within 20 s{advice_of(seen)}"


@pytest.mark.parametrize("seed", range(12))
def test_a_store_that_never_answers_ends_no_training_is_told_of_once_and_named_at_the_end(seed: int) -> None:
    troubles = Troubles(faults=((0.0, "sparse_ps:0", "saved"),))
    seen = PlayedRun(PLAN, seed, troubles, train_seconds=200, every=7.0).play()
    assert isinstance(seen.error, CheckpointError)
    (folder,) = seen.folders
    assert (
        str(seen.error)
        == f"sparse_ps:0 has not written its share of the checkpoint {folder.name} within 20 s{advice_of(seen)}"
    )
    assert seen.told == ["a checkpoint is still being written after 60 s; training goes on"]
    trained = [state for _, each in seen.log if isinstance(each, ShowTotals) for state in [each.totals.examples]]
    assert trained[-1] > 8 * 50, "it went on to the end of its data"
    assert seen.orders == ["start", "pause", "save", "resume", "abort"]


@given(seed=seeds)
@quick
def test_roles_train_on_while_they_write_and_checkpoints_are_of_the_moment_at_which_they_began(seed: int) -> None:
    """The second is a rule of PlayedRun's."""
    seen = PlayedRun(PLAN, seed, Troubles(), train_seconds=60, every=7.0).play()
    assert seen.result, seen.error
    verb = ""
    for _, each in seen.log:
        verb = each.order.verb if isinstance(each, TellAll) else verb
        if isinstance(each, CloseCheckpoint):
            assert verb == ("save" if each.finished else "resume"), "it is made valid when training has gone on"
    told = [text for text in seen.told if text.startswith("checkpoint ")]
    assert len(told) == len(seen.valid)


def test_where_ends_are_not_told_of_whoever_misses_a_role_is_believed_at_once() -> None:
    """Threads of one process, and ranks of MPI."""
    troubles = Troubles(faults=((45.0, "trainer:1:0", "dies"),), tells_of_ends=False)
    seen = PlayedRun(PLAN, 1, troubles, train_seconds=200).play()
    assert str(seen.error).endswith(f": no answer from trainer:1:0{advice_of(seen)}")
    assert seen.seconds < 46


def test_a_launcher_is_woken_by_what_comes_and_by_what_is_due_and_by_nothing_else() -> None:
    """Roles speak twice a second and totals are shown as often: with nobody to wait for, it has nothing to look at in between."""
    seen = PlayedRun(PLAN, 5, Troubles(), train_seconds=60).play()
    shown = sum(isinstance(each, ShowTotals) for _, each in seen.log)
    assert shown > 50
    assert seen.idle_waits <= shown


def test_a_failure_in_carrying_something_out_ends_the_run_as_one_that_a_role_tells_of_does() -> None:
    """A role that died before it was told where others are is missed by the launcher itself; that its process ended says more."""
    machine = CoordinatorMachine(PLAN, SETTINGS, tells_of_ends=True).run(0.0)
    said = next(machine)
    for role in ROLES:
        said = machine.send((1.0, Came(Hello(role, {f"{role}/control": "tcp://x"}, "here", 7))))
    assert isinstance(said, Connect)
    assert isinstance(machine.throw(PeerLost("trainer:1:0/control did not take a message within 15 s")), Await)
    assert machine.send((1.5, Ended("trainer:1:0 (process 7) was killed by signal 9"))) == TellAll(Order("abort"))
    with pytest.raises(
        PeerLost, match=r"^trainer:1:0 \(process 7\) was killed by signal 9 \(its last step: not known\); it has"
    ):
        machine.send((1.5, None))


def test_a_launcher_that_sleeps_while_it_waits_for_the_news_of_an_end_still_names_whose_it_was() -> None:
    machine = CoordinatorMachine(PLAN, SETTINGS, tells_of_ends=True).run(0.0)
    next(machine)
    machine.send((1.0, Came(Failed("trainer:0:0", "PeerLost", "no answer from trainer:1:0"))))
    machine.send((70.0, Came(Beat("trainer:0:0", {}))))
    with pytest.raises(PeerLost, match=r"^trainer:1:0 \(process 7\) was killed"):
        machine.send((70.0, Ended("trainer:1:0 (process 7) was killed by signal 9")))


def validated_run(seed: int, troubles: Troubles, *, valid_every: int) -> Seen:
    return PlayedRun(PLAN, seed, troubles, train_seconds=20, valid_every=valid_every).play()


@given(seed=seeds, valid_every=st.integers(1, 300))
@quick
def test_checkpoints_are_validated_while_training_goes_on_each_behind_another_multiple(
    seed: int, valid_every: int
) -> None:
    seen = validated_run(seed, Troubles(), valid_every=valid_every)
    assert seen.result, seen.error
    assert not seen.result.stopped
    assert len(seen.validated) == len(seen.valid) - 1, "all but the last, which is evaluated when roles have ended"
    examples = [sum(state["totals"]["examples"] for state in close.trainers.values()) for close in seen.valid]
    multiples = [number // valid_every for number in examples[:-1]]
    assert multiples == sorted(set(multiples))
    assert 0 not in multiples


@given(seed=seeds, valid_every=st.integers(1, 60), ends_at=st.integers(1, 3))
@quick
def test_a_validation_ends_a_run_with_a_checkpoint_and_its_reason(seed: int, valid_every: int, ends_at: int) -> None:
    seen = validated_run(seed, Troubles(stops="no better", ends_at=ends_at), valid_every=valid_every)
    assert seen.result, seen.error
    assert seen.orders[-1] == "stop"
    assert seen.result.checkpoint == seen.folders[-1]
    if seen.result.stopped:
        assert seen.result.stopped == "no better"
        assert len(seen.validated) == ends_at
        assert not seen.valid[-1].finished
    else:
        assert seen.valid[-1].finished
    saves = [each.order for _, each in seen.log if isinstance(each, TellAll) and each.order.verb == "save"]
    assert saves[-1].base == "", "the last checkpoint of a run that has ended builds on no other"


@given(seed=seeds, ends_at=st.integers(1, 3))
@quick
def test_what_keeps_a_checkpoint_from_being_validated_ends_a_run_with_a_checkpoint(seed: int, ends_at: int) -> None:
    seen = validated_run(seed, Troubles(fails=DataError("valid.tsv: gone"), ends_at=ends_at), valid_every=8)
    if seen.result:  # the data was over before
        assert seen.valid[-1].finished
        return
    assert isinstance(seen.error, DataError)
    assert str(seen.error) == f"valid.tsv: gone; what was trained is saved: go on with --resume {FOLDER}"
    assert seen.orders[-1] == "stop"
    assert len(seen.valid) == len(seen.validated) + 1


def published_run(seed: int, troubles: Troubles, *, every: float | str) -> Seen:
    return PlayedRun(PLAN, seed, troubles, train_seconds=30, publish_every=every).play()


@given(seed=seeds, every=st.floats(0.5, 20))
@quick
def test_versions_are_published_while_training_goes_on_and_one_of_all_examples_at_the_end(
    seed: int, every: float
) -> None:
    seen = published_run(seed, Troubles(), every=every)
    assert seen.result, seen.error
    examples, finals, times = zip(*seen.versions, strict=True)
    assert list(examples) == sorted(examples)
    assert [*finals] == [False] * (len(finals) - 1) + [True]
    assert examples[-1] == seen.examples
    assert all(later - earlier > 0 for earlier, later in itertools.pairwise(times))
    assert seen.told.count("published a version") == len(seen.versions)


@given(seed=seeds)
@settings(quick, max_examples=20)
def test_at_the_end_alone_one_version_is_published(seed: int) -> None:
    seen = published_run(seed, Troubles(), every="end")
    assert seen.result, seen.error
    assert [(examples, is_final) for examples, is_final, _ in seen.versions] == [(seen.examples, True)]


@given(seed=seeds, away=st.floats(0, 60), seconds=st.floats(0, 60))
@quick
def test_a_storage_that_is_away_for_a_while_does_a_run_no_harm_and_the_last_version_is_tried_for_a_minute(
    seed: int, away: float, seconds: float
) -> None:
    seen = published_run(seed, Troubles(away=(away, away + seconds)), every=5.0)
    assert seen.valid[-1].finished, "all is trained and saved, whatever becomes of versions"
    if seen.result:
        assert seen.versions[-1][:2] == (seen.examples, True)
        assert sum(told.startswith("not published: the storage is away") for told in seen.told) == seen.unpublished
    else:
        assert isinstance(seen.error, PublishError)
        end = f"all is trained and saved in {FOLDER}, but its last version is not published"
        assert str(seen.error) == f"the storage is away; {end}"
        assert seen.unpublished >= 2


@given(seed=seeds, asks=st.floats(0, 60))
@quick
def test_who_asks_a_run_to_stop_waits_for_no_version(seed: int, asks: float) -> None:
    seen = published_run(seed, Troubles(asks=asks, away=(0.0, 1000.0)), every=5.0)
    if not isinstance(seen.error, PublishError):  # it had tried for a minute
        assert isinstance(seen.error, Interrupted), seen.error
        assert not seen.versions
        assert str(seen.error).startswith("stopped ")


@given(seed=seeds)
@settings(quick, max_examples=200)
def test_a_trainer_that_dies_is_begun_again_while_others_go_on_and_the_run_ends_as_it_would_have(seed: int) -> None:
    """Whenever it dies, while roles train, come to rest or write; where it dies too often, the run ends with its name."""
    draw = random.Random(seed)
    trainers = [role for role in ROLES if role.startswith("trainer")]
    faults = tuple((draw.uniform(0, 40), draw.choice(trainers), "dies") for _ in range(draw.choice((1, 1, 2))))
    seen = run_of(seed, Troubles(faults=faults, replaces=draw.choice((1, 3))))
    if seen.error:
        assert isinstance(seen.error, PeerLost | Interrupted)
        assert named(seen) in trainers
    else:
        assert seen.valid[-1].finished
        assert seen.result
        assert seen.result.totals.examples == seen.examples


@given(seed=seeds)
@settings(quick, max_examples=200)
def test_a_sparse_ps_that_dies_goes_back_with_all_trainers_and_the_run_ends_as_it_would_have(seed: int) -> None:
    """Whenever it dies, alone or with another: where it cannot go back by itself, the run ends with the name of who has died."""
    draw = random.Random(seed)
    faults = [(draw.uniform(0, 40), role, "dies") for role in draw.choices(REPLACEABLE, k=draw.choice((0, 0, 1)))]
    faults += [(draw.uniform(5, 40), "sparse_ps:0", "dies")]
    seen = run_of(seed, Troubles(faults=tuple(faults), replaces=draw.choice((1, 3)), partial=True))
    if seen.error:
        assert isinstance(seen.error, PeerLost | Interrupted)
        assert named(seen) in REPLACEABLE
    else:
        assert seen.valid[-1].finished
        assert seen.result
        assert seen.result.totals.examples == seen.examples


def test_a_sparse_ps_that_dies_in_training_is_begun_again_with_trainers_alone() -> None:
    troubles = Troubles(faults=((60.0, "sparse_ps:0", "dies"),), replaces=3, partial=True)
    runs = [PlayedRun(PLAN, seed, troubles, train_seconds=120, every=20.0).play() for seed in range(40)]
    found = [seen for seen in runs if seen.begun_again == [*TRAINERS, "sparse_ps:0"] and not seen.error]
    assert len(found) > 7  # where no checkpoint is written just then, and nobody that is begun again dies, too
    for seen in found:
        assert seen.orders.count("lost") == seen.orders.count("found") == 3
        assert any(line.startswith("sparse_ps:0 goes on after") for line in seen.told)
        assert any("its rows are those of checkpoint" in line for line in seen.told)


def test_a_trainer_that_dies_in_training_is_begun_again_alone() -> None:
    troubles = Troubles(faults=((30.0, "trainer:1:0", "dies"),), replaces=3)
    runs = [PlayedRun(PLAN, seed, troubles, train_seconds=60, every=20.0).play() for seed in range(20)]
    found = [seen for seen in runs if seen.begun_again == ["trainer:1:0"] and not seen.error]  # another may die, too
    assert len(found) > 8
    for seen in found:
        assert seen.orders.count("lost") == seen.orders.count("found") == 1
        assert any(line.startswith("trainer:1:0 goes on after") for line in seen.told)
