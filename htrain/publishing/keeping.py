"""Which versions stay: a reader that has just begun with a full version is given the time of another one."""

from collections.abc import Iterable, Sequence

import msgspec

from htrain.errors import PublishError
from htrain.publishing.storage import Absent, Storage
from htrain.publishing.versions import FOLDER, MANIFEST, is_of, number_of, read_version, version_names

_FULL_ONES = 2  # that stay, with all behind them


class Kept(msgspec.Struct, frozen=True):
    """A version that is whole, and what it is based on."""

    name: str
    base: str


def whole_versions(storage: Storage) -> list[Kept]:
    """All versions that are whole, the oldest first. Raises PublishError where the storage cannot be read."""
    found = []
    for name in version_names(storage):
        try:
            found.append(Kept(name, read_version(storage, name).base))
        except PublishError:  # unfinished, or of another format: not ours to judge
            continue
    return found[::-1]


def missing(storage: Storage, name: str) -> str:
    """What is not there, or not as it was written, of a version and all that it is based on, by its name; "" where nothing is. Whoever removes objects at an
    address, by hand or by the store's own rules, asks nobody. Raises PublishError where the storage cannot be read."""
    while name:
        try:
            storage.get(f"{FOLDER}/{name}/{MANIFEST}")
        except Absent:
            return f"{FOLDER}/{name}/{MANIFEST}"
        try:
            version = read_version(storage, name)
        except PublishError:
            return f"{FOLDER}/{name}/{MANIFEST}"
        there = set(storage.names(f"{FOLDER}/{name}"))
        for each in version.objects:
            if each.name not in there:
                return f"{FOLDER}/{name}/{each.name}"
        name = version.base
    return ""


def outdated(versions: Sequence[Kept]) -> list[Kept]:
    """Of versions, the oldest first, those before the second newest full one."""
    full = [place for place, version in enumerate(versions) if not version.base]
    return list(versions[: full[-_FULL_ONES]]) if len(full) >= _FULL_ONES else []


def unfinished(names: Iterable[str], versions: Iterable[Kept], run: str) -> list[str]:
    """Of the names of versions, those that were begun and never finished: by this run before its newest, by others before all that stay."""
    whole = {version.name for version in versions}
    newest = max((number_of(name) for name in whole if is_of(name, run)), default=0)
    oldest = min(map(number_of, whole), default=0)
    return [name for name in names if name not in whole and number_of(name) < (newest if is_of(name, run) else oldest)]


def remove_version(storage: Storage, name: str) -> None:
    """Remove a version: its manifest first, so that half of it never looks whole. Raises PublishError."""
    storage.remove(f"{FOLDER}/{name}/{MANIFEST}")
    for each in storage.names(f"{FOLDER}/{name}"):
        storage.remove(f"{FOLDER}/{name}/{each}")
    storage.remove_folder(f"{FOLDER}/{name}")
