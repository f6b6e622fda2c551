"""Data URIs: `FORMAT:PATH[?key=value&...]` to a dataset."""

from pathlib import Path

from htrain.data.format import Format, UriOptions
from htrain.data.formats import FORMATS
from htrain.data.reader import Dataset
from htrain.data.text import readable
from htrain.errors import DataError


def open_data(uri: str) -> Dataset:
    """The dataset of a URI such as `criteo:train.tsv?rows=10000`. Raises DataError naming what is wrong with it.

    Which options there are, each format says in its file (htrain.data.formats).
    """
    format, place, values = _parts(uri)
    if format.is_made:
        if place:
            raise DataError(
                f"'{uri}': {format.name} data is made, not read from '{place}': want {format.name}:?rows=100000"
            )
        return format.open(Path(), values)
    path = Path(place)
    with readable(path):
        if not path.is_file():
            raise DataError(f"{place}: no such file (from '{uri}')")
        if not path.stat().st_size:
            raise DataError(f"{place}: is empty")
        return format.open(path, values)


def files_of(uri: str) -> list[Path]:
    """The files that the rows of a URI depend on. Raises DataError as `open_data` does for a URI that is none."""
    format, place, values = _parts(uri)
    names = [] if format.is_made else [place]
    return [Path(name) for name in [*names, *([values["schema"]] if "schema" in values else [])]]


def format_of(uri: str) -> tuple[str, dict[str, str]]:
    """The format of a URI, and its options but for those that name files. Raises DataError for a URI that is none."""
    format, _, values = _parts(uri)
    return format.name, {name: text for name, text in sorted(values.items()) if name != "schema"}


def _parts(uri: str) -> tuple[Format, str, UriOptions]:
    """Format, path and options. Raises DataError for formats and options that there are not."""
    name, colon, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    if name not in FORMATS or not colon:
        raise DataError(f"'{uri}': want FORMAT:PATH, with a format of {', '.join(FORMATS)}; such as criteo:train.tsv")
    format = FORMATS[name]
    pairs = [pair.partition("=")[::2] for pair in query.split("&")] if query else []
    values = dict(pairs)
    if len(values) < len(pairs):
        raise DataError(f"'{uri}': an option is given twice")
    unknown = values.keys() - set(format.options)
    if unknown:
        raise DataError(f"'{uri}': unknown option '{min(unknown)}'; {name} takes {', '.join(format.options) or 'none'}")
    return format, place, values
