"""YAML files that people write, and others might: read with their lines, within limits, and without what YAML has beyond values.

A scalar is what it looks like: null, true or false, a whole number, a number with a point; all else is text, and so are keys. Tags, and
aliases, which let a small file stand for one that fits no memory, are refused; and a key that is given twice.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, cast

import yaml

from htrain.errors import Error
from htrain.files import read_file

_MOST_BYTES = 64 << 20  # a file is read whole
_DEEPEST = 32  # entries are read by recursion
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same language, ten times as fast
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
# No text that PyYAML writes without quotes may look like a number here: an exponent has a sign.
_FLOAT = re.compile(r"[-+]?(([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True,
          "false": False, "False": False, "FALSE": False}  # fmt: skip
_MOST_DIGITS = 400  # Python takes quadratic time to read a number


@dataclass(frozen=True)
class Entry:
    """A value of a file, and the line, from 1, that it stands on. `text` is a scalar as it is written, empty for lists and mappings."""

    line: int
    value: Union[bool, int, float, str, "list[Entry]", "dict[str, Entry]", None]
    text: str = ""

    def plain(self) -> Any:
        """The value without its lines: of Python's own types all the way down."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        return [entry.plain() for entry in self.value] if isinstance(self.value, list) else self.value

    def mapping(self) -> Mapping[str, "Entry"]:
        """The entries by key; none where this is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}


def read_yaml(path: Path, kind: type[Error], *, missing: str = "") -> Entry:
    """The one document of a file. Raises `kind`, naming file and line; where the file cannot be read at all, `missing` is added to the reason."""
    try:
        text = read_file(path, most_bytes=_MOST_BYTES).decode()
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}{missing}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{path}: not YAML: byte {error.start} is not UTF-8 text") from error
    return parse_yaml(text, kind, str(path))


def parse_yaml(text: str, kind: type[Error], where: str) -> Entry:
    """The one document of a text. Raises `kind`, with `where` and the line in front."""
    try:
        return _document(cast(Iterator[Any], yaml.parse(text, Loader=_LOADER)))
    except _Refused as error:
        raise kind(f"{where}:{error.line}: {error}") from error
    except yaml.YAMLError as error:
        raise kind(f"{where}: not YAML: {' '.join(str(error).split())}") from error


class _Refused(Exception):
    """A part of YAML that is not read here."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def _document(events: Iterator[Any]) -> Entry:
    """The entry that a parser's events are about; a file without a document is null."""
    found = Entry(1, None)
    documents = 0
    for event in events:
        if not isinstance(event, yaml.DocumentStartEvent):
            continue
        documents += 1
        if documents > 1:
            raise _Refused(
                event.start_mark.line + 1 if event.start_mark else 1, "a second document begins here; want one"
            )
        found = _entry(next(events), events, 0)
    return found


def _entry(event: Any, events: Iterator[Any], depth: int) -> Entry:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise _Refused(line, f"the alias *{event.anchor} is not read: write out what it stands for")
    if event.tag not in (None, "!"):
        raise _Refused(line, f"the tag {event.tag} is not read: leave it out")
    if depth > _DEEPEST:
        raise _Refused(line, f"lists and mappings are nested more than {_DEEPEST} deep")
    if isinstance(event, yaml.ScalarEvent):
        return Entry(line, _scalar(event, line), event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        return Entry(line, list(_list(events, depth)))
    return Entry(line, _mapping(events, depth))


def _list(events: Iterator[Any], depth: int) -> Iterator[Entry]:
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        yield _entry(event, events, depth + 1)


def _mapping(events: Iterator[Any], depth: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        if not isinstance(event, yaml.ScalarEvent):
            raise _Refused(line, "a key is a list, a mapping or an alias: want text")
        key = event.value
        if key in found:
            raise _Refused(line, f"'{key}' is given twice")
        entry = _entry(next(events), events, depth + 1)
        found[key] = Entry(line, entry.value, entry.text)  # the line of an entry is that of its key
    return found


def _scalar(event: Any, line: int) -> bool | int | float | str | None:
    text = str(event.value)
    if not event.implicit[0] or event.style:  # quoted
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise _Refused(line, f"a number of {len(text)} digits")
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace("_", "").replace(".i", "i").replace(".n", "n"))
    return text
