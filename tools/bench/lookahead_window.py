"""What the simulation takes a trainer's windows to cost, beside what they take: its own caches, ids drawn alike, no store (cDLRM 5).

    htrain calibrate --out here.yaml
    python tools/bench/lookahead_window.py --cluster here.yaml

26 tables of 10^5 rows with Adagrad state. `plan` finds a window's rows and gives them slots, `read` takes their values, `place` puts
them into the caches, `step` takes a step's slots: milliseconds, medians of the second half of 12 windows, then what `WindowCosts` says.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from htrain.executor.strategies.lookahead.joint_caches import JointCaches
from htrain.executor.strategies.lookahead.slot_rows import HostRows
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.strategies.lookahead.turnover import Turnover
from htrain.executor.transport.peers import Peers
from htrain.net.placement import CacheGeometry
from htrain.simulation.strategies.lookahead.costs import TableRates, WindowCosts
from htrain.spec.cluster import Cluster, load_cluster
from htrain.sync.lookahead.averaging import EverySteps

TABLES, ROWS, WAYS, WINDOWS = 26, 100_000, 16, 12
SHAPES = ((256, 8, 16, 503), (256, 8, 64, 503), (256, 32, 16, 2003), (2048, 8, 16, 4001))  # batch, window, width, sets


class Timed:
    """Milliseconds of each kind of call."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, list[float]] = {"plan": [], "read": [], "place": [], "step": []}

    def __call__(self, kind: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = function()
        self.milliseconds[kind].append(1e3 * (time.perf_counter() - began))
        return result

    def median(self, kind: str) -> float:
        taken = self.milliseconds[kind]
        return statistics.median(taken[len(taken) // 2 :])


def windows(batch: int, window: int, width: int, sets: int) -> tuple[Timed, TableRates]:
    """Windows of caches of no store; the rates of one of its tables."""
    slots = sets * WAYS + batch
    caches = {
        f"c{t}": TableCache(CacheGeometry(sets, WAYS), HostRows((torch.zeros(slots, width), torch.zeros(slots, width))), patch=True)
        for t in range(TABLES)
    }  # fmt: skip
    joint, timed, chance = JointCaches(caches, Peers(None), EverySteps(1)), Timed(), np.random.default_rng(0)
    for _ in range(WINDOWS):
        before = [(c.counts.hits + c.counts.misses, c.counts.loaded, c.counts.evicted) for c in caches.values()]
        for cache in caches.values():
            for _ in range(window):
                cache.announce(np.unique(chance.integers(0, ROWS, batch)))
        made = timed("plan", lambda: planned(caches))
        turnover = timed("read", lambda made=made: read(joint, caches, made, 2 * width))
        timed("place", lambda made=made, turnover=turnover: (joint.place(made, turnover), stored(joint, caches)))
        for _ in range(window):
            victims = timed("step", joint.begin_step)
            joint.take_victims({n: np.zeros((keys.size, 2 * width), np.float32) for n, keys in victims.items()})
            for cache in caches.values():
                cache.flush_victims()
            joint.end_step()
            stored(joint, caches)
    now = [(c.counts.hits + c.counts.misses, c.counts.loaded, c.counts.evicted) for c in caches.values()]
    asked, loaded, evicted = (np.array(now) - np.array(before)).mean(0) / window
    keys = np.mean([table.keys.size for table in made.values()])
    growth = float(np.log(keys / asked) / np.log(window))
    return timed, TableRates("", 8 * width, asked, loaded, loaded, evicted, 0.0, growth)


def planned(caches: dict[str, TableCache]) -> dict[str, Any]:
    return {name: cache.plan([cache.announced()]) for name, cache in caches.items()}


def read(joint: JointCaches, caches: dict[str, TableCache], made: dict[str, Any], width: int) -> Turnover:
    for name, table in made.items():
        caches[name].begin_read(table)
        table.rows = np.zeros((table.fresh_keys.size, width), np.float32)
    return joint.turnover(made)


def stored(joint: JointCaches, caches: dict[str, TableCache]) -> None:
    for job in joint.leaving():
        for name, written in job.items():
            caches[name].stored(written.number)


def lines(cluster: Cluster) -> Iterator[str]:
    for batch, window, width, sets in SHAPES:
        timed, table = windows(batch, window, width, sets)
        costs = WindowCosts([table] * TABLES, cluster, 1)
        told = {
            "plan": costs.plan(window),
            "read": costs.read(window),
            "place": costs.place(window),
            "step": costs.step(),
        }
        shown = "  ".join(f"{k} {timed.median(k):.2f}, {1e3 * sum(told[k]):.2f}" for k in told)
        yield f"batch {batch:>4}, window {window:>2}, {8 * width} bytes a row: {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, required=True)
    for line in lines(load_cluster(parser.parse_args().cluster, {})):
        print(line, flush=True)


if __name__ == "__main__":
    main()
