"""The tree of options, walked: as a document, as flags, and back; every value is checked by what stands on its field."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, get_type_hints

from htrain.errors import UsageError
from htrain.spec.fields import REQUIRED, Field, Kinds, Question, Section, check, fields_of, table_of
from htrain.spec.options import Options

KIND = "kind"


@cache
def questions() -> Mapping[str, Question]:
    """The fields of Options that hold sections, with what they ask."""
    hints = get_type_hints(Options, include_extras=True)
    noted = {f.name: getattr(hints[f.name], "__metadata__", ()) for f in fields(Options)}
    return {name: note for name, notes in noted.items() for note in notes if isinstance(note, Question)}


def sections_of(name: str) -> tuple[type[Section], ...]:
    """The sections that a field of Options may hold."""
    kinds = questions()[name].kinds
    return tuple(kinds.values()) if kinds else (type(getattr(Options(), name)),)


@dataclass(frozen=True)
class Flag:
    """A flag, without dashes in front. It chooses the kind of a section, or is about a field of it, which several kinds may have, each in its own
    way: `fields` by kind. Without a section it is about a field of Options itself."""

    name: str
    section: str
    fields: Mapping[str, Field]

    @property
    def chooses_kind(self) -> bool:
        """Whether it chooses the kind of its section."""
        return not self.fields

    def field_of(self, options: Options) -> Field | None:
        """The field that it is about in these options; None where their section is of a kind without it."""
        return self.fields.get(getattr(options, self.section).kind if self.section else "")


@cache
def flags() -> Mapping[str, Flag]:
    """Every flag of the tree by its name as Python writes it: `sync_period`."""
    found: dict[str, Flag] = {}
    for field in fields(Options):
        if field.name not in questions():
            own = fields_of(Options)[field.name]
            found[_flag_of_own(own)] = Flag(_flag_of_own(own), "", {"": own})
            continue
        if questions()[field.name].kinds:
            found[field.name] = Flag(field.name, field.name, {})
        for section in sections_of(field.name):
            for entry in fields_of(section).values():
                name = flag_of(field.name, entry)
                found[name] = Flag(
                    name, field.name, {**(found[name].fields if name in found else {}), section.kind: entry}
                )
    return found


def flag_at(place: str) -> Flag | None:
    """The flag of a place such as `dense_sync.period`, whichever kind has it."""
    section, _, field = place.partition(".")
    return next(
        (
            flag
            for flag in flags().values()
            if flag.section == section and any(one.name == field for one in flag.fields.values())
        ),
        None,
    )


def kinds_of(options: Options) -> list[str]:
    """What users may have registered of what the options say: the kinds of the sections that have some, `dense_sync.easgd`, and words such as
    `cache.policy.lru`."""
    kinds = [f"{name}.{getattr(options, name).kind}" for name, question in questions().items() if question.kinds]
    sections = {name: getattr(options, name) for name in questions()}
    open_fields = [
        (name, field)
        for name, section in sections.items()
        for field, entry in fields_of(type(section)).items()
        if table_of(entry.hint)
    ]
    return [*kinds, *(f"{name}.{field}.{getattr(sections[name], field)}" for name, field in open_fields)]


def dashed(flag: str) -> str:
    """A flag as it is written on the command line: `--sync-period` for `sync_period`."""
    return "--" + flag.replace("_", "-")


def flag_of(section: str, field: Field) -> str:
    """The flag of a section's field, as Python writes it."""
    prefix = questions()[section].prefix
    return (field.flag or (f"{prefix}-{field.name}" if prefix else field.name)).replace("-", "_")


def _flag_of_own(field: Field) -> str:
    """The flag of a field of Options itself."""
    return field.flag or field.name


def flat(options: Options) -> dict[str, Any]:
    """What the options say, flag by flag: `sync_period` is there where dense sync has a period."""
    found: dict[str, Any] = {}
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name not in questions():
            found[_flag_of_own(fields_of(Options)[field.name])] = value
            continue
        if questions()[field.name].kinds:
            found[field.name] = value.kind
        found |= {flag_of(field.name, entry): getattr(value, entry.name) for entry in fields_of(type(value)).values()}
    return found


def given(options: Options) -> set[str]:
    """The flags to which the options give another value than the default."""
    return {name for name, value in flat(options).items() if value != default_of(flags()[name], options)}


def default_of(flag: Flag, options: Options) -> Any:
    """The value of a flag in options with these kinds of sections, where nothing else is said."""
    if (field := flag.field_of(options)) is None or field.default is REQUIRED:
        return flat(Options())[flag.name]
    return field.default


def with_flags(base: Options = Options(), /, **values: Any) -> Options:  # noqa: B008  frozen
    """`base` with the values of flags, named as Python writes them: `with_flags(cache="het", cache_staleness=0)`.

    A section of another kind begins with its defaults, but for what means the same of both kinds. Raises UsageError for a flag that is none, a value that
    its field does not take, and a flag of another kind of section than the one that is chosen.
    """
    known = flags()
    for name in values.keys() - known.keys():
        close = get_close_matches(name, known, 3)
        raise UsageError(f"{dashed(name)}: there is no such option{'; there are ' + ', '.join(close) if close else ''}")
    options = base
    for name in (n for n in values if known[n].chooses_kind):
        options = _with(options, name, _of_kind(name, values[name], getattr(options, name), dashed(name)))
    for name in (n for n in values if not known[n].chooses_kind):
        options = _with_value(options, known[name], values[name])
    return checked(options)


def document_of(options: Options) -> dict[str, Any]:
    """The tree as mappings: sections of which there are kinds say theirs."""
    found: dict[str, Any] = {}
    for field in fields(Options):
        value = getattr(options, field.name)
        found[field.name] = section_document(value) if field.name in questions() else _plain(value)
    return found


