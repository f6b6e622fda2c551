"""Where the threads behind look-ahead caches spend a step: the wall and CPU milliseconds of what each of them calls.

    python tools/bench/lookahead_phases.py [--batches 8192] [--times 8] [--steps 48] [--device cuda] [..]

Takes what tools/bench/lookahead_device.py takes, and trains the caches of that alone, all its batches counted. A call's milliseconds contain those of the
calls within it, of its own thread; where its wall time is far above its CPU time, the thread waited: for Python's lock, for memory, or for the threads that
share its work. The second part moves as many rows as a step does, with nobody beside it: what the machine's memory allows.
"""

import argparse
import functools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lookahead_device import _TABLES, Traced, _arguments, _batches, _ends, cached

from htrain.executor.host.memory import empty
from htrain.executor.strategies.lookahead import exchange, joint_caches, slot_rows, table_cache, turnover, windows
from htrain.ops import lookahead_loops, side_by_side

_CALLS: tuple[tuple[Any, str], ...] = (
    *((windows.Windows, f"_{name}") for name in ("read_batches", "agree", "plan", "read_window", "read_rows", "store")),
    *((windows.Windows, f"_{name}") for name in ("place", "begin_step", "end_step")),
    *((table_cache.TableCache, name) for name in ("announced", "plan", "put_right", "put_right_since")),
    *((joint_caches.JointCaches, name) for name in ("turnover", "prepare_step")),
    *((lookahead_loops, name) for name in ("read_tables", "write_tables", "_move_pieces", "_copy_pieces")),
    (table_cache, "dedupe"),
    (exchange.Exchange, "run"),
    *((slot_rows.Way, name) for name in ("pinned", "bring", "fetch")),
    *((turnover._Ahead, name) for name in ("leave", "enter")),
    (side_by_side, "wait"),
)
Key = tuple[str, str]


class Phases:
    """The calls that have been timed, by thread and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Key, list[tuple[float, float]]] = defaultdict(list)  # wall and CPU seconds of each

    def time(self, owner: Any, name: str) -> None:
        """Time a function of a module or class from now on, in whichever thread."""
        plain: Callable[..., Any] = getattr(owner, name)
        label = f"{owner.__name__.rsplit('.')[-1]}.{name}"

        @functools.wraps(plain)
        def timed(*args: Any, **more: Any) -> Any:
            wall, cpu = time.monotonic(), time.thread_time()
            try:
                return plain(*args, **more)
            finally:
                self._add(label, time.monotonic() - wall, time.thread_time() - cpu)

        setattr(owner, name, timed)

    def _add(self, label: str, wall: float, cpu: float) -> None:
        key = threading.current_thread().name.split("_")[0], label  # the threads of the pool as one
        with self._lock:
            self._calls[key].append((wall, cpu))

    def told(self, steps: int) -> None:
        """Print those of so many steps, and forget them."""
        print("| thread | call | calls a step | wall ms a step | CPU ms a step |\n|---|---|---|---|---|")
        for (thread, label), calls in sorted(self._calls.items()):
            wall, cpu = (1e3 * sum(seconds) / steps for seconds in zip(*calls, strict=True))
            if wall > 0.05:
                print(f"| {thread} | {label} | {len(calls) / steps:.2f} | {wall:.2f} | {cpu:.2f} |")
        self.forget()

    def forget(self) -> None:
        """No call has been timed yet."""
        self._calls.clear()


def main() -> None:
    asked, phases = _arguments(), Phases()
    for owner, name in _CALLS:
        phases.time(owner, name)
    for size in map(int, asked.batches.split(",")):
        batches = _batches(size, asked)
        for times in map(int, asked.times.split(",")):
            steps, cpu = _ends(asked)[-1], time.process_time()
            took, counts = cached(batches, asked, size, times, Traced(asked, "cached"))
            cpu = (time.process_time() - cpu) / steps
            each = ", ".join(f"{1e3 * seconds / asked.steps:.2f}" for seconds in took)
            print(f"batch {size:,}, {times} times its cache: {each} ms a step; {1e3 * cpu:.1f} CPU ms of all threads")
            print({name: round(value, 3) if isinstance(value, float) else value for name, value in counts.items()})
            phases.told(steps)
            alone(asked, round(counts["loaded"] / steps / _TABLES))
            phases.forget()


def alone(asked: argparse.Namespace, count: int) -> None:
    """Print how long it takes to read and write so many rows of each table, where nothing else goes on."""
    tables = [[empty((asked.rows, 64), torch.float32).fill_(0.1).numpy()] for _ in range(_TABLES)]
    random, first_rows = np.random.default_rng(0), [0] * _TABLES
    read, written = [], []
    for _ in range(7):
        ids = [random.permutation(asked.rows)[:count] for _ in tables]
        began = time.monotonic()
        rows = lookahead_loops.read_tables(tables, ids, first_rows)
        between = time.monotonic()
        lookahead_loops.write_tables(tables, ids, rows, first_rows)
        read.append(between - began)
        written.append(time.monotonic() - between)
    read_ms, written_ms = (1e3 * statistics.median(each) for each in (read, written))
    print(
        f"{_TABLES * count:,} rows alone: read in {read_ms:.2f} ms, written in {written_ms:.2f}, {side_by_side._threads()} threads"
    )


if __name__ == "__main__":
    main()
