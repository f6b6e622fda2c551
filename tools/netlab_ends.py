"""How a lab of network namespaces ends (netlab.py): nothing that was started in it goes on, whatever it was doing."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ETC, NAMESPACES = Path("/etc/netns"), Path("/var/run/netns")
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_with_descendants(process: subprocess.Popen[str]) -> None:
    """End a process that still runs, and its descendants."""
    if process.poll() is not None:
        return
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.communicate()


def remove_namespaces(*names: str) -> None:
    """Namespaces and what runs in them, as far as they are there.

    The name goes first: nobody enters after that. What was entered is found by the namespace itself, which lives on while it is used.
    """
    with _undisturbed():
        for name in names:
            inode = _inode(NAMESPACES / name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            for process in _within(name, inode):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            shutil.rmtree(ETC / name, ignore_errors=True)


def _within(name: str, inode: int | None) -> Iterator[psutil.Process]:
    """Processes in a namespace, and those on their way into it: `ip netns exec` may have opened it and not be in yet."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            entering = process.cmdline()[:4] == ["ip", "netns", "exec", name]
            if entering or (inode is not None and _inode(Path(f"/proc/{process.pid}/ns/net")) == inode):
                yield process


def _inode(namespace: Path) -> int | None:
    try:
        return os.stat(namespace).st_ino
    except OSError:  # not there, or a process that is ending
        return None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and the like wait until the end, for this thread and the commands that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
