"""The secret of a run: what everybody has in common who may take part in it, in a file that nobody but its user can read."""

import os
import stat
import sys
from pathlib import Path

from htrain.errors import RunError

STANDARD_INPUT = "-"
_LEAST_BYTES, _MOST_BYTES = 32, 4096
_MAKE = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > {})"


def read_secret(path: Path) -> bytes:
    """What the file holds, white space at its end aside; `-` is standard input, to its end. Raises RunError for one that is not there, that others can read, or
    that holds too little."""
    if str(path) == STANDARD_INPUT:
        return _long_enough(path, sys.stdin.buffer.read(_MOST_BYTES).rstrip())
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        cure = f"; {_MAKE.format(path)}" if isinstance(error, FileNotFoundError) else ""
        raise RunError(f"{path}: no secret can be read: {error.strerror}{cure}") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise RunError(f"{path}: is no file: a run's secret is one of mode 0600; {_MAKE.format(path)}")
        if mode := stat.S_IMODE(found.st_mode) & 0o077:
            raise RunError(
                f"{path}: others than its owner may use it (mode {stat.S_IMODE(found.st_mode):04o}, of which {mode:04o} are too much): "
                f"chmod 600 {path}, or make another where somebody may have read it"
            )
        secret = os.read(file, _MOST_BYTES).rstrip()
    finally:
        os.close(file)
    return _long_enough(path, secret)


def _long_enough(path: Path, secret: bytes) -> bytes:
    if len(secret) < _LEAST_BYTES:
        raise RunError(f"{path}: holds {len(secret)} bytes, want at least {_LEAST_BYTES}: {_MAKE.format(path)}")
    return secret
