"""What a packed file holds, for people: examples, inputs, where they came from, and whose they are (`htrain show FILE.packed`).

Of the blocks as many are held against their digests as have 2 GiB together, evenly over the file: a file up to that size is looked at whole.
"""

from pathlib import Path
from typing import Literal

import msgspec

from htrain.data.address import is_address
from htrain.data.formats.packed import Stamp, looks_packed, reading, stamp
from htrain.data.packed_rows import stored_dtype
from htrain.data.schema import Kind
from htrain.errors import DataError
from htrain.files import require_regular

_CHECKED_BYTES = 2 << 30
_PREFIX = "packed:"


class PackedInput(msgspec.Struct, frozen=True):
    """An input: the `dtype` is that of the file, `width` the number of columns, the longest list of a `padded` input, or the mean length of a `bag`.

    `rows` and `tables` are those of the schema.
    """

    name: str
    kind: Kind
    dtype: str
    width: int
    rows: tuple[int, ...]
    tables: tuple[str, ...]


class PackedFrom(msgspec.Struct, frozen=True):
    """A file that was packed, as seen from the packed file's folder, and what it is now; one at an address, `elsewhere`, is not asked."""

    path: str
    bytes: int
    now: Literal["unchanged", "changed", "absent", "elsewhere"]


class PackedContents(msgspec.Struct, frozen=True):
    """What a packed file holds. `malformed` rows of its source, `uri`, were left out. `checked_blocks` of its blocks were read, and are as they were written.

    With a `partition`, by its digest, worker_examples[k] are those of worker k; they are empty without.
    """

    path: str
    bytes: int
    version: int
    examples: int
    blocks: int
    checked_blocks: int
    malformed: int
    uri: str
    files: tuple[PackedFrom, ...]
    inputs: tuple[PackedInput, ...]
    partition: str
    worker_examples: tuple[int, ...]


def packed_file(name: Path) -> Path | None:
    """The packed file that `name` means: as packed:FILE, or by its name or content; None where it means something else."""
    if str(name).startswith(_PREFIX):
        return Path(str(name).removeprefix(_PREFIX))
    if name.suffix == ".packed" and not name.is_dir():
        return name
    try:
        require_regular(name)
        return name if looks_packed(name) else None
    except OSError:
        return None


def packed_contents(path: Path) -> PackedContents:
    """What a packed file holds. Raises DataError for what is none, or was damaged; that its source has changed since is no error."""
    try:
        require_regular(path)
        num_bytes = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    with reading(path) as file:
        header, totals = file.header, file.totals
        checked = range(0, totals.blocks, -(-num_bytes // _CHECKED_BYTES))
        for number in checked:
            file.content(number)
        of_workers = [0] * header.num_workers
        for worker, block in zip(file.workers, file.blocks, strict=bool(file.workers)):
            of_workers[worker] += block.rows
    return PackedContents(
        path=str(path),
        bytes=num_bytes,
        version=header.version,
        examples=totals.examples,
        blocks=totals.blocks,
        checked_blocks=len(checked),
        malformed=totals.malformed,
        uri=header.uri,
        files=tuple(PackedFrom(packed.path, packed.bytes, _now(packed, path.parent)) for packed in header.files),
        inputs=tuple(
            PackedInput(i.name, i.kind, stored_dtype(i), width=i.width, rows=i.rows, tables=i.tables)
            for i in header.inputs
        ),
        partition=header.partition,
        worker_examples=tuple(of_workers),
    )


def _now(packed: Stamp, folder: Path) -> Literal["unchanged", "changed", "absent", "elsewhere"]:
    if is_address(packed.path):
        return "elsewhere"
    try:
        return "unchanged" if stamp(folder / packed.path, folder) == packed else "changed"
    except OSError:
        return "absent"
