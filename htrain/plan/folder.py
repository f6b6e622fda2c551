"""A folder of files that stand or fall together: plan.yaml names the others with a digest of each, and is put in its place last.

A new plan is staged in `.partial` inside the folder. The rename of its plan.yaml is the one step that counts: before it the old plan
stands, after it the new one does. Then the files follow to the names that people look for, each by a rename; until they have, they are found
in `.partial`. A reader that meets a file of another plan looks there, and then at plan.yaml again. What ends the writer between any two
steps leaves one whole plan; the next writer finishes what was begun.

Only files that plan.yaml names, and whose content is what it says, are replaced or removed. Anything else in the folder is somebody's own.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shutil import copyfile
from typing import TypeVar

from htrain.errors import PlanError
from htrain.files import read_file, require_regular
from htrain.printable import as_word
from htrain.spec.yaml_file import parse_yaml

HEADER = "plan.yaml"
STAGED = ".partial"
_BEFORE = "before.yaml"  # in STAGED: plan.yaml as it was, which tells what of the folder may go
# What the system says of something that can be no file of a plan. A file that it does not let us read for another reason, as one of another user, may be whole.
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_CURE = ": remove it and compile the model again"
_PARTS = ("nets", "params")
_MOST_HEADER_BYTES = 64 << 20  # a plan.yaml is read whole, and may be anybody's
_LOCK_SECONDS = 60.0
_TRIES = 20  # each follows a change of plan.yaml by a writer

Digests = Mapping[str, str]  # by name from the folder: nets/train.onnx
Writer = Callable[[Path], None]
T = TypeVar("T")


def digest_of_file(path: Path) -> str:
    """A digest of a file's content. Raises OSError for what is no file."""
    require_regular(path)
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------------


class Moved(Exception):
    """A file is not the one that plan.yaml names: another plan is being written, or the file is not ours."""


def steadily(folder: Path, load: Callable[[bytes], T]) -> T:
    """What `load` makes of plan.yaml's content and the files that it names, of one plan though another is written meanwhile.

    `load` raises Moved for a file that is not as plan.yaml says; while plan.yaml changes, it is called again. Raises PlanError.
    """
    for _ in range(_TRIES):
        header = read_header(folder)
        try:
            return load(header)
        except Moved as error:
            if read_header(folder) == header:
                raise PlanError(str(error)) from error
    raise PlanError(f"{folder}: is written to again and again; try later")


def is_plan(folder: Path) -> bool:
    """Whether a folder is a plan's, by its names."""
    return (folder / HEADER).is_file()


def read_header(folder: Path) -> bytes:
    """The content of plan.yaml. Raises PlanError."""
    try:
        return read_file(folder / HEADER, most_bytes=_MOST_HEADER_BYTES)
    except OSError as error:
        if error.errno not in (*_NO_FILE, errno.ENOENT, errno.ENAMETOOLONG):
            raise PlanError(f"{folder / HEADER}: cannot be read: {error.strerror or error}") from error
        raise PlanError(f"{folder}: not a plan folder ({HEADER}: {error.strerror}); {_instead_of(folder)}") from error


def _instead_of(folder: Path) -> str:
    """What to do about a folder that is no plan's."""
    if (folder / "run.json").is_file():
        return "it is the folder of a run: name the plan that this was started with, which stands in its run.json"
    return f"make one with 'htrain compile ... --out {'FOLDER' if folder.exists() else as_word(folder)}'"


def header_digest(folder: Path) -> str:
    """A digest of plan.yaml, which names all other files with theirs: two plans that have the same are the same. Raises PlanError."""
    return digest_of_header(read_header(folder))


def digest_of_header(content: bytes) -> str:
    """The same of plan.yaml's content."""
    return blake2b(content, digest_size=16).hexdigest()


def require_header(folder: Path, content: bytes, digest: str) -> None:
    """Raises PlanError where plan.yaml is not that of this digest; "" takes any."""
    if digest and digest_of_header(content) != digest:
        raise PlanError(
            f"{folder}: is another plan than the one that the run began with: it was written anew meanwhile"
        )


def place_of(folder: Path, name: str, digest: str) -> Path:
    """Where the file of this name and content stands. Raises Moved where it does not."""

    def find(place: Path) -> Path | None:
        return place if digest_of_file(place) == digest else None

    return _found(folder, name, find)


def content_of(folder: Path, name: str, digest: str, *, most_bytes: int) -> bytes:
    """The content, of this digest, of a file. Raises Moved where there is none such."""

    def find(place: Path) -> bytes | None:
        content = read_file(place, most_bytes=most_bytes)
        return content if blake2b(content, digest_size=16).hexdigest() == digest else None

    return _found(folder, name, find)


