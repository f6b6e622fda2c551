"""What HET's caches save, by policy and size, beside Belady's oracle: the protocol itself over a stream of ids, without a network (HET 5.1, 5.2).

    python tools/het_traffic.py [--workers 8] [--batch 128] [--dims 128,1] [--table-rows 10000] [--examples 400000] [--staleness 100]
                                [--capacities 3,5,10,15]

The stream is Criteo-like, 26 tables whose top 10 % of ids take 90 % of the accesses. Embedding bytes are those of rows, gradients, clocks
and keys, both ways, of all workers; without a cache each distinct id of a batch costs its key, a row and a gradient. `--dims` are the widths of
the tables that the same ids are looked up in: 128 of wide & deep's deep part, 1 of its wide part. Belady's replacement
knows the stream: it evicts the row that its worker will use last, under the same capacity, staleness rule and bytes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from htrain.data import START, Malformed, open_data
from htrain.sync.het.client import HetCache
from htrain.sync.het.policy import POLICIES
from htrain.sync.het.server import HetServer
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

KEY_BYTES, CLOCK_BYTES = 4, 4
UNCACHED_KEY_BYTES = 8
TOP_SHARE, TOP_ACCESSES = 0.1, 0.9


@dataclass(frozen=True)
class Traffic:
    """Rows looked up by the batches of all workers, distinct ones of each batch: `hits` were there, `fetched` and `pushed` travelled,
    `checked` sent a clock; `total` bytes of all."""

    asked: int
    hits: int
    fetched: int
    pushed: int
    checked: int
    total: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.asked


def skew(table_rows: int) -> float:
    """The Zipf exponent with which the top 10 % of `table_rows` ids take 90 % of the accesses of a synthetic log."""

    def taken(exponent: float) -> float:
        power = 1 - exponent
        return ((TOP_SHARE * table_rows + 1) ** power - 1) / ((table_rows + 1) ** power - 1)

    low, high = 1.001, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) < TOP_ACCESSES else (low, middle)
    return round(low, 4)


def stream_uri(table_rows: int, examples: int) -> str:
    return f"synthetic:?rows={examples}&table_rows={table_rows}&zipf={skew(table_rows)}&locality=0"


def key_sets(uri: str, workers: int, batch: int) -> tuple[list[list[np.ndarray]], int]:
    """For each worker, the distinct keys of each of its batches; and how many there are: the rows of all tables, one table after another."""
    data = open_data(uri)
    inputs = [i for i in data.schema.inputs if i.kind == "ids"]
    rows: dict[str, int] = {}
    for ids in inputs:
        for table, count in zip(ids.tables, ids.rows, strict=True):
            rows[table] = max(rows.get(table, 0), count)
    first = dict(zip(rows, np.cumsum([0, *rows.values()]).tolist(), strict=False))
    offsets = {ids.name: np.array([first[table] for table in ids.tables]) for ids in inputs}

    def batches(worker: int) -> list[np.ndarray]:
        read = data.batches(
            batch_size=batch, shard=worker, num_shards=workers, epochs=1, start=START, malformed=Malformed()
        )
        return [np.unique(np.concatenate([(b.columns[n] + o).ravel() for n, o in offsets.items()])) for b in read]

    return [batches(w) for w in range(workers)], sum(rows.values())


def in_step(sets: Sequence[Sequence[np.ndarray]]) -> Iterator[list[np.ndarray]]:
    """The batches of all workers, step by step, as far as all have one."""
    for step in range(min(map(len, sets))):
        yield [worker[step] for worker in sets]


def uncached(sets: Sequence[Sequence[np.ndarray]], dims: Sequence[int]) -> int:
    """Bytes without a cache."""
    each = sum(UNCACHED_KEY_BYTES + 8 * dim for dim in dims)
    return each * sum(keys.size for step in in_step(sets) for keys in step)


def cached(
    sets: Sequence[Sequence[np.ndarray]],
    num_rows: int,
    dims: Sequence[int],
    *,
    capacity: int,
    staleness: int,
    policy: str,
    window: int,
) -> Traffic:
    """The protocol over the stream: every worker asks, one behind the other, reads and writes; at the end all flush.

    Batches are announced `window` ahead.
    """
    step = SparseStep("sgd", 0.0)
    server = HetServer(
        np.zeros((num_rows, 1), np.float32), np.empty((num_rows, 0), np.float32), staleness=staleness, step=step
    )
    caches = [
        HetCache(
            Territory([0], [0], [0], num_rows), 1, capacity=capacity, staleness=staleness, policy=policy, step=step
        )
        for _ in sets
    ]
    steps = min(map(len, sets))
    for number, batch in enumerate(in_step(sets)):
        for cache, keys, worker in zip(caches, batch, sets, strict=True):
            for coming in (
                worker[number + window - 1 if number else 0 : min(number + window, steps)] if window > 1 else ()
            ):
                cache.announce(coming)
            slots, (request,) = cache.ask(keys)
            server.push(request)
            rows = cache.read(slots, [server.pull(request)])
            cache.write(slots, rows)
            cache.trim()
    for cache in caches:
        (request,) = cache.flush()
        server.push(request)
        cache.read(np.empty(0, np.int64), [server.pull(request)])
    return _traffic_of(caches, dims)


def _traffic_of(caches: Sequence[HetCache], dims: Sequence[int]) -> Traffic:
    counts = [cache.counts for cache in caches]
    by_kind = {kind: sum(c.bytes[kind] for c in counts) for kind in counts[0].bytes}
    fetched, pushed = by_kind["rows"] // 4, by_kind["gradients"] // 4
    asked, hits = sum(c.hits + c.misses for c in counts), sum(c.hits - c.run_out - c.stale for c in counts)
    total = 4 * sum(dims) * (fetched + pushed) + len(dims) * (by_kind["clocks"] + by_kind["keys"])
    return Traffic(asked, hits, fetched, pushed, asked - fetched, total)


def belady(
    sets: Sequence[Sequence[np.ndarray]], num_rows: int, dims: Sequence[int], *, capacity: int, staleness: int
) -> Traffic:
    """The oracle: as `cached`, with the victims that their worker uses last from then on."""
    workers = len(sets)
    never = 1 << 30
    upcoming = [next_uses(worker, num_rows, never) for worker in sets]
    next_use = np.full((workers, num_rows), never, np.int64)
    start, current = (np.zeros((workers, num_rows), np.int64) for _ in range(2))
    resident = np.zeros((workers, num_rows), bool)
    clock = np.zeros(num_rows, np.int64)
    asked = hits = fetched = pushed = checked = 0
    for number, batch in enumerate(in_step(sets)):
        for w, keys in enumerate(batch):
            here = resident[w, keys]
            missing, found = keys[~here], keys[here]
            run_out = found[current[w, found] > start[w, found] + staleness]
            sound = found[current[w, found] <= start[w, found] + staleness]
            held = np.flatnonzero(resident[w])
            surplus = held.size + missing.size - capacity
            if surplus > 0:
                loose = held[~np.isin(held, keys, assume_unique=True)]
                gone = loose[np.argsort(-next_use[w, loose], kind="stable")[:surplus]]
                resident[w, gone] = False
                pushed += gone.size
                clock[gone] = np.maximum(clock[gone], current[w, gone])
            pushed += run_out.size
            clock[run_out] = np.maximum(clock[run_out], current[w, run_out])
            stale = sound[clock[sound] > current[w, sound] + staleness]
            pushed += stale.size
            fresh = np.concatenate([missing, run_out, stale])
            start[w, fresh] = current[w, fresh] = clock[fresh]
            current[w, keys] += 1
            resident[w, keys] = True
            next_use[w, keys] = upcoming[w][number]
            asked, hits, checked = asked + keys.size, hits + sound.size - stale.size, checked + sound.size
            fetched += fresh.size
    pushed += int(resident.sum())
    overhead = len(dims) * (fetched + pushed + checked) * (KEY_BYTES + CLOCK_BYTES)
    return Traffic(asked, hits, fetched, pushed, checked, 4 * sum(dims) * (fetched + pushed) + overhead)


def next_uses(batches: Sequence[np.ndarray], num_rows: int, never: int) -> list[np.ndarray]:
    """For each batch and each of its keys, the next batch with that key."""
    seen = np.full(num_rows, never, np.int64)
    found: list[np.ndarray] = []
    for number in range(len(batches) - 1, -1, -1):
        found.append(seen[batches[number]].copy())
        seen[batches[number]] = number
    return found[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("workers", 8),
        ("batch", 128),
        ("table-rows", 10_000),
        ("examples", 400_000),
        ("staleness", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dims", default="128,1")
    parser.add_argument("--data", default="", help="other data than the stream, such as graph:visits.txt")
    parser.add_argument("--windows", default="1,64", help="batches that a worker reads ahead")
    parser.add_argument("--capacities", default="3,5,10,15", help="per cent of all rows")
    asked = parser.parse_args()
    dims = [int(dim) for dim in asked.dims.split(",")]
    uri = asked.data or stream_uri(asked.table_rows, asked.examples)
    sets, num_rows = key_sets(uri, asked.workers, asked.batch)
    steps, without = min(map(len, sets)), uncached(sets, dims)
    print(
        f"{asked.workers} workers, {steps} steps of {asked.batch}, {num_rows:,} rows of {asked.dims}, s = {asked.staleness}, "
        f"{uri.rpartition('/')[2]}; without a cache {without / 1e6:,.0f} MB"
    )
    print(
        f"{'capacity':>8}  {'policy':<10}{'window':>6}{'hit rate':>10}{'MB':>9}{'reduction':>11}{'of the oracle':>15}"
    )
    for percent in map(float, asked.capacities.split(",")):
        capacity = round(num_rows * percent / 100)
        oracle = belady(sets, num_rows, dims, capacity=capacity, staleness=asked.staleness)
        best = 1 - oracle.total / without
        _line(percent, "belady", "all", oracle, without, best)
        for window in map(int, asked.windows.split(",")):
            for policy in POLICIES:
                traffic = cached(
                    sets,
                    num_rows,
                    dims,
                    capacity=capacity,
                    staleness=asked.staleness,
                    policy=policy,
                    window=window,
                )
                _line(percent, policy, str(window), traffic, without, best)


def _line(percent: float, policy: str, window: str, traffic: Traffic, without: int, best: float) -> None:
    saved = 1 - traffic.total / without
    print(
        f"{percent:>7g}%  {policy:<10}{window:>6}{traffic.hit_rate:>10.2%}{traffic.total / 1e6:>9,.0f}{saved:>11.2%}{saved / best:>15.2%}"
    )


if __name__ == "__main__":
    main()
