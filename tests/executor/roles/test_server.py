"""A server whose trainer is begun again: what it does about the steps of the one before, message by message."""

from typing import Any

import pytest
from fault_histories.counting import Case, cases
from torch import Tensor

from htrain.executor.engine.context import Context, first_step
from htrain.executor.engine.gate import WriteGates
from htrain.executor.roles.replica import Ahead, AwaitMessage, Orders, ReplicaMachine, RunStage, TakeBatch, train
from htrain.executor.roles.server import Instruction, Job, Run, ServerMachine, Summon
from htrain.executor.roles.sync import RunStage as RunRoundStage
from htrain.executor.transport.wire import bundle_of
from htrain.ops.bundle import Bundle

Sent = tuple[str, Context, int, Bundle]


def bundle(names: tuple[str, ...], tensors: Any) -> Bundle:
    return tensors if isinstance(tensors, Bundle) else bundle_of(names, tensors)


class Serving:
    """The machine of a server; who runs its jobs says when."""

    def __init__(self, case: Case, role: str) -> None:
        self.machine = case.take(role).server(ServerMachine)
        self.answers: list[Sent] = []

    def came(self, sent: Sent, source: str) -> list[Job]:
        _, context, batch_size, values = sent
        return jobs_of(self.machine.came(context, source, batch_size, values))

    def run(self, job: Job) -> list[Job]:
        """Run a job to its end; the jobs that may run then."""
        granted: list[Instruction] = []
        engine, state, stage = job

        def send(peer: str, names: tuple[str, ...], tensors: Any) -> None:
            self.answers.append((peer, state.context, state.batch_size, bundle(names, tensors)))

        self.machine.began(job)
        ended = (lambda: granted.extend(self.machine.wrote(job))) if self.machine.holds_back(stage) else None
        ready = engine.run(state, stage, send, ended=ended)
        return jobs_of([*granted, *self.machine.ran(job, ready, 0.0)])

    def run_all(self, jobs: list[Job]) -> None:
        while jobs:
            jobs += self.run(jobs.pop(0))


def jobs_of(instructions: list[Instruction]) -> list[Job]:
    return [each.job for each in instructions if isinstance(each, Run)]


class Stepping:
    """A trainer that goes as far as it can: what it has sent to the group PS lies here until somebody takes it there."""

    def __init__(self, case: Case, number: int, rows: Serving, incarnation: int = 0) -> None:
        parts, name = case.take(f"trainer:0:{number}"), f"trainer:0:{number}"
        self.endpoint, self.sent = f"{name}/0", list[Sent]()
        self._batches = [case.batch(name, k) for k in range(3)]
        self._rows = rows
        self._heard: list[tuple[Context, Bundle]] = []
        gates: WriteGates[int] = WriteGates(parts.assembly.engine.program.num_clocks, parts.assembly.bound)
        replica = ReplicaMachine(
            (0, number, 0), self.endpoint, parts.assembly.engine, gates, first_step=first_step(incarnation)
        )
        self._steps = train(
            replica, Ahead(replica, parts.assembly.cache_half.announced, parts.flush), Orders(), prefetch=False
        )
        self._said: Any = next(self._steps)
        self.go()

    def hear(self, answers: list[Sent]) -> None:
        """Take what the group PS has answered."""
        while answers:
            _, context, _, values = answers.pop(0)
            self._heard.append((context, values))
        self.go()

    def go(self) -> None:
        while not isinstance(self._said, AwaitMessage) or self._heard:
            self._said = self._steps.send(self._answer())

    def _answer(self) -> Any:
        if isinstance(self._said, TakeBatch):
            return self._batches.pop(0)
        if isinstance(self._said, AwaitMessage):
            return self._heard.pop(0)
        if isinstance(self._said, RunStage):
            step = self._said.step
            return step.engine.run(step.state, self._said.stage, lambda *message: self._send(step.state, *message))
        return None

    def _send(self, state: Any, peer: str, names: tuple[str, ...], tensors: tuple[Tensor, ...] | Bundle) -> None:
        sent = peer, state.context, state.batch_size, bundle(names, tensors)
        if peer.startswith("group_ps"):
            self.sent.append(sent)
            return
        self._rows.run_all(self._rows.came(sent, self.endpoint))
        for _, context, _, values in self._rows.answers:
            self._heard.append((context, values))
        self._rows.answers.clear()


