"""Loops over many tables, in a few threads: they hold no GIL, so that two take half of the time of one."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

R = TypeVar("R")
_SMALL = 1 << 17  # numbers: less is done sooner than another thread has its turn
_MOST = 8  # threads


def side_by_side(function: Callable[[int, int], None], sizes: Sequence[int], *, small: int = _SMALL) -> None:
    """Call `function` for parts [first, last) of 0 .. n-1, the sizes of whose work these are: one in this thread, the others in threads beside it.

    Less than `small` in all is not shared out.
    """
    if not sizes:
        return
    parts = list(_parts(sizes, _threads() if sum(sizes) >= small else 1))
    others = [_pool().submit(function, *part) for part in parts[1:]]
    try:
        function(*parts[0])
    finally:
        wait(others)  # before anything is raised: they may hold addresses of what the caller has
    for other in others:
        other.result()


def each_of(function: Callable[[int], R], sizes: Sequence[int]) -> list[R]:
    """What `function` gives of 0 .. n-1, the sizes of whose work these are."""
    found: dict[int, R] = {}

    def some(first: int, last: int) -> None:
        for place in range(first, last):
            found[place] = function(place)

    side_by_side(some, sizes)
    return [found[place] for place in range(len(sizes))]


def _threads() -> int:
    """All of a few cores, half of many: trainers of one machine share it."""
    cores = len(os.sched_getaffinity(0))
    return max(min(cores, _MOST // 2), min(cores // 2, _MOST))


def _parts(sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """At most `count` runs of places, about alike in size."""
    total, done, first, made = sum(sizes), 0, 0, 0
    for place, size in enumerate(sizes[:-1]):
        done += size
        if made + 1 < count and done * count >= total * (made + 1):
            yield first, place + 1
            first, made = place + 1, made + 1
    yield first, len(sizes)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST, thread_name_prefix="tables")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pool, and none of its threads
