"""Blobs as large as they are to be expected: a batch's distinct ids are fewer than its ids.

Blobs of distinct ids, and of their rows and gradients, have a first dimension that says how many there can be at most. For costs it counts
how many there will be, of n ids of a table of N rows at most N (1 - (1 - 1/N)^n): as many as if every row were as likely as any other. Real
ids are skewed; `distinct_percent` of a cluster file says how many of a batch's ids are distinct, and `htrain calibrate --from` measures it.
Of the rows that a cache is asked for, `cache_hit_percent` are there and valid; the others are fetched, and as many are evicted.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from htrain.cluster import Cluster
from htrain.net import BatchDim, Blob, Net, Op, numel
from htrain.ops.het import REQUEST
from htrain.ops.lookahead import REQUEST as LOOKAHEAD_REQUEST
from htrain.ops.served import lookups_of


def expected_blobs(train: Net, cluster: Cluster, batch_size: int) -> dict[str, Blob]:
    """The blobs of a train net; those that hold rows by distinct id with the number of rows to expect."""
    counts: dict[str, float] = {}
    for op in train.ops:
        if op.type in ("Dedupe", "DedupeSharded"):
            counts |= _distinct(train, op, cluster, batch_size)
        elif op.type == "HetAsk":
            counts |= _asked(train, op, counts, cluster.cache_hit_percent / 100)
        elif op.type == "LookaheadRequest":
            counts |= _exchanged(train, op, counts, cluster.cache_hit_percent / 100)
        elif op.type == "LookupTables":
            counts |= {rows: counts[ids] for _, ids, rows in lookups_of(op) if ids in counts}
        elif op.type == "HetRead":
            counts |= {o: counts[i] for o, i in zip(op.outputs, op.inputs[2:], strict=False) if i in counts}
        elif op.type == "HetPull":
            continue  # told with what was asked
        elif op.type == "SplitRows":
            counts |= {o: counts[i] for o, i in zip(op.outputs, op.inputs[1:], strict=True) if i in counts}
        elif op.type == "StackRowsGradient":
            counts |= {output: counts[name] for output, name in zip(op.outputs, op.inputs, strict=False) if name in counts}
        else:
            known = [counts[name] for name in op.inputs if name in counts]
            rows = sum(known) if op.type == "ConcatRows" else max(known, default=0.0)
            counts |= {name: rows for name in op.outputs if known and _is_bound(train.blobs[name])}
    return {name: _sized(blob, counts.get(name)) for name, blob in train.blobs.items()}


def expected(net: Net, blobs: Mapping[str, Blob]) -> Net:
    """A train net or a role's, with the blobs that `expected_blobs` gives. For costs alone: its shapes do not hold together."""
    return replace(net, blobs={name: blobs.get(name, blob) for name, blob in net.blobs.items()})


def _distinct(train: Net, op: Op, cluster: Cluster, batch_size: int) -> dict[str, float]:
    """How many distinct ids each shard of a table is asked for."""
    lookups = {ids: table for o in train.ops for table, ids, _ in lookups_of(o)}
    rows = {name: train.parameters[lookups[name]].shape[0] for name in op.outputs if name in lookups}
    cached = [p.shape[0] for p in train.parameters.values() if p.kind == "table" and p.whole == op.module]
    rows = rows or ({op.outputs[0]: sum(cached)} if cached else {})
    table = sum(map(_size, rows.values()))
    if not table:
        return {}
    ids = numel(train.blobs[next(iter(rows))].shape[:1], batch_size)
    alike = table * -math.expm1(ids * math.log1p(-1 / table)) if table > 1 else 1.0
    found = min(alike, ids * cluster.distinct_percent / 100)
    return {name: found * _size(count) / table for name, count in rows.items()}


def _asked(train: Net, op: Op, counts: Mapping[str, float], hits: float) -> dict[str, float]:
    """What a cache asks of each server, and is answered: rows fetched and evicted, and clocks of the others."""
    asked = sum(counts.get(name, 0.0) for name in op.inputs[1:])
    slots, *request = op.outputs
    servers = len(request) // len(REQUEST)
    missed, found = asked * (1 - hits) / servers, asked * hits / servers
    parts = {"keys": 2 * missed + found, "clocks": missed + found, "gradients": missed}
    sizes = {name: parts[kind] for i, name in enumerate(request) if (kind := REQUEST[i % len(REQUEST)]) in parts}
    pulls = [o for o in train.ops if o.type == "HetPull" and set(o.inputs) & set(request)]
    answers = {name: missed for pull in pulls for name in pull.outputs[:2]} | {pull.outputs[2]: 1.0 for pull in pulls}
    return {slots: asked, **sizes, **answers}


def _exchanged(train: Net, op: Op, counts: Mapping[str, float], hits: float) -> dict[str, float]:
    """What a look-ahead cache asks of each shard for each step of a window: rows that are not there, and those that leave for them."""
    ids = next(o.inputs[-1] for o in train.ops if o.type == "LookaheadSlots" and o.inputs[0] == op.inputs[0])
    return dict.fromkeys(op.outputs, counts.get(ids, 0.0) * (1 - hits) * len(LOOKAHEAD_REQUEST) / len(op.outputs))


def _size(dim: object) -> int:
    return dim if isinstance(dim, int) else 0


def _is_bound(blob: Blob) -> bool:
    first = blob.shape[0] if blob.shape else 0
    return isinstance(first, BatchDim) and first.bound


def _sized(blob: Blob, rows: float | None) -> Blob:
    return blob if rows is None else replace(blob, shape=(max(1, round(rows)), *blob.shape[1:]))
