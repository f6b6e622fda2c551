"""Storage by address: a folder of this machine, or a place that fsspec has a driver for. Versions are written and read through this door alone.

An address is a path, or a URL such as s3://bucket/models/ads. An object is there whole, or not at all: in a folder by its last rename, in object stores by
their puts. All that goes wrong is a PublishError that names the address. For any thread.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from htrain.data.address import is_address, modified_ns, password_hidden
from htrain.data.drivers import driver_of, is_absent, is_driver, scheme_of, speaking_of
from htrain.errors import PublishError

R = TypeVar("R")
_PUT_SECONDS = 30.0  # for a store to take an object, and
_PUT_BYTES_PER_SECOND = 1_000_000  # for what is in it
_SUCH_AS = "s3://bucket/models/ads"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)(/?)")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://[^\[]*)?::")
_PARTIAL = re.compile(r"\.[0-9a-f]{12}\.partial")


class Absent(PublishError):
    """An object is not there: it was never written, or has been removed."""


class Entry(msgspec.Struct, frozen=True):
    """What lies directly in a folder. It was written at `seconds` of the epoch. `num_bytes` is -1, and `seconds` is 0.0, where a store does not tell."""

    name: str
    kind: Literal["object", "folder", "other"]
    num_bytes: int = -1
    seconds: float = 0.0


class Storage(Protocol):
    """What lies under an address."""

    address: str

    def put(self, name: str, content: bytes) -> None:
        """Write an object, in the place of one of this name. Raises PublishError."""

    def get(self, name: str) -> bytes:
        """What an object holds. Raises Absent where it is not there, PublishError where it cannot be read."""

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, by name, in order; nothing where there is no such folder. Raises PublishError."""

    def entries(self, folder: str) -> list[Entry]:
        """What lies directly in a folder, in the order of names, nothing where there is no such folder. A link is `other`, wherever it leads. Raises
        PublishError."""

    def remove(self, name: str) -> None:
        """Remove an object, where it is there. Raises PublishError."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder, where it is there and empty."""


def storage_of(address: str) -> Storage:
    """The storage at an address. Raises PublishError for one that `require_address` refuses, or of a driver that is not installed."""
    require_address(address)
    folder = local_folder(address)
    return Objects(address) if folder is None else Folder(folder)


def local_folder(address: str) -> str | None:
    """The folder of this machine that an address is; None of any other place."""
    if not is_address(address):
        return address
    return address.partition("://")[2] if scheme_of(address) in ("file", "local") else None


def require_address(address: str) -> None:
    """Raises PublishError for what is no address, or would be a folder that nobody means, or has a password, which is not said."""
    if not address or local_folder(address) == "":
        raise PublishError(f"'{address}' names no place for versions: want a folder, or an address such as {_SUCH_AS}")
    if hidden := password_hidden(address):
        raise PublishError(
            f"{hidden}: has a password in it, which plans and logs would have, too: keep it where the driver looks for it"
        )
    shown = re.sub(r"[^/]*:[^/]*@", "...@", address)
    if address.startswith("~"):
        raise PublishError(
            f"{shown}: nothing has put your home folder in the place of ~: write it out, or ./{shown} for a folder of that name"
        )
    if _CHAIN.match(address):
        raise PublishError(
            f"{shown}: an address of several drivers: want that of one, such as {_SUCH_AS}, or ./{shown} for a folder of that name"
        )
    word = _SCHEME.match(address)
    if word and (word[2] or is_driver(word[1])):
        raise PublishError(
            f"{shown}: want {word[1]}://, with two slashes, for a place of that kind, or ./{shown} for a folder of that name"
        )


def is_partial(name: str) -> bool:
    """Whether a file of this name is an object that is being put into a folder, or has been left by whoever was."""
    return _PARTIAL.fullmatch(name) is not None


