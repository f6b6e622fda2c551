"""What a reader's position means: the data that it was read from, by content (htrain.executor.record.identity holds it against what is read later).

A position is a row of a chunk of a file, and chunks are cut by the file's size. Rows that were appended, relabelled or put in another order
would make a resumed run skip some examples and train others twice.

A file at an address whose store gives it an ETag, as S3 does, is known by that and by its size, and is not read for it: a store gives other bytes another ETag.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from htrain.data.address import AnyPath, Found
from htrain.data.source import files_of, format_of, vocabularies_of
from htrain.errors import DataError

WHOLE_BYTES = 2 << 30  # up to this size of all files every byte counts: about a second and a half
_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20  # of larger ones, besides their sizes and the times of their last changes
READER = 1  # how rows are numbered; another number where another htrain numbers them otherwise


class FileIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file by its content. `modified_ns` counts only where `whole` is False: then `digest` is that of blocks which lie evenly in the file.

    With `is_version` the digest is that of its ETag.
    """

    name: str
    num_bytes: int
    modified_ns: int
    whole: bool
    digest: str
    is_version: bool = False

    def difference(self, other: "FileIdentity") -> str:
        """What tells `other`, the file as it is now, from this one; "" where nothing does. Where a file lies makes no difference."""
        if other.num_bytes != self.num_bytes:
            return f"'{other.name}' has {other.num_bytes:,} bytes, it had {self.num_bytes:,}"
        if other.is_version != self.is_version:
            now, before = (f"by its {'ETag' if each.is_version else 'bytes'}" for each in (other, self))
            return f"'{other.name}' is known {now} where it lies now, it was {before}"
        if other.digest != self.digest and self.is_version:
            return f"'{other.name}' has {other.num_bytes:,} bytes as before, but another ETag"
        if other.digest != self.digest or other.whole != self.whole:
            return f"'{other.name}' has {other.num_bytes:,} bytes as before, but others"
        if not self.whole and other.modified_ns != self.modified_ns:
            return f"'{other.name}' was changed since"
        return ""


class DataIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Data as a reader sees it: its format and options, the files behind it in order, and the digests of the vocabularies that give values their rows, by input
    and column."""

    reader: int
    format: str
    options: dict[str, str]
    files: tuple[FileIdentity, ...]
    vocabularies: dict[str, str] = {}

    def difference(self, other: "DataIdentity") -> str:
        """What tells `other`, the data as it is now, from this; "" where nothing does."""
        if other.reader != self.reader:
            return "this htrain numbers rows in another way"
        if other.format != self.format:
            return f"it is {other.format} now, it was {self.format}"
        for name in sorted(self.options.keys() | other.options.keys()):
            before, now = (o.get(name, "not given") for o in (self.options, other.options))
            if before != now:
                return f"its option {name} is {now} now, it was {before}"
        if len(other.files) != len(self.files):
            return f"it has {len(other.files)} files, it had {len(self.files)}"
        return next((d for mine, its in zip(self.files, other.files, strict=True) if (d := mine.difference(its))), "")


def identity_of(uri: str) -> DataIdentity:
    """The data of a URI as it is now. Raises DataError for what cannot be read."""
    format, options = format_of(uri)
    files = files_of(uri)
    try:
        total = sum(path.stat().st_size for path in files)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    blocks = max(2, _BLOCKS // max(1, len(files) - ("schema=" in uri)))  # of each file of data
    identities = tuple(_file(path, total <= WHOLE_BYTES, blocks) for path in files)
    return DataIdentity(READER, format, options, identities, vocabularies_of(uri))


def stamps_of(uri: str) -> tuple[tuple[int, ...], ...]:
    """What the file system says of the data's files: where it is the same at two moments, nobody has written to any between. Empty where that is not known, as
    at addresses. Raises DataError for what cannot be found."""
    files = files_of(uri)
    if not all(isinstance(path, Path) for path in files):
        return ()
    try:
        found = [os.stat(str(path)) for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in found)


def _file(path: AnyPath, all_small: bool, blocks: int) -> FileIdentity:
    """A file by its ETag where it has one, by all of its bytes where all files together are small or it is smaller than what would be read, or by some."""
    try:
        found = path.stat()
        if isinstance(found, Found) and found.version:
            digest = hashlib.sha256(found.version.encode()).hexdigest()
            return FileIdentity(path.name, found.st_size, found.st_mtime_ns, True, digest, is_version=True)
        whole = all_small or found.st_size <= blocks * _BLOCK_BYTES
        places = None if whole else _places(found.st_size, blocks)
        return FileIdentity(path.name, found.st_size, found.st_mtime_ns, whole, _digest(path, places))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _digest(path: AnyPath, places: Sequence[int] | None) -> str:
    """SHA-256 of a file, or of the blocks that begin at `places`: most CPUs have instructions for it."""
    with path.open("rb") as file:
        if places is None:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        digest = hashlib.sha256()
        for place in places:
            file.seek(place)
            digest.update(file.read(_BLOCK_BYTES))
        return digest.hexdigest()


def _places(num_bytes: int, blocks: int) -> list[int]:
    """Where blocks begin: the first and the last of the file, and others evenly between."""
    return [(num_bytes - _BLOCK_BYTES) * k // (blocks - 1) for k in range(blocks)]
