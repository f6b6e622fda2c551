"""Names of many modules as one, and names that fit into a box."""

import re
from collections.abc import Sequence
from unicodedata import east_asian_width

from htrain.plan.text import fold

_LEAST_BEGINNING = 3  # letters that names must share for a `*` to say something


def called(module: str) -> str:
    """A module's name as the page shows it; the whole model's own is empty."""
    return module or "(the model)"


def folded_name(names: Sequence[str]) -> str:
    """Names that differ in one of their numbers as `towers.{24-34}.0`, in several as `towers.*.*`; others as what they begin with and
    `*`, or the first and the last."""
    if len(names) == 1:
        return called(names[0])
    split = [re.split(r"(\d+)", name) for name in names]
    if len({len(tokens) for tokens in split}) > 1 or len({tuple(tokens[::2]) for tokens in split}) > 1:
        beginning = _beginning(names)
        return f"{beginning}*" if len(beginning) >= _LEAST_BEGINNING else f"{called(names[0])} … {called(names[-1])}"
    columns = [list(dict.fromkeys(column)) for column in zip(*split, strict=True)]
    varying = [k for k, column in enumerate(columns) if len(column) > 1]
    if len(varying) != 1:
        return "".join("*" if k in varying else column[0] for k, column in enumerate(columns))
    (k,) = varying
    before, after = ("".join(column[0] for column in part) for part in (columns[:k], columns[k + 1 :]))
    return ", ".join(fold(before + number for number in columns[k])) + after


def _beginning(names: Sequence[str]) -> str:
    """The longest beginning that all names share."""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def printable(text: object) -> str:
    """`text` in one line: what does not print, or turns a line around, as `\\u202e`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def fitted(text: str, letters: int, lines: int) -> list[str]:
    """`text` in at most `lines` lines of `letters`, broken after a dot or slash where that helps; what is too much goes from the middle."""
    found: list[str] = []
    rest = text
    while rest and len(found) < lines - 1 and width_of(rest) > letters:
        cut = max((i + 1 for i, c in enumerate(rest) if c in "./_" and width_of(rest[: i + 1]) <= letters), default=0)
        if cut < letters // 3:
            cut = next(i for i in range(len(rest), 0, -1) if width_of(rest[:i]) <= max(letters, 2))
        found.append(rest[:cut])
        rest = rest[cut:]
    return [*found, _elided(rest, letters)] if rest else found


def _elided(text: str, letters: int) -> str:
    if width_of(text) <= letters:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while head and width_of(head) + width_of(tail) + 1 > letters:
        head, tail = (head[:-1], tail) if width_of(head) * 3 > width_of(tail) * 2 else (head, tail[1:])
    return f"{head}…{tail}"


def width_of(text: str) -> int:
    """Columns of `text` in a font of one width; wide letters take two."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)