class Folder:
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._root = Path(address)

    def put(self, name: str, content: bytes) -> None:
        """See `Storage`."""
        path = self._root / name
        with self._named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{token_hex(6)}.partial")
            try:
                with partial.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        """See `Storage`."""
        with self._named(self._root / name):
            return (self._root / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""
        with self._named(self._root / folder):
            try:
                return sorted(os.listdir(self._root / folder))
            except FileNotFoundError:
                return []

    def entries(self, folder: str) -> list[Entry]:
        """See `Storage`."""
        found = []
        with self._named(self._root / folder):
            try:
                with os.scandir(self._root / folder) as there:
                    for each in there:
                        with suppress(FileNotFoundError):  # removed meanwhile
                            found.append(_entry_of(each))
            except FileNotFoundError:
                return []
        return sorted(found, key=lambda entry: entry.name)

    def remove(self, name: str) -> None:
        """See `Storage`."""
        with self._named(self._root / name):
            (self._root / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        """See `Storage`."""
        with self._named(self._root / folder):
            try:
                (self._root / folder).rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise

    @contextmanager
    def _named(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise Absent(f"{path}: is not there") from error
        except FileExistsError as error:
            raise PublishError(f"{path}: there is a file where a folder is wanted") from error
        except (OSError, ValueError) as error:
            raise PublishError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _entry_of(each: "os.DirEntry[str]") -> Entry:
    if each.is_dir(follow_symlinks=False):
        return Entry(each.name, "folder")
    status = each.stat(follow_symlinks=False)
    kind: Literal["object", "other"] = "object" if each.is_file(follow_symlinks=False) else "other"
    return Entry(each.name, kind, status.st_size, status.st_mtime)


class Objects:
    """A place in an object store, or in whatever else fsspec has a driver for."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._done(self.address, lambda driver, path: None)

    def put(self, name: str, content: bytes) -> None:
        """See `Storage`. A store that does not take it in time is given up: s3fs waits for a silent one without end, though not when it reads."""
        seconds = _PUT_SECONDS + len(content) / _PUT_BYTES_PER_SECOND

        def written(driver: Any, path: str) -> None:
            try:
                driver.pipe_file(path, content, **({"timeout": seconds} if driver.async_impl else {}))
            except TimeoutError as error:
                raise PublishError(f"{self.address}/{name}: was not taken within {seconds:.0f} s") from error

        self._done(f"{self.address}/{name}", written)

    def get(self, name: str) -> bytes:
        """See `Storage`."""
        return self._done(f"{self.address}/{name}", lambda driver, path: bytes(driver.cat_file(path)))

    def names(self, folder: str) -> list[str]:
        """See `Storage`."""

        return [entry.name for entry in self.entries(folder)]

    def entries(self, folder: str) -> list[Entry]:
        """See `Storage`."""

        def listed(driver: Any, path: str) -> list[Entry]:
            driver.invalidate_cache()  # others write here, too
            try:
                infos = driver.ls(path, detail=True)
            except FileNotFoundError as error:
                if is_absent(error):
                    return []
                raise
            itself = PurePosixPath(path)  # which some stores list as well
            found = [_entry_in(info) for info in infos if PurePosixPath(info["name"]) != itself]
            return sorted(found, key=lambda entry: entry.name)

        return self._done(f"{self.address}/{folder}", listed)

    def remove(self, name: str) -> None:
        """See `Storage`."""

        def removed(driver: Any, path: str) -> None:
            try:
                driver.rm_file(path)
            except FileNotFoundError:
                return

        self._done(f"{self.address}/{name}", removed)

    def remove_folder(self, folder: str) -> None:
        """Stores of objects have none."""

    def _done(self, address: str, what: Callable[[Any, str], R]) -> R:
        """What comes of doing something with the driver at an address. Each thread has a driver of its own, which fsspec keeps."""
        with speaking_of(address, kind=PublishError, absent=Absent, refused="cannot be written or read"):
            return what(*driver_of(address))


def _entry_in(info: Mapping[str, Any]) -> Entry:
    """Of what a driver says of an object or a folder."""
    kinds: dict[str, Literal["object", "folder"]] = {"file": "object", "directory": "folder"}
    size = info.get("size")
    num_bytes = -1 if size is None else int(size)
    return Entry(PurePosixPath(info["name"]).name, kinds.get(info["type"], "other"), num_bytes, modified_ns(info) / 1e9)
