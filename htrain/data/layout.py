"""The schema file of CSV and Parquet data: YAML that says which columns are what; `htrain.data.formats.tabular` shows one.

Files of vocabularies that it names are read with it, as their sizes are those of tables.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from htrain.data.address import Address, AnyPath, beside, path_of
from htrain.data.schema import Input, Schema, modulo
from htrain.data.times import ROWS, Moments, Part, Unit, require_zone
from htrain.data.vocabulary import EMPTY, ReadVocabulary, Vocabulary, vocabularies
from htrain.decoding import converted
from htrain.errors import DataError
from htrain.spec.yaml_file import parse_yaml, read_yaml

_MOST_BYTES = 64 << 20  # of a schema file at an address
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Names = Annotated[list[str], msgspec.Meta(min_length=1)]
_Finite = Annotated[float, msgspec.Meta(ge=-3e38, le=3e38)]
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
_Listed = Literal["vocabulary"]  # in the place of a number of rows: as many as the column's vocabulary has


class _Dense(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="dense"):
    columns: _Names
    transform: Literal["none", "log1p"] = "none"
    missing: _Finite | list[_Finite] = 0.0
    indicator: bool = False

    def input(self, name: str, rows: tuple[int, ...]) -> Input:
        columns = (*self.columns, *(f"{column} missing" for column in self.columns if self.indicator))
        return Input(name, "dense", len(columns), columns)

    @property
    def fills(self) -> tuple[float, ...]:
        """What stands for a missing number of each column."""
        return tuple(self.missing) if isinstance(self.missing, list) else (self.missing,) * len(self.columns)


class _Ids(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="ids"):
    columns: _Names
    rows: _Count | list[_Count | _Listed] | _Listed = "vocabulary"
    vocabulary: str = ""
    tables: list[_Name] = []

    def input(self, name: str, rows: tuple[int, ...]) -> Input:
        columns = tuple(self.columns)
        return Input(name, "ids", len(columns), columns=columns, rows=rows, tables=tuple(self.tables) or columns)


class _Padded(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="padded"):
    column: str
    length: _Count
    rows: _Count | _Listed = "vocabulary"
    vocabulary: str = ""
    table: str = ""

    def input(self, name: str, rows: tuple[int, ...]) -> Input:
        table = self.table or self.column
        return Input(name, "padded", self.length, columns=(self.column,), rows=rows, tables=(table,))


class _Bag(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="bag"):
    column: str
    rows: _Count | _Listed = "vocabulary"
    width: _Count = 1
    vocabulary: str = ""
    table: str = ""

    def input(self, name: str, rows: tuple[int, ...]) -> Input:
        table = self.table or self.column
        return Input(name, "bag", self.width, columns=(self.column,), rows=rows, tables=(table,))


class _Time(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="time"):
    column: str
    parts: Annotated[list[Part], msgspec.Meta(min_length=1)]
    zone: str = "UTC"
    unit: Unit = "s"

    def input(self, name: str, rows: tuple[int, ...]) -> Input:
        columns = tuple(f"{self.column}.{part}" for part in self.parts)
        rows = tuple(ROWS[part] for part in self.parts)
        return Input(name, "ids", len(columns), columns=columns, rows=rows, tables=columns)


_Kind = _Dense | _Ids | _Padded | _Bag | _Time


class TimeColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The column that says when a row was; whole numbers are `unit`s since the epoch."""

    column: str
    unit: Unit = "s"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    inputs: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
    time: str | TimeColumn = ""


