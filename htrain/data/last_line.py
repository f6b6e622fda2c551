"""The last line of a text file, which may have no end: a finished file often ends so, and a log does whenever it is looked at while a line is written to it.

From the bytes nobody can tell the one from the other. So such a line is a row as it stands. Where it has gone on when the file is looked at again, the whole
line is read anew (docs/decisions/runs-and-resumes.md).
"""

from typing import BinaryIO

from htrain.data.address import AnyPath
from htrain.errors import DataError

_BLOCK_BYTES = 1 << 16  # of what is read at once on the way back to the start of a line


def begin_of_new(path: AnyPath, num_bytes: int) -> int:
    """The byte of a plain text file at which lines begin that it had not when it had `num_bytes`: where it ended, or the start of its last line, where that had
    no end and goes on.

    Requires: the file has more bytes now. Raises DataError for a file that cannot be read.
    """
    if not num_bytes:
        return 0
    try:
        with path.open("rb") as file:
            file.seek(num_bytes - 1)
            at = file.read(3)
            is_at_end = at[:1] == b"\n" or at[1:] in (b"\r\n", b"\r") or at[1:2] == b"\n"
            return num_bytes if is_at_end else _begin_of_line(file, num_bytes)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _begin_of_line(file: BinaryIO, place: int) -> int:
    """Where the line begins that the byte before `place` is in."""
    while place > 0:
        begin = max(0, place - _BLOCK_BYTES)
        file.seek(begin)
        found = file.read(place - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        place = begin
    return 0
