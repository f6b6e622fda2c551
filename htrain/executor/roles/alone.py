"""Roles that are begun again by themselves while all others go on; decided without a clock (docs/decisions/recovery.md).

A trainer of a plan that keeps nothing there, no weights, no rows and no round of others that waits for it, can be lost and replaced: what is lost of it are
the batches that it had begun. So can a group PS, whose weights are in memory that outlives its process (htrain.executor.host.parameter_memory), with the
trainers of its group, and nothing of it is lost. So can a sparse PS, with the rows of the last checkpoint, where that is asked for (CPR's partial recovery):
what is lost is what its rows have learnt since; all such trainers are begun again with it, as their steps ask every sparse PS. Which of a plan's roles are
such says `can_be_alone`.
"""

import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import msgspec

from htrain.executor.settings import RunSettings
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, TRAINER, WORKERS, Role, device_of, role_of
from htrain.ops import OPS
from htrain.ops.base import keeps_nothing
from htrain.plan.plan import Plan
from htrain.spec.footprint import MOST_COPIED_BYTES


def can_be_alone(plan: Plan, settings: RunSettings) -> tuple[str, ...]:
    """The roles that may be begun again alone: from the batches that they had not trained, with the weights that they had, or with the rows of a checkpoint."""
    if settings.retry == "whole" or _why_together(plan, settings):
        return ()
    kinds = [TRAINER]
    kinds += [SPARSE_PS] if settings.retry == "partial" and not why_not_partial(plan, settings) else []
    keep = {device for device in plan.cluster.devices if _keeps_its_weights(plan, device)}
    return tuple(role for role in plan.cluster.roles if role_of(role) in kinds or device_of(role) in keep)


def _keeps_its_weights(plan: Plan, device: str) -> bool:
    """Whether what roles of a device hold is left to their next processes: the weights of group PSs, where they are few enough for a checkpoint to copy them
    aside, and they hold no share of the centres, whose rounds others are in, and nothing beside their parameters."""
    if role_of(device) != GROUP_PS or sys.platform != "linux":
        return False
    nets = plan.net_of(device), plan.sync_net(device)
    parameters = {name: p for net in nets if net for name, p in net.parameters.items()}.values()
    rows = any(p.kind == "table" for p in parameters)
    elsewhere = any(OPS[op.type].keeps is not keeps_nothing for net in nets if net for op in net.ops)
    hosts = {role_of(host) for host in plan.centers.values()}
    return (
        not rows and not elsewhere and hosts <= {DENSE_PS} and sum(p.num_bytes for p in parameters) <= MOST_COPIED_BYTES
    )


def why_not_partial(plan: Plan, settings: RunSettings) -> str:
    """Why sparse PSs of a plan are never begun again alone, in words; "" where they may be."""
    # A version says which rows have changed since the last: who is begun again does not know.
    publishes = "the run publishes versions" if settings.publishing else ""
    return publishes or _why_together(plan, settings) or _why_no_rows(settings)


def _why_no_rows(settings: RunSettings) -> str:
    """Why there is no checkpoint in a run, before its end, whose rows a sparse PS could go on with; "" where there is."""
    has_one = settings.restore and not all(settings.begin_with)
    makes_any = settings.checkpoint_seconds != "end" or settings.valid_every
    return "" if has_one or makes_any else "no checkpoint is made before the end"


