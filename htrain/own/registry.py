"""What users have registered: ops and strategies of their own.

A role that runs one has to load the file that registers it. A plan names those that it has, with a digest of their files, and is read only where these
have been loaded: a plan may come from anybody, and runs no code by itself.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import FrameType

from htrain.errors import ModelError, PlanError
from htrain.own.code import import_place


@dataclass(frozen=True)
class Source:
    """The file that registers something: its name, and a digest of its content when it was loaded."""

    file: str
    digest: str


@dataclass(frozen=True)
class Registered:
    """Something of a user's own: its file, and what another process imports, which is that file or the name of a module of a package."""

    path: Path
    place: str
    source: Source


_known: dict[str, Registered] = {}


def file_of(caller: FrameType, what: str) -> Path:
    """The file that calls. Raises ModelError where another process could not load it: the program itself, or none."""
    path = Path(caller.f_code.co_filename)
    is_program = caller.f_globals.get("__name__") == "__main__"
    if is_program or not path.is_file():
        found = "the program itself" if path.is_file() else "none"
        raise ModelError(
            f"{path}: {what}: roles load it from its file, and this is {found}: register it in a file of its own"
        )
    return path


def record(name: str, path: Path, caller: FrameType) -> None:
    """Remember where something comes from."""
    place = str(caller.f_globals["__name__"] if caller.f_globals.get("__package__") else path.resolve())
    _known[name] = Registered(
        path.resolve(), place, Source(path.name, blake2b(path.read_bytes(), digest_size=16).hexdigest())
    )


def path_of(name: str) -> Path | None:
    """The file that has registered a name; None for what is no user's."""
    return _known[name].path if name in _known else None


def sources_of(names: Iterable[str]) -> dict[str, Source]:
    """Those of some names that are users', with their files."""
    return {name: _known[name].source for name in sorted(set(names)) if name in _known}


def require(sources: Mapping[str, Source], where: str, what: str) -> None:
    """Raises PlanError, beginning with `where`, for something that is not loaded, or was loaded from a file with another content."""
    for name, source in sources.items():
        if name not in _known:
            raise PlanError(
                f"{where}: {what} {name} is one of a user's own, of {source.file}: name that file, --ops {source.file} (in Python, import it)"
            )
        if _known[name].source.digest != source.digest:
            raise PlanError(
                f"{where}: {what} {name} was of another {source.file} when the plan was made, {_known[name].path} has changed: compile the model again"
            )


def places_of(names: Iterable[str]) -> tuple[str, ...]:
    """The files, and modules of packages, that have registered these, for another process to load."""
    return tuple(dict.fromkeys(_known[name].place for name in names))


def load_own(places: Iterable[str | Path]) -> None:
    """Run files, or import modules, that register something. What they print goes to standard error: documents alone go to standard output.

    Raises ModelError for one that cannot be loaded, or registers nothing.
    """
    for place in places:
        before = dict(_known)
        with redirect_stdout(sys.stderr):
            import_place(str(place))
        if _known == before and not _known_from(str(place)):
            raise ModelError(
                f"{place}: registers no op and no strategy: call htrain.register(htrain.OpDef(...)) or htrain.register_strategy(...) in it"
            )


def _known_from(place: str) -> bool:
    """Whether a place has been loaded before."""
    found = place if place.endswith(".py") else str(importlib.import_module(place).__file__)
    return any(Path(found).resolve() == one.path for one in _known.values())
