"""Storage by address, as fsspec knows it: a folder, or a place in an object store. The one door through which versions are written and read.

An address is a path, or a URL such as s3://bucket/models/ads; credentials and endpoints come from where their owners keep them, the environment for one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any

from htrain.errors import PublishError
from htrain.printable import one_line

_LOCAL = ("file", "local")


class Absent(PublishError):
    """An object is not there: it was never written, or has been removed."""


class Storage:
    """What lies under an address. An object is there whole, or not at all, in stores whose puts are atomic, and in folders of this machine.

    All methods raise PublishError, naming the address and what was wrong with it. For any thread.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        with self._named(address):
            # Imported here: runs without an address have no use for it. Without caches of listings: others write here, too.
            found: tuple[Any, str] = import_module("fsspec.core").url_to_fs(address, use_listings_cache=False)
        self._files, self._root = found
        protocols = self._files.protocol
        self._is_local = any(each in _LOCAL for each in ([protocols] if isinstance(protocols, str) else protocols))

    def put(self, name: str, content: bytes) -> None:
        """Write an object, in the place of one of this name."""
        path = self._path(name)
        with self._named(path):
            if self._is_local:
                self._put_local(path, content)
            else:
                self._files.pipe_file(path, content)

    def get(self, name: str) -> bytes:
        """What an object holds."""
        path = self._path(name)
        with self._named(path):
            content: bytes = self._files.cat_file(path)
            return content

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, by name, in order; nothing where there is no such folder."""
        path = self._path(folder)
        with self._named(path):
            try:
                self._files.invalidate_cache()
                found = self._files.ls(path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(PurePosixPath(each).name for each in found)

    def remove(self, name: str) -> None:
        """Remove an object, where it is there."""
        path = self._path(name)
        with self._named(path):
            try:
                self._files.rm_file(path)
            except FileNotFoundError:
                return

    def remove_folder(self, folder: str) -> None:
        """Remove a folder, where it is there and empty: object stores have none."""
        if not self._is_local:
            return
        with self._named(self._path(folder)):
            try:
                os.rmdir(self._path(folder))
            except (FileNotFoundError, OSError):
                return

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _put_local(self, path: str, content: bytes) -> None:
        self._files.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{os.path.dirname(path)}/.{token_hex(6)}.partial"
        try:
            with open(partial, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            if os.path.lexists(partial):
                os.unlink(partial)
            raise

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """What goes wrong in a store, in one line. Stores raise errors of their own libraries, which have no common base."""
        try:
            yield
        except PublishError:
            raise
        except ImportError as error:
            raise PublishError(f"{self.address}: {one_line(str(error))}") from error
        except FileNotFoundError as error:
            raise Absent(f"{self._full(what)}: is not there") from error
        except Exception as error:
            said = one_line(str(getattr(error, "strerror", None) or error)) or type(error).__name__
            raise PublishError(f"{self._full(what)}: {said}") from error

    def _full(self, path: str) -> str:
        """A path as whoever reads the message knows it: with the scheme of the address."""
        scheme, separator, _ = self.address.partition("://")
        return f"{scheme}://{path}" if separator and "://" not in path else path