def _why_together(plan: Plan, settings: RunSettings) -> str:
    """Why all roles of a plan are begun again together, in words; "" where not all have to be."""
    options, cluster = plan.options, plan.cluster
    steps_together = options.dense_sync.lockstep or options.sparse_sync.lockstep or plan.step_net(WORKERS) is not None
    holds_rows = options.holder.holds_rows or plan.flush_net() is not None
    reasons = {
        "the run is deterministic, or stops after a step": settings.deterministic
        or settings.stop_after_steps is not None,
        "it has no trainers": settings.serving is not None,
        "trainers step together": steps_together,
        "trainers keep rows": holds_rows,
        "trainers keep weights, as without group PSs": plan.loads[TRAINER].holds.parameters > 0,
        "roles share processes": any(len(roles) > 1 for roles in plan.processes),
        "sparse PSs have several processes": cluster.sparse_ps_processes > 1,  # which hear no orders
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def taken_along(role: str, roles: Collection[str]) -> tuple[str, ...]:
    """Those of `roles` that are begun again with a role: the trainers that ask it, of a group PS those of its group."""
    if role_of(role) == TRAINER:
        return ()
    trainers = [each for each in roles if role_of(each) == TRAINER]
    group = Role.parse(role).group
    return tuple(each for each in trainers if group is None or Role.parse(each).group == group)


def gone_on_alone(settings: RunSettings, role: str, incarnation: int, word: bytes, checkpoint: str) -> RunSettings:
    """Those of a process of this role that goes on where its last one was, by the last `word` of a journal (`Handed.word`), b"" for none. Parameters are those
    of a `checkpoint`; a trainer has none."""
    state = msgspec.msgpack.decode(word) if word else settings.positions.get(role, {})
    own = {role: {**state, "incarnation": incarnation}}
    return replace(settings, positions={**settings.positions, **own}, restore=checkpoint, begin_with=("", ""))


class Alone:
    """Those that are away. Each may be lost `most` times without a checkpoint between them; to be taken along is not to be lost."""

    def __init__(self, most: int = 0) -> None:
        self.count = 0  # of all that were lost, and begun again
        self.set_back = 0  # examples of which rows have lost what they had learnt, in all
        self._in_a_row: Counter[str] = Counter()
        self._most = most
        self._away: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._reached: set[str] = set()
        self._found: dict[str, int] = {}  # the number of the order by which all are told where it is
        self._know: dict[str, set[str]] = {}  # who has carried that out
        self._incarnations: Counter[str] = Counter()

    @property
    def away(self) -> Collection[str]:
        """Those that are lost, and not back yet."""
        return tuple(self._away)

    def allows(self, role: str) -> bool:
        """Whether a role that is lost may be begun again alone: it comes back, and is not lost over and over."""
        return role not in self._away and self._in_a_row[role] < self._most

    def lost(self, role: str, now: float, until: float) -> int:
        """A role is begun again, and has until then to be back: as which incarnation. Requires: it is allowed."""
        self._in_a_row[role] += 1
        self.count += 1
        return self.taken(role, now, until)

    def taken(self, role: str, now: float, until: float) -> int:
        """The same of one that was taken along."""
        self._away[role], self._since[role] = until, now
        self._incarnations[role] += 1
        return self._incarnations[role]

    def incarnation(self, role: str) -> int:
        """How often a role was begun again: what an earlier process of it has said may come late."""
        return self._incarnations[role]

    def is_to_be_reached(self, role: str, known: Collection[str]) -> bool:
        """Whether a role, which is up, is to be told where all others are; once. Those that it asks are `known` by then."""
        if role not in self._away or role in self._reached or not set(self._servers).issubset(known):
            return False
        self._reached.add(role)
        for know in self._know.values():  # it hears of those that were found before, too
            know.add(role)
        return True

    def is_to_be_found(self, role: str) -> bool:
        """Whether others are to be told where a role is, which holds what it needs; until `found`."""
        return role in self._away and role not in self._found

    def found(self, role: str, number: int) -> None:
        """All were given the order of this number, which tells where a role is."""
        self._found[role], self._know[role] = number, set()

    def heard(self, source: str, number: int) -> None:
        """One of them has carried that order out."""
        for role, given in self._found.items():
            if given == number:
                self._know[role].add(source)

    def can_begin(self, role: str, roles: Collection[str]) -> bool:
        """Whether all of `roles` but those that are away, which will be told when they are up, know where a role is: what it asks for is answered there.
        Those that are begun again with a server begin once that is there, and knows them all."""
        if self._servers:
            return all(each in self._found and self._know[each].issuperset(roles) for each in self._away)
        return role in self._found and self._know[role].issuperset(set(roles).difference(self._away))

    @property
    def _servers(self) -> Collection[str]:
        """Those that are away and are asked by others that are."""
        return [role for role in self._away if role_of(role) != TRAINER]

    def back(self, role: str, now: float) -> float:
        """A role goes on: after how many seconds."""
        del self._away[role], self._found[role], self._know[role]
        self._reached.discard(role)
        return now - self._since.pop(role)

    def late(self, now: float) -> str:
        """A role that is not back in its time; "" where there is none."""
        return min((role for role, until in self._away.items() if now >= until), default="")

    def saved(self) -> None:
        """There is a checkpoint behind all that was lost."""
        self._in_a_row.clear()

    def told(self, role: str) -> str:
        """Of how many times a role may be lost, this is the so manieth."""
        return f"{self._in_a_row[role]} of {self._most}"
