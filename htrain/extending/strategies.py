"""Strategies of the user's own: a section of the options and its halves, `register_strategy`ed in a file, go the same way as htrain's.

    # halfway.py
    @dataclass(frozen=True)
    class Halfway(htrain.DenseSync):
        kind = "halfway"
        centred = True
        period: Annotated[int, Meta(ge=1, le=1000), htrain.about("Steps of a group between two rounds.")] = 4

    class Compiled(Centred[Halfway]): ...

    htrain.register_strategy(Halfway, compile=Compiled)

`htrain compile ... --ops halfway.py --dense-sync halfway --set dense_sync.period=2` takes it.
"""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from htrain.errors import ModelError
from htrain.executor.strategies.strategy import RunsCache, RunsSync
from htrain.own.registry import file_of, path_of, record
from htrain.spec.cache import CACHES, Cache
from htrain.spec.dense_sync import DENSE_SYNCS, DenseSync
from htrain.spec.fields import Section, check, fields_of, wanted
from htrain.spec.halves import HALVES, Halves
from htrain.spec.sparse_sync import SPARSE_SYNCS, SparseSync
from htrain.spec.tree import flags
from htrain.strategies.strategy import HoldsRows, Strategy

_TABLES: dict[type[Section], tuple[str, dict[str, Any], type[Any], type[Any] | None]] = {
    DenseSync: ("dense_sync", DENSE_SYNCS, Strategy, RunsSync),
    SparseSync: ("sparse_sync", SPARSE_SYNCS, Strategy, None),
    Cache: ("cache", CACHES, HoldsRows, RunsCache),
}


def register_strategy(
    section: type[Section], *, compile: type[Any] | None = None, run: type[Any] | None = None
) -> None:
    """Make a strategy of yours known: `section` is what users say of it, a subclass of DenseSync, SparseSync or Cache; `compile` what it does to a plan
    (a Strategy; of a cache, one that HoldsRows), and `run` what a role does (RunsSync, RunsCache). Without, each is as where nothing is to be done.

    Requires: the caller is a file that can be imported again, as roles do. Raises ModelError for what cannot be a strategy, and a kind that is taken.

        # gently.py
        from dataclasses import dataclass
        from typing import Annotated

        from msgspec import Meta

        import htrain
        from htrain.strategies.model_averaging import Averaged


        @dataclass(frozen=True)
        class Gently(htrain.ModelAveraging):
            kind = "gently"
            alpha: Annotated[float, Meta(gt=0, le=1), htrain.about("How far a replica moves to the mean.")] = 0.1


        htrain.register_strategy(Gently, compile=Averaged)
    """
    caller = sys._getframe(1)
    question = next(
        (name for base, (name, *_) in _TABLES.items() if isinstance(section, type) and issubclass(section, base)), ""
    )
    if not question:
        raise ModelError(
            f"{caller.f_code.co_filename}: register_strategy() takes a subclass of DenseSync, SparseSync or Cache, not {section!r}"
        )
    path = file_of(caller, f"strategy {section.__name__}")
    _, table, strategy, runs = next(entry for base, entry in _TABLES.items() if issubclass(section, base))
    name = f"{question}.{section.kind}"
    for problem in (
        *_problems(section),
        *_half_problems("compile", compile, strategy),
        *_half_problems("run", run, runs),
    ):
        raise ModelError(f"{path}: strategy {section.__name__}: {problem}")
    if section.kind in table and path_of(name) != path.resolve():
        whose = f"{path_of(name)} has registered it" if path_of(name) else "htrain has one"
        raise ModelError(
            f"{path}: strategy {section.__name__}: kind '{section.kind}' of {question}: {whose}: choose another"
        )
    table[section.kind] = section
    HALVES[section] = Halves(compile, run)
    record(name, path, caller)
    flags.cache_clear()


def _problems(section: type[Section]) -> Iterator[str]:
    if not (is_dataclass(section) and "__dataclass_fields__" in vars(section) and section.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        yield "want a frozen dataclass: @dataclass(frozen=True)"
        return
    kind = section.kind
    if not isinstance(kind, str) or not (kind.isidentifier() and kind.isascii() and kind.islower()):
        yield f"kind is {kind!r}, want a word such as 'halfway': small ASCII letters, digits and _"
    try:
        known = fields_of(section)
    except (NameError, TypeError, KeyError) as error:
        yield f"its fields cannot be read ({error}): give each a type, and htrain.about(...) in an Annotated"
        return
    for field in fields(section):
        if field.name not in known:
            yield f"field '{field.name}' has no sentence: Annotated[TYPE, htrain.about('What it says.')]"
        elif field.default is MISSING:
            yield f"field '{field.name}' has no default"
        else:
            yield from _default_problems(field.name, field.default, known[field.name].hint)


def _default_problems(name: str, default: Any, hint: Any) -> Iterator[str]:
    try:
        wanted(hint)
    except KeyError:
        yield f"field '{name}' is a whole number without bounds: Annotated[int, msgspec.Meta(ge=1, le=1000)]"
        return
    try:
        check(default, hint)
    except (ValueError, TypeError) as error:
        yield f"field '{name}': its default {error}"


def _half_problems(what: str, half: type[Any] | None, base: type[Any] | None) -> Iterator[str]:
    if half is None:
        return
    if base is None:
        yield f"{what}: tables have no such half: leave it out"
    elif not (isinstance(half, type) and issubclass(half, base)):
        yield f"{what} is {half!r}, want a subclass of {base.__module__}.{base.__name__}"
    elif missing := sorted(getattr(half, "__abstractmethods__", ())):
        yield f"{what}: {half.__name__} lacks {', '.join(missing)}()"
