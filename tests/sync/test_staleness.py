"""The staleness gate against a recorded history of reads and writes, and against all orders of granting the steps."""

import itertools
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from htrain.errors import ClusterError
from htrain.sync.staleness import Grant, Phase, StalenessGate

PARAMETERS = range(3)


class Step(NamedTuple):
    trainer: int
    replica: int
    number: int


class OpenDoor(StalenessGate[Step]):
    """Plain Hogwild: grants every commit at once. The control that shows what the gate prevents."""

    def _fits(self, candidate: Step) -> bool:
        return True


class Replica:
    """A net replica that walks through its steps one micro-action at a time: begin, reads, commit, writes, end."""

    def __init__(self, trainer: int, replica: int) -> None:
        self.step = Step(trainer, replica, 0)
        self.phase: Phase | None = None
        self.to_read: list[int] = []
        self.to_write: list[int] = []


class Group:
    """Net replicas, a gate, and the history of what happened: (action, step) or (action, step, parameter)."""

    def __init__(self, num_trainers: int, num_replicas: int, gate_type: type[StalenessGate[Step]], seed: int) -> None:
        self.bound = num_trainers * num_replicas
        self.gate = gate_type(self.bound)
        self.random = random.Random(seed)
        self.replicas = [Replica(t, r) for t in range(num_trainers) for r in range(num_replicas)]
        self.history: list[tuple] = []
        self.staleness: list[int] = []

    def advance(self, replica: Replica) -> bool:
        """Do the replica's next action; False if it waits for its grant."""
        step = replica.step
        if replica.phase is Phase.WAITING:
            return False
        if replica.phase is None:
            replica.to_read = self.random.sample(PARAMETERS, len(PARAMETERS))
            replica.to_write = self.random.sample(PARAMETERS, len(PARAMETERS))
            self.take(self.gate.begin(step))
        elif replica.phase is Phase.READING and replica.to_read:
            self.history.append(("read", step, replica.to_read.pop()))
        elif replica.phase is Phase.READING:
            replica.phase = Phase.WAITING
            self.take(self.gate.commit(step))
        elif replica.to_write:
            self.write(step, replica.to_write.pop())
        else:
            self.finish(replica)
            self.take(self.gate.end(step))
        return True

    def write(self, step: Step, parameter: int) -> None:
        """Record the write; count the others' writes since the step's read by walking back through the history."""
        past = itertools.takewhile(lambda event: event != ("read", step, parameter), reversed(self.history))
        staleness = sum(event[0] == "write" and event[2] == parameter for event in past)
        assert staleness <= self.gate.missed(step)
        self.staleness.append(staleness)
        self.history.append(("write", step, parameter))

    def finish(self, replica: Replica) -> None:
        self.history.append(("end", replica.step))
        replica.phase = None
        replica.step = replica.step._replace(number=replica.step.number + 1)

    def leave(self, trainer: int) -> None:
        for replica in self.replicas:
            if replica.step.trainer == trainer and replica.phase is not None:
                self.finish(replica)
        self.take(self.gate.leave(trainer))

    def forget(self, trainer: int) -> None:
        """Its steps that have not asked to write are over; those that have go on. All of it begins anew behind them."""
        for replica in self.replicas:
            if replica.step.trainer == trainer and replica.phase is not None:
                step, is_over = replica.step, replica.phase is Phase.READING
                assert self.gate.knows(step)
                if is_over:
                    self.finish(replica)
                self.take(self.gate.forget(step))
                assert self.gate.knows(step) != is_over
        assert not self.gate.forget(Step(trainer, 9, 0)), "a step that is not in flight"

    def take(self, grants: list[Grant[Step]]) -> None:
        by_step = {replica.step: replica for replica in self.replicas}
        for grant in grants:
            self.history.append((grant.phase, grant.context))
            by_step[grant.context].phase = grant.phase

    def steps_in(self, *phases: Phase) -> list[Step]:
        """In the order of their begin, as the history has it."""
        steps = {replica.step for replica in self.replicas if replica.phase in phases}
        return [event[1] for event in self.history if event[0] is Phase.READING and event[1] in steps]

    def missed(self, step: Step) -> int:
        """Write phases of others that touch the time since the step's begin, counted in the history."""
        start = self.history.index((Phase.READING, step))
        granted = [i for i, event in enumerate(self.history) if event[0] is Phase.WRITING and event[1] != step]
        ends = {event[1]: i for i, event in enumerate(self.history) if event[0] == "end"}
        return sum(ends.get(self.history[i][1], len(self.history)) > start for i in granted)


