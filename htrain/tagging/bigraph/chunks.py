"""Loops over ranges, by all cores: the loops hold no lock, and no chunk knows of another, so that what comes of it is the same for any number of threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.signedinteger[Any]]

_LEAST_EDGES = 50_000  # a range of fewer is done at once: to hand work to a thread takes as long


def is_worth_threads(num_edges: float) -> bool:
    """Whether work on so many edges is done sooner by several threads."""
    return num_edges >= _LEAST_EDGES and len(os.sched_getaffinity(0)) > 1


def in_chunks(size: int, work: Callable[[int, int], object], *, num_edges: float) -> None:
    """work(begin, end) for ranges that make up 0 to size - 1, by as many threads as this process has cores; at once where there are few edges."""
    _in_parts([size * part // _parts(num_edges) for part in range(_parts(num_edges) + 1)], work)


def in_chunks_of_edges(starts: Longs, work: Callable[[int, int], object]) -> None:
    """The same, for things of which number i has the edges starts[i] to starts[i + 1] - 1: ranges have about as many edges each."""
    num_edges = int(starts[-1])
    goals = [num_edges * part // _parts(num_edges) for part in range(1, _parts(num_edges))]
    _in_parts([0, *map(int, np.searchsorted(starts, goals)), len(starts) - 1], work)


def _parts(num_edges: float) -> int:
    return len(os.sched_getaffinity(0)) if is_worth_threads(num_edges) else 1


def _in_parts(bounds: list[int], work: Callable[[int, int], object]) -> None:
    if len(bounds) == 2:
        work(*bounds)
        return
    with ThreadPoolExecutor(len(bounds) - 1) as pool:
        for done in [pool.submit(work, begin, end) for begin, end in pairwise(bounds)]:
            done.result()
