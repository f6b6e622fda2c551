"""What the launcher hears: who is up, who lives, what roles answer, and which of it ends the run (docs/guarantees.md).

A machine: it yields instructions, and is sent the time and what came of each (htrain.executor.roles.coordination).
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from htrain.errors import CheckpointError, Error, Interrupted, PeerLost, error_named
from htrain.executor.record.figures import Figures
from htrain.executor.roles.alone import Alone
from htrain.executor.roles.coordination import (
    Asked,
    AskWhetherLives,
    Await,
    Came,
    Connect,
    Ended,
    Instruction,
    Leaves,
    Listened,
    Machine,
    States,
    Tell,
    TellAll,
    Validated,
    VersionEnded,
)  # fmt: skip
from htrain.executor.roles.saving import SaveSchedule
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Order, Ready, State
from htrain.plan.plan import Plan
from htrain.sync.exchanges import Exchanges
from htrain.sync.liveness import MOST_SECONDS, Liveness, Lost, Silent

_NEWS_SECONDS = 1.0  # for the news of a process's end, once another role misses it
_LONGER_SECONDS = 0.01  # than it may be, a silence has to be
_SAVE_BYTES_PER_SECOND = 10_000_000  # that the slowest disk takes


@dataclass
class Seen:
    """What roles have said of themselves. `states` are their answers, of the kind `wanted`, to the order number `asked`; `number` is that of the last order."""

    book: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    wanted: str = ""
    asked: int = 0
    number: int = 0
    states: States = field(default_factory=dict)
    save: int = 0  # the number of the last order to save
    finished: set[str] = field(default_factory=set)
    saved: States = field(default_factory=dict)  # their shares of the checkpoint that is written
    published: States = field(default_factory=dict)  # of the open version
    unreadable: Error | None = None

    def begins_again(self, role: str) -> None:
        """Nothing is known of a role any more."""
        self.places.pop(role, None)
        self.ready.discard(role)
        self.finished.discard(role)

    @property
    def known(self) -> Collection[str]:
        """The roles that are up."""
        return self.places.keys()


class Listening:
    """The part of the launcher's machine that listens. `tells_of_ends` says whether events tell of processes that end by themselves, `alone` which of these are
    begun again while others go on. Times are seconds of any one clock; how long others are waited for counts only while this machine has listened
    (htrain.sync.liveness).
    """

    def __init__(self, plan: Plan, settings: RunSettings, *, tells_of_ends: bool, alone: Alone | None = None) -> None:
        self._alone = alone or Alone()
        self._roles = plan.cluster.roles
        self._settings = settings
        self._tells_of_ends = tells_of_ends
        largest = max((load.holds.parameters for load in plan.loads.values()), default=0)
        self._save_seconds = largest / _SAVE_BYTES_PER_SECOND  # for the largest role to be written, or read
        self._liveness = Liveness(
            self._roles, limit_seconds=settings.liveness_seconds, warm_up_seconds=settings.warm_up_seconds
        )
        self._exchanges = Exchanges()
        self._figures = Figures(plan)
        self._saves = SaveSchedule(settings)
        self._seen = Seen()
        self._asked = False
        self._takes_orders = False
        self._is_warm = False  # every trainer has done its first step
        self._now = 0.0
        self._heard = 0.0  # when all that had come was heard last
        self._patience = 0.0  # seconds for which it has listened

    def _do(self, instruction: Instruction) -> Machine[Any]:
        """Have something done; what came of it."""
        self._now, answer = yield instruction
        return answer

    def _gather(self) -> Machine[None]:
        seen, seconds = self._seen, self._settings.warm_up_seconds
        yield from self._await_all(lambda: seen.known, "did not come up", seconds)
        self._takes_orders = True
        try:
            yield from self._do(Connect(seen.book, seen.places))
        except PeerLost as error:
            yield from self._missed(error)
        yield from self._await_all(lambda: seen.ready, "did not load its parameters", seconds + self._save_seconds)

    def _await_all(self, known: Callable[[], Collection[str]], what: str, seconds: float) -> Machine[None]:
        """Until all roles are known."""
        end = self._patience + seconds
        while len(known()) < len(self._roles):
            if self._patience >= end:
                missing = set(self._roles).difference(known())
                raise PeerLost(f"{min(missing)} {what} within {seconds:.0f} s")
            yield from self._event(patience=end)
            if self._asked:
                raise Interrupted(f"stopped before training began; {self._saves.advice}")

    def _ask(self, verb: str, answer: str, seconds: float, *, folder: str = "", base: str = "") -> Machine[States]:
        """Give an order to all and wait for everybody's answer. Silence and threads that hang are noticed sooner.

        There is no answer where a role is begun again that was to come to rest.
        """
        self._seen.wanted, self._seen.states = answer, {}
        yield from self._order(verb, folder=folder, base=base)
        self._seen.asked = self._seen.number
        end = self._patience + seconds
        while len(self._seen.states) < len(self._roles):
            if self._patience >= end:
                missing = min(set(self._roles).difference(self._seen.states))
                raise PeerLost(
                    f"{missing} did not answer the order to {verb} within {seconds:.0f} s; {self._saves.advice}"
                )
            yield from self._event(patience=end)
            if self._alone.away and verb == "pause":
                return {}
        return self._seen.states

    def _order(self, verb: str, *, folder: str = "", base: str = "") -> Machine[None]:
        """Give an order to all."""
        yield from self._give(Order(verb, folder, base))

    def _give(self, order: Order) -> Machine[None]:
        """Give it to all, under the next number."""
        self._seen.number = self._exchanges.ordered = order.number = self._seen.number + 1
        yield from self._do(TellAll(order))

    def _event(self, *, until: float = math.inf, patience: float = math.inf) -> Machine[None]:
        """Take what comes, until a time, or until others have been listened to for so many seconds; raise what it says went wrong.

        A longer wait than Liveness counts at once would be in vain.
        """
        silence = min(MOST_SECONDS, self._liveness.seconds_left + _LONGER_SECONDS)
        end = min(until, self._now + patience - self._patience, self._heard + silence)
        event = yield from self._do(Await(max(self._now, end)))
        if isinstance(event, Came):
            yield from self._came(event.message)
        elif isinstance(event, Ended):
            yield from self._ended(event)
        elif isinstance(event, Asked):
            self._asked = True
        elif isinstance(event, Listened):
            yield from self._silence()
        else:
            yield from self._beside(event)

    def _came(self, message: Message) -> Machine[None]:
        """Take what a role has said, and do what was to wait for it; not what comes late of a process in whose place there is another."""
        if getattr(message, "incarnation", 0) != self._alone.incarnation(getattr(message, "source", "")):
            return
        try:
            self._take(message)
        except PeerLost as error:
            yield from self._gave_up(message, error)
        yield from self._heard_of()

    def _gave_up(self, message: Message, error: PeerLost) -> Machine[None]:
        """A role has said that it misses another, or a word of it is missed. Raises PeerLost."""
        yield from self._missed(error)

    def _ended(self, event: Ended) -> Machine[None]:
        """The process of a role has ended by itself. Raises PeerLost."""
        raise self._lost(event.what)
        yield from ()

    def _given_up(self, role: str, what: str) -> Machine[None]:
        """A role has been silent for too long. Raises PeerLost."""
        raise PeerLost(f"{what}; {self._saves.advice}")
        yield from ()

    def _heard_of(self) -> Machine[None]:
        """A message was taken: what is to be done now that was waited for."""
        yield from ()

    def _beside(self, event: Validated | VersionEnded | Leaves) -> Machine[None]:
        """Something that went on beside training has ended, or somebody is to leave."""
        yield from ()

    def _missed(self, error: PeerLost) -> Machine[None]:
        """Whoever misses a role says so at once; who it is that died says more, and is known a moment later. Raises the one or the other."""
        end = self._now + _NEWS_SECONDS
        is_over = not self._tells_of_ends
        while not is_over:
            event = yield from self._do(Await(end))
            if isinstance(event, Ended):
                raise self._lost(event.what) from error
            is_over = isinstance(event, Listened) and self._now >= end
        raise error

    def _lost(self, what: str) -> PeerLost:
        """The error of a role whose process ended."""
        role = what.partition(" ")[0]
        last_step = f" (its last step: {self._figures.last_step(role)})" if role in self._roles else ""
        return PeerLost(f"{what}{last_step}; {self._saves.advice}")

    def _silence(self) -> Machine[None]:
        """All that had come was heard: who has been silent for too long?"""
        passed, self._heard = self._now - self._heard, self._now
        self._patience += min(passed, MOST_SECONDS)
        away = set(self._alone.away)
        for news in self._liveness.listened(passed):
            lives = yield from self._do(AskWhetherLives(news.role))
            if isinstance(news, Silent):
                yield from self._do(Tell(_silent(news, lives=lives)))
            elif news.role in away or news.role not in self._alone.away:  # else it has been taken along with another
                last_step = self._figures.last_step(news.role)
                longer = f"(its last step: {last_step}; --liveness-seconds gives it longer)"
                yield from self._given_up(news.role, f"{_silent(news, lives=lives)} {longer}")
        self._require_heard(min(passed, MOST_SECONDS))
        if late := self._alone.late(self._patience):
            raise self._lost(f"{late} did not come up again within {self._settings.warm_up_seconds:.0f} s")

    def _require_heard(self, seconds: float) -> None:
        """Raises PeerLost where what a role has said, or was told, has been on its way for too long: it is lost."""
        limit = self._settings.deadline_seconds if self._is_warm else self._longest_seconds
        self._exchanges.listened(seconds)
        if lost := self._exchanges.lost(limit):
            raise self._lost_word(lost[0])

    @property
    def _longest_seconds(self) -> float:
        """How long roles have to do what they are told, be they warm or not."""
        return max(self._settings.deadline_seconds, self._settings.warm_up_seconds)

    def _lost_word(self, role: str) -> PeerLost:
        return PeerLost(
            f"{role}: a message between it and the launcher is lost, with the connection that it went by; {self._saves.advice}"
        )

    def _take(self, message: Message) -> None:
        """Keep what a role has said. Raises the failure that it tells of."""
        seen = self._seen
        if isinstance(message, Failed):
            raise self._failure(message)
        if isinstance(message, Hello):
            seen.book.update(message.endpoints)
            seen.places[message.source] = {"host": message.host, "pid": message.pid}
        elif isinstance(message, Ready):
            seen.ready.add(message.source)
            self._figures.report(message.source, message.metrics)
        elif isinstance(message, Beat) and message.metrics:
            self._figures.report(message.source, message.metrics)
        elif isinstance(message, State):
            self._take_next(message)
        if isinstance(message, Beat) and message.said >= 0:
            self._exchanges.reported(message.source, said=message.said, heard=message.heard)
        if isinstance(message, Beat | State | Ready | Hello):
            self._liveness.heard(message.source)

    def _take_next(self, message: State) -> None:
        """Keep what was not heard yet. Raises PeerLost where something that was said before is lost."""
        is_next = self._exchanges.heard(message.source, message.place)
        if is_next is None:
            raise self._lost_word(message.source)
        if is_next:
            self._take_state(message)

    def _take_state(self, message: State) -> None:
        seen = self._seen
        if message.state == "unreadable":
            seen.unreadable = error_named(message.details["kind"], message.details["error"])
        elif message.state == "finished":
            seen.finished.add(message.source)
        elif message.state == "saved":
            if message.number == seen.save:
                seen.saved[message.source] = message.details
        elif message.state == "published":
            seen.published[message.source] = message.details
        elif message.state == "found":
            self._alone.heard(message.source, message.number)
        elif (message.state, message.number) == (seen.wanted, seen.asked):
            seen.states[message.source] = message.details

    def _failure(self, message: Failed) -> Error:
        text = message.error if message.error.startswith(message.source) else f"{message.source}: {message.error}"
        # A checkpoint that one role alone was to go on with: for all, it is looked at anew, and an older one taken where it is damaged.
        cannot_come = isinstance(error_named(message.kind, ""), CheckpointError) and message.source in self._alone.away
        kind = "PeerLost" if cannot_come else message.kind
        advice = f"; {self._saves.advice}" if kind in ("PeerLost", "RunError") else ""
        return error_named(kind, f"{text}{advice}")


def _silent(news: Silent | Lost, *, lives: bool) -> str:
    """In words, that a role may be slow, or gone."""
    return f"{news.role} has been silent for {news.seconds:.0f} s{', though its process lives' if lives else ''}"
