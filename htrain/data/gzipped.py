"""Compressed text, decompressed by ISA-L where that is installed, which every x86-64 and ARM64 can: three times as fast as zlib, on which readers of .gz files
spend most of their time (tools/bench/reader.py)."""

import gzip
import zlib
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, cast

try:
    _OPEN = import_module("isal.igzip").open
    _DAMAGED = import_module("isal.isal_zlib").error
except ImportError:  # another processor
    _OPEN, _DAMAGED = gzip.open, zlib.error

# Beside OSError, what reading raises of bytes that are not as they were written.
DAMAGES: tuple[type[Exception], ...] = (EOFError, zlib.error, _DAMAGED)


def open_gzip(file: Path | BinaryIO) -> BinaryIO:
    """The text of a .gz file, or of an open one, from its start. Raises OSError; reading raises OSError and `DAMAGES`."""
    return cast(BinaryIO, _OPEN(file, "rb"))
