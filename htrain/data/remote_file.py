"""A file at an address as a file of Python's: read by position, and again where a connection breaks."""

import io
import time
from collections.abc import Callable
from typing import Any

from htrain.data.drivers import may_pass, speaking_of
from htrain.errors import DataError

_PAUSES_SECONDS = (0.1, 1.0, 4.0)  # before another try
_LONGEST_SECONDS = 30.0  # after which there is no other try: a driver may have been slow to give up
_SKIPPED_BYTES = 1 << 20  # of a stream at once

Open = Callable[[bool], Any]


class RemoteFile(io.RawIOBase):
    """A file of fsspec without its read-ahead: every read asks for its range.

    A web server that has no ranges gives a file from its start alone: such a file is read as one stream, which goes forward only. `open_file` opens the file,
    or with True the stream. Everything that goes wrong is a DataError.
    """

    def __init__(self, address: str, open_file: Open, size: int) -> None:
        """`size` is that of the file, in bytes."""
        self._address = address
        self._open_file = open_file
        self._size = size
        self._position = 0
        self._file: Any = None
        self._is_stream = False
        self._read_bytes = 0  # of the stream so far

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is, but for a stream that would have to go back, which only a read shows."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Say where the next read begins. Nothing is asked of the server."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, less only at the end of the file. Raises DataError."""
        size = min(len(buffer), self._size - self._position)
        if size <= 0:
            return 0
        with speaking_of(self._address):
            buffer[:size] = self._tried(size)
        self._position += size
        return size

    def close(self) -> None:
        """Let go of the connection."""
        self._let_go()
        super().close()

    def _tried(self, size: int) -> bytes:
        begin = time.monotonic()
        for pause in _PAUSES_SECONDS:
            try:
                return self._read(size)
            except Exception as error:
                if not may_pass(error) or time.monotonic() - begin > _LONGEST_SECONDS:
                    raise
            self._let_go()
            time.sleep(pause)
        return self._read(size)

    def _read(self, size: int) -> bytes:
        """So many bytes from the position on. Raises what the driver does, and EOFError where the file ends before."""
        if not self._is_stream:
            try:
                self._file = self._file or self._open_file(False)
                self._file.seek(self._position)
                return self._whole(self._file.read(size), size)
            except ValueError:  # as HTTPFile says that a server sent the whole file
                self._let_go()
                self._is_stream = True
        return self._read_on(size)

    def _read_on(self, size: int) -> bytes:
        if self._file is None:
            self._file, self._read_bytes = self._open_file(True), 0
        if self._position < self._read_bytes:
            raise DataError(
                f"{self._address}: its server gives no parts of a file, which this format wants: copy it to a local one"
            )
        while skipped := min(_SKIPPED_BYTES, self._position - self._read_bytes):
            self._take(skipped)
        return b"".join(self._take(size))

    def _take(self, size: int) -> list[bytes]:
        """The next bytes of the stream, in the pieces in which they come."""
        pieces = []
        while size:
            pieces.append(self._whole(self._file.read(size), 1))
            size -= len(pieces[-1])
            self._read_bytes += len(pieces[-1])
        return pieces

    def _whole(self, data: bytes, size: int) -> bytes:
        if len(data) < size:
            raise EOFError(f"it ended before its {self._size:,} bytes")
        return data

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