@dataclass(frozen=True)
class Layout:
    """A schema and where its parts come from: the label's column; the names of the dense inputs that are log1p(max(x, 0)), what stands for a number of theirs
    that is missing (0 where nothing is said), and which of them tell that it is, in as many columns more; the inputs that are moments; the vocabularies of
    columns of ids, by the names of input and column; and the column of the times of rows, where one is named."""

    schema: Schema
    label: str
    logarithmic: frozenset[str] = frozenset()
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    indicated: frozenset[str] = frozenset()
    moments: Mapping[str, Moments] = field(default_factory=dict)
    vocabularies: Mapping[tuple[str, str], Vocabulary] = field(default_factory=dict)
    time: TimeColumn | None = None

    def sources(self, item: Input) -> tuple[str, ...]:
        """The columns that an input is made of."""
        if item.name in self.moments:
            return (self.moments[item.name].column,)
        return item.columns[: item.width // 2] if item.name in self.indicated else item.columns

    @property
    def columns(self) -> list[str]:
        """The columns that the layout reads, each once, the label's first."""
        of_inputs = [column for item in self.schema.inputs for column in self.sources(item)]
        return list(dict.fromkeys([self.label, *of_inputs, *([self.time.column] if self.time else [])]))


def load_layout(path: AnyPath, read: ReadVocabulary | None = None) -> Layout:
    """The layout of a schema file. Vocabularies that it names, as seen from its folder, come by `read`, or from their files. Raises DataError naming file and
    field.
    """
    read_one = read or vocabularies()
    if isinstance(path, Address):
        document = parse_yaml(_text_at(path), DataError, str(path)).plain()
    else:
        document = read_yaml(path, DataError, missing=" (schema file)").plain()
    return layout_of(document, str(path), lambda file, column: read_one(beside(path, str(file)), column))


def vocabulary_files(path: AnyPath) -> list[AnyPath]:
    """The files of vocabularies that a schema file names, each once; they need not be there. Raises DataError as `load_layout` does."""
    found: list[AnyPath] = []

    def note(file: AnyPath, column: str) -> Vocabulary:
        found.append(file)
        return EMPTY

    load_layout(path, note)
    return list(dict.fromkeys(found))


def _text_at(address: Address) -> str:
    if address.stat().st_size > _MOST_BYTES:
        raise DataError(f"{address}: is too large for a schema file, of which at most {_MOST_BYTES:,} bytes are read")
    with address.open() as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{address}: not YAML: byte {error.start} is not UTF-8 text") from error


def layout_of(document: Any, path: str, read: ReadVocabulary | None = None) -> Layout:
    """The layout that a document says, as a schema file has it, with vocabularies by `read`, or from their files. Raises DataError naming where it is from,
    and the field.
    """
    try:
        file = converted(document, _File)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not a schema: {_one_line(error)}") from error
    given = {name: _convert(path, name, values) for name, values in file.inputs.items()}
    read_one, held = read or vocabularies(), dict[tuple[str, str], Vocabulary]()
    inputs = []
    for name, values in given.items():
        found = _vocabularies(f"{path}: inputs.{name}", values, read_one)
        held |= {(name, column): vocabulary for column, vocabulary in found.items()}
        item = values.input(name, _rows(values, found))
        digests = tuple(found[column].digest if column in found else "" for column in item.columns) if found else ()
        grown = any(vocabulary.extends for vocabulary in found.values())
        extends = tuple(found[column].extends if column in found else () for column in item.columns) if grown else ()
        meanings = tuple(_meanings(values, item.rows, found))
        inputs.append(replace(item, vocabularies=digests, meanings=meanings, extends=extends))
    _check_names(path, inputs)
    _check_tables(path, given, inputs)
    dense = {name: values for name, values in given.items() if isinstance(values, _Dense)}
    for name, values in dense.items():
        if len(values.fills) != len(values.columns):
            raise DataError(
                f"{path}: inputs.{name}: missing: has {len(values.fills)} numbers for {len(values.columns)} columns"
            )
    return Layout(
        Schema(tuple(inputs)),
        file.label,
        logarithmic=frozenset(name for name, values in dense.items() if values.transform == "log1p"),
        fills={name: values.fills for name, values in dense.items()},
        indicated=frozenset(name for name, values in dense.items() if values.indicator),
        moments={name: _moments(path, name, values) for name, values in given.items() if isinstance(values, _Time)},
        vocabularies=held,
        time=TimeColumn(file.time) if isinstance(file.time, str) and file.time else file.time or None,
    )


def _meanings(values: _Kind, rows: Sequence[int], listed: Mapping[str, Vocabulary]) -> Iterator[str]:
    """Of each column of an input what becomes of its values; of one with a vocabulary this says it, by its digest."""
    if isinstance(values, _Dense):
        for fill in values.fills:
            yield ", ".join(
                ["numbers", *(["log1p"] if values.transform == "log1p" else []), f"{fill:.9g} where one is missing"]
            )
        yield from ["1 where one is missing"] * (len(values.columns) if values.indicator else 0)
    elif isinstance(values, _Time):
        yield from (f"{part} in {values.zone}" for part in values.parts)
    else:
        for (column, _), count in zip(_said_rows(values), rows, strict=True):
            yield "ids by a vocabulary" if column in listed else modulo(count)


def _said_rows(values: _Kind) -> list[tuple[str, int | str]]:
    """Of each column of ids how many rows its table has, or that they are those of its vocabulary. Raises ValueError."""
    if not isinstance(values, _Ids | _Padded | _Bag):
        return []
    columns = values.columns if isinstance(values, _Ids) else [values.column]
    rows = values.rows if isinstance(values.rows, list) else [values.rows] * len(columns)
    if len(rows) != len(columns):
        raise ValueError(f"rows: has {len(rows)} numbers for {len(columns)} columns")
    return list(zip(columns, rows, strict=True))


def _rows(values: _Kind, found: Mapping[str, Vocabulary]) -> tuple[int, ...]:
    return tuple(found[c].rows if isinstance(rows, str) else rows for c, rows in _said_rows(values))


def _vocabularies(where: str, values: _Kind, read: ReadVocabulary) -> dict[str, Vocabulary]:
    """The vocabularies of an input's columns."""
    try:
        listed = [column for column, rows in _said_rows(values) if rows == "vocabulary"]
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    file = getattr(values, "vocabulary", "")
    if listed and not file:
        raise DataError(f"{where}: rows: say how many the tables have, or vocabulary: FILE, which has the values")
    if file and not listed:
        raise DataError(
            f"{where}: vocabulary: has no effect beside rows: leave rows out, or say `vocabulary` for a column"
        )
    return {column: read(path_of(file), column) for column in listed}


def _moments(path: str, name: str, values: _Time) -> Moments:
    require_zone(values.zone, f"{path}: inputs.{name}: zone")
    if len(set(values.parts)) < len(values.parts):
        raise DataError(f"{path}: inputs.{name}: parts: names a part twice")
    return Moments(values.column, tuple(values.parts), values.unit, values.zone)


def _convert(path: str, name: str, values: Any) -> _Kind:
    try:
        return converted(values, _Kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: inputs.{name}: {_one_line(error).replace('$.', '')}") from error


def _check_names(path: str, inputs: Sequence[Input]) -> None:
    """Every array of a batch has a name of its own."""
    suffixes = {"padded": ["", "_length"], "bag": ["", "_offsets"]}
    names = Counter(["label"] + [i.name + suffix for i in inputs for suffix in suffixes.get(i.kind, [""])])
    name, count = names.most_common(1)[0]
    if count > 1:
        raise DataError(f"{path}: inputs: two arrays of a batch would be called '{name}'; rename the input")


def _check_tables(path: str, given: Mapping[str, _Kind], inputs: Sequence[Input]) -> None:
    """Columns that are said to share a table have the same row for a value."""
    said: set[str] = set()
    for name, values in given.items():
        if isinstance(values, _Ids) and len(values.tables) not in (0, len(values.columns)):
            raise DataError(
                f"{path}: inputs.{name}: tables: has {len(values.tables)} names for {len(values.columns)} columns"
            )
        said.update(getattr(values, "tables", ()), filter(None, [getattr(values, "table", "")]))
    first: dict[str, tuple[str, int, str]] = {}
    for item in inputs:
        digests = item.vocabularies or ("",) * len(item.rows)
        for table, rows, digest in zip(item.tables, item.rows, digests, strict=True):
            where, wanted, vocabulary = first.setdefault(table, (item.name, rows, digest))
            if table in said and (rows, digest) != (wanted, vocabulary):
                raise DataError(
                    f"{path}: inputs.{item.name}: table '{table}' has {rows:,} rows here and {wanted:,} in inputs.{where}: columns that share a table "
                    "have as many rows in it, or one vocabulary (htrain data vocabulary --together)"
                )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
