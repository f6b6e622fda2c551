"""The launcher of one try: carries out what its machine says (htrain.executor.launch.coordinator), and has the roles (htrain.executor.launch.pool)."""

from collections.abc import Callable, Sequence
from typing import Any

from fault_histories.going_on import GoingOn
from fault_histories.roles import Role, Try, is_trainer
from fault_histories.rules import Rules
from fault_histories.server import ServerRole
from fault_histories.trainer import TrainerRole
from fault_histories.world import Process, Violation
from htrain.errors import CheckpointError, Error, PeerLost
from htrain.executor.record.saves import Saves
from htrain.executor.roles import coordination as said
from htrain.executor.roles.alone import Alone, can_be_alone
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.roles.limits import is_for_launcher
from htrain.executor.transport.link import LAUNCHER
from htrain.executor.transport.wire import Addresses, Message
from htrain.ops.bundle import Bundle

MOST_RETRIES = 3
_DISK_SECONDS = 0.003  # for a call of checkpoints, in the mean
_LOOK_SECONDS = 0.0005  # that a launcher is late: it waits for whole milliseconds
_LAST_SECONDS = 1.0  # for roles that were told to end


class Launching:
    """One try in the launcher's `process`. `ended` hears of its end: its result, or its error."""

    def __init__(
        self,
        attempt: Try,
        process: Process,
        roles: list[Role],
        rules: Rules,
        ended: Callable[[Any, Error | None], None],
        *,
        tells: bool,
    ) -> None:
        self.attempt, self.roles = attempt, roles
        self.is_over = False
        self._world, self._process, self._rules, self._ended = attempt.world, process, rules, ended
        self._saves = Saves(attempt.settings.run_folder, attempt.case.identity, lambda text: self._note(text))
        self._names = frozenset(attempt.case.plan.cluster.roles)
        self._came: list[Message] = []
        self._lost: dict[str, str] = {}
        self._alone = can_be_alone(attempt.case.plan, attempt.settings) if tells else ()
        self._asked = False
        self._batch: list[said.Event] = []
        self._is_awaiting = False
        self._waits = 0
        attempt.wires.forget_lost(process)
        attempt.wires.listen(LAUNCHER, process, attempt.token, self._hear)
        self._tells = tells
        self._going_on = GoingOn(self._names, most=MOST_RETRIES, has_checkpoint=bool(attempt.settings.restore))
        self._may_be_alone, self._is_needless = (
            "",
            False,
        )  # the PS that has died now, and whether it would be a fault to begin all again for it
        self._given_up: set[Role] = set()  # those whose processes are to end, or have: nobody hears of that
        for role in roles:
            self._watch(role)
        machine = CoordinatorMachine(
            attempt.case.plan, attempt.settings, tells_of_ends=tells, alone=Alone(MOST_RETRIES)
        )
        self._run = machine.run(self._world.now)

    def begin(self) -> None:
        self._advance(lambda: next(self._run))

    def ask(self) -> None:
        """The user asks the run to stop."""
        self._asked = True
        self._call()

    # -- what comes --------------------------------------------------------------------------------------------------

    def _hear(self, message: Message, bundle: Bundle) -> None:
        if not self.is_over and is_for_launcher(message, self._names):
            self._came.append(message)
            self._call()

    def _watch(self, role: Role) -> None:
        role.process.on_end.append(lambda: self._role_ended(role))

    def _role_ended(self, role: Role) -> None:
        """Its process has ended: the launcher hears of it where it has started it."""
        if self._tells and not self._process.dead and role not in self._given_up:
            self._world.soon(self._process, lambda: self._note_end(role), mean=self._world.draw.choice((0.1, 0.005)))

    def _note_end(self, role: Role) -> None:
        if role not in self._given_up:
            self._lost.setdefault(role.name, f"{role.name} (process 7) was killed by signal 9")
            self._call()

    def _call(self) -> None:
        if self._is_awaiting:
            self._is_awaiting = False
            self._waits += 1
            self._world.soon(self._process, self._wake, mean=0.001)

    def _await(self, until: float) -> None:
        self._is_awaiting = True
        if self._came or self._lost or self._asked:
            self._call()
            return
        self._waits += 1
        this = self._waits

        def over() -> None:
            if self._is_awaiting and self._waits == this:
                self._is_awaiting = False
                self._wake()

        self._world.later(max(0.0, until - self._world.now) + _LOOK_SECONDS, self._process, over)

    def _wake(self) -> None:
        """All that has come by now, and that this is all."""
        lost = next(iter(self._lost), "")
        ended = (
            [said.Ended(self._lost[lost], is_replaceable=lost in self._alone and self._left_whole(lost))]
            if lost
            else []
        )
        asked = [said.Asked()] if self._asked else []
        self._batch = [*(said.Came(message) for message in self._came), *ended, *asked, said.Listened()]
        self._came, self._asked = [], False
        self._go_on(self._next())

    def _next(self) -> said.Event:
        event = self._batch.pop(0)
        self._going_on.heard(event)
        role = event.what.partition(" ")[0] if isinstance(event, said.Ended) and event.is_replaceable else ""
        is_ps = bool(role) and not is_trainer(role)
        self._may_be_alone = role if is_ps and self._going_on.may_without(role) else ""
        self._is_needless = (
            is_ps and self._going_on.must_without(role) and not any(each.has_failed for each in self.roles)
        )
        return event

    # -- what is to be done ------------------------------------------------------------------------------------------

    def _go_on(self, answer: Any) -> None:
        self._advance(lambda: self._run.send((self._world.now, answer)))

    def _throw(self, error: Error) -> None:
        self._advance(lambda: self._run.throw(error))

    def _advance(self, ask: Callable[[], said.Instruction]) -> None:
        """To the next instruction that takes time."""
        try:
            while (instruction := ask()) is not None:
                if isinstance(instruction, said.Await) and not self._batch:
                    self._await(instruction.until)
                    return
                if isinstance(instruction, said.Await):
                    answer: Any = self._next()
                elif isinstance(instruction, said.AskWhetherLives):
                    answer = not self._role(instruction.role).process.dead
                elif isinstance(instruction, said.AskWhetherReplaceable):
                    answer = self._is_replaceable(instruction.role)
                elif isinstance(instruction, said.Tell):
                    self._note(instruction.text)
                    answer = None
                elif isinstance(instruction, said.ShowTotals | said.KeepMeasured):
                    answer = None
                else:
                    self._world.soon(self._process, lambda: self._carry_out(instruction), mean=_DISK_SECONDS)
                    return
                ask = lambda answer=answer: self._run.send((self._world.now, answer))  # type: ignore[misc]  # noqa: E731
        except StopIteration as end:
            self._end(end.value, None)
        except Error as error:
            self._end(None, error)

    def _left_whole(self, role: str) -> bool:
        """Whether the dead process of a group PS was in no round; of others this is of no account."""
        kept = getattr(self._role(role), "kept", None)
        return kept is None or kept.is_whole

    def _is_replaceable(self, role: str) -> bool:
        """Whether one that is silent may be ended, and another begun."""
        if not is_trainer(role) and self._going_on.may_without(role):
            self._may_be_alone = role
        return role in self._alone

    def _carry_out(self, instruction: said.Instruction) -> None:
        if isinstance(instruction, said.Connect):
            self._connect(instruction)
        elif isinstance(instruction, said.TellAll):
            self._note(f"tells all to {instruction.order.verb}")
            for role in self.roles:
                self.attempt.wires.offer(
                    self._process, "main", f"{role.name}/control", self.attempt.token, instruction.order
                )
            self._done(instruction, None)
        elif isinstance(instruction, said.BeginAgain):
            self._begin_again(instruction)
            self._done(instruction, None)
        elif isinstance(instruction, said.Reach):
            self.attempt.wires.found(self._process, instruction.role)
            self._send_addresses(
                [instruction.role], Addresses(instruction.book, instruction.ordered, instruction.incarnation)
            )
        else:
            self._done(instruction, self._save(instruction))

    def _done(self, instruction: said.Instruction, answer: Any) -> None:
        self._going_on.does(instruction, answer)
        self._go_on(answer)

    def _connect(self, instruction: said.Connect) -> None:
        self._send_addresses([role.name for role in self.roles], Addresses(instruction.book))

    def _begin_again(self, again: said.BeginAgain) -> None:
        """As a pool does: nothing of the last process of this role is told from now on, also where it ends by itself."""
        self.attempt.wires.lost(self._process, again.role)
        before = self._role(again.role)
        self._given_up.add(before)
        self._lost.pop(again.role, None)
        if not is_trainer(again.role):
            if self._may_be_alone != again.role:
                raise Violation(f"{again.role} is begun again, though others could not go on")
            self._going_on.has_lost(again.role)
            self._is_needless = False
        if before.process.dead:
            self._fork(before, again.checkpoint)
        else:  # a supervisor may be on another host
            seconds = self._world.draw.choice((0.004, 0.2)) * self._world.draw.random()
            self._world.later(seconds, self._process, lambda: self._fork(before, again.checkpoint))

    def _fork(self, before: Role, checkpoint: str) -> None:
        """As a supervisor does: another process of a role, which goes on where the journal says that the last one was, or with the rows of a checkpoint."""
        if self.is_over:
            return
        name, goes_on = before.name, self.attempt.machines.goes_on
        if not before.process.dead:
            self.attempt.wires.leaves(before.process)
        self._world.kill(before.process, "it is begun again")
        word = before.journal.read() if isinstance(before, TrainerRole) else b""
        settings = goes_on(self.attempt.settings, name, before.incarnation + 1, word, checkpoint)
        role: Role
        if isinstance(before, TrainerRole):
            self._rules.begins_again(name, before.open, settings.positions[name].get("open", 0))
            role = TrainerRole(name, self.attempt, settings, before.journal)
        else:
            assert isinstance(before, ServerRole)
            if before.kept:
                self._world.count("group PSs begun again")
            else:
                self._rules.goes_back(name, checkpoint, before.left)
            role = ServerRole(name, self.attempt, settings, before.kept)
        self.roles[self.roles.index(before)] = role
        self._watch(role)

    def _send_addresses(self, roles: Sequence[str], message: Addresses) -> None:
        until = self._world.now
        try:
            for role in roles:
                target = f"{role}/control"
                until = max(until, self.attempt.wires.send(self._process, "main", target, self.attempt.token, message))
        except PeerLost as error:
            self._throw(error)
            return
        self._world.later(until - self._world.now, self._process, lambda: self._go_on(None))

    def _save(self, instruction: said.Instruction) -> Any:
        try:
            if isinstance(instruction, said.OpenCheckpoint):
                opened = self._saves.open(instruction.trainers)
                self._rules.opens(opened)
                return opened
            if isinstance(instruction, said.CloseCheckpoint):
                folder = self._open_folder
                self._saves.close(instruction.trainers, instruction.saved, finished=instruction.finished)
                assert folder
                self._rules.has_closed(folder, finished=instruction.finished)
            elif isinstance(instruction, said.DropCheckpoint):
                self._saves.discard()
            else:
                raise AssertionError(instruction)
        except CheckpointError as error:
            return said.Refused(str(error))
        finally:
            self._rules.check_newest()
        return None

    @property
    def _open_folder(self) -> Any:
        return self._saves._open[0] if self._saves._open else None

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end(self, result: Any, error: Error | None) -> None:
        """Roles that are of no use any more are ended, but for one or the other that is not reached: it goes on for a while beside those of the next try."""
        self.is_over = True
        if isinstance(error, PeerLost):
            needless = self._is_needless and not _comes_of_a_lost_message(error)
            self._rules.fails(error, only_replaced=self._has_only_replaced or needless)
        elif isinstance(error, CheckpointError) and any(role.has_failed and role.incarnation for role in self.roles):
            raise Violation(f"a run ends, though all could begin again: {error}")
        draw, at_once = self._world.draw, isinstance(error, PeerLost)
        for role in self.roles:
            stands_still = role.process.stopped_until > self._world.now
            outlives = error is not None and not self._tells and (stands_still or draw.random() < 0.4)
            seconds = draw.uniform(0, 4) if outlives else 0.0 if at_once else draw.uniform(0, _LAST_SECONDS)
            self._world.later(seconds, None, lambda role=role: self._world.kill(role.process, "its try is over"))  # type: ignore[misc]
        self._ended(result, error)

    @property
    def _has_only_replaced(self) -> bool:
        """Whether nothing has gone wrong in this try but with roles that were begun again; roles that have failed say that something has not."""
        are_there = all(role.has_failed or not role.process.dead for role in self.roles)
        return are_there and not self.attempt.has_others and self._world.trouble_until < self.attempt.began

    def _role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def _note(self, text: str) -> None:
        self._world.note(self._process, "%s", text)


def _comes_of_a_lost_message(error: PeerLost) -> bool:
    """Whether a launcher had missed what a role said before it heard of a death, which it tells of in its place."""
    return isinstance(error.__cause__, PeerLost) and "a message between it and the launcher is lost" in str(
        error.__cause__
    )
