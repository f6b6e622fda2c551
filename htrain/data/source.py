"""Data URIs: `FORMAT:PATH[?key=value&...]` to a dataset."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from htrain.data.address import Address, AnyPath, is_address, no_such_file, path_of
from htrain.data.arrow_rows import table_rows
from htrain.data.described import Watch
from htrain.data.files import Files, NoRows, files_at
from htrain.data.first_rows import FirstRows, joined
from htrain.data.format import Described, Format, UriOptions
from htrain.data.formats import FORMATS
from htrain.data.growth import Cut, Extent, FilePart
from htrain.data.held_out import OPTIONS as OF_PARTS
from htrain.data.held_out import held_out, part_of
from htrain.data.layout import Layout, load_layout, vocabulary_files
from htrain.data.order import OPTIONS as OF_ORDER
from htrain.data.order import ordered
from htrain.data.prefix import Prefix, TextPath
from htrain.data.reader import Begun, Dataset, Source
from htrain.data.rows import Rows
from htrain.data.schema import Schema
from htrain.data.text import Fault, TextSource, open_text, readable
from htrain.data.values import rows_of
from htrain.errors import DataError


def open_data(uri: str, extent: Extent | None = None) -> Dataset:
    """The dataset of a URI such as `criteo:train.tsv?rows=10000`, of one file or of several. Raises DataError naming what is wrong with it.

    Which options there are, each format says in its file (htrain.data.formats); a part of any can be held out (htrain.data.held_out), and its rows
    shuffled or held to be in the order of time (htrain.data.order). With an `extent`, what has come behind it is not read (htrain.data.growth).

        import htrain

        dataset = htrain.open_data("packed:train.packed")
        print(dataset.num_examples(), [(item.name, item.kind) for item in dataset.schema.inputs])
    """
    format, place, values = _parts(uri)
    own = {name: text for name, text in values.items() if name in format.options}
    others = {name: text for name, text in values.items() if name not in own}
    files = _files(format, place, uri)
    options = Described(load_layout(_schema_file(files[0], own)), table_rows) if format.is_described else own
    part = part_of(_only(others, OF_PARTS))
    dataset = _all_of(format, _within(extent, format, files, uri) if extent else files, options, uri)
    if extent and extent.by_parts and "order" not in others:  # in the order of time, trainers stay near each other
        dataset = replace(dataset, source=_by_parts(dataset.source))
    if extent and extent.cuts:
        dataset = replace(dataset, begun=_begun(extent.cuts, dataset.source))
    return ordered(held_out(dataset, part) if part else dataset, _only(others, OF_ORDER))


def first_rows(uri: str, rows: int) -> FirstRows:
    """The first `rows` rows of the data of a URI whose columns nobody has described yet. Raises DataError as `open_data` does, and for other data."""
    format, place, values = _parts(uri)
    if format.first_rows is None:
        raise DataError(f"'{uri}': {format.name} data says itself what its columns are: want csv or parquet data")
    if values:
        raise DataError(f"'{uri}': option {min(values)} has no effect on what is described: leave it out")
    found: list[FirstRows] = []
    files = _files(format, place, uri)
    for path in files:
        with readable(path):
            if not path.is_file():
                raise DataError(f"{path if path.name else ''}: {no_such_file(path)} (from '{uri}')")
            if _is_empty(path, format):
                continue
        part = format.first_rows(path, rows - sum(each.table.num_rows for each in found))
        found.append(part)
        if sum(each.table.num_rows for each in found) >= rows:
            break
    if not found:
        raise DataError(f"{files[0]}: is empty")
    first = joined(found, uri)
    return first if len(found) == len(files) else replace(first, is_all=False)


def watched(uri: str, layout_at: Callable[[AnyPath], Layout], watch: Watch) -> Source:
    """The data of a URI that a schema file describes, for one that reads it whole; `watch` is told of the rows that come, without malformed ones and those of
    another part, as they are read. The layout is that which `layout_at` gives for the schema file. Raises DataError as `open_data` does, and for other data.
    """
    format, place, values = _parts(uri)
    if not format.is_described:
        raise DataError(f"'{uri}': columns are those that a schema file describes: want csv or parquet data")
    if unheard := [name for name in OF_ORDER if name in values]:
        raise DataError(f"'{uri}': option {unheard[0]} has no effect on what is counted: leave it out")
    files = _files(format, place, uri)
    part = part_of(_only(values, OF_PARTS))

    def to_rows(table: pa.Table, layout: Layout) -> tuple[Rows, list[Fault]]:
        rows, faults = table_rows(table, layout)
        kept = np.delete(np.arange(table.num_rows), [row for row, _ in faults])
        places = part.places(rows) if part else np.arange(rows.count)
        watch(rows_of(table, kept[places]), rows.take(places) if part else rows)
        return rows, faults

    layout = layout_at(_schema_file(files[0], values))
    dataset = _all_of(format, files, Described(layout, to_rows), uri)
    return (held_out(dataset, part) if part else dataset).source


def _only(values: UriOptions, names: Sequence[str]) -> dict[str, str]:
    return {name: values[name] for name in names if name in values}


def _schema_file(path: AnyPath, values: UriOptions) -> AnyPath:
    if "schema" not in values:
        raise DataError(
            f"{path}: say which columns are what: ?schema=FILE.yaml (htrain data describe FORMAT:PATH --out FILE.yaml drafts one)"
        )
    return path_of(values["schema"])


def _files(format: Format, place: str, uri: str) -> list[AnyPath]:
    """The files of data; an empty path for data that is made."""
    if format.is_made and place:
        raise DataError(
            f"'{uri}': {format.name} data is made, not read from '{place}': want {format.name}:?rows=100000"
        )
    files: list[AnyPath] = [Path()] if format.is_made else files_at(place, uri)
    if len(files) > 1 and not format.is_joined:
        raise DataError(f"'{uri}': {format.name} data is one file, this names {len(files)}")
    return files


def _within(extent: Extent, format: Format, files: Sequence[AnyPath], uri: str) -> Sequence[TextPath]:
    """The files of an extent, those of text as long as they were; all, where it has none. Raises DataError for one that is not there."""
    if not extent.files:
        return files
    found: list[TextPath] = []
    for path, wanted in zip(by_name(files, [file.name for file in extent.files]), extent.files, strict=True):
        if path is None:
            raise DataError(f"'{uri}': has no '{wanted.name}', which was there when the run began")
        found.append(Prefix(path, wanted.num_bytes) if format.is_text else path)
    return found


def by_name(paths: Sequence[AnyPath], names: Sequence[str]) -> list[AnyPath | None]:
    """The paths of files with these names, in the order of both; None for a name that is not there."""
    found: list[AnyPath | None] = []
    begin = 0
    for name in names:
        place = next((place for place in range(begin, len(paths)) if paths[place].name == name), None)
        found.append(None if place is None else paths[place])
        begin = begin if place is None else place + 1
    return found


def _begun(cuts: Sequence[Cut], source: Source) -> tuple[Begun, ...]:
    """What epochs read that were begun before data came, of the files that a source has now."""
    files = source.parts if isinstance(source, Files) else (source,)
    by_parts = isinstance(source, Files) and bool(source.segments)

    def read(cut: Cut) -> Files:
        parts = [_part(files[part.file], part) for part in cut.parts]
        return Files(parts, tuple(map(len, cut.segments)) if by_parts else ())

    return tuple(Begun(cut.last_epoch, read(cut), cut.begins) for cut in cuts)


def _by_parts(source: Source) -> Files:
    """The same, whose pieces are read by one shard each."""
    parts = source.parts if isinstance(source, Files) else (source,)
    return Files(parts, (len(parts),))


def is_read_by_parts(uri: str) -> bool:
    """Whether some of a file of rows costs its reader as much as all of it: Parquet, and compressed text. Raises DataError as `files_of` does."""
    format, place, _ = _parts(uri)
    return format.is_pieced or (format.is_text and any(path.suffix == ".gz" for path in files_at(place, uri)))


def _part(source: Source, part: FilePart) -> Source:
    return source.within(part.begin, part.end) if isinstance(source, TextSource) else source


def _all_of(format: Format, files: Sequence[TextPath], options: UriOptions | Described, uri: str) -> Dataset:
    if format.is_made:
        return format.open(files[0], options)
    parts = [_opened(format, path, options, uri) for path in files]
    is_empty = [path for path, part in zip(files, parts, strict=True) if part is None]
    if is_empty and not (format.is_text and any(parts)):
        raise DataError(f"{is_empty[0]}: is empty")
    return parts[0] if len(parts) == 1 and parts[0] else _joined(files, parts)


def _opened(format: Format, path: TextPath, options: UriOptions | Described, uri: str) -> Dataset | None:
    """The data of a file; None for one that is empty."""
    if format.is_local and isinstance(path, Address):
        raise DataError(
            f"{path}: {format.name} data is read from a local file: copy it to one, or pack its source (htrain data pack SOURCE --out FILE.{format.name})"
        )
    with readable(path):
        if not path.is_file():
            named = path.path if isinstance(path, Prefix) else path
            raise DataError(f"{path if path.name else ''}: {no_such_file(named)} (from '{uri}')")
        return None if _is_empty(path, format) else format.open(path, options)


def _is_empty(path: TextPath, format: Format) -> bool:
    """Whether a file has no byte; compressed text has some all the same."""
    if path.stat().st_size and format.is_text and path.suffix == ".gz":
        with open_text(path) as file:
            return not file.read(1)
    return not path.stat().st_size


def _joined(files: Sequence[TextPath], found: Sequence[Dataset | None]) -> Dataset:
    """The rows of several files, of which some, but not all, may be empty: rows may come to a log. Raises DataError where they are not of one kind."""
    parts = [part for part in found if part]
    first = parts[0]
    for part in parts:
        if part.partition or part.num_workers:
            raise DataError(f"{part.source.name}: was packed by a partition, which has all examples in one file")
    for part in parts[1:]:
        if not part.schema.is_like(first.schema):
            raise DataError(
                f"{part.source.name}: has other inputs than {first.source.name}: {_difference(part, first)}"
            )
    is_timed = all(part.is_timed for part in parts)  # one packed file may lack what another has
    sources = [part.source if part else NoRows(str(path)) for path, part in zip(files, found, strict=True)]
    return replace(first, source=Files(sources), is_timed=is_timed)


def _difference(one: Dataset, other: Dataset) -> str:
    """The first input of `one` that is not as the other has it."""
    found = next(
        item
        for item in (*one.schema.inputs, *other.schema.inputs)
        if item not in other.schema.inputs or item not in one.schema.inputs
    )
    return f"{found.kind} '{found.name}' of {found.width} columns, with {sum(found.rows):,} rows in all; ?rows=N says how many where a file does not"


def files_of(uri: str) -> list[AnyPath]:
    """The files that the rows of a URI depend on: those of data, the schema file, and the vocabularies that it names. Raises DataError as `open_data` does for
    a URI that is none.
    """
    format, place, _ = _parts(uri)
    return [*([] if format.is_made else files_at(place, uri)), *describing_files(uri)]


def describing_files(uri: str) -> list[AnyPath]:
    """The schema file of a URI, and the vocabularies that it names; none where it has no schema. Raises DataError as `files_of` does."""
    _, _, values = _parts(uri)
    if "schema" not in values:
        return []
    schema = path_of(values["schema"])
    return [schema, *vocabulary_files(schema)]


def schema_of(uri: str, extent: Extent) -> Schema:
    """The schema of the rows of a URI, within an extent, without inputs where rows would have to be read for it. Raises DataError as `open_data` does."""
    format, place, values = _parts(uri)
    if format.is_described:
        return load_layout(_schema_file(Path(place), values)).schema
    if format.schema:
        return format.schema(values)
    return open_data(uri, extent).schema if format.is_local or format.is_made else Schema(())


def format_of(uri: str) -> tuple[Format, dict[str, str]]:
    """The format of a URI, and its options but for those that name files. Raises DataError for a URI that is none."""
    format, _, values = _parts(uri)
    return format, {name: text for name, text in sorted(values.items()) if name != "schema"}


def _parts(uri: str) -> tuple[Format, str, UriOptions]:
    """Format, path and options. Raises DataError for formats and options that there are not."""
    name, colon, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    if name not in FORMATS or not colon:
        raise DataError(f"'{uri}': want FORMAT:PATH, with a format of {', '.join(FORMATS)}; such as criteo:train.tsv")
    format = FORMATS[name]
    pairs = [pair.partition("=")[::2] for pair in query.split("&")] if query else []
    values = dict(pairs)
    shown = f"{name}:{place}" if is_address(place) else uri  # what stands behind ? in a signed address is a secret
    if len(values) < len(pairs):
        raise DataError(f"'{shown}': an option is given twice")
    options = [*format.options, *(option for option in (*OF_PARTS, *OF_ORDER) if option not in format.options)]
    unknown = values.keys() - set(options)
    if unknown:
        raise DataError(f"'{shown}': unknown option '{min(unknown)}'; {name} takes {', '.join(options)}")
    return format, place, values