def _found(folder: Path, name: str, find: Callable[[Path], T | None]) -> T:
    reason = "is missing: compile the model again"
    for place in (folder / name, folder / STAGED / name, folder / name):  # it may have moved on while we looked
        try:
            found = find(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            cure = _CURE if error.errno in _NO_FILE else ""
            reason = f"cannot be read: {error.strerror or error}{cure}"
            continue
        if found is not None:
            return found
        reason = f"is not the file that {HEADER} names: it is damaged, or of another plan{_CURE}"
    raise Moved(f"{folder / name}: {reason}")


# -- writing ---------------------------------------------------------------------------------------------------------


def write_folder(folder: Path, writers: Mapping[str, Writer], header: Callable[[Digests], bytes]) -> None:
    """Write the files by name, and the plan.yaml that `header` makes of their digests; an older plan there is replaced.

    Raises PlanError, with nothing changed, where the folder holds something else than a plan, or a file that is not ours has one of the names.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and not folder.is_dir():
        raise PlanError(f"{folder}: exists and is not a plan folder: choose another --out, or remove it")
    with _made(folder), _locked(folder):
        before = _standing(folder)
        staged = folder / STAGED
        try:
            digests = {name: _stage(staged / name, write) for name, write in writers.items()}
            _stage_header(staged / HEADER, header(digests))
            _require_free(folder, before, digests)
            if before:
                copyfile(folder / HEADER, staged / _BEFORE)
            os.replace(staged / HEADER, folder / HEADER)
        except BaseException:
            _clear(staged)
            raise
        _settle(folder, before, digests)


def _stage(path: Path, write: Writer) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)
    _sync(path)
    return digest_of_file(path)


def _stage_header(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file's content is on the disk, so that its name never comes before it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder, made where it was not; what could not be used is taken away again."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:
            with suppress(OSError):
                made.rmdir()  # never one that holds something
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Within it, this process is the only writer. Where the file system knows no locks there may be several, of which
    the last wins.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                raise PlanError(f"{folder}: another process is writing a plan there; try again when it has ended")
            time.sleep(0.02)
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise PlanError(f"{folder}: was removed while it was waited for; compile the model again")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _standing(folder: Path) -> Digests:
    """The files of the plan that is in the folder, put in order if its writer was cut short; none in an empty folder."""
    staged = folder / STAGED
    for place in (staged, *(folder / part for part in _PARTS)):
        if place.is_symlink() or (
            place.exists() and (not place.is_dir() or place.stat().st_dev != folder.stat().st_dev)
        ):
            raise _not_ours(place)
    if not (folder / HEADER).exists():
        if any(entry.name != STAGED for entry in folder.iterdir()):
            raise PlanError(f"{folder}: exists and is not a plan folder: choose another --out, or remove it")
        _clear(staged)
        return {}
    if (folder / HEADER).is_symlink():
        raise _not_ours(folder / HEADER)
    now = _files_of(folder / HEADER)
    _settle(folder, _files_of(staged / _BEFORE) if (staged / _BEFORE).exists() else {}, now)
    return now


def _files_of(header: Path) -> Digests:
    """The files that a plan.yaml names, with their digests. Raises PlanError for one that this htrain did not write."""
    document = parse_yaml(
        read_file(header, most_bytes=_MOST_HEADER_BYTES).decode(errors="replace"), PlanError, str(header)
    ).plain()
    files = document.get("files") if isinstance(document, dict) and "digest" in document else None
    if not isinstance(files, dict) or not all(
        isinstance(digest, str) and is_part(name) for name, digest in files.items()
    ):
        raise PlanError(
            f"{header}: is not one that this version of htrain wrote: choose another --out, or remove the folder"
        )
    return files


def is_part(name: str) -> bool:
    """Whether a file of a plan may have this name: `nets/NAME.onnx` or `params/NAME.safetensors`."""
    part, _, file = name.partition("/")
    stem, _, suffix = file.partition(".")
    return (
        (part, suffix) in (("nets", "onnx"), ("params", "safetensors"))
        and stem.replace("_", "").isalnum()
        and stem.isascii()
    )


def _is(path: Path, digest: str | None) -> bool:
    """Whether a file is there, no link, and has this content."""
    try:
        return not path.is_symlink() and digest_of_file(path) == digest
    except OSError:
        return False


def _require_free(folder: Path, before: Digests, now: Digests) -> None:
    """Refuse to write over what is not ours, before anything is changed."""
    for name in now:
        if os.path.lexists(folder / name) and not _is(folder / name, before.get(name)):
            raise _not_ours(folder / name)


def _not_ours(path: Path) -> PlanError:
    return PlanError(f"{path}: is not as htrain wrote it there: move it away, or choose another --out")


def _settle(folder: Path, before: Digests, now: Digests) -> None:
    """Give the files of the plan that stands their names, and remove those of the one before."""
    staged = folder / STAGED
    for name, digest in now.items():
        if not _is(folder / name, digest) and _is(staged / name, digest):
            _require_free(folder, before, {name: digest})
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(staged / name, folder / name)
    for name, digest in before.items():
        if name not in now and _is(folder / name, digest):
            (folder / name).unlink()
    _clear(staged)
    for part in _PARTS:
        with suppress(OSError):
            (folder / part).rmdir()


def _clear(staged: Path) -> None:
    """Remove what a writer stages, and no other file."""
    for name in [
        HEADER,
        _BEFORE,
        *(f"{part}/{f.name}" for part in _PARTS for f in (staged / part).glob("*") if is_part(f"{part}/{f.name}")),
    ]:
        (staged / name).unlink(missing_ok=True)
    for place in (*(staged / part for part in _PARTS), staged):
        with suppress(OSError):
            place.rmdir()
