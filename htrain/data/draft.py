"""A first schema file for data that nobody has described: what each column looks like in the first rows, for a person to look over."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from htrain.data.arrow_rows import table_rows
from htrain.data.described import check_fields
from htrain.data.first_rows import FirstRows
from htrain.data.guess import Guess, guess
from htrain.data.layout import layout_of
from htrain.errors import DataError
from htrain.files import place_to_write, write_file
from htrain.spec.yaml_file import parse_yaml

_LABELS = frozenset({"label", "labels", "click", "clicked", "clicks", "is_click", "is_clicked", "target", "y", "converted", "conversion"})  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SHOWN = frozenset(map(chr, range(32, 127))) - {'"', "\\"}
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
ROWS_TRIED = 10_000  # by the draft itself
_COMMENT_AT = 30


@dataclass(frozen=True)
class Draft:
    """A schema file as `text`, made of the first `examples` rows of data (`is_all`: of all). Of the first ROWS_TRIED, `malformed` cannot be read by it."""

    examples: int
    is_all: bool
    malformed: int
    label: str
    columns: tuple[Guess, ...]
    text: str


def draft_of(first: FirstRows, *, label: str, name: str) -> Draft:
    """The draft of a schema for data called `name`. Without a `label` it is the column of 0 and 1 that is called as labels are, or the only one.

    Raises DataError where it is not clear which column is the label, and for data without rows or without a column that an input takes.
    """
    if not first.table.num_rows:
        raise DataError(f"{name}: has no rows to look at")
    guesses = [guess(column, first.table[column], first.largest.get(column)) for column in first.table.column_names]
    of_label = _label(guesses, label, name)
    others = [each for each in guesses if each is not of_label]
    if not any(each.kind for each in others):
        raise DataError(f"{name}: has no column beside the label '{of_label.column}' that an input takes")
    text = _text(of_label, others, _heading(first, name))
    layout = layout_of(parse_yaml(text, DataError, name).plain(), name)
    check_fields(name, first.table.schema, layout)
    _, faults = table_rows(first.table.select(layout.columns).slice(0, ROWS_TRIED), layout)
    return Draft(first.table.num_rows, first.is_all, len(faults), of_label.column, tuple(guesses), text)


def require_new(path: Path) -> None:
    """Raises DataError where a draft cannot be written, as over a file that is there: a schema is what a person makes of a draft."""
    with _told(path):
        place_to_write(path, _is_never_ours)


def write_draft(draft: Draft, path: Path) -> None:
    """Write the schema file. Raises DataError as `require_new` does."""
    with _told(path):
        write_file(path, draft.text.encode(), _is_never_ours)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _is_never_ours(path: Path) -> bool:
    return False


def _label(guesses: Sequence[Guess], label: str, name: str) -> Guess:
    if label:
        found = [each for each in guesses if each.column == label]
        if not found:
            raise DataError(f"{name}: no column '{label}'; it has {', '.join(each.column for each in guesses[:40])}")
        return found[0]
    binary = [each for each in guesses if each.is_binary]
    called = [each for each in binary if each.column.lower() in _LABELS]
    candidates = called or binary
    if len(candidates) != 1:
        listed = ", ".join(each.column for each in candidates or guesses)
        which = "columns of 0 and 1: " if candidates else "no column is of 0 and 1 alone; columns: "
        raise DataError(f"{name}: say which column is the label (--label NAME; {which}{listed})")
    return candidates[0]


def _heading(first: FirstRows, name: str) -> str:
    part = "all" if first.is_all else "the first"
    return f"# What htrain data describe made of {part} {first.table.num_rows:,} rows of {name}: look it over, what an id is and what a number above all.\n"


def _text(label: Guess, others: Sequence[Guess], heading: str) -> str:
    taken = {"label"}
    lines = [heading, *_line(0, f"label: {_quoted(label.column)}", label.told)]
    if times := [each for each in others if each.kind == "time"]:
        lines += _line(0, f"# time: {_moment(times[0])}", "when each row was, for test_from= and order=time")
    lines.append("inputs:\n")
    for name, kind in (("dense", "dense"), ("sparse", "ids")):
        if together := [each for each in others if each.kind == kind]:
            lines += [f"  {_name(name, taken)}:\n", f"    kind: {kind}\n", "    columns:\n"]
            lines += [line for each in together for line in _line(6, f"- {_quoted(each.column)}", each.told)]
            if kind == "ids":
                rows = f"rows: [{', '.join(str(each.rows) for each in together)}]"
                lines += _line(4, rows, "where text is hashed; htrain data vocabulary gives each value its own row")
    for each in others:
        if each.kind in ("padded", "time"):
            lines += [f"  {_name(each.column, taken)}:\n", f"    kind: {each.kind}\n"]
            lines += _line(4, f"column: {_quoted(each.column)}", each.told)
            lines += _of_list(each) if each.kind == "padded" else _of_times(each)
    lines += [f"# Left out: {_quoted(each.column)}, {each.told}\n" for each in others if not each.kind]
    return "".join(lines)


def _of_list(each: Guess) -> list[str]:
    return [f"    length: {each.length}\n", f"    rows: {each.rows}\n"]


def _of_times(each: Guess) -> list[str]:
    return ["    parts: [hour, weekday]\n", *([f"    unit: {each.unit}\n"] if each.unit != "s" else [])]


def _moment(each: Guess) -> str:
    column = _quoted(each.column)
    return column if each.unit == "s" else f"{{column: {column}, unit: {each.unit}}}"


def _line(indent: int, text: str, comment: str) -> list[str]:
    return [f"{' ' * indent + text:<{_COMMENT_AT}}  # {comment}\n"]


def _name(column: str, taken: set[str]) -> str:
    """What an input is called: an argument of forward(), which no other has."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII) or "input"
    name = f"input_{name}" if name[0].isdigit() or name.lower() in _YAML_WORDS else name
    while {name, f"{name}_length"} & taken:
        name += "_"
    taken.update({name, f"{name}_length"})
    return name


def _quoted(text: str) -> str:
    """A scalar of YAML, in letters that every editor shows."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return '"' + "".join(each if each in _SHOWN else f"\\U{ord(each):08X}" for each in text) + '"'
