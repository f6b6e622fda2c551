"""The rates of every setting that was tried, as a file that `htrain compile --rates` takes: the entry of the plan's
own cache is the one it counts with."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from htrain.advising.advice import Advice, Setting, Staleness
from htrain.decoding import from_json
from htrain.errors import DataError, UsageError
from htrain.files import place_to_write, read_file, write_file
from htrain.ops.cache_rates import Rates
from htrain.printable import as_word
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

KEY = "htrain.rates"
VERSION = 1
_HEAD_BYTES = 64
_MOST_BYTES = 1 << 28


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    capacity: str
    policy: str
    window: int
    staleness: Staleness
    rates: Rates

    @property
    def setting(self) -> Setting:
        return Setting(self.capacity, self.policy, self.window, self.staleness)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"version": KEY}):
    version: int
    trainers: int
    batch_size: int
    entries: tuple[_Entry, ...]


def require_writable(path: Path) -> None:
    """Raises DataError where `write_rates` would, before the work is done."""
    _writing(path, lambda: place_to_write(path, _is_ours))


def write_rates(path: Path, advice: Advice) -> None:
    """Write the rates of all candidates: whole, or not at all; an older such file there is replaced, and nothing
    else. Raises DataError."""
    entries = (_Entry(**vars(each.setting), rates=each.rates) for each in advice.candidates)
    made = _File(VERSION, advice.basis.trainers, advice.basis.batch_size, tuple(entries))
    _writing(path, lambda: write_file(path, msgspec.json.encode(made), _is_ours))


def read_rates(path: Path, cluster: Cluster, options: Options) -> Rates:
    """The rates of a file for the cache of these options on this cluster.

    Raises DataError for what is no such file, UsageError where it has none for that cache, or is of other trainers or
    batches.
    """
    known = _read(path)
    trainers = cluster.groups * cluster.trainers
    if (known.trainers, known.batch_size) != (trainers, options.batch_size):
        raise UsageError(
            f"--rates {path}: is of {known.trainers} trainers and batches of {known.batch_size}, the plan has {trainers} and {options.batch_size}: "
            "run htrain advise again with its cluster file"
        )
    values = {entry.setting: entry.rates for entry in known.entries}
    cache: Any = options.cache
    names = ("capacity", "policy", "window", "staleness")
    said: dict[str, Any] = {name: getattr(cache, name, "") for name in names}
    setting = Setting(**said)
    if not cache.hits_as_given or setting not in values:
        shown = ", ".join(f"{name} {value}" for name, value in said.items()) if cache.hits_as_given else "no such kind"
        raise UsageError(
            f"--rates {path}: has none for a cache of {shown}; it has {_tried(values)}: run htrain advise again with those to be tried"
        )
    return values[setting]


def _tried(settings: Iterable[Setting]) -> str:
    known = list(settings)
    names = (("capacities", "capacity"), ("policies", "policy"), ("windows", "window"), ("staleness", "staleness"))
    return ", ".join(
        f"{plural} {' '.join(str(value) for value in dict.fromkeys(getattr(each, name) for each in known))}"
        for plural, name in names
    )


def _read(path: Path) -> _File:
    try:
        known = from_json(read_file(path, most_bytes=_MOST_BYTES), _File)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path}: is no file of rates ({error}): make one with htrain advise --rates {as_word(path)}"
        ) from error
    if known.version != VERSION:
        raise DataError(f"{path}: is of version {known.version}, this htrain reads {VERSION}: run htrain advise again")
    return known


def _writing(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return f'"{KEY}"'.encode() in file.read(_HEAD_BYTES)
