"""A parameter server of any kind, as a machine: passes come in by message, their stages run on shared parameters (HT 3.1.1).

A group PS serves its group's trainers, a sparse PS all trainers, a dense PS the background rounds of every sync net. They differ by their nets alone.

    came      a message is here                    -> Run for each stage that can run, Summon for who is to come to a round
    began     a stage is about to read weights
    wrote     its last op has run, and nobody has heard of it yet          -> Run for steps that may write now
    ran       its messages have left                -> Run for what can run now, Ended for a pass that is over
    hold, release    no step writes weights in between                      -> Run for those that have waited
    forget    a trainer is gone, and will be begun again                    -> Run for steps that had to wait for its own
    comes_back    a holder of weights has been begun again                  -> Summon to rounds that it has not heard of

Who runs what, and when, is the caller's: threads in a run, simulated ones in a simulation. Not thread-safe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from htrain.executor.engine.context import APART, STEPS_OF_AN_INCARNATION, SYNC_REPLICA, Context, first_step
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.engine.stage_keys import ROUND
from htrain.executor.roles.endpoints import endpoint_of, sync_endpoint
from htrain.net.names import Role
from htrain.sync.ordered import InOrder, Rounds
from htrain.sync.rounds import AnswerAll, AppliedRounds, Invite, JointRounds

HAND_OVER_SECONDS = (
    100e-6  # of CPU, to have another thread run a stage: tools/bench/sparse_ps.py --ids 8 with 1 and 2 workers
)
_LATELY_RUNS = 8


class Job(NamedTuple):
    """A stage of a pass, to be run by its engine."""

    engine: Engine
    state: Pass
    stage: Stage


class Run(NamedTuple):
    """Instruction: run this stage. One that `is_short` takes less time than to tell another thread of it."""

    job: Job
    is_short: bool


class Summon(NamedTuple):
    """Instruction: send `endpoint` a message without values, as this context: others have come to its round."""

    endpoint: str
    context: Context


class Ended(NamedTuple):
    """Instruction to whoever counts them: so many passes have ended."""

    passes: int


Instruction = Run | Summon | Ended


@dataclass(frozen=True)
class Centre:
    """What answers the rounds of one holder of weights. `members` are the endpoints of those who play it, one of each group; `engines` one for each, or one
    for all."""

    engines: Sequence[Engine]
    members: Sequence[str]

    def engine_of(self, group: int) -> Engine:
        """The engine that runs the rounds of a group."""
        return self.engines[group % len(self.engines)]

    @property
    def is_joint(self) -> bool:
        """Whether nobody is answered before all have come."""
        return any(ROUND in stage.waits for stage in self.engines[0].program.stages)


class ServerMachine:
    """`engine` runs training passes; `centers` the rounds of sync nets, by holder's number; `apart` what look-ahead caches read and write back.

    `bound` is that of the staleness of its dense weights, 0 for none; `trainers` are those that come to every round of a bulk-synchronous server.

    - `passes` are those under way: a context is there from its first message until its last stage has run.
    - A step is served once: whoever numbers steps has the updates of one acknowledged before it sends those of the next, so the last to end says it all.
    - A request of a cache is served once, in the order of its trainer's steps (`InOrder`); a round of a holder once (`AppliedRounds`).
    - Of a trainer that was begun again alone no step of an earlier incarnation is begun; an update that has asked to write is made, and steps of the next
      incarnation read behind it: the gates know no more steps than trainers have under way.
    """

    def __init__(
        self, engine: Engine, *, centers: Mapping[int, Centre], apart: Engine, bound: int, trainers: int
    ) -> None:
        self.engine, self.centers, self.apart = engine, centers, apart
        self.gates: WriteGates[Job] = WriteGates(engine.program.num_clocks, bound)
        self.passes: dict[Context, tuple[Engine, Pass]] = {}
        self.passes_done = 0
        self._cpu_seconds: dict[Stage, float] = {}  # that a run of a stage takes, lately
        self._has_rounds = any(ROUND in stage.waits for stage in engine.program.stages)
        self._ended: dict[tuple[int, int, int], int] = {}  # the last step that has ended, by who numbers them
        self._first: dict[tuple[int, int], int] = {}  # step of a trainer that was begun again alone
        self._leaving: dict[tuple[int, int], set[Context]] = {}  # steps of its last incarnation that still write
        self._kept: dict[tuple[int, int], list[Job]] = {}  # what waits for these
        self._in_order: InOrder[Job] = InOrder()
        self._pushed: Rounds[tuple[Engine, Pass]] = Rounds(trainers)
        self._rounds: AppliedRounds[str] = AppliedRounds({})
        self._joint = {holder: JointRounds(centre.members) for holder, centre in centers.items() if centre.is_joint}

    def expect(self, cpu_seconds: Mapping[Stage, float]) -> None:
        """So much CPU time stages are known to take, before any has run."""
        self._cpu_seconds.update(cpu_seconds)

    @property
    def serves_caches(self) -> bool:
        """Whether requests change clocks and rows together, and are therefore run by one thread."""
        return any(stage.ends_push for e in (self.engine, self.apart) for stage in e.program.stages)

    def came(
        self, context: Context, source: str, batch_size: int, values: Mapping[str, torch.Tensor]
    ) -> list[Instruction]:
        """A message of a pass, from the endpoint `source`. One that repeats what has been served, or absorbed, changes nothing."""
        instructions: list[Instruction] = []
        ready: list[Stage] = []
        known = self.passes.get(context)
        if known is None:
            if self._is_repeated(context, source):
                return []
            if context.step >= STEPS_OF_AN_INCARNATION:
                instructions = self._came_again(context)
            engine = self._engine_of(context)
            known = self.passes[context] = (engine, engine.begin(context, source, batch_size, {}))
            if context.replica == SYNC_REPLICA and context.trainer in self._joint:
                instructions = self._summoned(self._joint[context.trainer].begun(source, context.step), context)
            ready = engine.start(known[1])
        engine, state = known
        ready += engine.receive(state, values)
        return instructions + self._offered(engine, state, ready) if ready else instructions

    def began(self, job: Job) -> None:
        """The job's stage is about to read."""
        if job.stage.reads and not self._is_gone(job.state.context):
            self.gates.begin(job.stage.reads, job.state.context)

    def holds_back(self, stage: Stage) -> bool:
        """Whether what a stage sends has to wait until `wrote` has been told."""
        return bool(stage.writes) and self.gates.is_bounded

    def wrote(self, job: Job) -> list[Instruction]:
        """The last op of a stage that steps weights has run."""
        context = job.state.context
        granted = self._to_run(self.gates.end(job.stage.writes[0], context))
        return granted + self._left(context) if self._leaving else granted

    def ran(self, job: Job, ready: Sequence[Stage], cpu_seconds: float) -> list[Instruction]:
        """A stage has run, in so much CPU time, and its messages have left; `ready` are the stages that can start now."""
        engine, state, stage = job
        context = state.context
        lately = self._cpu_seconds.get(stage, 0.0)
        self._cpu_seconds[stage] = lately + (cpu_seconds - lately) / _LATELY_RUNS
        instructions = self._offered(engine, state, ready) if ready else []
        if stage.ends_push and self._has_rounds:
            for other_engine, other in self._pushed.arrive(context.step, (engine, state)):
                instructions += self._offered(other_engine, other, other_engine.grant(other, ROUND))
        if context.replica == SYNC_REPLICA and context.trainer in self._joint and engine.waits_for(state, ROUND):
            instructions += self._answered(self._joint[context.trainer].collected(state.source, context.step), context)
        if engine.done(state) and self.passes.pop(context, None) is not None:
            self._has_ended(context)
            self.passes_done += 1
            instructions.append(Ended(self.passes_done))
        elif self._is_gone(context):  # the stage may have begun to read behind `forget`
            instructions += self._to_run(self.gates.forget(context))
        return instructions

    def forget(self, group: int, trainer: int, incarnation: int) -> list[Instruction]:
        """A trainer is gone, and will be begun again as this incarnation: nobody waits for its steps. Those that have asked to write go on to their end."""
        who = group, trainer
        self._first[who] = max(first_step(incarnation), self._first.get(who, 0))
        kept = [job for job in self._kept.pop(who, []) if not self._is_gone(job.state.context)]
        granted: list[Job] = []
        leaving = self._leaving.pop(who, set())
        for context in [context for context in self.passes if self._is_gone(context)]:
            del self.passes[context]
            granted += self.gates.forget(context)
            leaving.add(context)
        if leaving := {context for context in leaving if self.gates.knows(context)}:
            self._leaving[who], self._kept[who] = leaving, kept
        else:
            granted += kept
        return self._to_run(granted)

    def comes_back(self, role: str) -> list[Instruction]:
        """A holder of weights has been begun again alone: it is invited once more to rounds that others have come to."""
        endpoint, (group, _) = sync_endpoint(role), Role.parse(role).place
        found: list[Instruction] = []
        for holder, joint in self._joint.items():
            if endpoint in self.centers[holder].members:
                for invite in joint.comes_back(endpoint):
                    found += self._summoned([invite], Context(group, holder, SYNC_REPLICA, invite.round))
        return found

    def _left(self, context: Context) -> list[Instruction]:
        """A step has written: where it was the last of those that a trainer which is gone had left, the steps of the next incarnation may read."""
        who = context.group, context.trainer
        leaving = self._leaving.get(who)
        if not leaving or context not in leaving or self.gates.knows(context):
            return []
        leaving.remove(context)
        if leaving:
            return []
        del self._leaving[who]
        return self._to_run(self._kept.pop(who, []))

    def _came_again(self, context: Context) -> list[Instruction]:
        """A step of a trainer that was begun again: it may come before the word that the one before is gone."""
        incarnation = context.step // STEPS_OF_AN_INCARNATION
        if first_step(incarnation) <= self._first.get((context.group, context.trainer), 0):
            return []
        return self.forget(context.group, context.trainer, incarnation)

    def _is_gone(self, context: Context) -> bool:
        """Whether it is a step of a trainer that has been begun again since."""
        first = self._first.get((context.group, context.trainer)) if self._first else None
        return first is not None and context.step < first and context.replica != SYNC_REPLICA

    def _is_forgotten(self, job: Job) -> bool:
        """Whether a stage would write for a trainer that was gone before it could ask for that."""
        context = job.state.context
        return self._is_gone(context) and self.gates.is_bounded and not self.gates.knows(context, job.stage.writes[0])

    def hold(self) -> None:
        """Let no pass step weights from now on."""
        self.gates.hold()

    def release(self) -> list[Instruction]:
        """Let passes step weights again."""
        return self._to_run(self.gates.release())

    def destination(self, peer: str, state: Pass) -> str:
        """The endpoint that a pass sends a message for `peer` to."""
        return state.source if state.context.replica == SYNC_REPLICA else endpoint_of(peer, state.context)

    def _engine_of(self, context: Context) -> Engine:
        if context.replica == SYNC_REPLICA:
            return self.centers[context.trainer].engine_of(context.group)
        return self.apart if context.replica in APART else self.engine

    def _is_repeated(self, context: Context, source: str) -> bool:
        """Whether this step has been served, or a holder's round absorbed: it must not be carried out again."""
        if context.replica == SYNC_REPLICA:
            return not self._rounds.admit(source, context.step)
        if self._is_gone(context):
            return True
        numbered_by = _numbered_by(context)
        return context.step <= self._ended.get(numbered_by, -1) or self._in_order.is_past(numbered_by, context.step)

    def _has_ended(self, context: Context) -> None:
        """Its messages, if they come again, are of the past."""
        if context.replica != SYNC_REPLICA:
            numbered_by = _numbered_by(context)
            self._ended[numbered_by] = max(context.step, self._ended.get(numbered_by, -1))

    def _offered(self, engine: Engine, state: Pass, stages: Sequence[Stage]) -> list[Instruction]:
        """Stages that are ready: those that write pass the gate first, requests of caches wait for those before them."""
        jobs: list[Job] = []
        for stage in stages:
            job = Job(engine, state, stage)
            if stage.ends_push and ROUND not in stage.waits:
                jobs += self._in_order.admit(_numbered_by(state.context), state.context.step, job)
            elif stage.writes:
                if not self._is_forgotten(job):
                    jobs += self.gates.commit(stage.writes[0], state.context, job)
            elif stage.reads and (who := (state.context.group, state.context.trainer)) in self._leaving:
                self._kept.setdefault(who, []).append(job)
            else:
                jobs.append(job)
        return self._to_run(jobs)

    def _to_run(self, jobs: Sequence[Job]) -> list[Instruction]:
        return [Run(job, self._cpu_seconds.get(job.stage, 0.0) <= HAND_OVER_SECONDS) for job in jobs]

    def _summoned(self, invitations: Sequence[Invite[str]], context: Context) -> list[Instruction]:
        endpoints = sorted(endpoint for invite in invitations for endpoint in invite.sources)
        return [Summon(endpoint, context) for endpoint in endpoints]

    def _answered(self, answers: Sequence[AnswerAll[str]], context: Context) -> list[Instruction]:
        """All groups have come to a round: go on with its passes."""
        instructions: list[Instruction] = []
        for _ in answers:
            of_round = (context.trainer, SYNC_REPLICA, context.step)
            together = [known for c, known in self.passes.items() if (c.trainer, c.replica, c.step) == of_round]
            for engine, state in together:
                instructions += self._offered(engine, state, engine.grant(state, ROUND))
        return instructions


def _numbered_by(context: Context) -> tuple[int, int, int]:
    """Who numbers the steps of a context."""
    return context.group, context.trainer, context.replica
