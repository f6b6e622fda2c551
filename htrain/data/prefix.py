"""A file as it was when a run began to read it: its first bytes, whatever has been appended since."""

import io
from dataclasses import dataclass
from typing import BinaryIO, cast

from htrain.data.address import LINE_BYTES, Address, AnyPath, Found
from htrain.errors import DataError


@dataclass(frozen=True)
class Prefix:
    """The first `num_bytes` bytes of a file, as much of a path as readers of text use."""

    path: AnyPath
    num_bytes: int

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """The end of the name, such as .gz."""
        return self.path.suffix

    def is_file(self) -> bool:
        """Whether there is such a file. Raises DataError where its store does not say."""
        return self.path.is_file()

    def stat(self) -> Found:
        """Size, time of the last change, and version. Raises DataError for a file that has fewer bytes, OSError."""
        found = self.path.stat()
        if found.st_size < self.num_bytes:
            raise self._shorter(found.st_size)
        return Found(self.num_bytes, found.st_mtime_ns, found.version if isinstance(found, Found) else "")

    def open(self, mode: str = "rb", buffering: int = LINE_BYTES) -> BinaryIO:
        """These bytes, open for reading. Raises DataError, here or in a read, for a file that has fewer; OSError."""
        assert mode == "rb"
        self.stat()
        if isinstance(self.path, Address):
            raw = cast(io.RawIOBase, self.path.open(buffering=0))
        else:  # of a disk no more is asked for at once than lines take: what is longer is read to where it is to be
            raw, buffering = self.path.open("rb", buffering=0), min(buffering, LINE_BYTES)
        return cast(BinaryIO, io.BufferedReader(_Bounded(raw, self), buffering))

    def _shorter(self, num_bytes: int) -> DataError:
        return DataError(f"{self.path}: has {num_bytes:,} bytes, it had {self.num_bytes:,} when the run began")


class _Bounded(io.RawIOBase):
    """An open file that ends where its prefix does."""

    def __init__(self, raw: io.RawIOBase, prefix: Prefix) -> None:
        self._raw = raw
        self._prefix = prefix

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._raw.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset, whence = self._prefix.num_bytes + offset, io.SEEK_SET
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        place = self._raw.tell()
        wanted = min(len(buffer), self._prefix.num_bytes - place)
        if wanted <= 0:
            return 0
        read = int(self._raw.readinto(memoryview(buffer)[:wanted]) or 0)
        if not read:
            raise self._prefix._shorter(place)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


TextPath = AnyPath | Prefix
