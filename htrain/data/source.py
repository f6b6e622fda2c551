"""Data URIs: `FORMAT:PATH[?key=value&...]` to a dataset."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

from htrain.data.criteo import NUM_DENSE, NUM_SPARSE, parse_criteo
from htrain.data.graph import GraphOptions, graph_options, open_graph
from htrain.data.libsvm import parse_libsvm, scan, schema_of
from htrain.data.packed import open_packed
from htrain.data.reader import Dataset
from htrain.data.schema import click_schema
from htrain.data.synthetic import Synthetic, SyntheticSource
from htrain.data.tabular import open_csv, open_parquet
from htrain.data.text import TextSource, readable
from htrain.errors import DataError

Values = Mapping[str, str]


def open_data(uri: str) -> Dataset:
    """The dataset of a URI such as `criteo:train.tsv?rows=10000`. Raises DataError naming what is wrong with it.

    | format               | options                                                              |
    |----------------------|----------------------------------------------------------------------|
    | criteo               | rows: rows of each table (100000)                                    |
    | libfm, libsvm        | rows: rows of the table (the largest id of the file + 1)             |
    | csv, parquet         | schema: a YAML file that names inputs and columns                    |
    | synthetic            | rows, table_rows, zipf, locality, communities, signal, bias, seed    |
    | graph                | part, test, fanout, negatives, seed, users, items                    |
    | packed               | none: they are those of the data that was packed                     |
    """
    format, place, values = _parts(uri)
    opener = _FORMATS[format]
    if format == "synthetic":
        if place:
            raise DataError(f"'{uri}': synthetic data is made, not read from '{place}': want synthetic:?rows=100000")
        return opener(Path(), values)
    path = Path(place)
    with readable(path):
        if not path.is_file():
            raise DataError(f"{place}: no such file (from '{uri}')")
        if not path.stat().st_size:
            raise DataError(f"{place}: is empty")
        return opener(path, values)


def files_of(uri: str) -> list[Path]:
    """The files that the rows of a URI depend on. Raises DataError as `open_data` does for a URI that is none."""
    format, place, values = _parts(uri)
    names = [] if format == "synthetic" else [place]
    return [Path(name) for name in [*names, *([values["schema"]] if "schema" in values else [])]]


def format_of(uri: str) -> tuple[str, dict[str, str]]:
    """The format of a URI, and its options but for those that name files. Raises DataError for a URI that is none."""
    format, _, values = _parts(uri)
    return format, {name: text for name, text in sorted(values.items()) if name != "schema"}


def _parts(uri: str) -> tuple[str, str, Values]:
    """Format, path and options. Raises DataError for formats and options that there are not."""
    format, colon, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    if format not in _FORMATS or not colon:
        raise DataError(f"'{uri}': want FORMAT:PATH, with a format of {', '.join(_FORMATS)}; such as criteo:train.tsv")
    pairs = [pair.partition("=")[::2] for pair in query.split("&")] if query else []
    values = dict(pairs)
    if len(values) < len(pairs):
        raise DataError(f"'{uri}': an option is given twice")
    allowed = _OPTIONS[format]
    unknown = values.keys() - set(allowed)
    if unknown:
        raise DataError(f"'{uri}': unknown option '{min(unknown)}'; {format} takes {', '.join(allowed) or 'none'}")
    return format, place, values


def _count(values: Values, key: str, default: int) -> int:
    text = values.get(key, str(default))
    if not text.isdecimal() or len(text) > 19 or not 0 < int(text) < 2**62:
        raise DataError(f"option {key}={text}: want a whole number above 0")
    return int(text)


def _criteo(path: Path, values: Values) -> Dataset:
    rows = _count(values, "rows", 100_000)
    return Dataset(
        TextSource(path, partial(parse_criteo, rows_per_field=rows)), click_schema(NUM_DENSE, (rows,) * NUM_SPARSE)
    )


def _libsvm(path: Path, values: Values) -> Dataset:
    shape = scan(path)
    schema = schema_of(shape, _count(values, "rows", shape.max_id + 1))
    return Dataset(TextSource(path, partial(parse_libsvm, schema=schema)), schema)


def _csv(path: Path, values: Values) -> Dataset:
    return open_csv(path, _schema_file(path, values))


def _parquet(path: Path, values: Values) -> Dataset:
    return open_parquet(path, _schema_file(path, values))


def _schema_file(path: Path, values: Values) -> Path:
    if "schema" not in values:
        raise DataError(f"{path}: say which columns are what: ?schema=FILE.yaml")
    return Path(values["schema"])


def _synthetic(path: Path, values: Values) -> Dataset:
    given: dict[str, float] = {}
    for field in fields(Synthetic):
        if field.name not in values:
            continue
        try:
            given[field.name] = _DEFAULT_TYPES[field.name](values[field.name])
        except ValueError as error:
            raise DataError(f"option {field.name}={values[field.name]}: want a number") from error
    options = Synthetic(**given)  # type: ignore[arg-type]
    return Dataset(SyntheticSource(options), click_schema(NUM_DENSE, (options.table_rows,) * NUM_SPARSE))


def _graph(path: Path, values: Values) -> Dataset:
    return open_graph(path, graph_options(values))


def _packed(path: Path, values: Values) -> Dataset:
    return open_packed(path)


_DEFAULT_TYPES: dict[str, type[int] | type[float]] = {name: type(value) for name, value in asdict(Synthetic()).items()}
_FORMATS: dict[str, Callable[[Path, Values], Dataset]] = {
    "criteo": _criteo,
    "libfm": _libsvm,
    "libsvm": _libsvm,
    "csv": _csv,
    "parquet": _parquet,
    "synthetic": _synthetic,
    "graph": _graph,
    "packed": _packed,
}
_OPTIONS = {
    "criteo": ("rows",),
    "libfm": ("rows",),
    "libsvm": ("rows",),
    "csv": ("schema",),
    "parquet": ("schema",),
    "synthetic": tuple(field.name for field in fields(Synthetic)),
    "graph": tuple(field.name for field in fields(GraphOptions)),
    "packed": (),
}