def section_document(section: Section) -> dict[str, Any]:
    """A section as a mapping."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}
    plain = {name: _plain(value) for name, value in values.items()}
    return {**({KIND: section.kind} if section.kind else {}), **plain}


def _plain(value: Any) -> Any:
    """A value as a document has it: pairs as lists."""
    return [list(pair) for pair in value] if isinstance(value, tuple) else value


def options_of(document: Mapping[str, Any], where: str, *, whole: bool = False) -> Options:
    """The options of a document. What it does not say is as by default, or missing where it has to be `whole`.

    Raises UsageError, beginning with `where`, for what it must not say, or should have said.
    """
    values: dict[str, Any] = {}
    if whole:
        _require_all(document, [f.name for f in fields(Options)], where)
    for name, value in document.items():
        place = f"{where}.{name}"
        if name in questions():
            values[name] = section_of(name, value, place, whole=whole)
        elif name in fields_of(Options):
            values[name] = _checked(value, fields_of(Options)[name], place)
        else:
            raise UsageError(f"{place}: unknown entry; options are {', '.join(f.name for f in fields(Options))}")
    return checked(Options(**values))


def section_of(name: str, document: Any, where: str, *, whole: bool = False) -> Section:
    """The section of a mapping, or of a kind alone. Raises UsageError beginning with `where`."""
    kinds, usual = questions()[name].kinds, getattr(Options(), name)
    if kinds and isinstance(document, str) and not whole:
        document = {KIND: document}
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: {entries_wanted(name)}")
    entries = dict(document)
    base = _of_kind(name, entries.pop(KIND, usual.kind), usual, f"{where}.{KIND}") if kinds else usual
    known = fields_of(type(base))
    for entry in entries.keys() - known.keys():
        raise UsageError(f"{where}.{entry}: {unknown_entry(name, type(base), entry)}")
    if whole:
        _require_all(document, [*([KIND] if kinds else []), *known], where)
    values = {entry: _checked(value, known[entry], f"{where}.{entry}") for entry, value in entries.items()}
    return replace(base, **values)


def _require_all(document: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in document:
            raise UsageError(f"{where}: '{name}' is missing")


def entries_wanted(name: str) -> str:
    """What a section that cannot be read should have been, in words for a message."""
    usual = getattr(Options(), name)
    return f"want entries such as {{{next(iter(section_document(usual)))}: {next(iter(section_document(usual).values()))}}}"


def checked(options: Options) -> Options:
    """`options` with every value as its field holds it. Raises UsageError naming the flag of the first that a field does not take."""
    found: dict[str, Any] = {}
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name not in questions():
            own = fields_of(Options)[field.name]
            found[field.name] = _checked(value, own, dashed(_flag_of_own(own)))
            continue
        if type(value) not in sections_of(field.name):
            names = ", ".join(section.__name__ for section in sections_of(field.name))
            raise UsageError(f"Options: {field.name}: is {value!r}, want one of {names}")
        entries = {
            e.name: _checked(getattr(value, e.name), e, dashed(flag_of(field.name, e)))
            for e in fields_of(type(value)).values()
        }
        found[field.name] = replace(value, **entries)
    if found["numerics"].fc_gradient_dtype == "bfloat16" and found["numerics"].fc_dtype not in ("auto", "bfloat16"):
        raise UsageError("--fc-gradient-dtype: bfloat16 wants --fc-dtype bfloat16 too")
    return Options(**found)


def _of_kind(name: str, kind: Any, before: Section, where: str) -> Section:
    """The section of a kind: the one that was there, or one with its defaults; what has none, or means the same of both kinds, is as it was."""
    kinds: Kinds = questions()[name].kinds or {}
    if kind == before.kind:
        return before
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(f"{where}: {kind!r} is not one of {', '.join(kinds)}")
    known = fields_of(type(before))
    kept = [f.name for f in fields_of(kinds[kind]).values() if f.default is REQUIRED or known.get(f.name) == f]
    return kinds[kind](**{field: getattr(before, field) for field in kept})


def _with_value(options: Options, flag: Flag, value: Any) -> Options:
    if (field := flag.field_of(options)) is None:
        raise UsageError(f"{dashed(flag.name)} {flag_text(value)} has no effect: {_belongs(flag, options)}")
    value = _checked(value, field, dashed(flag.name))
    if not flag.section:
        return _with(options, field.name, value)
    changed = {field.name: value}
    return _with(options, flag.section, replace(getattr(options, flag.section), **changed))


def _with(options: Options, name: str, value: Any) -> Options:
    return replace(options, **{name: value})


def _belongs(flag: Flag, options: Options) -> str:
    wants = " or ".join(f"{dashed(flag.section)} {kind}" for kind in flag.fields)
    return f"it belongs to {wants}, and {_words(flag.section)} is {getattr(options, flag.section).kind}"


def unknown_entry(name: str, section: type[Section], entry: str) -> str:
    """Why a section has no such entry: another kind has, or none."""
    others = [other.kind for other in sections_of(name) if entry in fields_of(other)]
    if others:
        return f"belongs to kind {' or '.join(others)}, and {_words(name)} is {section.kind}"
    return f"unknown entry; {f'{_words(name)} {section.kind}' if section.kind else name} takes {', '.join(fields_of(section)) or 'none'}"


def _words(name: str) -> str:
    return questions()[name].words


def _checked(value: Any, field: Field, where: str) -> Any:
    try:
        return check(value, field.hint)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def flag_text(value: object) -> str:
    """A value as it is written after its flag."""
    if not isinstance(value, tuple):
        return str(value)
    return " ".join(f"{name}={part:g}" if isinstance(part, float) else f"{name}={part}" for name, part in value)
