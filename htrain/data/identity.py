"""What a reader's position means: the data that it was read from, by content (htrain.executor.record.identity holds it against what is read later).

A position is a row of a chunk of a file, and chunks are cut by the file's size. Rows that were appended, relabelled or put in another order
would make a resumed run skip some examples and train others twice.

A file at an address whose store gives it an ETag, as S3 does, is known by that and by its size, and is not read for it: a store gives other bytes another ETag.

Data that has grown is told from other data by what it was: files of text begin with the bytes that they had, and new files come behind those before. By what a
file is known, all of its bytes or how many blocks, depends on the sizes and the number of all files. So it is recorded of each, and a file is compared by
what it was known by, whatever has come beside it.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from htrain.data.address import AnyPath, Found
from htrain.data.growth import Extent, FileSize
from htrain.data.last_line import begin_of_new
from htrain.data.source import by_name, describing_files, files_of, format_of, schema_of
from htrain.errors import DataError

WHOLE_BYTES = 2 << 30  # up to this size of all files every byte counts: about a second and a half
_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20  # of larger ones, besides their sizes and the times of their last changes
READER = 1  # how rows are numbered; another number where another htrain numbers them otherwise


class FileIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file by its content. `modified_ns` counts only where `whole` is False: then `digest` is that of `blocks` blocks which lie evenly in the file. An older
    htrain did not write how many: 0 stands for as many as the number of files gives.

    With `is_version` the digest is that of its ETag.
    """

    name: str
    num_bytes: int
    modified_ns: int
    whole: bool
    digest: str
    is_version: bool = False
    blocks: int = 0

    def has_grown(self, other: "FileIdentity") -> bool:
        """Whether `other`, the file as it is now, has more bytes."""
        return other.num_bytes > self.num_bytes

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
    """Data as a reader sees it: its format and options, the files behind it in order, the digests of the vocabularies that give values their rows, by input
    and column, and what becomes of the values of each column of an input (`Schema.meanings`)."""

    reader: int
    format: str
    options: dict[str, str]
    files: tuple[FileIdentity, ...]
    vocabularies: dict[str, str] = {}
    meanings: dict[str, tuple[tuple[str, str], ...]] = {}

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
    return _identity(uri, files_of(uri), Extent())


def _identity(uri: str, files: Sequence[AnyPath], extent: Extent) -> DataIdentity:
    """The same of those `files` of its rows that are in an extent, and those that describe them."""
    format, options = format_of(uri)
    try:
        total = sum(path.stat().st_size for path in files)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    blocks = _blocks(uri, len(files))
    identities = tuple(_file(path, total <= WHOLE_BYTES, blocks) for path in files)
    schema = schema_of(uri, extent)
    return DataIdentity(
        READER, format.name, options, identities, vocabularies=schema.vocabularies, meanings=schema.meanings
    )


def content_of(uri: str) -> str:
    """A digest of the data of a URI as it is now: the same where `difference` finds none, whenever its files were written. Raises DataError for what cannot be
    read."""
    identity = identity_of(uri)
    files = tuple(msgspec.structs.replace(each, modified_ns=0) if each.whole else each for each in identity.files)
    return hashlib.blake2b(
        msgspec.json.encode(msgspec.structs.replace(identity, files=files)), digest_size=16
    ).hexdigest()


def data_files(uri: str, identity: DataIdentity) -> tuple[FileIdentity, ...]:
    """The files of rows, without those that describe them. Raises DataError as `open_data` does."""
    return identity.files[: len(identity.files) - len(describing_files(uri))]


def begins_of_new(uri: str, before: Sequence[FileIdentity], now: Sequence[FileIdentity]) -> list[int]:
    """The byte at which what has come begins in each file of rows that a URI had `before`; `now` there may be more of them. Raises DataError for what cannot be
    read."""
    grown = [its.num_bytes > mine.num_bytes for mine, its in zip(before, now, strict=False)]
    triples = zip(files_of(uri), before, grown, strict=False)
    return [begin_of_new(path, mine.num_bytes) if more else mine.num_bytes for path, mine, more in triples]


def other_than_grown(uri: str, then: DataIdentity, now: DataIdentity) -> str:
    """What tells the data of a URI, that was `then`, and was `now` when it was last looked at, from what is the same but for rows that have come behind it; ""
    where nothing does. Raises DataError for what cannot be read."""
    return _other_than_grown(uri, files_of(uri), then, now)


def other_than_read(uri: str, then: DataIdentity, *, is_copy: bool = False) -> str:
    """What tells the data of a URI as it is now from what a run reads that began when it was `then`; "" where nothing does: each file of that name is there and
    begins as it did. What has come since, behind these files, or in new ones wherever they stand, is none of that run's. Of a copy the times of changes do not
    count. Raises DataError for what cannot be read."""
    files, beside = files_of(uri), describing_files(uri)
    wanted = tuple(FileSize(file.name, file.num_bytes) for file in data_files(uri, then))
    found = by_name(files[: len(files) - len(beside)], [file.name for file in wanted])
    if missing := [file.name for file, path in zip(wanted, found, strict=True) if path is None]:
        return f"there is no file '{missing[0]}'"
    read = [*(path for path in found if path is not None), *beside]
    now = _identity(uri, read, Extent(wanted))
    if is_copy:
        then, now = _timeless(then), _timeless(now)
    return _other_than_grown(uri, read, then, now)


