"""The schema file of CSV and Parquet data: YAML that says which columns are what; `htrain.data.formats.tabular` shows one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from htrain.data.address import Address, AnyPath
from htrain.data.schema import Input, Schema
from htrain.data.times import ROWS, Moments, Part, Unit, require_zone
from htrain.errors import DataError
from htrain.spec.yaml_file import parse_yaml, read_yaml

_MOST_BYTES = 64 << 20  # of a schema file at an address
_Names = Annotated[list[str], msgspec.Meta(min_length=1)]
_Finite = Annotated[float, msgspec.Meta(ge=-3e38, le=3e38)]
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]


class _Dense(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="dense"):
    columns: _Names
    transform: Literal["none", "log1p"] = "none"
    missing: _Finite | list[_Finite] = 0.0
    indicator: bool = False

    def input(self, name: str) -> Input:
        columns = (*self.columns, *(f"{column} missing" for column in self.columns if self.indicator))
        return Input(name, "dense", len(columns), columns)

    @property
    def fills(self) -> tuple[float, ...]:
        """What stands for a missing number of each column."""
        return tuple(self.missing) if isinstance(self.missing, list) else (self.missing,) * len(self.columns)


class _Ids(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="ids"):
    columns: _Names
    rows: _Count | list[_Count]

    def input(self, name: str) -> Input:
        columns = tuple(self.columns)
        rows = tuple(self.rows) if isinstance(self.rows, list) else (self.rows,) * len(columns)
        return Input(name, "ids", len(columns), columns=columns, rows=rows, tables=columns)


class _Padded(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="padded"):
    column: str
    length: _Count
    rows: _Count

    def input(self, name: str) -> Input:
        return Input(name, "padded", self.length, columns=(self.column,), rows=(self.rows,), tables=(self.column,))


class _Bag(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="bag"):
    column: str
    rows: _Count
    width: _Count = 1

    def input(self, name: str) -> Input:
        return Input(name, "bag", self.width, columns=(self.column,), rows=(self.rows,), tables=(self.column,))


class _Time(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="time"):
    column: str
    parts: Annotated[list[Part], msgspec.Meta(min_length=1)]
    zone: str = "UTC"
    unit: Unit = "s"

    def input(self, name: str) -> Input:
        columns = tuple(f"{self.column}.{part}" for part in self.parts)
        rows = tuple(ROWS[part] for part in self.parts)
        return Input(name, "ids", len(columns), columns=columns, rows=rows, tables=columns)


_Kind = _Dense | _Ids | _Padded | _Bag | _Time


class _File(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    inputs: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Layout:
    """A schema and where its parts come from: the label's column; the names of the dense inputs that are log1p(max(x, 0)), what stands for a number of theirs
    that is missing (0 where nothing is said), and which of them tell that it is, in as many columns more; and the inputs that are moments."""

    schema: Schema
    label: str
    logarithmic: frozenset[str] = frozenset()
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    indicated: frozenset[str] = frozenset()
    moments: Mapping[str, Moments] = field(default_factory=dict)

    def sources(self, item: Input) -> tuple[str, ...]:
        """The columns that an input is made of."""
        if item.name in self.moments:
            return (self.moments[item.name].column,)
        return item.columns[: item.width // 2] if item.name in self.indicated else item.columns

    @property
    def columns(self) -> list[str]:
        """The columns that the layout reads, each once, the label's first."""
        return list(dict.fromkeys([self.label, *(c for item in self.schema.inputs for c in self.sources(item))]))


def load_layout(path: AnyPath) -> Layout:
    """The layout of a schema file. Raises DataError naming file and field."""
    if isinstance(path, Address):
        return layout_of(parse_yaml(_text_at(path), DataError, str(path)).plain(), str(path))
    return layout_of(read_yaml(path, DataError, missing=" (schema file)").plain(), str(path))


def _text_at(address: Address) -> str:
    if address.stat().st_size > _MOST_BYTES:
        raise DataError(f"{address}: is too large for a schema file, of which at most {_MOST_BYTES:,} bytes are read")
    with address.open() as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{address}: not YAML: byte {error.start} is not UTF-8 text") from error


def layout_of(document: Any, path: str) -> Layout:
    """The layout that a document says, as a schema file has it. Raises DataError naming where it is from, and the field."""
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not a schema: {_one_line(error)}") from error
    given = {name: _convert(path, name, values) for name, values in file.inputs.items()}
    inputs = tuple(values.input(name) for name, values in given.items())
    for item in inputs:
        if item.kind == "ids" and len(item.rows) != item.width:
            raise DataError(f"{path}: inputs.{item.name}: rows: has {len(item.rows)} numbers for {item.width} columns")
    _check_names(path, inputs)
    dense = {name: values for name, values in given.items() if isinstance(values, _Dense)}
    for name, values in dense.items():
        if len(values.fills) != len(values.columns):
            raise DataError(
                f"{path}: inputs.{name}: missing: has {len(values.fills)} numbers for {len(values.columns)} columns"
            )
    return Layout(
        Schema(inputs),
        file.label,
        logarithmic=frozenset(name for name, values in dense.items() if values.transform == "log1p"),
        fills={name: values.fills for name, values in dense.items()},
        indicated=frozenset(name for name, values in dense.items() if values.indicator),
        moments={name: _moments(path, name, values) for name, values in given.items() if isinstance(values, _Time)},
    )


def _moments(path: str, name: str, values: _Time) -> Moments:
    require_zone(values.zone, f"{path}: inputs.{name}: zone")
    if len(set(values.parts)) < len(values.parts):
        raise DataError(f"{path}: inputs.{name}: parts: names a part twice")
    return Moments(values.column, tuple(values.parts), values.unit, values.zone)


def _convert(path: str, name: str, values: Any) -> _Kind:
    try:
        return msgspec.convert(values, _Kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: inputs.{name}: {_one_line(error).replace('$.', '')}") from error


def _check_names(path: str, inputs: Sequence[Input]) -> None:
    """Every array of a batch has a name of its own."""
    suffixes = {"padded": ["", "_length"], "bag": ["", "_offsets"]}
    names = Counter(["label"] + [i.name + suffix for i in inputs for suffix in suffixes.get(i.kind, [""])])
    name, count = names.most_common(1)[0]
    if count > 1:
        raise DataError(f"{path}: inputs: two arrays of a batch would be called '{name}'; rename the input")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
