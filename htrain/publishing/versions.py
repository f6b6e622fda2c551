"""What a version is: objects with parameters, and a manifest, written last. A version without one is no version.

    ADDRESS/versions/00000012-3f9a1c2b/sparse_ps_0-000000.safetensors, ..., manifest.json

The number of a version is one more than that of the newest before it, whoever wrote that; what follows it is the run's own, so that no two runs write to one
place. A full version has all rows; any other has those that changed since the version that it names as its `base`, and all dense weights.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from htrain.decoding import from_json
from htrain.errors import PublishError
from htrain.printable import one_line
from htrain.publishing.storage import Entry, Storage, is_partial

FOLDER, MANIFEST = "versions", "manifest.json"
ROWS = ":rows"  # ends the name of the tensor with the numbers of a part's rows
_FORMAT = 1
_NAME = re.compile(r"([0-9]{8,18})-([0-9a-f]{8})")
_OBJECT_NAME = re.compile(r"[a-z]+(_[a-z]+)*(_[0-9]+){1,2}-[0-9]{6,}\.safetensors")
MOST_NUMBER = 10**17  # of a version: another digit would be too long a name

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


class Unreadable(PublishError):
    """A version, or part of it, is there and is nothing that this htrain can read: it is damaged, or of another format."""


class _Format(msgspec.Struct):
    format: int


def version_name(number: int, run: str) -> str:
    """The name of a run's version; `run` are 8 hexadecimal digits of its own."""
    return f"{number:08d}-{run}"


def number_of(name: str) -> int:
    """The number of the version of this name; 0 of what is no version's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def run_of(name: str) -> str:
    """The mark of the run that a version is of; "" for what is no version's name."""
    match = _NAME.fullmatch(name)
    return match[2] if match else ""


def object_name(role: str, number: int) -> str:
    """The name of a role's object of this number."""
    return f"{role.replace(':', '_')}-{number:06d}.safetensors"


def is_written_here(entry: Entry) -> bool:
    """Whether what lies in a version's folder is something that runs write there."""
    is_named = entry.name == MANIFEST or is_partial(entry.name) or _OBJECT_NAME.fullmatch(entry.name) is not None
    return is_named and entry.kind == "object"


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
    """The names of all versions, whole or not, the newest first; a link is none. Raises PublishError."""
    names = (entry.name for entry in storage.entries(FOLDER) if entry.kind == "folder" and number_of(entry.name))
    return sorted(names, key=lambda n: (-number_of(n), n))


def write_manifest(storage: Storage, version: Version) -> None:
    """Make a version valid. Raises PublishError."""
    storage.put(
        f"{FOLDER}/{version.name}/{MANIFEST}", _text(msgspec.structs.replace(version, checksum=_checksum(version)))
    )


def read_version(storage: Storage, name: str) -> Version:
    """A version by its name. Raises Absent where its manifest is not there, Unreadable for one that is damaged, or was written in another format, and
    PublishError where the storage cannot be read."""
    place = f"{storage.address}/{FOLDER}/{name}/{MANIFEST}"
    content = storage.get(f"{FOLDER}/{name}/{MANIFEST}")
    try:
        found = from_json(content, _Format).format
        if found != _FORMAT:
            raise Unreadable(f"{place}: format {found}, this htrain reads format {_FORMAT}")
        version = from_json(content, Version)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{place}: damaged: {one_line(str(error))}") from error
    if version.name != name or version.checksum != _checksum(version):
        raise Unreadable(f"{place}: damaged: it is not as it was written")
    return version


def absent_objects(storage: Storage, name: str, objects: Sequence[Object]) -> Iterator[tuple[str, bool]]:
    """Those of a version's objects that are not there in the size in which they were written, each by its name, and whether something of that name is there.
    Raises PublishError where the storage cannot be read."""
    there = {entry.name: entry.num_bytes for entry in storage.entries(f"{FOLDER}/{name}")} if objects else {}
    for each in objects:
        if there.get(each.name) not in (each.num_bytes, -1):
            yield each.name, each.name in there


def _text(version: Version) -> bytes:
    return msgspec.json.encode(version)


def _checksum(version: Version) -> str:
    return hashlib.blake2b(_text(msgspec.structs.replace(version, checksum="")), digest_size=16).hexdigest()
