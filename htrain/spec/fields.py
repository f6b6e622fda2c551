"""Fields of the spec: bounds, a sentence and a flag stand on the field; values and texts are checked by them, whoever gives them."""

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Meta, ValidationError

from htrain.decoding import converted

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options

Share = Annotated[float, Meta(ge=0, lt=1)]
Rate = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


@dataclass(frozen=True)
class Section:
    """Fields that answer one question; `kind` tells apart the sections that answer the same question in different ways."""

    kind: ClassVar[str] = ""
    home: ClassVar[str] = ""  # the module of its compile half in htrain.strategies
    runs: ClassVar[bool] = False  # it has a run half, in a module of that name in htrain.executor.strategies

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError where this cannot run on such a cluster, or beside these options."""

    def idle(self, field: str, cluster: "Cluster") -> str:
        """Why a field changes nothing on such a cluster; "" where it does."""
        return ""


Kinds = Mapping[str, type[Section]]  # the sections that answer one question, by kind


@dataclass(frozen=True)
class Question:
    """What stands on a field that holds a section: the question, the kinds of answer (none where there is one way), and how flags begin.

    `words` are the section's name in a sentence.
    """

    sentence: str
    kinds: Kinds | None = None
    prefix: str = ""
    words: str = ""


def about(sentence: str, *, flag: str = "") -> Meta:
    """A sentence on what a field says, to stand in its type.

    `flag` is the name of its flag, without dashes in front, where that is not made of its section and its name.

        from typing import Annotated

        from msgspec import Meta

        import htrain

        Share = Annotated[float, Meta(gt=0, le=1), htrain.about("How far a replica moves to the mean.")]
    """
    return Meta(description=sentence, extra={"flag": flag})


@dataclass(frozen=True)
class Field:
    """A field of a section, with what stands on it. `hint` is its type with its bounds."""

    name: str
    hint: Any
    sentence: str
    flag: str
    default: Any  # REQUIRED where it has none


REQUIRED = object()


def fields_of(section: type) -> Mapping[str, Field]:
    """The fields of a dataclass of the spec by name, those that hold sections aside."""
    return _fields_of(cast(Hashable, section))


@cache
def _fields_of(section: Any) -> Mapping[str, Field]:
    hints = get_type_hints(section, include_extras=True)
    found = {}
    for field in fields(section):
        hint = hints[field.name]
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Meta) and note.description]
        if not notes:
            continue
        default = REQUIRED if field.default is MISSING else field.default
        found[field.name] = Field(
            field.name, hint, notes[-1].description or "", (notes[-1].extra or {})["flag"], default
        )
    return found


def check(value: Any, hint: Any) -> Any:
    """`value` as a field of type `hint` holds it: a whole number as a float where that is wanted, a list as a tuple.

    Raises ValueError, in words for a user, for what the field does not take.
    """
    try:
        found = converted(value, hint)
    except (ValidationError, OverflowError) as error:
        raise ValueError(f"{_shown(value)} is not {wanted(hint)}") from error
    known = table_of(hint)
    numbers = [part for pair in found for part in pair] if is_pairs(hint) else [found]
    if any(isinstance(n, float) and not math.isfinite(n) for n in numbers) or (
        known is not None and found not in known
    ):
        raise ValueError(f"{_shown(value)} is not {wanted(hint)}")
    return found


def parse(text: str, hint: Any) -> Any:
    """The value that a text stands for in a field of type `hint`. Raises ValueError, in words for a user, for a text
    that the field does not take.
    """
    for kind in alternatives(hint):
        base = plain(kind)
        if base is bool and text in ("true", "false"):
            return text == "true"
        if base is int and re.fullmatch(r"-?[0-9]{1,19}", text):
            return check(int(text), hint)
        if base is float and re.fullmatch(
            r"[-+]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})?", text
        ):
            return check(float(text), hint)
        if base is str or (get_origin(base) is Literal and text in get_args(base)):
            return check(text, hint)
    raise ValueError(f"'{text}' is not {wanted(hint)}")


def wanted(hint: Any) -> str:
    """What a field of this type takes, in words: `a whole number of 1 to 100, or auto`."""
    return ", or ".join(_in_words(kind) for kind in alternatives(hint))


def choices(hint: Any) -> tuple[str, ...]:
    """The words that a field takes where it takes nothing else."""
    if known := table_of(hint):
        return tuple(known)
    only, *others = map(plain, alternatives(hint))
    return get_args(only) if not others and get_origin(only) is Literal else ()


def table_of(hint: Any) -> Mapping[str, Any] | None:
    """The words that a field takes and what they stand for, where users may add some."""
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Meta) and note.extra and "choices" in note.extra:
            return cast(Mapping[str, Any], note.extra["choices"])
    return None


def is_pairs(hint: Any) -> bool:
    """Whether a field takes pairs of a text and a value, as a mapping says them."""
    return get_origin(plain(hint)) is tuple


def pair_of(hint: Any) -> str:
    """One pair of a field that takes pairs, as its flag shows it: `TABLE=CAPACITY`."""
    notes = (note.extra or {} for note in hint.__metadata__ if isinstance(note, Meta))
    return next(str(extra["pair"]) for extra in notes if "pair" in extra)


def value_of_pairs(hint: Any) -> Any:
    """The type of the second of each pair in a field that takes pairs."""
    return get_args(get_args(plain(hint))[0])[1]


def parse_in_pair(text: str, hint: Any) -> Any:
    """The value that a text in a pair stands for; the text itself where it stands for none, which `check` then refuses with its pair."""
    try:
        return parse(text, value_of_pairs(hint))
    except ValueError:
        return text


def alternatives(hint: Any) -> Iterator[Any]:
    """The types of a union, one by one, each with what stands on it."""
    bare = plain(hint)
    if get_origin(bare) in (Union, UnionType):
        for kind in get_args(bare):
            yield from alternatives(kind)
    else:
        yield hint


def plain(hint: Any) -> Any:
    """The type in an `Annotated`, without its notes."""
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _in_words(hint: Any) -> str:
    base = plain(hint)
    if known := table_of(hint):
        return _listed(tuple(known))
    notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Meta)]
    for note in notes:
        if note.extra and "wanted" in note.extra:
            return str(note.extra["wanted"])
    if get_origin(base) is Literal:
        return _listed(get_args(base))
    if base is bool:
        return "true or false"
    bounds = {
        name: getattr(note, name)
        for note in notes
        for name in ("ge", "gt", "le", "lt")
        if getattr(note, name) is not None
    }
    if base is int:
        return f"a whole number of {bounds['ge']:,} to {bounds['le']:,}"
    if base is float:
        limits = {"ge": "at least {:g}", "gt": "above {:g}", "le": "at most {:g}", "lt": "below {:g}"}
        return " and ".join(
            ["a finite number", *[limits[name].format(bound) for name, bound in bounds.items()]]
        ).replace(" and ", " ", 1)
    return "pairs of a table and its capacity" if get_origin(base) is tuple else "a text"


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(pair, tuple) for pair in value):
        return f"'{' '.join('='.join(map(str, pair)) for pair in value)}'"
    return f"'{value}'" if isinstance(value, str) else repr(value)
