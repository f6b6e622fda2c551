"""Publishing while training: the launcher's part (HT 4.3, docs/how-to/publish.md). Roles write what they have; what makes a version of it is written here."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replaced
from secrets import token_hex
from typing import Any

import msgspec

from htrain.decoding import converted
from htrain.errors import Error, PublishError
from htrain.executor.host.bell import Bell
from htrain.executor.launch.coordinator import NoVersions
from htrain.executor.launch.publish_statistics import statistics_of_groups, with_statistics_of_all
from htrain.executor.record.parameters import centres_at, serves
from htrain.executor.record.pieces import is_models, whole_of
from htrain.executor.roles.coordination import VersionEnded
from htrain.executor.settings import RunSettings
from htrain.net.names import Role
from htrain.net.net import Parameter
from htrain.plan.plan import Plan
from htrain.printable import one_line
from htrain.publishing.keeping import Keeper, missing, newest_number
from htrain.publishing.shares import Held, Publishing
from htrain.publishing.storage import storage_of
from htrain.publishing.versions import (
    FOLDER,
    MOST_NUMBER,
    Object,
    Whole,
    absent_objects,
    new_version,
    number_of,
    read_version,
    version_name,
    write_manifest,
)
from htrain.sizes import memory_text
from htrain.spec.settings import PublishSeconds

_LAST_SECONDS = 5.0  # for what nobody waits for any more
_LIST_SECONDS = 5.0  # for a storage to say what the newest version is, while roles rest


@dataclass(frozen=True)
class Wanted:
    """What a user wants to have published: versions at `address`, "" for none, every `every` seconds or at the end alone, each `full_every`-th with all
    rows."""

    address: str = ""
    every: PublishSeconds = "end"
    full_every: int = 12


def shares_of(plan: Plan) -> dict[str, list[Held]]:
    """What each role has to publish: every part of a weight, statistic or table of the model once, of the centre where groups have one. Where groups step
    together, each publishes the running statistics that it has, behind all else: see `with_statistics_of_all`."""
    pairs = statistics_of_groups(plan)
    statistics = {*pairs, *pairs.values()}
    wanted = {name: p for name, p in plan.train.parameters.items() if is_models(p) and name not in statistics}
    group = -1 if plan.centers else 0
    shares: dict[str, list[Held]] = {role: [] for role in plan.cluster.roles}
    found: set[str] = set()

    def take(role: str, names: Mapping[str, str]) -> None:
        held = _held(plan, role)
        for name in sorted(names.keys() & wanted.keys() - found):
            if names[name] in held:
                found.add(name)
                shares[role].append(_part(names[name], wanted[name]))

    for role in sorted(shares):
        take(role, centres_at(role, plan.centers) if group < 0 else {})
    for role in sorted(role for role in shares if serves(role, group)):
        take(role, {name: name for name in wanted})
    assert found == wanted.keys(), f"nobody publishes {wanted.keys() - found}"
    for role in shares if statistics else ():
        shares[role] += [_part(name, plan.train.parameters[name]) for name in sorted(statistics & _held(plan, role))]
    return shares


def _held(plan: Plan, role: str) -> set[str]:
    """The names of the parameters that a role has."""
    of = Role.parse(role)
    step = plan.step_net(str(of.device))
    names = set(step.parameters) if step else set()
    for name, net in plan.centre_nets().items():
        if name.run_by == of.device and name.host == of.host:
            names |= net.parameters.keys()
    return names


def _part(held: str, parameter: Parameter) -> Held:
    return Held(held, parameter.whole, parameter.kind, parameter.first_row, parameter.first_column)


def wholes_of(plan: Plan) -> dict[str, Whole]:
    """The parameters of a plan as the model has them."""
    parts: dict[str, list[Parameter]] = {}
    for parameter in plan.train.parameters.values():
        if is_models(parameter):
            parts.setdefault(parameter.whole, []).append(parameter)
    wholes = {name: whole_of(name, parts[name]) for name in sorted(parts)}
    return {name: Whole(whole.kind, whole.dtype, tuple(whole.shape)) for name, whole in wholes.items()}


@dataclass(frozen=True)
class _Open:
    """The version under way."""

    name: str
    base: str
    examples: int
    is_final: bool
    began: float


class Versions:
    """The versions of one run. All but `_finish` is for the launcher's thread; a manifest is written by one of its own, which rings the bell."""

    def __init__(self, plan: Plan, wanted: Wanted, *, may_grow: bool = False) -> None:
        """Raises PublishError where the address cannot be listed, written and removed from: before anything is trained. `may_grow`: what was published there
        may have fewer rows than the plan."""
        self._storage = storage_of(wanted.address)
        self._plan, self._full_every = plan, wanted.full_every
        self._wholes = wholes_of(plan)
        self._run = token_hex(4)
        self._keeper = Keeper(self._storage, self._run)
        self._require_same_model(wanted.address, may_grow=may_grow)
        self._number = newest_number(self._storage)
        self._require_numbers(wanted.address)
        self._base = ""
        self._since_full = 0  # deltas
        self._is_base_gone = False
        self._open: _Open | None = None
        self._probe()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._outcome: VersionEnded | None = None

    def _require_same_model(self, address: str, *, may_grow: bool) -> None:
        """Who follows the versions of an address goes from one to the next. Raises PublishError where the last one has other parameters than this model, beside
        rows that came to those of a run which this one began with."""
        if not self._keeper.found.whole:
            return
        last = read_version(self._storage, self._keeper.found.whole[-1].name)
        for name in sorted(last.parameters.keys() | self._wholes.keys()):
            before, now = last.parameters.get(name), self._wholes.get(name)
            if before != now and not (may_grow and before and now and _has_grown(before, now)):
                seen, had = (f"{w.kind} {w.dtype}{list(w.shape)}" if w else "not there" for w in (now, before))
                raise PublishError(
                    f"{address}: its versions are of another model, {last.model}, whose '{name}' is {had}, here {seen}: who follows them would get this one's; "
                    "publish it to an address of its own"
                )

    def _require_numbers(self, address: str) -> None:
        """Raises PublishError where a version has a number behind which there is no room."""
        if self._number >= MOST_NUMBER:
            raise PublishError(
                f"{address}/{FOLDER}: version {self._number} is there, and no run counts as far: remove it, or publish to an address of its own"
            )

    def _probe(self) -> None:
        """Write and remove an object as those of versions are. Raises PublishError."""
        folder = f"{FOLDER}/probe-{self._run}"
        self._storage.put(f"{folder}/probe", b"")
        self._storage.remove(f"{folder}/probe")
        self._storage.remove_folder(folder)

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `news` may have some."""
        return (self._bell.descriptor,)

    def begin(self, examples: int, *, is_final: bool) -> tuple[str, str]:
        """The name of the next version, and of its base, "" for none. Requires: of the one before, `news` has told."""
        assert not self._thread
        self._number = max(self._number, self._newest()) + 1
        self._is_base_gone = False
        is_full = not self._base or self._since_full + 1 >= self._full_every
        base = "" if is_full else self._base
        self._open = _Open(version_name(self._number, self._run), base, examples, is_final, time.monotonic())
        return self._open.name, base

    def _newest(self) -> int:
        """The number of the newest version there, whoever has written it, so that readers find the next one; 0 where the storage does not say it soon: it will
        not take a version, either."""
        found: list[int] = []

        def look() -> None:
            with suppress(PublishError):  # which the version ends with, too
                found.append(newest_number(self._storage))

        thread = threading.Thread(target=look, name="launcher/newest version", daemon=True)
        thread.start()
        thread.join(_LIST_SECONDS)
        return max((number for number in found if number < MOST_NUMBER), default=0)

    def finish(self, published: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin to make a version of what roles have written, or could not."""
        assert self._open
        self._thread = threading.Thread(
            target=self._finish, args=(self._open, dict(published)), name="launcher/publishing", daemon=True
        )
        self._thread.start()

    def news(self) -> VersionEnded | None:
        """How a version ended, once; None where none has."""
        self._bell.mute()
        outcome, self._outcome = self._outcome, None
        if outcome is None or not self._thread or not self._open:
            return None
        self._thread.join()
        self._thread = None
        if not outcome.error:
            self._since_full = self._since_full + 1 if self._open.base else 0
            self._base = self._open.name
        elif not self._open.base or self._is_base_gone:
            self._base = ""
        return outcome

    def close(self) -> None:
        """Abandon what is under way."""
        if self._thread:
            self._thread.join(_LAST_SECONDS)
        self._bell.close()

    # -- in a thread of its own --------------------------------------------------------------------------------------

    def _finish(self, open: _Open, published: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            self._outcome = self._finished(open, published)
        except Error as error:
            self._outcome = VersionEnded("", str(error))
        except BaseException as error:  # somebody waits for an outcome
            self._outcome = VersionEnded("", one_line(f"{type(error).__name__}: {error}"))
        self._bell.ring()

    def _finished(self, open: _Open, published: Mapping[str, Mapping[str, Any]]) -> VersionEnded:
        for role, state in published.items():
            if state.get("error"):
                raise PublishError(f"{role}: {state['error']}")
        if gone := missing(self._storage, open.base):
            self._is_base_gone = True
            raise PublishError(
                f"{self._storage.address}/{gone}: is not there as it was written, and what is published builds on it: the next version has all rows"
            )
        of_roles = [
            [converted(each, Object) for each in published[role].get("objects", ())] for role in sorted(published)
        ]
        for gone, _ in absent_objects(self._storage, open.name, [each for of_role in of_roles for each in of_role]):
            raise PublishError(
                f"{self._storage.address}/{FOLDER}/{open.name}/{gone}: a role has written it, and it is not there: all hosts have to see the same storage, and "
                "nobody may remove what is new"
            )
        objects = with_statistics_of_all(self._storage, open.name, statistics_of_groups(self._plan), of_roles)
        version = new_version(
            open.name,
            open.base,
            model=self._plan.model,
            plan=self._plan.digest,
            examples=open.examples,
            seconds=time.time(),
            is_final=open.is_final,
            parameters=self._wholes,
            objects=tuple(objects),
        )
        write_manifest(self._storage, version)
        kind = f"on top of version {number_of(open.base)}" if open.base else "all rows"
        seconds = time.monotonic() - open.began
        news = f"published version {version.number} at {open.examples:,} examples: {kind}, {memory_text(version.num_bytes)} in {seconds:.1f} s"
        return VersionEnded(news + self._cleaned())

    def _cleaned(self) -> str:
        """Remove what no reader needs any more; what cannot be removed is told, and stays."""
        try:
            return "".join(f"; {news}" for news in self._keeper.cleaned(time.time()))
        except PublishError as error:
            return f"; older ones could not be removed: {error}"


def _has_grown(before: Whole, now: Whole) -> bool:
    """Whether something has more rows now, and is the same else."""
    has_more = bool(before.shape and now.shape) and now.shape[0] > before.shape[0]
    return has_more and now == msgspec.structs.replace(before, shape=(now.shape[0], *before.shape[1:]))


def prepared(
    plan: Plan, settings: RunSettings, wanted: Wanted, *, may_grow: bool = False
) -> tuple[RunSettings, Versions | NoVersions]:
    """The settings and the versions of a run. Raises PublishError for an address where none can be written; see `Versions`."""
    if not wanted.address:
        return settings, NoVersions()
    publishing = Publishing(wanted.address, shares_of(plan))
    versions = Versions(plan, wanted, may_grow=may_grow)
    return replaced(settings, publishing=publishing, publish_seconds=wanted.every), versions
