"""Loops over many tables, in a few threads: each holds no GIL, so that two of them take half of the time."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

R = TypeVar("R")
_SMALL = 1 << 14  # numbers: less is done sooner than another thread has heard of it


def side_by_side(function: Callable[[int], R], sizes: Sequence[int]) -> list[R]:
    """What `function` gives of 0 .. n-1, the sizes of whose work these are: shared out among this thread and others."""
    threads = _threads()
    if threads == 1 or sum(sizes) < _SMALL:
        return [function(place) for place in range(len(sizes))]
    shares = _shares(sizes, threads)
    found: dict[int, R] = {}

    def some(places: Sequence[int]) -> None:
        for place in places:
            found[place] = function(place)

    others = [_pool().submit(some, share) for share in shares[1:]]
    some(shares[0])
    for other in others:
        other.result()
    return [found[place] for place in range(len(sizes))]


def _threads() -> int:
    """How many work: a few, since trainers of one machine share it."""
    return max(1, min(4, (os.cpu_count() or 1)))


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Places in `count` shares, the largest first to the smallest share."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += sizes[place]
    return shares


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads() - 1, thread_name_prefix="tables")
