"""Blobs as large as they are to be expected: a batch's distinct ids are fewer than its ids.

Blobs of distinct ids, and of their rows and gradients, have a first dimension that says how many there can be at most. For costs it counts
how many there will be, of n ids of a table of N rows at most N (1 - (1 - 1/N)^n): as many as if every row were as likely as any other. Real
ids are skewed; `distinct_percent` of a cluster file says how many of a batch's ids are distinct, and `htrain calibrate --from` measures it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from htrain.cluster import Cluster
from htrain.net import BatchDim, Blob, Net, Op, numel


def expected_blobs(train: Net, cluster: Cluster, batch_size: int) -> dict[str, Blob]:
    """The blobs of a train net; those that hold rows by distinct id with the number of rows to expect."""
    counts: dict[str, float] = {}
    for op in train.ops:
        if op.type in ("Dedupe", "DedupeSharded"):
            counts |= _distinct(train, op, cluster, batch_size)
        elif op.type == "SplitRows":
            counts |= {o: counts[i] for o, i in zip(op.outputs, op.inputs[1:], strict=True) if i in counts}
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
    lookups = {o.inputs[1]: o.inputs[0] for o in train.ops if o.type == "Lookup"}
    rows = {name: train.parameters[lookups[name]].shape[0] for name in op.outputs if name in lookups}
    table = sum(map(_size, rows.values()))
    if not table:
        return {}
    ids = numel(train.blobs[next(iter(rows))].shape[:1], batch_size)
    alike = table * -math.expm1(ids * math.log1p(-1 / table)) if table > 1 else 1.0
    found = min(alike, ids * cluster.distinct_percent / 100)
    return {name: found * _size(count) / table for name, count in rows.items()}


def _size(dim: object) -> int:
    return dim if isinstance(dim, int) else 0


def _is_bound(blob: Blob) -> bool:
    first = blob.shape[0] if blob.shape else 0
    return isinstance(first, BatchDim) and first.bound


def _sized(blob: Blob, rows: float | None) -> Blob:
    return blob if rows is None else replace(blob, shape=(max(1, round(rows)), *blob.shape[1:]))
