"""Blobs as large as they are to be expected: a batch's distinct ids are fewer than its ids.

Blobs of distinct ids, and of their rows and gradients, have a first dimension that says how many there can be at most. For costs it counts how
many there will be, as the rules of the ops say (htrain.ops.expectation). Real ids are skewed: `distinct_percent` of a cluster file says how many of a
batch's ids are distinct, and `htrain calibrate --from` measures it. Of the rows that a cache is asked for, `cache_hit_percent` are there and valid; the
others are fetched, and as many are evicted. Both are one number for all tables; where the rates of a cache are known, these are taken.
"""

from collections.abc import Mapping
from dataclasses import replace

from htrain.net.net import Blob, Net
from htrain.ops import OPS
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.ops.expectation import Expectation
from htrain.spec.cluster import Cluster


def expected_blobs(train: Net, cluster: Cluster, batch_size: int, rates: Rates = NO_RATES) -> dict[str, Blob]:
    """The blobs of a train net; those that hold rows by distinct id with the number of rows to expect, of caches among `rates` that of these."""
    return sized_blobs(train, expected_counts(train, cluster, batch_size, rates))


def expected_counts(train: Net, cluster: Cluster, batch_size: int, rates: Rates = NO_RATES) -> dict[str, float]:
    """The number of rows to expect of those blobs, by their names."""
    tables = {ids: table for op in train.ops for table, ids, _ in OPS[op.type].reads(op)}
    shares = cluster.distinct_percent / 100, cluster.cache_hit_percent / 100
    expectation = Expectation(train, tables, batch_size, *shares, rates)
    counts: dict[str, float] = {}
    for op in train.ops:
        counts.update(OPS[op.type].expected(op, counts, expectation))
    return counts


def sized_blobs(train: Net, counts: Mapping[str, float]) -> dict[str, Blob]:
    """The blobs of a train net, those that are counted with so many rows: at least one."""
    return {name: _sized(blob, counts.get(name)) for name, blob in train.blobs.items()}


def expected(net: Net, blobs: Mapping[str, Blob]) -> Net:
    """A train net or a role's, with the blobs that `expected_blobs` gives. For costs alone: its shapes do not hold together."""
    return replace(net, blobs={name: blobs.get(name, blob) for name, blob in net.blobs.items()})


def _sized(blob: Blob, rows: float | None) -> Blob:
    return blob if rows is None else replace(blob, shape=(max(1, round(rows)), *blob.shape[1:]))
