"""Loops over ranges, by all cores: the loops hold no lock, and no chunk knows of another, so that what comes of it is the same for any number of threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

_LEAST_EDGES = 50_000  # a range of fewer is done at once: to hand work to a thread takes as long


def is_worth_threads(num_edges: float) -> bool:
    """Whether work on so many edges is done sooner by several threads."""
    return num_edges >= _LEAST_EDGES and len(os.sched_getaffinity(0)) > 1


def in_chunks(size: int, work: Callable[[int, int], object], *, num_edges: float) -> None:
    """work(begin, end) for ranges that make up 0 to size - 1, by as many threads as this process has cores; at once where there are few edges."""
    if not is_worth_threads(num_edges):
        work(0, size)
        return
    threads = len(os.sched_getaffinity(0))
    bounds = [size * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, begin, end) for begin, end in pairwise(bounds)]:
            done.result()