def some_order_works(unwritten: list[Step], missed: dict[Step, int], bound: int) -> bool:
    """Whether the steps can be granted one after the other, each ending before the next, none missing over `bound`."""
    orders = itertools.permutations(unwritten)
    return any(all(missed[step] + i <= bound for i, step in enumerate(order)) for order in orders)


class GateMachine(RuleBasedStateMachine):
    @initialize(trainers=st.integers(1, 3), replicas=st.integers(1, 2), seed=st.integers(0, 2**16))
    def start(self, trainers: int, replicas: int, seed: int) -> None:
        self.group = Group(trainers, replicas, StalenessGate, seed)

    @rule(who=st.integers(0, 5), num_actions=st.integers(1, 12))
    def run_one_replica(self, who: int, num_actions: int) -> None:
        replica = self.group.replicas[who % self.group.bound]
        for _ in range(num_actions):
            self.group.advance(replica)

    @rule(fast=st.sets(st.integers(0, 5), min_size=1), num_rounds=st.integers(1, 60))
    def run_some_replicas_beside_stopped_ones(self, fast: set[int], num_rounds: int) -> None:
        for _ in range(num_rounds):
            for i in fast:
                self.group.advance(self.group.replicas[i % self.group.bound])

    @precondition(lambda self: self.group.random.random() < 0.2)
    @rule(trainer=st.integers(0, 2))
    def trainer_leaves_and_another_comes(self, trainer: int) -> None:
        self.group.leave(trainer)

    @rule(trainer=st.integers(0, 2))
    def trainer_is_begun_again(self, trainer: int) -> None:
        self.group.forget(trainer)

    @invariant()
    def no_write_is_staler_than_the_bound(self) -> None:
        assert max(self.group.staleness, default=0) <= self.group.bound

    @invariant()
    def somebody_can_go_on(self) -> None:
        assert any(replica.phase is not Phase.WAITING for replica in self.group.replicas)

    @invariant()
    def what_waits_could_not_have_been_granted(self) -> None:
        group = self.group
        unwritten, writing = group.steps_in(Phase.READING, Phase.WAITING), group.steps_in(Phase.WRITING)
        missed = {step: group.missed(step) for step in unwritten + writing}
        assert some_order_works(unwritten, missed, group.bound)
        for waiting in group.steps_in(Phase.WAITING):
            after = {step: count + (step != waiting) for step, count in missed.items()}
            rest = [step for step in unwritten if step != waiting]
            overfull = any(after[step] > group.bound for step in writing)
            assert overfull or not some_order_works(rest, after, group.bound)

    @invariant()
    def gate_knows_who_waits_and_what_they_missed(self) -> None:
        group = self.group
        assert group.gate.waiting() == group.steps_in(Phase.WAITING)
        for step in group.steps_in(*Phase):
            assert group.gate.missed(step) == group.missed(step)


TestGateHistory = GateMachine.TestCase
TestGateHistory.settings = settings(max_examples=150, stateful_step_count=25, deadline=None, derandomize=True)


def run_with_slow_replica(gate_type: type[StalenessGate[Step]]) -> Group:
    """3 trainers x 2 net replicas, one of them 30 times slower, until 300 steps have ended."""
    group = Group(3, 2, gate_type, seed=7)
    num_ended = 0
    while num_ended < 300:
        replica = group.random.choices(group.replicas, weights=[1, 30, 30, 30, 30, 30])[0]
        before = replica.step.number
        group.advance(replica)
        num_ended += replica.step.number - before
    return group


def test_slow_replica_of_plain_hogwild_exceeds_the_bound() -> None:
    assert max(run_with_slow_replica(OpenDoor).staleness) > 6


def test_slow_replica_behind_the_gate_uses_the_bound_and_keeps_it() -> None:
    assert max(run_with_slow_replica(StalenessGate).staleness) == 6


def test_fast_replica_overtakes_a_slow_one_bound_times_before_it_waits() -> None:
    gate: StalenessGate[Step] = StalenessGate(4)
    slow = Step(0, 0, 0)
    gate.begin(slow)
    for number in range(4):
        fast = Step(1, 0, number)
        gate.begin(fast)
        assert gate.commit(fast) == [Grant(fast, Phase.WRITING)]
        assert gate.end(fast) == []
    fast = Step(1, 0, 4)
    gate.begin(fast)
    assert gate.commit(fast) == []
    assert gate.commit(slow) == [Grant(slow, Phase.WRITING)]
    assert gate.end(slow) == [Grant(fast, Phase.WRITING)]


def test_slow_steps_keep_room_for_each_other() -> None:
    gate: StalenessGate[Step] = StalenessGate(3)
    slow, slower = Step(0, 0, 0), Step(0, 1, 0)
    gate.begin(slow)
    gate.begin(slower)
    for number in range(2):
        fast = Step(1, 0, number)
        gate.begin(fast)
        assert gate.commit(fast) == [Grant(fast, Phase.WRITING)]
        gate.end(fast)
    gate.begin(Step(1, 0, 2))
    assert gate.commit(Step(1, 0, 2)) == []
    gate.commit(slow)
    assert gate.missed(slower) == 3


