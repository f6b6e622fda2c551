"""What a version is: objects with parameters, and a manifest, written last. A version without one is no version.

    ADDRESS/versions/00000012-3f9a1c2b/sparse_ps_0-000000.safetensors, ..., manifest.json

The number of a version is one more than that of the newest before it, whoever wrote that; what follows it is the run's own, so that no two runs write to one
place. A full version has all rows; any other has those that changed since the version that it names as its `base`, and all dense weights.
"""

import hashlib
import re
import zlib
from typing import Annotated

import msgspec

from htrain.decoding import from_json
from htrain.errors import PublishError
from htrain.printable import one_line
from htrain.publishing.storage import Storage

FOLDER, MANIFEST = "versions", "manifest.json"
ROWS = ":rows"  # ends the name of the tensor with the numbers of a part's rows
_FORMAT = 1
_NAME = re.compile(r"([0-9]{8,18})-([0-9a-f]{8})")

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter as the model has it: `kind` is table, weight or statistic."""

    kind: str
    dtype: str
    shape: tuple[Count, ...]


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor of an object: rows of the whole `parameter` from `first_column` on. They are `num_rows` from `first_row` on, or, where they are `listed`, those
    whose numbers the object has beside it."""

    parameter: str
    first_row: Count
    first_column: Count
    num_rows: Count
    listed: bool


class Object(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A safetensors file of a version, with its size and CRC-32. The tensor of part k is called k."""

    name: str
    num_bytes: Count
    digest: Count
    parts: tuple[Part, ...]


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest. `examples` had been trained when the version was begun; `is_final` says that training was over. `seconds` are those of the epoch."""

    format: int
    name: str
    base: str
    model: str
    plan: str
    examples: Count
    seconds: float
    is_final: bool
    parameters: dict[str, Whole]
    objects: tuple[Object, ...]
    checksum: str = ""

    @property
    def number(self) -> int:
        """Which version it is."""
        return number_of(self.name)

    @property
    def num_bytes(self) -> int:
        """Of all objects."""
        return sum(each.num_bytes for each in self.objects)


class _Format(msgspec.Struct):
    format: int


def version_name(number: int, run: str) -> str:
    """The name of a run's version; `run` are 8 hexadecimal digits of its own."""
    return f"{number:08d}-{run}"


def number_of(name: str) -> int:
    """The number of the version of this name; 0 of what is no version's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def is_of(name: str, run: str) -> bool:
    """Whether a version is one of a run's own."""
    match = _NAME.fullmatch(name)
    return match is not None and match[2] == run


def new_version(
    name: str,
    base: str,
    *,
    model: str,
    plan: str,
    examples: int,
    seconds: float,
    is_final: bool,
    parameters: dict[str, Whole],
    objects: tuple[Object, ...],
) -> Version:
    """A version that is about to be written."""
    return Version(
        _FORMAT,
        name,
        base,
        model=model,
        plan=plan,
        examples=examples,
        seconds=seconds,
        is_final=is_final,
        parameters=parameters,
        objects=objects,
    )


def digest_of(content: bytes) -> int:
    """The CRC-32 of an object."""
    return zlib.crc32(content)


def version_names(storage: Storage) -> list[str]:
    """The names of all versions, whole or not, the newest first. Raises PublishError."""
    return sorted((name for name in storage.names(FOLDER) if number_of(name)), key=lambda n: (-number_of(n), n))


def write_manifest(storage: Storage, version: Version) -> None:
    """Make a version valid. Raises PublishError."""
    storage.put(
        f"{FOLDER}/{version.name}/{MANIFEST}", _text(msgspec.structs.replace(version, checksum=_checksum(version)))
    )


def read_version(storage: Storage, name: str) -> Version:
    """A version by its name. Raises PublishError for one that is not whole, or was written in another format."""
    place = f"{storage.address}/{FOLDER}/{name}/{MANIFEST}"
    content = storage.get(f"{FOLDER}/{name}/{MANIFEST}")
    try:
        found = from_json(content, _Format).format
        if found != _FORMAT:
            raise PublishError(f"{place}: format {found}, this htrain reads format {_FORMAT}")
        version = from_json(content, Version)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PublishError(f"{place}: damaged: {one_line(str(error))}") from error
    if version.name != name or version.checksum != _checksum(version):
        raise PublishError(f"{place}: damaged: it is not as it was written")
    return version


def _text(version: Version) -> bytes:
    return msgspec.json.encode(version)


def _checksum(version: Version) -> str:
    return hashlib.blake2b(_text(msgspec.structs.replace(version, checksum="")), digest_size=16).hexdigest()
