"""The part of the launcher's machine that begins roles again while all others go on (docs/decisions/recovery.md)."""

from collections.abc import Collection, Mapping
from typing import Any

from htrain.errors import PeerLost
from htrain.executor.roles.alone import Alone, taken_along
from htrain.executor.roles.coordination import AskWhetherReplaceable, BeginAgain, Ended, Machine, Reach, Tell
from htrain.executor.roles.listening import Listening
from htrain.executor.roles.saving import without_advice
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Failed, Message, Order
from htrain.net.names import GROUP_PS, SPARSE_PS, TRAINER, role_at, role_of
from htrain.plan.plan import Plan


class Replacing(Listening):
    """What a dead role, or a silent one, is followed by: by another process, or else by PeerLost."""

    def __init__(self, plan: Plan, settings: RunSettings, *, tells_of_ends: bool, alone: Alone | None = None) -> None:
        super().__init__(plan, settings, tells_of_ends=tells_of_ends, alone=alone)
        self._trainers = [role for role in self._roles if role_of(role) == TRAINER]
        self._goes_on = False  # whatever becomes of one role: nobody needs it
        self._at_rest = False  # all are: nobody begins
        self._examples_saved = examples_of(settings.positions)  # trained by the whole job at the last checkpoint

    def _is_owed(self, role: str) -> bool:
        """Whether something is waited for that this very process of a role has begun."""
        return False

    def _ended(self, event: Ended) -> Machine[None]:
        """The process of a role has ended by itself: one that nobody has to wait for is begun again. Raises PeerLost otherwise."""
        role = event.what.partition(" ")[0]
        if not event.is_replaceable:
            raise self._lost(event.what)
        if why := self._why_not_without(role):
            raise self._lost(f"{event.what} {why}")
        yield from self._replace(role, event.what)

    def _given_up(self, role: str, what: str) -> Machine[None]:
        """The same of one that is silent, which is ended. Raises PeerLost."""
        is_group_ps = role_of(role) == GROUP_PS  # nobody can say of one that lives whether a round is under way
        if is_group_ps or not self._can_go_on_without(role) or not (yield from self._do(AskWhetherReplaceable(role))):
            yield from super()._given_up(role, what)
        yield from self._replace(role, what)

    def _gave_up(self, message: Message, error: PeerLost) -> Machine[None]:
        """A trainer may have waited just too long for the last steps of one that is away by now, as where that was silent for as long as others wait: it is
        begun again, too. Raises PeerLost otherwise."""
        role = message.source if isinstance(message, Failed) and self._alone.away else ""
        can_go_on = role in self._trainers and self._can_go_on_without(role)
        if not can_go_on or not (yield from self._do(AskWhetherReplaceable(role))):
            yield from super()._gave_up(message, error)
        yield from self._replace(role, without_advice(str(error)))

    def _can_go_on_without(self, role: str) -> bool:
        """Whether nobody waits for what this very process of a role was to do, or those that are taken along, and others may be begun."""
        return not self._why_not_without(role)

    def _why_not_without(self, role: str) -> str:
        """Why nobody can go on without this very process of a role, in words that follow how it ended; "" where they can."""
        together = role, *taken_along(role, self._trainers)
        reasons = {
            "before all trained, or behind their last step": not self._goes_on,
            "while others waited for what it had begun": any(map(self._is_owed, together)),
        }
        if role_of(role) != TRAINER:  # there are weights, or rows, to go on with, and nobody waits for its own
            is_without_rows = role_of(role) == SPARSE_PS and not self._has_rows
            reasons |= {
                "while no checkpoint had the rows that it would go on with": is_without_rows,
                "while a checkpoint was written": self._saves.writing is not None,
                "while all roles were at rest": self._at_rest,
                "while others were begun again": bool(self._alone.away),
            }
        reasons["once more, though it was begun again without a checkpoint in between"] = not self._alone.allows(role)
        return next((why for why, holds in reasons.items() if holds), "")

    @property
    def _has_rows(self) -> bool:
        """Whether the last checkpoint has the rows of each sparse PS as this plan places them. One of another cluster, which it was resumed from, has not."""
        is_of_another = all(self._settings.begin_with) and str(self._saves.last) == self._settings.restore
        return bool(self._saves.last) and not is_of_another

    def _replace(self, role: str, what: str) -> Machine[None]:
        """Begin a role again, with those that are taken along."""
        along = taken_along(role, self._trainers)
        until = self._patience + self._settings.warm_up_seconds + self._save_seconds
        for each in along:
            yield from self._begin_again(each, self._alone.taken(each, self._now, until))
        yield from self._begin_again(role, self._alone.lost(role, self._now, until))
        row = f"{self._alone.told(role)} without a checkpoint between them"
        yield from self._do(Tell(f"{what}; it is begun again, and {self._what_goes_on(role, along)} ({row})"))
        yield from self._bring_back()  # of those who have waited for its answer alone

    def _what_goes_on(self, role: str, along: Collection[str]) -> str:
        if role_of(role) == TRAINER:
            return "the others go on"
        if role_of(role) == GROUP_PS:
            return "the trainers of its group with it: other roles go on, and its weights are as it left them"
        assert self._saves.last
        set_back = self._figures.examples - self._examples_saved
        self._alone.set_back += set_back
        learnt = f"what they had learnt of about {set_back:,} examples"
        return (
            f"trainers with it: other roles go on, and its rows are those of {self._saves.last.name}, without {learnt}"
        )

    def _begin_again(self, role: str, incarnation: int) -> Machine[None]:
        seen = self._seen
        seen.begins_again(role)
        self._figures.begins_again(role)
        if self._saves.writing or self._at_rest:
            seen.saved.setdefault(role, {})  # it keeps nothing; where it stood is known already
            seen.states.setdefault(role, {})
        self._exchanges.begins_again(role)
        self._liveness.heard(role)
        yield from self._give(Order("lost", role=role, incarnation=incarnation))
        checkpoint = str(self._saves.last) if role_of(role) == SPARSE_PS else ""
        yield from self._do(BeginAgain(role, checkpoint))

    def _bring_back(self) -> Machine[None]:
        """Roles that were begun again are told where others are, once they are up; others, where they are, once they can go on. They begin once all know it:
        what they ask for is answered then."""
        seen = self._seen
        for role in self._alone.away:
            own = {endpoint: address for endpoint, address in seen.book.items() if role_at(endpoint) == role}
            if role in seen.known and self._alone.is_to_be_reached(role, seen.known):
                ordered, incarnation = seen.number, self._alone.incarnation(role)
                places = dict(seen.places)
                reach = Reach(role, own, dict(seen.book), places, ordered=ordered, incarnation=incarnation)
                yield from self._do(reach)
            elif role in seen.ready and self._alone.is_to_be_found(role):
                incarnation = self._alone.incarnation(role)
                yield from self._give(Order("found", role=role, incarnation=incarnation, book=own))
                self._alone.found(role, seen.number)
            elif self._alone.can_begin(role, self._roles) and not self._at_rest:
                yield from self._give(Order("start", role=role))
                yield from self._do(Tell(self._told_back(role)))

    def _told_back(self, role: str) -> str:
        told = f"{role} goes on after {self._alone.back(role, self._now):.1f} s"
        if role_of(role) != TRAINER:
            return told
        return f"{told}; batches that it had begun, and trains again: {self._figures.repeated(role)}"


def examples_of(trainers: Mapping[str, Mapping[str, Any]]) -> int:
    """What trainers in these states have trained in all."""
    return sum(int(state["totals"]["examples"]) for state in trainers.values())
