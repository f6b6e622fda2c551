"""What a process has done, in memory that outlives it: whoever forked it reads there where another is to go on (docs/decisions/recovery.md)."""

import mmap
import struct

_HALF_BYTES = 1 << 20  # of address space; memory is taken as it is written
_HEAD = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class Journal:
    """The last word of a process that may be killed at any instruction. For processes that have been forked behind its making, one of which writes.

    There are two halves: one is written while the other counts, so a word that was half written is none.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + 2 * _HALF_BYTES)
        self._written = 0

    def write(self, word: bytes) -> None:
        """This is the last word from now on. Thread-safe it is not. Raises ValueError for more than 1 MiB."""
        if len(word) > _HALF_BYTES - _LENGTH.size:
            raise ValueError(f"a word of {len(word):,} bytes")
        self._written += 1
        start = self._start(self._written)
        self._memory[start : start + _LENGTH.size] = _LENGTH.pack(len(word))
        self._memory[start + _LENGTH.size : start + _LENGTH.size + len(word)] = word
        _HEAD.pack_into(self._memory, 0, self._written)

    def read(self) -> bytes:
        """The last word; b"" where none was written. Requires: nobody writes any more."""
        (self._written,) = _HEAD.unpack_from(self._memory, 0)
        if not self._written:
            return b""
        start = self._start(self._written)
        (length,) = _LENGTH.unpack_from(self._memory, start)
        return self._memory[start + _LENGTH.size : start + _LENGTH.size + length]

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()

    @staticmethod
    def _start(number: int) -> int:
        return _HEAD.size + (number % 2) * _HALF_BYTES
