"""Memory of a process that plays roles: large pages for tables; what a step has freed is the next step's, and does not go back to the system in between."""

import ctypes
import itertools
import math
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np
import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8  # of glibc's mallopt
_LARGEST_KEPT = 32 << 20  # what glibc allows: larger values are given back at once, but for `keep_large`
_SELDOM, _NEVER = (1 << 31) - 1, -1  # where 2 GiB are free, and not even then


def keep_pages(heaps: int = 1) -> bool:
    """Keep freed memory, in so many heaps of glibc's (arenas) for all threads that begin to allocate from now on; False where the C library is another.

    glibc gives the top of its heap back whenever 128 KiB of it are free, and that of its threads' heaps always, so that a step's large values
    are made of fresh pages, which the system clears, every time. Tables and what else exceeds 32 MiB are given back as before, but for `keep_large`.
    With one heap a process takes the least memory. Threads that compute at once want one each: they would be handed what another core has in its cache.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(
        mallopt(what, value)
        for what, value in ((_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, _SELDOM), (_ARENA_MAX, heaps))
    )


def heaps_for(threads: int, largest: int) -> int:
    """Heaps for so many threads that compute at once, in steps whose largest value has so many bytes: what `keep_pages` takes.

    A heap but the first has 64 MiB at most, and where values that are to be kept do not fit, they are mapped, and given back. What large values leave is in
    no core's cache anyway.
    """
    return threads if largest <= _LARGEST_KEPT else 1


def keep_large(largest: int) -> bool:
    """Keep all that is freed, however much it is, in a process whose steps make values of up to `largest` bytes. Where these exceed 32 MiB, such are kept, too:
    it returns whether they are.

    An op that makes 42 MiB takes 15 ms with pages that the system has to clear, and 2 without (tools/bench/large_values.py). What other large values leave,
    as those of a checkpoint that is read, stays in the heap, too: for a process of its own, once it has all that it begins with. Its heap grows for some
    steps, to what values of a step need that have a place each: what has been freed may lack a few bytes of what is asked for, which something small has.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, _NEVER)
    return largest > _LARGEST_KEPT and bool(mallopt(_MMAP_MAX, 0))


_LARGE = 4 << 20  # bytes: two pages of 2 MiB
_SPREAD = 128 << 10  # bytes: what a way of a second-level cache holds
_COLOUR = (
    40503 * 64
)  # bytes: multiples of it modulo _SPREAD are far from each other, and so modulo the 4 KiB of a way of a first-level cache
_BEGINNINGS = itertools.count()


def empty(shape: tuple[int, ...], dtype: torch.dtype, *, shared: bool = False) -> torch.Tensor:
    """Memory for a parameter, which takes pages of the machine when they are first written; `shared` with the processes that this one forks.

    What is large asks for large pages where the system has them (Linux: transparent_hugepage `madvise` or `always`). A row of a table is mostly in a
    page that the processor does not have at hand; with 512 times as few pages it does (tools/bench/pages.py).
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    is_small = num_bytes < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE")
    if is_small and not (shared and num_bytes):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + _SPREAD, (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    begin = next(_BEGINNINGS) * _COLOUR % _SPREAD
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=begin).reshape(shape)


_PAGE_BYTES = 2 << 20  # of a large page
_AT_ONCE = 16 << 20  # bytes: a thread that needs a new page meanwhile waits for no more than these
_MADV_COLLAPSE = 25  # of Linux 6.1


def rejoin_pages(tensors: Iterable[torch.Tensor], is_enough: Callable[[], bool]) -> None:
    """Give memory that `empty` has made its large pages again, until that `is_enough`. A process that was forked leaves small ones behind, wherever either has
    written meanwhile.

    A system that does not know how leaves them as they are.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    for tensor in tensors:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        first = -(-begin // _PAGE_BYTES) * _PAGE_BYTES
        if tensor.device.type != "cpu" or tensor.nbytes < _LARGE:
            continue
        for place in range(first, end - _PAGE_BYTES + 1, _AT_ONCE):
            if is_enough():
                return
            num_bytes = min(_AT_ONCE, (end - place) // _PAGE_BYTES * _PAGE_BYTES)
            madvise(ctypes.c_void_p(place), ctypes.c_size_t(num_bytes), _MADV_COLLAPSE)


_SMALL_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MADV_DONTNEED = 4
_MADVISE = ctypes.CDLL(None).madvise if sys.platform == "linux" else None


def give_back(part: memoryview) -> None:
    """Let go of pages that a process which was forked has seen enough of: who writes to them in the other process need not copy them any more.

    They are gone, here: `part` is not to be looked at again. Requires: memory of this process alone, not of a file.
    """
    if _MADVISE is None or not part:
        return
    begin = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    first = -(-begin // _SMALL_PAGE_BYTES) * _SMALL_PAGE_BYTES
    num_bytes = (begin + len(part) - first) // _SMALL_PAGE_BYTES * _SMALL_PAGE_BYTES
    if num_bytes > 0:
        _MADVISE(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), _MADV_DONTNEED)