@settings(max_examples=30, deadline=None, derandomize=True)
@given(num_replicas=st.integers(2, 5), num_gates=st.integers(2, 4), seed=st.integers(0, 2**16))
def test_gates_passed_in_one_order_never_wait_in_a_circle(num_replicas: int, num_gates: int, seed: int) -> None:
    """Each step begins at the gates in an order of its own; all commit in one order and end before the next commit."""
    shuffled = random.Random(seed)
    gates: list[StalenessGate[Step]] = [StalenessGate(num_replicas) for _ in range(num_gates)]
    speeds = [shuffled.choice([1, 20]) for _ in range(num_replicas)]
    steps = [Step(replica, 0, 0) for replica in range(num_replicas)]
    programs: list[list[tuple[str, int]]] = [[] for _ in steps]
    granted = [True] * num_replicas
    for _ in range(600):
        able = [replica for replica in range(num_replicas) if granted[replica]]
        assert able, "all wait"
        now = shuffled.choices(able, weights=[speeds[replica] for replica in able])[0]
        if not programs[now]:
            steps[now] = steps[now]._replace(number=steps[now].number + 1)
            begins = [("begin", gate) for gate in shuffled.sample(range(num_gates), num_gates)]
            programs[now] = begins + [(event, gate) for gate in range(num_gates) for event in ("commit", "end")]
        event, gate = programs[now].pop(0)
        granted[now] = event != "commit"
        for grant in getattr(gates[gate], event)(steps[now]):
            granted[grant.context.trainer] = True


def test_nobody_waits_for_a_step_that_was_forgotten() -> None:
    gate: StalenessGate[Step] = StalenessGate(2)
    gone = Step(0, 0, 0)
    gate.begin(gone)
    for number in range(3):
        step = Step(1, 0, number)
        gate.begin(step)
        granted = gate.commit(step)
        if number < 2:
            assert granted == [Grant(step, Phase.WRITING)]
            gate.end(step)
    assert gate.waiting() == [step]
    assert gate.forget(gone) == [Grant(step, Phase.WRITING)]
    assert gate.forget(step) == []
    assert gate.knows(step)
    assert gate.end(step) == []


def test_waiting_steps_are_granted_oldest_first() -> None:
    gate: StalenessGate[Step] = StalenessGate(3)
    slow, old, young = Step(0, 0, 0), Step(1, 0, 3), Step(2, 0, 0)
    gate.begin(slow)
    for number in range(3):
        gate.begin(Step(1, 0, number))
        gate.commit(Step(1, 0, number))
        gate.end(Step(1, 0, number))
    gate.begin(old)
    gate.begin(young)
    assert gate.commit(young) == []
    assert gate.commit(old) == []
    assert gate.waiting() == [old, young]
    assert gate.leave(slow.trainer) == [Grant(old, Phase.WRITING), Grant(young, Phase.WRITING)]


def test_single_replica_never_waits() -> None:
    gate: StalenessGate[Step] = StalenessGate(1)
    for number in range(5):
        step = Step(0, 0, number)
        assert gate.begin(step) == [Grant(step, Phase.READING)]
        assert gate.commit(step) == [Grant(step, Phase.WRITING)]
        assert gate.missed(step) == 0
        assert gate.end(step) == []


def test_steps_that_begin_while_others_write_may_miss_those_writes() -> None:
    gate: StalenessGate[Step] = StalenessGate(2)
    writer, reader = Step(0, 0, 0), Step(1, 0, 0)
    gate.begin(writer)
    gate.commit(writer)
    gate.begin(reader)
    assert gate.missed(reader) == 1


def test_events_out_of_order_are_bugs_named_with_their_step() -> None:
    gate: StalenessGate[Step] = StalenessGate(1)
    step = Step(0, 0, 0)
    with pytest.raises(AssertionError, match=r"Step\(trainer=0.*\) is not in flight; want reading"):
        gate.commit(step)
    gate.begin(step)
    with pytest.raises(AssertionError, match="begins twice"):
        gate.begin(step)
    with pytest.raises(AssertionError, match="is reading; want writing"):
        gate.end(step)
    with pytest.raises(AssertionError, match="begins beside 1 others, bound 1"):
        gate.begin(Step(0, 1, 0))


def test_bound_below_one_is_refused() -> None:
    with pytest.raises(ClusterError, match="dense staleness bound is 0: want trainers x net replicas, at least 1"):
        StalenessGate(0)
