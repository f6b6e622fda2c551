"""Text from outside, made fit for a terminal: names in files, paths, messages of libraries may hold what moves a cursor or hides a line."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LINE = 2000  # characters; a message that quotes more than this quotes too much


def printable(text: str) -> str:
    """`text` with everything that is not printed as itself written out, such as `\\x1b`; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: a name of a file may be of any bytes, on Linux, for which Python has signs that stand for none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """`text` as one printable line of at most `LONGEST_LINE` characters; the middle of a longer one is left out."""
    line = printable(" ".join(text.split()))
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} [...] {line[-half:]}"


def as_word(path: str | Path) -> str:
    """A path as a word of a command that a message shows, to be pasted: quoted for the shell where that would read it otherwise."""
    return shlex.quote(str(path))


def outlasting_its_reader(console: "Console") -> "Console":
    """The same console, which from now on falls silent where nobody reads what it shows any more, as behind `2>&1 | tee log` once tee has ended. By itself,
    rich's leads standard output to /dev/null there, and ends the process."""
    console.on_broken_pipe = partial(setattr, console, "quiet", True)  # type: ignore[method-assign]
    return console


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
