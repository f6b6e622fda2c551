"""A run for the launcher's machine alone: roles that are played, a disk that may refuse, a user, and a clock that goes from one event to the next.

What happens when is drawn from a seed. The rules of a run are asserted at every instruction: who breaks one is seen at once, with all that came before.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from played_values import Played, Seen, Troubles

from htrain.errors import Error
from htrain.executor.roles.alone import Alone
from htrain.executor.roles.coordination import (
    Asked,
    AskWhetherLives,
    Await,
    BeginAgain,
    Came,
    CloseCheckpoint,
    CloseVersion,
    Connect,
    DropCheckpoint,
    Ended,
    Event,
    Instruction,
    KeepMeasured,
    Listened,
    OpenCheckpoint,
    OpenVersion,
    Reach,
    Refused,
    ShowTotals,
    Tell,
    TellAll,
    Validate,
    Validated,
    VersionEnded,
)
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Order, Ready, State
from htrain.plan.plan import Plan
from htrain.publishing.shares import Publishing

FOLDER = Path("runs/a")
BEAT_SECONDS = 0.5
BEGIN = 100.0  # on the clock of a run
LONGEST = 1500.0  # of any run here, launchers that sleep apart


class PlayedRun:
    """One run. `train_seconds` is when trainers are at the end of their data, about."""

    def __init__(
        self,
        plan: Plan,
        seed: int,
        troubles: Troubles,
        *,
        train_seconds: float,
        every: Any = "end",
        valid_every: int = 0,
        publish_every: Any = None,
    ) -> None:
        settings = RunSettings(
            FOLDER, "data", FOLDER, deadline_seconds=10, warm_up_seconds=20, liveness_seconds=8, checkpoint_seconds=every, valid_every=valid_every,
            publishing=Publishing("store", {}) if publish_every else None, publish_seconds=publish_every or "end",
            retry="partial" if troubles.partial else "alone",
        )  # fmt: skip
        self.seen = Seen()
        self.now = BEGIN
        self._machine = CoordinatorMachine(
            plan, settings, tells_of_ends=troubles.tells_of_ends, alone=Alone(troubles.replaces)
        )
        self._draw = random.Random(seed)
        self._troubles = troubles
        self._publishes = bool(publish_every)
        self._train_seconds = train_seconds
        self._began = self.now
        self._roles = {name: Played(name) for name in plan.cluster.roles}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._mailbox: list[Message] = []
        self._lost: dict[str, Ended] = {}
        self._asked = False
        self._known: list[Validated | VersionEnded] = []
        self._version: OpenVersion | None = None
        self._shares: dict[str, dict[str, Any]] = {}
        self._batch: list[Event] = []
        self._sleeps = list(troubles.sleeps)
        # What the rules are about:
        self._heard: dict[str, set[str]] = {
            "hello": set(),
            "ready": set(),
            "finished": set(),
        }  # whom the machine has heard say it
        self._outstanding: set[str] = set()  # who has not been heard to answer the last order
        self._verbs: list[str] = []
        self._is_open: Path | None = None
        self._number_of_order = 0
        self._is_closing = False  # the version
        self._saved: dict[str, dict[str, Any]] = {}
        self._save_order = 0
        self._at_rest: dict[str, dict[str, Any]] = {}  # the states of trainers when they were told to save
        self._last_valid = ""  # the folder of the last checkpoint
        self._goes_back = ""  # the sparse PS that is to be begun again, with all trainers
        self._found_by: dict[
            str, int
        ] = {}  # the numbers of the orders that told where roles are which were begun again
        self._known_by: dict[str, set[str]] = {}  # who was heard to know it
        self._plan_troubles()

    # -- the world ---------------------------------------------------------------------------------------------------

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._later, (self.now + seconds, self._number, what))

    def _plan_troubles(self) -> None:
        for role in self._roles.values():
            self._in(self._draw.uniform(0.1, 3), lambda role=role: self._up(role))
        for at, name, what in self._troubles.faults:
            self._in(at, lambda role=self._roles[name], what=what: self._fault(role, what))
        if self._troubles.asks is not None:
            self._in(self._troubles.asks, self._ask)

    def _ask(self) -> None:
        self._asked, self.seen.asked_at = True, self.now

    def _fault(self, role: Played, what: str) -> None:
        reads = role.is_trainer and role.training and not role.finished
        if not role.acts or (what == "unreadable" and not reads):
            return
        if what == "unreadable":
            self._cannot_read(role)
            return
        self.seen.guilty.add(role.name)
        if what == "dies":
            self._die(role)
        elif what == "freezes":
            role.frozen = True
        elif what == "loses":
            role.loses = True
        elif what == "fails":
            self._say(role, Failed(role.name, "RunError", "its thread hangs"))
        else:
            role.mute = what

    def _cannot_read(self, role: Played) -> None:
        error = f"{role.name}: line 7: not a row"
        self._say(role, State(role.name, "unreadable", {"kind": "DataError", "error": error}))
        self._in(0.2, lambda: self._end_of_data(role))

    def _die(self, role: Played) -> None:
        role.dead = True
        if self._troubles.tells_of_ends:
            self._in(self._draw.uniform(0, 0.9), lambda: self._note_end(role))
        is_missed = not (self._troubles.tells_of_ends and self._is_replaceable(role))
        others = [other for other in self._roles.values() if other.acts and other.training and is_missed]
        for other in self._draw.sample(others, self._draw.randint(0, len(others))):
            missed = Failed(other.name, "PeerLost", f"{other.name}: no answer from {role.name}", other.incarnation)
            self._in(self._draw.uniform(0, 0.8), lambda missed=missed: self._mailbox.append(missed))
            if not self._troubles.tells_of_ends:
                self.seen.guilty.add(other.name)

    def _is_replaceable(self, role: Played) -> bool:
        goes_back = self._troubles.partial and role.is_sparse_ps and not self._publishes
        return self._troubles.replaces > 0 and (role.is_trainer or goes_back)

    def _note_end(self, role: Played) -> None:
        if self._roles[role.name] is role:
            what = f"{role.name} (process 7) was killed by signal 9"
            self._lost[role.name] = Ended(what, is_replaceable=self._is_replaceable(role))

    def _say(self, role: Played, message: Message, *, after: float = 0.0) -> None:
        """What a role says comes in the order in which it said it, unless it is gone by then, or its connection lost."""
        message.incarnation = role.incarnation  # type: ignore[union-attr]
        if isinstance(message, State):
            role.said += 1
            message.place = role.said
            lost, role.loses = role.loses, False
            if lost:
                return
        role.spoke = max(self.now + after, role.spoke)
        self._in(role.spoke - self.now, lambda: None if role.dead else self._mailbox.append(message))

    def _delay(self) -> float:
        return self._draw.choice((0.0, self._draw.uniform(0, 0.5), self._draw.uniform(0, 3), self._draw.uniform(0, 15)))

    def _up(self, role: Played) -> None:
        self._beat(role)
        if role.acts and role.mute != "hello":
            endpoints = {f"{role.name}/{what}": f"tcp://{role.name}" for what in ("control", "pulse")}
            self._say(role, Hello(role.name, endpoints, "here", 7), after=self._delay())

    def _beat(self, role: Played) -> None:
        if role.acts:
            role.steps += role.steps_on and self._draw.random() < 0.7
            metrics = role.metrics() if role.name in self._heard["ready"] else {}
            self._mailbox.append(Beat(role.name, metrics, role.said, role.heard, role.incarnation))
            self._in(BEAT_SECONDS, lambda: self._beat(role))

    def _end_of_data(self, role: Played) -> None:
        if role.at_rest:
            role.owes_the_end = True
        elif role.acts and role.training and not role.finished:
            role.finished, role.training = True, False
            self._say(role, Beat(role.name, role.metrics()))
            self._say(role, State(role.name, "finished", role.state()))

    # -- the roles' side of instructions -----------------------------------------------------------------------------

    def _obey(self, role: Played, order: Order) -> None:
        if not role.acts:
            return
        role.heard = order.number
        if role.is_away:
            return
        if role.mute == order.verb:
            return
        if order.verb == "start":
            role.training = True
            if role.mute in ("data", "rows"):
                role.steps = 2 * (role.mute == "rows")
                self._cannot_read(role)
            elif role.is_trainer:
                self._in(self._draw.uniform(0.5, 1) * self._train_seconds, lambda: self._end_of_data(role))
        elif order.verb == "pause":
            self._in(self._delay(), lambda: self._rest(role, order.number))
        elif order.verb == "save":
            self._in(self._delay(), lambda: self._save(role, order.number))
        elif order.verb == "publish":
            assert role.at_rest, f"{role.name} begins a version while it trains"
            self._say(role, State(role.name, "publishing", {}, order.number))
            self._in(self._delay(), lambda: self._publish(role))
        elif order.verb == "resume":
            role.at_rest, role.training = False, not role.finished
            if role.owes_the_end:
                self._end_of_data(role)

    def _rest(self, role: Played, number: int) -> None:
        if role.acts:
            role.steps += role.steps_on and self._draw.random() < 0.5  # of which no beat has told
            role.at_rest, role.training = True, False
            is_twice = not role.loses and self._draw.random() < 0.25  # a message may come twice
            self._say(role, paused := State(role.name, "paused", role.state(), number))
            if is_twice:
                self._in(self._draw.uniform(0, 3), lambda: None if role.dead else self._mailbox.append(paused))

    def _save(self, role: Played, number: int) -> None:
        if role.acts:
            assert role.at_rest, f"{role.name} begins to save while it trains"
            full = self._is_full() and self._draw.random() < 0.5
            of_role = {} if role.is_trainer else {"file": [role.name, 1, "abc"]}
            saved = State(role.name, "saved", {"error": "the disk is full"} if full else of_role, number)
            self._say(role, State(role.name, "saving", {}, number))
            if role.mute != "saved":
                self._in(self._draw.choice((0.0, self._delay())), lambda: self._say(role, saved))

    def _publish(self, role: Played) -> None:
        """At rest or not: its dense weights it has taken."""
        if role.acts:
            answer = (
                {"error": "the storage is away"} if self._is_away() and self._draw.random() < 0.5 else {"objects": []}
            )
            self._say(role, State(role.name, "published", answer))

    def _is_away(self) -> bool:
        begin, end = self._troubles.away
        return begin <= self.now - self._began < end

    def _is_full(self) -> bool:
        begin, end = self._troubles.full
        return begin <= self.now - self._began < end

    # -- carrying out ------------------------------------------------------------------------------------------------

    def play(self) -> Seen:
        """To the end of the run, whatever that is."""
        run = self._machine.run(self.now)
        try:
            instruction = next(run)
            while True:
                self._check(instruction)
                self.seen.log.append((self.now, instruction))
                answer = self._carry_out(instruction)
                instruction = run.send((self.now, answer))
        except StopIteration as end:
            self.seen.result = end.value
        except Error as error:
            self.seen.error = error
        self.seen.seconds = self.now - self._began
        self.seen.examples = sum(8 * role.steps for role in self._roles.values() if role.is_trainer)
        return self.seen

    def _carry_out(self, said: Instruction) -> Any:
        if isinstance(said, Await):
            return self._await(said.until)
        if isinstance(said, AskWhetherLives):
            return not self._roles[said.role].dead
        if isinstance(said, Connect):
            self._verbs.append("connect")
            for role in self._roles.values():
                if role.acts and role.mute != "ready":
                    self._say(role, Ready(role.name, role.metrics()), after=self._delay())
        elif isinstance(said, TellAll):
            self._tell(said.order)
        elif isinstance(said, BeginAgain):
            self._begin_again(said)
        elif isinstance(said, Reach):
            self._reach(said)
        elif isinstance(said, Tell):
            self.seen.told.append(said.text)
        elif isinstance(said, OpenCheckpoint | CloseCheckpoint | DropCheckpoint):
            return self._disk(said)
        elif isinstance(said, Validate):
            self._validate(said)
        elif isinstance(said, OpenVersion):
            self._version, self._shares = said, {}
            return "version", ""
        elif isinstance(said, CloseVersion):
            self._close_version(said)
        return None

    def _begin_again(self, said: BeginAgain) -> None:
        """Another plays the role from what the one before has done; it may die, too, or never come up. A trainer that lives is ended: what it has said before
        may come later."""
        name, before = said.role, self._roles[said.role]
        self._check_again(said, before)
        self._lost.pop(name, None)
        before.frozen = not before.dead
        self._found_by.pop(name, None)
        self._known_by.pop(name, None)
        for heard in self._heard.values():
            heard.discard(name)
        self.seen.begun_again.append(name)
        self._outstanding.discard(name)
        if self._verbs[-1] == "pause":
            self._outstanding = set()  # who was to rest is told again
        role = self._roles[name] = Played(
            name, steps=before.steps, owes_the_end=before.finished, incarnation=before.incarnation + 1, is_away=True
        )
        self._saved.setdefault(name, {})
        self._in(self._draw.uniform(0.1, 3), lambda: self._up(role))
        if self._draw.random() < 0.2:
            self._in(self._draw.uniform(0, 8), lambda: self._fault(role, "dies"))

    def _reach(self, said: Reach) -> None:
        """It is told where others are, and how many orders they had."""
        role = self._roles[said.role]
        assert said.role in self._heard["hello"]
        assert said.ordered >= max((each.heard for each in self._roles.values()), default=0)
        role.heard = said.ordered
        for known in self._known_by.values():
            known.add(role.name)
        if role.acts:
            self._say(role, Ready(role.name, role.metrics()), after=self._delay())

    def _found(self, role: Played) -> None:
        """It may train."""
        assert role.is_away, "it is begun once"
        role.training, role.is_away = True, False
        if not role.is_trainer:
            return
        seconds = 0.0 if role.owes_the_end else self._draw.uniform(0, 0.5) * self._train_seconds
        role.owes_the_end = False
        self._in(seconds, lambda: self._end_of_data(role))

    def _close_version(self, said: CloseVersion) -> None:
        """A thread of the launcher's writes the manifest; the next version may begin once it is told of."""
        away = self._is_away() or any("error" in share for share in said.published.values())
        ended = VersionEnded("", "the storage is away") if away else VersionEnded("published a version")
        version, self._is_closing = self._version, True
        assert version

        def end() -> None:
            self._known.append(ended)
            if away:
                self.seen.unpublished += 1
            else:
                self.seen.versions.append((version.examples, version.is_final, self.now))

        self._in(self._delay(), end)

    def _validate(self, said: Validate) -> None:
        self.seen.validated.append(said.checkpoint)
        is_last = len(self.seen.validated) == self._troubles.ends_at
        known = Validated(self._troubles.stops, self._troubles.fails) if is_last else Validated()
        self._in(self._delay(), lambda: self._known.append(known))

    def _tell(self, order: Order) -> None:
        if order.role:
            self._tell_of(order)
            return
        self._verbs.append(order.verb)
        self._number_of_order = order.number
        if order.verb in ("pause", "save", "publish"):
            self._outstanding = set(self._roles)
        if order.verb == "save":
            self._saved, self._save_order = {}, order.number
            self._at_rest = {name: role.state() for name, role in self._roles.items() if role.is_trainer}
        for role in self._roles.values():
            self._obey(role, order)

    def _tell_of(self, order: Order) -> None:
        """One that is away, or back: all say that they know where it is, and it begins."""
        may_follow = ("start", "resume", "pause", *(("save",) if order.verb != "start" else ()))
        assert self._verbs[-1] in may_follow, f"{order.verb} while all are needed"
        for role in self._roles.values():
            is_gone = role.name == order.role and order.verb == "lost"
            if order.verb == "start" and role.name == order.role and not role.acts:
                role.is_away = False  # it has died meanwhile
            if not role.acts or is_gone:
                continue
            role.heard = order.number
            if order.verb == "found":
                self._found_by[order.role] = order.number
                self._known_by.setdefault(order.role, set())
                self._say(role, State(role.name, "found", {}, order.number), after=self._draw.uniform(0, 0.5))
            elif order.verb == "start" and role.name == order.role:
                self._found(role)

    def _disk(self, said: OpenCheckpoint | CloseCheckpoint | DropCheckpoint) -> Any:
        self.now += self._draw.choice((0.0, self._draw.uniform(0, 2)))
        if isinstance(said, DropCheckpoint):
            self._is_open = None
            self.seen.refusals.append(self.now)
        elif self._is_full() and self._draw.random() < 0.7:
            return Refused("the disk is full")
        elif isinstance(said, OpenCheckpoint):
            self._is_open = FOLDER / f"checkpoint {len(self.seen.folders)}"
            self.seen.folders.append(self._is_open)
            return self._is_open
        else:
            self.seen.valid.append(said)
            self.seen.valid_at.append(self.now)
            self._last_valid, self._is_open = str(self._is_open), None
        return None

    def _await(self, until: float) -> Event:
        if not self._batch:
            self._pass(until)
            came = [Came(message) for message in self._mailbox]
            ended = list(self._lost.values())[:1]
            asked = [Asked()] if self._asked else []
            self.seen.idle_waits += not (came or ended or asked or self._known)
            self._batch = [*came, *ended, *asked, *self._known, Listened()]
            self._mailbox, self._asked, self._known = [], False, []
        event = self._batch.pop(0)
        if isinstance(event, Came):
            self._hear(event.message)
        elif isinstance(event, Validated):
            self.seen.heard_of += 1
        elif isinstance(event, VersionEnded):
            self._version, self._is_closing = None, False
        elif isinstance(event, Asked):
            trainers = {name for name, role in self._roles.items() if role.is_trainer}
            in_training = bool(self._verbs) and self._verbs[-1] in ("start", "resume")
            self.seen.asked_in_training = in_training and not trainers <= self._heard["finished"]
        return event

    def _pass(self, until: float) -> None:
        """Time passes until something has come, or until the machine would wait no longer; a launcher may wake late, or have slept."""
        assert until <= self.now + 1.0, "a wait without an end"
        while not (self._mailbox or self._lost or self._asked or self._known) and self.now < until:
            self._go_to(min(until, self._later[0][0] if self._later else until))
        if self._sleeps and self.now - self._began >= self._sleeps[0]:
            self._sleeps.pop(0)
            self._go_to(self.now + 60)
        elif self._draw.random() < 0.1:
            self._go_to(self.now + self._draw.uniform(0, 0.3))
        assert self.now - self._began < LONGEST + 60 * len(self._troubles.sleeps), "the run does not end"

    def _go_to(self, then: float) -> None:
        while self._later and self._later[0][0] <= then:
            at, _, what = heapq.heappop(self._later)
            self.now = max(self.now, at)
            what()
        self.now = max(self.now, then)

    # -- the rules ---------------------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        role = self._roles[message.source]  # type: ignore[union-attr]
        if message.incarnation != role.incarnation:  # type: ignore[union-attr]
            return
        if isinstance(message, State) and message.state == "found":
            for found, number in self._found_by.items():
                if number == message.number:
                    self._known_by[found].add(message.source)
        self.seen.unreadable |= isinstance(message, State) and message.state == "unreadable"
        if isinstance(message, Hello | Ready):
            self._heard["hello" if isinstance(message, Hello) else "ready"].add(message.source)
        if isinstance(message, State) and message.state == "finished":
            self._heard["finished"].add(message.source)
        if isinstance(message, State) and message.state == "published":
            self._shares[message.source] = message.details
        if isinstance(message, State) and (message.state, message.number) == ("saved", self._save_order):
            self._saved[message.source] = message.details
        answer = {"pause": "paused", "save": "saving", "publish": "publishing"}.get(
            self._verbs[-1] if self._verbs else ""
        )
        if isinstance(message, State) and (message.state, message.number) == (answer, self._number_of_order):
            self._outstanding.discard(message.source)

    def _check(self, said: Instruction) -> None:
        """That this instruction may come now."""
        assert "abort" not in self._verbs, "an instruction after the order to abort"
        if isinstance(said, Connect):
            assert self._heard["hello"] == set(self._roles)
            assert not self._verbs
        elif isinstance(said, TellAll):
            self._check_order(said.order)
        elif isinstance(said, OpenCheckpoint):
            assert self._verbs[-1] == "pause"
            assert not self._outstanding
            assert self._is_open is None, "two checkpoints at a time"
        elif isinstance(said, CloseCheckpoint):
            self._check_close(said)
        elif isinstance(said, Validate):
            assert said.checkpoint == self.seen.folders[-1]
            assert self._is_open is None
            assert len(self.seen.validated) == self.seen.heard_of, "two validations at a time"
        elif isinstance(said, OpenVersion):
            assert self._version is None, "two versions at a time"
            assert self._verbs[-1] in (("save", "publish") if said.is_final else ("pause",))
            assert not self._outstanding
            assert all(role.at_rest for role in self._roles.values() if role.acts), (
                "a version is begun between two steps"
            )
            assert said.examples == sum(8 * role.steps for role in self._roles.values() if role.is_trainer)
        elif isinstance(said, CloseVersion):
            assert self._version
            assert not self._is_closing, "closed twice"
            assert said.published == self._shares
            assert set(said.published) == set(self._roles), "closed, though not all have written"
        elif isinstance(said, KeepMeasured):
            assert self._verbs[-1] == "stop"
        elif isinstance(said, ShowTotals):
            assert "start" in self._verbs

    def _check_again(self, said: BeginAgain, before: Played) -> None:
        """That this role may be begun again now."""
        assert not before.is_away
        if before.is_trainer:
            assert before.dead or self._goes_back, f"{said.role} lives, and is begun again"
            assert not said.checkpoint
            return
        assert before.dead
        assert before.is_sparse_ps
        assert said.checkpoint == self._last_valid != ""
        assert self._is_open is None, "a sparse PS goes back while a checkpoint is written"
        assert all(role.is_away for role in self._roles.values() if role.is_trainer), (
            "trainers are begun again before it"
        )
        self._goes_back = ""

    def _check_order_of(self, order: Order) -> None:
        """That a role which is away, or back, may be told of now."""
        role = self._roles[order.role]
        assert role.is_trainer or (self._troubles.partial and role.is_sparse_ps)
        assert order.incarnation == {"lost": role.incarnation + 1, "found": role.incarnation, "start": 0}[order.verb]
        if order.verb == "lost":
            dead_servers = [each.name for each in self._roles.values() if each.dead and each.is_sparse_ps]
            self._goes_back = dead_servers[0] if dead_servers and self._troubles.partial else ""
        away = [each for each in self._roles.values() if each.is_away]
        if order.verb == "start" and any(not each.is_trainer for each in away):
            for each in away:
                assert self._known_by.get(each.name, set()) >= set(self._roles), f"not all know where {each.name} is"

    def _check_order(self, order: Order) -> None:
        if order.role:
            self._check_order_of(order)
            return
        before = self._verbs[-1] if self._verbs else ""
        may_follow: dict[str, Sequence[str]] = {
            "start": ("connect",), "pause": ("start", "resume", "pause", "save"), "save": ("pause",), "resume": ("pause", "save", "publish"),
            "publish": ("pause", "save", "publish"), "stop": ("save", "publish"), "abort": ("connect", "start", "pause", "save", "resume", "publish"),
        }  # fmt: skip
        assert before in may_follow[order.verb], f"{order.verb} after {before}"
        if order.verb != "abort":
            assert not self._outstanding, f"{order.verb}, though {self._outstanding} have not answered {before}"
        if order.verb == "start":
            assert self._heard["ready"] == set(self._roles), "started before all are ready"
        if order.verb == "save":
            assert order.folder == str(self._is_open)
        if order.verb == "stop":
            assert self._is_open is None, "a checkpoint is left open"

    def _check_close(self, said: CloseCheckpoint) -> None:
        assert self._is_open
        assert set(said.saved) == set(self._roles), "closed, though not all have saved"
        assert said.saved == self._saved
        assert not any("error" in state for state in said.saved.values()), "closed, though a role could not save"
        assert said.trainers == self._at_rest, "of another moment than what roles have saved"
        trainers = [role for role in self._roles.values() if role.is_trainer]
        assert not said.finished or all(role.finished and role.at_rest for role in trainers)
