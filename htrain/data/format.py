"""What a format of data says of itself. The table of all formats is `htrain.data.formats.FORMATS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from htrain.data.arrow_rows import ToRows
from htrain.data.first_rows import FirstRows
from htrain.data.layout import Layout
from htrain.data.reader import Dataset
from htrain.data.schema import Schema
from htrain.errors import DataError

UriOptions = Mapping[str, str]  # by name, as text


@dataclass(frozen=True)
class Described:
    """What a schema file says of columns, and what makes rows of them."""

    layout: Layout
    to_rows: ToRows


@dataclass(frozen=True)
class Format:
    """A format of data: `name` is what URIs call it, `options` are those that it takes, and `open` makes a dataset of a
    file and the options that were given.

    The file that `open` gets is there and not empty; that of a format that `is_local` is on this machine, others may be at an address. A format that
    `is_made` reads no file and gets an empty path. Several files of a format that `is_joined` are data, too, their rows one after another. Of a format that
    `is_described`, a schema file says what columns are, read once for all files: its option is `schema`, and `open` gets a Described in place of the options,
    and `first_rows` gives the first of a file (an AnyPath), as many as are wanted, when it has not been described yet.
    Where options alone say what its rows are like, `schema` gives that. One that `is_pieced` has sources that are (htrain.data.reader.Pieced).
    One that `is_text` has its rows in lines, read by a TextSource: lines that are appended to a file are rows behind those before (htrain.data.growth).
    """

    name: str
    open: Callable[
        [Any, Any], Dataset
    ]  # of a Path, or where it is not local of an AnyPath; and of UriOptions, or a Described
    options: tuple[str, ...] = ()
    is_made: bool = False
    is_joined: bool = True
    is_local: bool = False
    is_described: bool = False
    is_text: bool = False
    is_pieced: bool = False
    first_rows: Callable[[Any, int], FirstRows] | None = None
    schema: Callable[[UriOptions], Schema] | None = None


def count_of(values: UriOptions, option: str, default: int) -> int:
    """The value of an option that is a count. Raises DataError for anything but a whole number above 0."""
    text = values.get(option, str(default))
    if not text.isdecimal() or len(text) > 19 or not 0 < int(text) < 2**62:
        raise DataError(f"option {option}={text}: want a whole number above 0")
    return int(text)
