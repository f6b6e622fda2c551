"""HET's Lemma 1 over the recorded histories of workers from outside: one is killed, another joins in the middle (HET 3.4)."""

import numpy as np
import pytest
import torch
from serving import Kind, Serve

from htrain.client.modules import HetEmbedding
from htrain.client.tables import Tables
from htrain.sync.het.client import HetCache
from htrain.sync.het.server import HetServer

ROWS = 30


def global_clocks(servers: Serve) -> np.ndarray:
    """c_g of each row of the one table, which lies on both servers."""
    holders = [members._holders[0] for members in servers.members]
    assert all(isinstance(holder, HetServer) for holder in holders)
    return np.concatenate([holder.clocks for holder in holders])  # type: ignore[attr-defined]


def let_through(tables: Tables, at: np.ndarray, staleness: int) -> dict[int, int]:
    """The rows that a worker may read now without fetching them, and their current clocks (CheckValid)."""
    (side,) = tables._sides.values()
    assert isinstance(side._rows, HetCache)
    found = {key: clocks for key in range(ROWS) if (clocks := side._rows.clocks_of(key))}
    return {
        key: current
        for key, (start, current) in found.items()
        if current <= start + staleness and at[key] <= current + staleness
    }


@pytest.mark.parametrize("staleness", [1, 5, 20])
def test_replicas_are_within_the_bound_whoever_comes_and_goes(staleness: int) -> None:
    """After each step, replicas that CheckValid lets through are within 2s of each other; a killed worker costs at most s + 1 updates of each row: s after
    which it may be read again, and that of the step which then reads it."""
    random = np.random.default_rng(staleness)
    with Serve(
        {"a": np.zeros((ROWS, 2), np.float32)}, Kind(staleness, capacity=12, lr=1.0), lease_seconds=10.0
    ) as servers:
        workers = [servers.connect(f"w{number}") for number in range(3)]
        history, written = [], np.zeros(ROWS)
        for number in range(300):
            if number == 120:
                workers.pop(0)._link.drop()  # as one that was killed
            if number in (125, 200):
                workers.append(servers.connect(f"late {number}"))
            tables = workers[int(random.integers(len(workers)))]
            tables.warm()
            keys = np.unique(np.minimum(random.zipf(1.3, 8), ROWS) - 1)
            HetEmbedding(tables, "a")(torch.from_numpy(keys)).sum().backward()
            tables.step()
            written[keys] += 1
            at = global_clocks(servers)
            history.append([let_through(each, at, staleness) for each in workers if each.is_warm])
        for tables in workers:
            tables.close()
        missing = written + servers.table("a")[:, 0]
    for replicas in history:
        for key in range(ROWS):
            clocks = [found[key] for found in replicas if key in found]
            assert not clocks or max(clocks) - min(clocks) <= 2 * staleness
    assert sum(len(found) for found in history[-1]) > 0
    assert missing.min() >= 0
    assert 0 < missing.max() <= staleness + 1
