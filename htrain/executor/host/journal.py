"""What a process has done, in memory that outlives it: whoever forked it reads there where another is to go on (docs/decisions/recovery.md)."""

import mmap
import struct

_HALF_BYTES = 1 << 20  # of address space; memory is taken as it is written
_LENGTH = struct.Struct("<I")
_HALVES = 1  # where they begin


class Journal:
    """The last word of a process that may be killed at any instruction. For processes that have been forked behind its making, one of which writes.

    There are two halves: one is written while the other counts, so a word that was half written is none. Which counts is one byte, for that is all of which
    Python writes either nothing or the whole: a number that is packed into memory is zero for a moment.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HALVES + 2 * _HALF_BYTES)

    def write(self, word: bytes) -> None:
        """This is the last word from now on. Thread-safe it is not. Raises ValueError for more than 1 MiB."""
        if len(word) > _HALF_BYTES - _LENGTH.size:
            raise ValueError(f"a word of {len(word):,} bytes")
        counts = 1 if self._memory[0] == 2 else 2
        start = self._start(counts)
        self._memory[start : start + _LENGTH.size] = _LENGTH.pack(len(word))
        self._memory[start + _LENGTH.size : start + _LENGTH.size + len(word)] = word
        self._memory[0] = counts

    def read(self) -> bytes:
        """The last word; b"" where none was written. Requires: nobody writes any more."""
        counts = self._memory[0]
        if not counts:
            return b""
        start = self._start(counts)
        (length,) = _LENGTH.unpack_from(self._memory, start)
        return self._memory[start + _LENGTH.size : start + _LENGTH.size + length]

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()

    @staticmethod
    def _start(half: int) -> int:
        return _HALVES + (half - 1) * _HALF_BYTES