def _timeless(identity: DataIdentity) -> DataIdentity:
    files = tuple(msgspec.structs.replace(file, modified_ns=0) for file in identity.files)
    return msgspec.structs.replace(identity, files=files)


def _other_than_grown(uri: str, paths: Sequence[AnyPath], then: DataIdentity, now: DataIdentity) -> str:
    """The same for data whose files, `now`, are at `paths`."""
    now = _known_as(uri, paths, then, now)
    if not (difference := then.difference(now)):
        return ""
    format, _ = format_of(uri)
    before, after = data_files(uri, then), data_files(uri, now)
    if not format.is_joined or not before or len(after) < len(before):
        return difference
    beside, beside_now = then.files[len(before) :], now.files[len(after) :]
    if other := msgspec.structs.replace(then, files=beside).difference(msgspec.structs.replace(now, files=beside_now)):
        return other
    blocks = _blocks(uri, len(then.files))
    for path, mine, its in zip(paths, before, after, strict=False):
        other = _file_other_than_grown(path, mine, its, blocks=mine.blocks or blocks, is_text=format.is_text)
        if other and len(after) > len(before) and its.name != mine.name:
            return f"'{its.name}' is where '{mine.name}' was: new files come behind those before, by name"
        if other:
            return other
    return ""


def _known_as(uri: str, paths: Sequence[AnyPath], then: DataIdentity, now: DataIdentity) -> DataIdentity:
    """`now`, in which each file of as many bytes as `then` is known by what it was known by."""
    before, after = len(data_files(uri, then)), len(data_files(uri, now))
    of_rows = zip(range(before), range(after), strict=False)
    beside = zip(range(before, len(then.files)), range(after, len(now.files)), strict=False)
    blocks, files = _blocks(uri, len(then.files)), list(now.files)
    for place_then, place in (*of_rows, *beside):
        mine, its = then.files[place_then], files[place]
        wanted = 0 if mine.whole else mine.blocks or blocks
        if mine.num_bytes == its.num_bytes and wanted != its.blocks and not (mine.is_version or its.is_version):
            files[place] = _known_by(paths[place], its, wanted)
    return msgspec.structs.replace(now, files=tuple(files))


def _known_by(path: AnyPath, its: FileIdentity, blocks: int) -> FileIdentity:
    """A file at a path, by so many blocks; by all of its bytes for 0."""
    digest = _digest_at(path, its.num_bytes, blocks)
    return msgspec.structs.replace(its, whole=not blocks, blocks=blocks, digest=digest)


def _file_other_than_grown(path: AnyPath, mine: FileIdentity, its: FileIdentity, *, blocks: int, is_text: bool) -> str:
    """The same for one file, at a path."""
    if not mine.num_bytes:  # what comes to an empty file is as what comes in a new one
        return ""
    difference = mine.difference(its)
    if not mine.has_grown(its):
        return difference
    if not is_text or path.suffix == ".gz":
        return f"{difference}: only a plain text file may grow, others come as new files"
    if mine.is_version or its.is_version:
        return f"{difference}: it is known by its ETag, which does not say that it begins as before: what is new comes as new files"
    as_it_was = _digest_at(path, mine.num_bytes, 0 if mine.whole else blocks)
    return "" if as_it_was == mine.digest else f"{difference}, and of these some are others"


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


def _blocks(uri: str, num_files: int) -> int:
    """How many blocks of each file of data count."""
    return max(2, _BLOCKS // max(1, num_files - ("schema=" in uri)))


def _file(path: AnyPath, all_small: bool, blocks: int) -> FileIdentity:
    """A file by its ETag where it has one, by all of its bytes where all files together are small or it is smaller than what would be read, or by some."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if isinstance(found, Found) and found.version:
        digest = hashlib.sha256(found.version.encode()).hexdigest()
        return FileIdentity(path.name, found.st_size, found.st_mtime_ns, True, digest, is_version=True)
    counted = 0 if all_small or found.st_size <= blocks * _BLOCK_BYTES else blocks
    digest = _digest_at(path, found.st_size, counted)
    return FileIdentity(path.name, found.st_size, found.st_mtime_ns, not counted, digest, blocks=counted)


def _digest_at(path: AnyPath, num_bytes: int, blocks: int) -> str:
    """That of the first bytes of a file, or for other than 0 of so many `blocks` of them. Raises DataError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return _digest(file, num_bytes, _places(num_bytes, blocks) if blocks else None)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _digest(file: BinaryIO, num_bytes: int, places: Sequence[int] | None) -> str:
    """SHA-256 of the first bytes of a file, which may grow meanwhile, or of the blocks that begin at `places`: most CPUs have instructions for it."""
    digest = hashlib.sha256()
    if places is None:
        while num_bytes > 0 and (data := file.read(min(num_bytes, _BLOCK_BYTES))):
            digest.update(data)
            num_bytes -= len(data)
    for place in places or ():
        file.seek(place)
        digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _places(num_bytes: int, blocks: int) -> list[int]:
    """Where blocks begin: the first and the last of the file, and others evenly between."""
    return [(num_bytes - _BLOCK_BYTES) * k // (blocks - 1) for k in range(blocks)]
