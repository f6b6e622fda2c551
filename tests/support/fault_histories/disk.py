"""The disk under a run folder: it may be full, a process may be killed between two of its calls, and a host may lose what was not brought to the disk.

The real code of checkpoints runs on real files; what it asks of `os` goes by here.
"""

import errno
import os
import pathlib
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fault_histories.world import Killed, World
from htrain.executor.record import changes, checkpoint, kept, role_file, tensor_file

_PATCHED = (
    *map(vars, (changes, checkpoint, kept, role_file, tensor_file)),
    pathlib.Path.unlink.__globals__,
)


class Disk:
    """In the place of `os`. `full` is the share of writes that are refused, `kills` that of calls in which their process ends, while that is set to be so."""

    def __init__(self, world: World, folder: Path) -> None:
        self.full = self.kills = 0.0
        self._world = world
        self._folder = str(folder)
        self._open: dict[int, str] = {}
        self._torn: dict[str, None] = {}  # written to, and not brought to the disk since
        self._whole: dict[str, None] = {}  # brought to the disk, and not written to since
        self._loose: list[
            tuple[str, str, str]
        ] = []  # names that were made in a folder which was not brought to the disk since: folder, name, name before

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # -- calls -------------------------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        name = str(path)
        if flags & os.O_WRONLY:
            self._may_go_wrong(name)
            self._torn[name] = None
            self._whole.pop(name, None)
        descriptor = os.open(path, flags, *arguments, **more)
        self._open[descriptor] = name
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        name = self._open.get(descriptor, "")
        try:
            self._may_go_wrong(name)
        except BaseException:
            os.write(descriptor, memoryview(data)[: len(data) // 2])
            raise
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        name = self._open.get(descriptor, "")
        self._may_go_wrong(name)
        self._torn.pop(name, None)
        self._whole[name] = None
        self._loose = [each for each in self._loose if each[0] != name]

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        os.close(descriptor)

    def replace(self, source: Any, target: Any) -> None:
        before, name = str(source), str(target)
        self._may_go_wrong(name)
        os.replace(source, target)
        self._torn.pop(before, None)
        if self._whole.pop(before, 1) is not None:
            self._torn[name] = None
        self._loose.append((os.path.dirname(name), name, before))
        self._may_be_killed(name)

    def mkdir(self, path: Any, *arguments: Any, **more: Any) -> None:
        name = str(path)
        self._may_go_wrong(name)
        os.mkdir(path, *arguments, **more)
        self._loose.append((os.path.dirname(name), name, ""))

    def unlink(self, path: Any, **more: Any) -> None:
        self._may_be_killed(str(path))
        os.unlink(path, **more)
        self._forget(str(path))

    def rmdir(self, path: Any, **more: Any) -> None:
        self._may_be_killed(str(path))
        os.rmdir(path, **more)
        self._forget(str(path))

    def listdir(self, path: Any) -> list[str]:
        return sorted(os.listdir(path))

    def _forget(self, name: str) -> None:
        self._torn.pop(name, None)
        self._whole.pop(name, None)
        self._loose = [each for each in self._loose if each[1] != name]

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def _may_go_wrong(self, name: str) -> None:
        if self._world.is_calm or not name.startswith(self._folder):
            return
        if self.full and self._world.draw.random() < self.full:
            self._world.trouble("writes refused")
            self._world.note("disk", "%s is refused", os.path.basename(name))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._may_be_killed(name)

    def _may_be_killed(self, name: str) -> None:
        if (
            self.kills
            and not self._world.is_calm
            and name.startswith(self._folder)
            and self._world.draw.random() < self.kills
        ):
            self._world.trouble("processes killed at the disk")
            raise Killed(f"at {os.path.basename(name)}")

    def lose_power(self) -> None:
        """The host is off: what was not brought to the disk may be gone, or be there in part."""
        draw = self._world.draw
        for folder, name, before in reversed(self._loose):
            if os.path.lexists(name) and draw.random() < 0.5:
                self._world.note("disk", "%s is not there", os.path.relpath(name, self._folder))
                if before:
                    os.replace(name, before)
                else:
                    shutil.rmtree(name)
                assert folder
        for name in self._torn:
            _tear(name, draw)
        self._loose, self._torn, self._whole = [], {}, {}


def _tear(name: str, draw: random.Random) -> None:
    """Half of what was written is there, or zeros in its place."""
    if os.path.isfile(name):
        size = os.path.getsize(name)
        os.truncate(name, draw.randint(0, size))
        if draw.random() < 0.5:
            os.truncate(name, size)


def damage(path: Path, draw: random.Random) -> None:
    """One byte of a file is another than was written."""
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


@contextmanager
def in_place(disk: Disk) -> Iterator[None]:
    """Within this, the code of checkpoints has this disk."""
    for names in _PATCHED:
        names["os"] = disk
    least, changes._LEAST_BYTES = changes._LEAST_BYTES, 0  # of tables of six rows, too
    try:
        yield
    finally:
        changes._LEAST_BYTES = least
        for names in _PATCHED:
            names["os"] = os
