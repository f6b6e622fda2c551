"""Files, read and written whole: what is read is a file and of a size that was meant, what is written appears whole or not at all.

Everything here raises OSError with a `strerror` in words, to which the caller adds the name, and what the file was for.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_MOST_OF_NAME = 100  # bytes
_KINDS = {
    stat.S_IFIFO: "is a pipe, want a file",
    stat.S_IFSOCK: "is a socket, want a file",
    stat.S_IFCHR: "is a device, want a file",
    stat.S_IFBLK: "is a device, want a file",
    stat.S_IFDIR: "is a folder, want a file",
}


def read_file(path: Path, *, most_bytes: int) -> bytes:
    """The content of a regular file. A pipe, which might never end, is refused.

    Raises OSError for what cannot be read, and for more than `most_bytes`.
    """
    # Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
    with _spelled(path), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        _require_regular(found.st_mode)
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"has {found.st_size:,} bytes, of which at most {most_bytes:,} are read")
        return file.read(found.st_size)  # Python takes as much memory as it is asked to read


def is_there(path: Path) -> bool:
    """Whether there is something of this name, be it a link to nowhere. Raises OSError where that cannot be told, as without the right to look."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def require_regular(path: Path) -> None:
    """Raises OSError for what is not a regular file, before a library opens it and waits."""
    with _spelled(path):
        _require_regular(path.stat().st_mode)


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, _KINDS.get(stat.S_IFMT(mode), "is not a file"))


@contextmanager
def _spelled(path: Path) -> Iterator[None]:
    """Python refuses some names before the system sees them, with errors that are no OSError."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise OSError(errno.EINVAL, "has a name that is not UTF-8 text") from error
    except ValueError as error:
        raise OSError(errno.EINVAL, "has a name that no file can have") from error


IsOurs = Callable[[Path], bool]


def place_to_write(path: Path, is_ours: IsOurs) -> Path:
    """Where a file called `path` may be written: behind links, in a folder that is there, over nothing but what
    `is_ours` says htrain wrote.

    Raises OSError where there is no such place.
    """
    with _spelled(path):
        if not path.name or path.is_dir():
            raise OSError(errno.EISDIR, "it is a folder, want a file")
        target = path.resolve()
        try:
            mode = target.stat().st_mode
        except FileNotFoundError:
            _require_folder(target.parent)
            return target
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it " + _KINDS.get(stat.S_IFMT(mode), "is not a file"))
        if not is_ours(target):
            raise OSError(
                errno.EEXIST, "it holds something that htrain did not write there: name another file, or remove it"
            )
        _require_folder(target.parent)
        return target


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise OSError(errno.ENOTDIR, f"{folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, f"{folder} cannot be written to")


def partial_of(path: Path) -> Path:
    """A name beside `path` that nothing has, under which it is written until it is whole: who finds one that a killed process has left sees what of.

    It holds no more of the name than leaves room: that may be as long as names can be.
    """
    name = os.fsencode(path.name)[:_MOST_OF_NAME].decode(errors="ignore")
    return path.parent / f".htrain-{name}-{os.getpid()}-{token_hex(6)}.partial"


@contextmanager
def new_file(path: Path, is_ours: IsOurs) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is whole; what an exception cuts short leaves nothing.

    Raises OSError for what `place_to_write` refuses, also when it came there meanwhile.
    """
    target = place_to_write(path, is_ours)
    partial = partial_of(target)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(partial, target, is_ours)
    finally:
        with suppress(OSError):
            partial.unlink()


def _put(partial: Path, target: Path, is_ours: IsOurs) -> None:
    """Give `partial` the name `target`; a file that came there meanwhile stays."""
    try:
        os.link(partial, target)  # unlike a rename, never over a file
    except FileExistsError:
        os.chmod(partial, stat.S_IMODE(target.stat().st_mode))
        os.replace(partial, place_to_write(target, is_ours))
    except OSError:  # a file system without links
        os.replace(partial, place_to_write(target, is_ours))


def write_file(path: Path, data: bytes, is_ours: IsOurs) -> None:
    """Write `data` to `path`: whole, or not at all."""
    with new_file(path, is_ours) as file:
        file.write(data)


def put_file(path: Path, data: bytes) -> None:
    """Write `data` to a file that is htrain's own, over what was there: who reads it meanwhile finds the one or the other. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def sealed(text: str, comment: str) -> bytes:
    """`text` with a last line, in a form such as `# {}`, by which `has_seal` knows that htrain wrote it and nobody has changed it since."""
    body = text.encode()
    return body + (comment.format(_SEAL + blake2b(body, digest_size=16).hexdigest()) + "\n").encode()


def has_seal(path: Path) -> bool:
    """Whether `sealed` made what is in a file. Raises OSError."""
    content = read_file(path, most_bytes=_MOST_SEALED_BYTES)
    body, last = content[: content.rstrip(b"\n").rfind(b"\n") + 1], content.rstrip(b"\n").rpartition(b"\n")[2]
    return (_SEAL + blake2b(body, digest_size=16).hexdigest()).encode() in last


_SEAL = "written by htrain, "
_MOST_SEALED_BYTES = 1 << 30
