"""Memory of a process that plays roles: what a step has freed is the next step's, and does not go back to the system in between."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's mallopt
_LARGEST_KEPT = 32 << 20  # what glibc allows: larger values are still given back at once
_NEVER = (1 << 31) - 1


def keep_pages() -> bool:
    """Keep freed memory, in one arena for all threads; False where the C library is another.

    glibc gives the top of its heap back whenever 128 KiB of it are free, and that of its threads' heaps always, so that a step's large values
    are made of fresh pages, which the system clears, every time. Tables and what else exceeds 32 MiB are given back as before.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(what, value) for what, value in ((_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, 1)))
