"""Files that are not on this machine, by their fsspec address, such as s3://bucket/day-1.tsv: as much of a Path as readers of data use."""

import glob
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, cast

from htrain.data.drivers import absence, driver_of, is_absent, scheme_of, speaking_of
from htrain.data.remote_file import RemoteFile
from htrain.errors import DataError

_IS_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HAS_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://)[^/]*:[^/]*@")
LINE_BYTES = 256 << 10  # asked for at once where a line is read, such as a header
_TIMES = "LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created"  # as drivers call it


@dataclass(frozen=True)
class Found:
    """What a store says of a file, by the names of `os.stat_result`. `version` is its ETag where the store has one: another for other bytes."""

    st_size: int
    st_mtime_ns: int
    version: str


@dataclass(frozen=True)
class Address:
    """A file or a folder by its address. Whatever its driver raises is a DataError."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def parts(self) -> tuple[str, ...]:
        """What stands between slashes: files come in the order of these, as Paths do."""
        return tuple(self.text.split("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name, such as .gz."""
        return Path(self.name).suffix

    def is_file(self) -> bool:
        """Whether there is such a file. Raises DataError where its store does not say."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether there is such a folder. Of a web server only an address that ends in a slash is one. Raises DataError."""
        return self._kind() == "directory"

    def stat(self) -> Found:
        """Size, time of the last change, and version. Raises DataError for a file that is not there, or whose size its server does not tell."""
        with speaking_of(self.text):
            driver, path = driver_of(self.text)
            return self._found(driver.info(path))

    def open(self, mode: str = "rb", buffering: int = LINE_BYTES) -> BinaryIO:
        """The file, open for reading bytes; with `buffering` 0 every read is a request. Raises DataError, here or in a read."""
        assert mode == "rb"
        with speaking_of(self.text):
            driver, path = driver_of(self.text)

            def open_file(is_stream: bool) -> Any:
                return driver.open(path, "rb", cache_type="none", **({"block_size": 0} if is_stream else {}))

            raw = RemoteFile(self.text, open_file, self._found(driver.info(path)).st_size)
        return cast(BinaryIO, io.BufferedReader(raw, buffering) if buffering else raw)

    def files(self) -> Iterator["Address"]:
        """The files of a folder, in no order. Raises DataError."""
        return (child for child, is_folder in self._children() if not is_folder)

    def matching(self) -> Iterator["Address"]:
        """The files whose addresses match this one, a pattern as `glob.glob` has it, in no order. Raises DataError."""
        scheme, _, rest = self.text.partition("://")
        host, *pattern = rest.split("/")
        return _matching(Address(f"{scheme}://{host}"), pattern)

    def _kind(self) -> str:
        if scheme_of(self.text) in ("http", "https") and self.text.endswith("/"):
            return "directory"
        with speaking_of(self.text):
            driver, path = driver_of(self.text)
            try:
                return str(driver.info(path)["type"])
            except FileNotFoundError as error:
                if is_absent(error):
                    return "absent"
                raise

    def _found(self, info: dict[str, Any]) -> Found:
        if info.get("size") is None:
            raise DataError(f"{self.text}: its server does not say how large it is: copy it to a local file")
        version = str(info.get("ETag") or info.get("etag") or "")
        return Found(int(info["size"]), modified_ns(info), "" if version.startswith("W/") else version)

    def _children(self) -> Iterator[tuple["Address", bool]]:
        """What lies in a folder, and whether it is a folder itself; nothing where there is no such folder."""
        with speaking_of(self.text):
            driver, path = driver_of(self.text)
            driver.invalidate_cache(path)
            try:
                entries = driver.ls(path, detail=True)
            except FileNotFoundError as error:
                if is_absent(error):
                    return
                raise
        for entry in entries:
            folder, _, name = driver._strip_protocol(entry["name"]).rstrip("/").rpartition("/")
            if name and folder == path.rstrip(
                "/"
            ):  # a store may list the folder itself, a web page what lies elsewhere
                yield Address(f"{self.text.rstrip('/')}/{name}"), entry["type"] == "directory"


AnyPath = Path | Address


def no_such_file(path: AnyPath) -> str:
    """What is said of a path where nothing is."""
    return absence(path.text) if isinstance(path, Address) else "no such file"


def is_address(text: str) -> bool:
    """Whether a text is an address, and no local path."""
    return bool(_IS_ADDRESS.match(text))


def path_of(text: str) -> AnyPath:
    """The address or local path of a text. Raises DataError for an address with a password, which would stand in plans and logs."""
    if not is_address(text):
        return Path(text)
    if scheme_of(text) in ("file", "local"):
        return Path(text.partition("://")[2])
    if hidden := password_hidden(text):
        raise DataError(
            f"{hidden}: has a password in it, which runs write down: keep it where the driver looks for it, such as ~/.netrc"
        )
    return Address(text)


def password_hidden(text: str) -> str:
    """An address that has a password in it, without that; "" where it has none."""
    found = _HAS_PASSWORD.match(text)
    return f"{found[1]}...@{text[found.end() :]}" if found else ""


def beside(path: AnyPath, text: str) -> AnyPath:
    """What a file calls `text`: an address, or a path as seen from the folder of the file. Raises DataError as `path_of` does."""
    if is_address(text):
        return path_of(text)
    if isinstance(path, Path):
        return path.parent / text
    return Path(text) if text.startswith("/") else Address(f"{path.text.rpartition('/')[0]}/{text}")


def has_pattern(text: str) -> bool:
    """Whether a path or an address is a pattern; what stands in a host's name makes none."""
    return glob.has_magic(text.partition("://")[2].partition("/")[2] if is_address(text) else text)


def _matching(folder: Address, parts: Sequence[str]) -> Iterator[Address]:
    """The files below a folder that match the parts of a pattern; what begins with a dot only where the pattern does, too."""
    first, rest = parts[0], parts[1:]
    if not glob.has_magic(first):
        child = Address(f"{folder.text}/{first}")
        if rest:
            yield from _matching(child, rest)
        elif child.is_file():
            yield child
        return
    is_any_depth = first == "**"
    for child, is_folder in folder._children():
        if not fnmatchcase(child.name, first) or (child.name.startswith(".") and not first.startswith(".")):
            continue
        if is_folder and (rest or is_any_depth):
            yield from _matching(child, parts if is_any_depth else rest)
        elif not is_folder and not rest:
            yield child
    if is_any_depth and rest:
        yield from _matching(folder, rest)


def modified_ns(info: Mapping[str, Any]) -> int:
    """The time of a file's last change, in nanoseconds; 0 where its store does not tell."""
    said = next((info[name] for name in _TIMES if info.get(name)), 0)
    if isinstance(said, str):
        said = parsedate_to_datetime(said) if "," in said else datetime.fromisoformat(said)
    if isinstance(said, datetime):
        said = (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()
    return round(said * 1e9)