@pytest.fixture(scope="module")
def case() -> Case:
    """Two trainers of a group, of one replica each: two steps may be under way."""
    return cases()[0]


class Group:
    """A group PS, a trainer that will die, and another."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rows = Serving(case, "sparse_ps:0")
        self.server = Serving(case, "group_ps:0:0")
        self.dies, self.lives = (Stepping(case, number, self.rows) for number in range(2))
        for trainer in (self.dies, self.lives):
            self.serve(trainer)

    def serve(self, trainer: Stepping) -> None:
        self.server.run_all(self.server.came(trainer.sent.pop(0), trainer.endpoint))
        trainer.hear(self.server.answers)

    def begin_again(self) -> Stepping:
        assert self.server.machine.forget(0, 0, 1) == []
        return Stepping(self.case, 0, self.rows, incarnation=1)


def test_a_trainer_that_is_begun_again_reads_behind_the_last_write_of_the_one_before(case: Case) -> None:
    group = Group(case)
    (gradients,) = group.server.came(group.dies.sent.pop(0), group.dies.endpoint)
    (write,) = group.server.run(gradients)
    assert write.stage.writes
    again = group.begin_again()
    assert group.server.came(again.sent.pop(0), again.endpoint) == [], "two are under way: one writes, one reads"
    (read,) = group.server.run(write)
    assert (read.state.context, bool(read.stage.reads)) == (Context(0, 0, 0, first_step(1)), True)
    group.server.answers.clear()  # of who is gone
    group.server.run_all([read])
    again.hear(group.server.answers)
    for trainer in (again, group.lives):
        group.serve(trainer)
    assert group.server.machine.passes_done == 2


def test_a_step_whose_trainer_is_gone_before_it_asks_to_write_writes_nothing(case: Case) -> None:
    group = Group(case)
    late = group.dies.sent.pop(0)
    (gradients,) = group.server.came(late, group.dies.endpoint)
    again = group.begin_again()
    assert group.server.run(gradients) == []
    assert group.server.came(late, group.dies.endpoint) == [], "it comes again, and is of nobody"
    group.serve(again)
    for trainer in (again, group.lives):
        group.serve(trainer)
    assert group.server.machine.passes_done == 2
    assert group.server.machine.gates.histogram == {0: 1, 1: 1}


def test_a_word_that_a_trainer_is_gone_which_comes_twice_changes_nothing(case: Case) -> None:
    group = Group(case)
    (gradients,) = group.server.came(group.dies.sent.pop(0), group.dies.endpoint)
    (write,) = group.server.run(gradients)
    again = group.begin_again()
    assert group.server.came(again.sent.pop(0), again.endpoint) == []
    assert group.server.machine.forget(0, 0, 1) == []
    (read,) = group.server.run(write)
    assert read.state.context.step == first_step(1)


def test_a_holder_of_weights_that_was_away_is_invited_once_more_to_the_round_that_others_have_come_to() -> None:
    case = next(each for each in cases() if each.name == "two groups that average")
    centre, holder = Serving(case, "dense_ps:0"), case.take("group_ps:0:0").sync(None)
    assert holder
    holder.steps_done(2)
    round_ = holder.rounds().send(None)
    assert isinstance(round_, RunRoundStage)
    sent: list[Bundle] = []
    holder.engine.run(round_.state, round_.stage, lambda _, names, tensors: sent.append(bundle(names, tensors)))
    context = round_.state.context
    assert Summon("group_ps:1:0/sync", context) in centre.machine.came(context, holder.endpoint, 0, sent[0])
    (again,) = centre.machine.comes_back("group_ps:1:0")
    assert isinstance(again, Summon)
    assert (again.endpoint, again.context.step) == ("group_ps:1:0/sync", context.step)
