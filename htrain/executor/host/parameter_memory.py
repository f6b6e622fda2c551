"""Parameters of a process in memory that outlives it: whoever forked it gives them to the next process of its role (docs/decisions/recovery.md)."""

import math
import mmap
import os
import struct
import sys

import torch

from htrain.errors import RunError

_HEADER_BYTES = 4096
_FILLED, _IN_ROUND, _NEXT_ROUND = 0, 1, 8  # places in the header: two bytes, each written at once, and a number
_NUMBER = struct.Struct("<q")
_ALIGNED = 64  # bytes


class ParameterMemory:
    """Memory for the parameters of one role. For processes that have been forked behind its making, one of which uses it at a time.

    Parameters get their places in the order in which they are asked for: a process finds those of the last where it asks for the same ones in the same order,
    as processes that play one role of one plan do. Raises OSError where the system, or Python, has no such memory, as elsewhere than on Linux.
    """

    def __init__(self, name: str) -> None:
        # A Python that was built for a glibc before 2.27 has no such call.
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            raise OSError("this Python has no memory without a name")
        self._file = os.memfd_create(name)
        os.ftruncate(self._file, _HEADER_BYTES)
        self._header = mmap.mmap(self._file, _HEADER_BYTES)
        self._memory: mmap.mmap | None = None
        self._at = _HEADER_BYTES

    def open(self, num_bytes: int, num_pieces: int) -> None:
        """Use it, for so many parameters of so many bytes in all. Raises RunError where the system gives no such memory."""
        size = _HEADER_BYTES + num_bytes + num_pieces * _ALIGNED
        if os.fstat(self._file).st_size < size:
            try:
                os.ftruncate(self._file, size)  # pages are taken as they are written
            except OSError as error:  # to the system it is a file
                raise RunError(
                    f"no memory of {size:,} bytes for parameters that outlive their process: {error.strerror}; allow this process larger files (ulimit -f), or "
                    "say --retry whole"
                ) from error
        self._memory = mmap.mmap(self._file, size)
        self._at = _HEADER_BYTES

    def piece(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next parameter. Requires: `open`."""
        assert self._memory is not None
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        begin = self._at
        self._at = -(-(begin + count * dtype.itemsize) // _ALIGNED) * _ALIGNED
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin).reshape(shape)

    def fill(self) -> None:
        """All parameters have their values."""
        self._header[_FILLED] = 1

    @property
    def is_filled(self) -> bool:
        """Whether a process has filled it, be it this one or one before."""
        return bool(self._header[_FILLED])

    def begins_round(self, number: int) -> None:
        """A round with centres begins: until it ends, nobody but this process could end it."""
        self._header[_IN_ROUND] = 1
        self._header[_NEXT_ROUND : _NEXT_ROUND + _NUMBER.size] = _NUMBER.pack(number + 1)

    def ends_round(self) -> None:
        """The round has ended."""
        self._header[_IN_ROUND] = 0

    @property
    def next_round(self) -> int:
        """The number of the round after the last that has begun. Requires: `is_whole`."""
        found: int = _NUMBER.unpack_from(self._header, _NEXT_ROUND)[0]
        return found

    @property
    def is_whole(self) -> bool:
        """Whether another process could go on with it: it is filled, and no round was under way when the last one ended."""
        return self.is_filled and not self._header[_IN_ROUND]

    def close(self) -> None:
        """Let the memory go, once no process of the role uses it."""
        self._header.close()
        os.close(self._file)
