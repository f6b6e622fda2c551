"""What each part of a step through a HET cache costs: CPU nanoseconds for a distinct key of the batch, client and server alone, in one thread.

    python tools/bench/het_parts.py

The cost model counts these parts in keys found (`htrain.ops.het`): next to each time stands the model's at this host's own time to find one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from htrain.calibration.measure import key_seconds
from htrain.costs.seconds import op_seconds
from htrain.net.net import Blob, Op
from htrain.ops.het import UNBOUNDED as NO_BOUND
from htrain.ops.het import row_width
from htrain.spec.cluster import Cluster
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

ROWS, CAPACITY, IDS = 2_600_000, 520_000, 13_312  # 26 tables of 100,000 rows, a fifth of them, and a batch of 512
PARTS = ("HetAnnounce", "HetAsk", "HetPush", "HetPull", "HetRead", "HetWrite")


@dataclass(frozen=True)
class Case:
    """A cache of rows of a width, under an optimizer, and how skewed ids are: a power of uniform ones."""

    width: int
    optimizer: str
    staleness: int
    skew: float


CASES = [
    Case(width, optimizer, staleness, skew)
    for optimizer in ("sgd", "adagrad")
    for width in (1, 16, 32)
    for staleness, skew in ((100, 4.0), (100, 1.0), (0, 4.0), (NO_BOUND, 4.0))
]


def drawn(random: np.random.Generator, skew: float) -> np.ndarray:
    return random.permutation(np.unique((ROWS * random.random(IDS) ** skew).astype(np.int64)))


def measured(case: Case, batches: int = 120) -> tuple[np.ndarray, Request, int, int]:
    """Median CPU seconds of each part; the last request, its keys and the rows that came back."""
    random = np.random.default_rng(0)
    staleness = UNBOUNDED if case.staleness == NO_BOUND else case.staleness
    step = SparseStep(case.optimizer, 0.01, 1e-8)
    cache = HetCache(
        Territory([0], [0], [0], ROWS),
        case.width,
        capacity=CAPACITY,
        staleness=staleness,
        policy="light-lfu",
        step=step,
    )
    table, state = np.zeros((ROWS, case.width), np.float32), np.zeros((ROWS, step.state_width(case.width)), np.float32)
    server = HetServer(table, state, staleness=staleness, step=step)
    gradients = random.standard_normal((IDS, case.width), np.float32)
    seconds = []
    for _ in range(batches):
        keys, at = drawn(random, case.skew), [time.thread_time()]
        if case.staleness:
            cache.announce(keys)
        at.append(time.thread_time())
        slots, (request,) = cache.ask(keys)
        at.append(time.thread_time())
        server.push(request)
        at.append(time.thread_time())
        answer = server.pull(request)
        at.append(time.thread_time())
        cache.read(slots, [answer])
        at.append(time.thread_time())
        cache.write(slots, gradients[: keys.size])
        cache.trim()
        at.append(time.thread_time())
        seconds.append(np.diff(at))
    return np.median(seconds[batches // 2 :], 0), request, keys.size, len(answer.rows)


def modelled(case: Case, request: Request, num_keys: int, num_rows: int, cluster: Cluster) -> list[float]:
    """The cost model's CPU seconds of each part."""
    pushed = int(request.counts[0])
    cache = Blob("cache", (CAPACITY, row_width(case.width, case.optimizer)), "float32")
    ids, slots = Blob("ids", (num_keys,), "int64"), Blob("slots", (num_keys,), "int64")
    asked = (
        Blob("counts", (3,), "int64"),
        Blob("keys", (request.keys.size,), "int32"),
        Blob("clocks", (request.clocks.size,), "int32"),
        Blob("gradients", (pushed, case.width), "float32"),
    )
    answer = (
        Blob("rows", (num_rows, row_width(case.width, case.optimizer) - case.width), "float32"),
        Blob("row_clocks", (num_rows,), "int32"),
        Blob("stale", (1,), "int32"),
    )
    rows = Blob("read", (num_keys, case.width), "float32")
    operands: Sequence[tuple[tuple[Blob, ...], tuple[Blob, ...]]] = (
        ((cache, ids), ()),
        ((cache, ids), (slots, *asked)),
        ((cache, cache, *asked), ()),
        ((cache, cache, *asked), answer),
        ((cache, slots, ids, *answer), (rows,)),
        ((cache, slots, rows), ()),
    )
    attrs = {
        "staleness": case.staleness,
        "barrier": case.staleness == 0,
        "optimizer": case.optimizer,
        "num_tables": 1,
        "width": case.width,
    }
    return [
        op_seconds(Op(part, tuple(b.name for b in given), tuple(b.name for b in made), attrs), given, made, cluster, 1)
        for part, (given, made) in zip(PARTS, operands, strict=True)
    ]


def main() -> None:
    key = key_seconds(2.0)
    print(f"finding a key: {key * 1e9:.0f} ns; ns for a distinct key of a batch, measured / by the model")
    cluster = Cluster(
        core_key_nanoseconds=max(1, round(key * 1e9)),
        core_gather_bandwidth=7_500_000_000,
        core_scatter_bandwidth=8_700_000_000,
    )
    heads = "".join(f"{part[3:].lower():>12}" for part in PARTS)
    print(f"{'width':>5} {'optimizer':<9}{'s':>5}{'skew':>5}{'pushed':>8}{'answered':>9}{heads}{'all':>12}")
    for case in CASES:
        seconds, request, num_keys, num_rows = measured(case)
        model = np.array(modelled(case, request, num_keys, num_rows, cluster))
        model[0] *= bool(case.staleness)
        pairs = [*zip(seconds, model, strict=True), (seconds.sum(), model.sum())]
        shown = "".join(f"{f'{a / num_keys * 1e9:.0f} / {b / num_keys * 1e9:.0f}':>12}" for a, b in pairs)
        shares = f"{request.counts[0] / num_keys:>8.2f}{num_rows / num_keys:>9.2f}"
        print(f"{case.width:>5} {case.optimizer:<9}{case.staleness:>5}{case.skew:>5.0f}{shares}{shown}")


if __name__ == "__main__":
    main()
