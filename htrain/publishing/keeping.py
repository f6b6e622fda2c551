"""Which versions stay: a reader that has just begun with a full version is given the time of another one.

Runs that publish at one address know of each other by what lies there alone. So a run removes nothing that another may be writing, or may build on, and
nothing that htrain has not written (docs/decisions/publishing.md).
"""

from collections.abc import Mapping, Sequence

import msgspec

from htrain.publishing.storage import Absent, Storage
from htrain.publishing.versions import (
    FOLDER,
    MANIFEST,
    Unreadable,
    absent_objects,
    is_written_here,
    number_of,
    read_version,
    run_of,
    version_names,
)

_FULL_ONES = 2  # that stay, with all behind them
_LIVE_SECONDS = 24 * 3600.0  # since a run has written something: it may go on as long


class Kept(msgspec.Struct, frozen=True):
    """A version that is whole, what it is based on, and when it was written, in seconds of the epoch."""

    name: str
    base: str
    seconds: float


class Begun(msgspec.Struct, frozen=True):
    """A version without a manifest, and when something of it was written last: 0.0 where its store does not tell."""

    name: str
    seconds: float


class Standing(msgspec.Struct, frozen=True):
    """What runs have put at an address, the oldest first: versions that are whole, those that have a manifest which cannot be read, with what is wrong with
    it, and those that have none."""

    whole: Sequence[Kept]
    unreadable: Mapping[str, str]
    begun: Sequence[Begun]


def standing(storage: Storage, known: Mapping[str, Kept]) -> Standing:
    """What lies at an address; `known` versions, which never change, are not read again. Folders in which something lies that no run writes are none of
    ours, unless they have a manifest. Raises PublishError where the storage cannot be read."""
    whole, begun, unreadable = [], [], {}
    for name in reversed(version_names(storage)):
        entries = storage.entries(f"{FOLDER}/{name}")
        if any(entry.name == MANIFEST for entry in entries):
            try:
                whole.append(known.get(name) or _kept(storage, name))
            except Absent:  # removed meanwhile
                continue
            except Unreadable as error:
                unreadable[name] = str(error)
        elif entries and all(map(is_written_here, entries)):
            begun.append(Begun(name, max(entry.seconds for entry in entries)))
    return Standing(whole, unreadable, begun)


def _kept(storage: Storage, name: str) -> Kept:
    version = read_version(storage, name)
    return Kept(name, version.base, version.seconds)


def whole_versions(storage: Storage) -> Sequence[Kept]:
    """All versions that are whole, the oldest first. Raises PublishError where the storage cannot be read."""
    return standing(storage, {}).whole


def newest_number(storage: Storage) -> int:
    """The number of the newest version that a run has written or begun; 0 where there is none. Raises PublishError where the storage cannot be read."""
    for name in version_names(storage):
        entries = storage.entries(f"{FOLDER}/{name}")
        if any(entry.name == MANIFEST for entry in entries) or (entries and all(map(is_written_here, entries))):
            return number_of(name)
    return 0


def missing(storage: Storage, name: str) -> str:
    """What is not there, or not as it was written, of a version and all that it is based on, by its name; "" where nothing is. Whoever removes objects at an
    address, by hand or by the store's own rules, asks nobody. Of an object the size is looked at. Raises PublishError where the storage cannot be read."""
    while name:
        try:
            version = read_version(storage, name)
        except (Absent, Unreadable):
            return f"{FOLDER}/{name}/{MANIFEST}"
        for gone, _ in absent_objects(storage, name, version.objects):
            return f"{FOLDER}/{name}/{gone}"
        name = version.base
    return ""


def outdated(versions: Sequence[Kept], now: float) -> list[Kept]:
    """Of versions, the oldest first, those before the second newest full one which nothing builds on that stays. The newest of each run stays for a day: the
    run may be about to build on it."""
    full = [place for place, version in enumerate(versions) if not version.base]
    if len(full) < _FULL_ONES:
        return []
    newest = {run_of(version.name): version for version in versions}
    live = {version.name for version in newest.values() if now - version.seconds < _LIVE_SECONDS}
    stay = _with_bases(live | {version.name for version in versions[full[-_FULL_ONES] :]}, versions)
    return [version for version in versions if version.name not in stay]


def _with_bases(names: set[str], versions: Sequence[Kept]) -> set[str]:
    """Versions, and all that they build on."""
    base_of = {version.name: version.base for version in versions}
    found = set(names)
    for name in names:
        base = base_of.get(name, "")
        while base and base not in found:
            found.add(base)
            base = base_of.get(base, "")
    return found


def unfinished(found: Standing, run: str, now: float) -> list[str]:
    """The names of versions that were begun and never will be finished: of this run, those before its newest; of others, those before the newest of all, a
    day after anything was written of them."""
    newest = max((number_of(version.name) for version in found.whole), default=0)
    own = max((number_of(version.name) for version in found.whole if run_of(version.name) == run), default=0)

    def is_over(version: Begun) -> bool:
        if run_of(version.name) == run:
            return number_of(version.name) < own
        return number_of(version.name) < newest and 0.0 < version.seconds < now - _LIVE_SECONDS

    return [version.name for version in found.begun if is_over(version)]


def remove_version(storage: Storage, name: str) -> None:
    """Remove what a run has written of a version: its manifest first, so that half of it never looks whole. Raises PublishError."""
    storage.remove(f"{FOLDER}/{name}/{MANIFEST}")
    for entry in storage.entries(f"{FOLDER}/{name}"):
        if is_written_here(entry):
            storage.remove(f"{FOLDER}/{name}/{entry.name}")
    storage.remove_folder(f"{FOLDER}/{name}")


class Keeper:
    """What one run knows of the versions at its address, its own and others'. For one thread at a time; `found` is what lay there at the last look."""

    def __init__(self, storage: Storage, run: str) -> None:
        """Raises PublishError where the storage cannot be read."""
        self._storage, self._run = storage, run
        self.found = standing(storage, {})
        self._told: set[str] = set()  # runs and versions of which it has been told

    def cleaned(self, now: float) -> list[str]:
        """Look, and remove what no reader needs any more; what is to be told of it, each once. Raises PublishError where something cannot be read or removed:
        then it stays."""
        before = self.found
        self.found = standing(self._storage, {version.name: version for version in before.whole})
        for version in outdated(self.found.whole, now):
            remove_version(self._storage, version.name)
        for name in unfinished(self.found, self._run, now):
            remove_version(self._storage, name)
        come = {version.name for version in self.found.whole} - {version.name for version in before.whole}
        return [*self._news_of_runs(sorted(come)), *self._news_of_unreadable()]

    def _news_of_runs(self, names: Sequence[str]) -> list[str]:
        """Of other runs that have published the versions of these `names` since the last look."""
        others = {run_of(name): name for name in names if run_of(name) not in {self._run, *self._told}}
        self._told.update(others)
        return [
            f"another run publishes there, too: version {number_of(name)} is not of this one, and readers take whichever is the newest"
            for name in others.values()
        ]

    def _news_of_unreadable(self) -> list[str]:
        news = [f"it stays, unread: {why}" for name, why in self.found.unreadable.items() if name not in self._told]
        self._told.update(self.found.unreadable)
        return news
