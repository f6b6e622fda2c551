"""What rates of caches make of a plan's bytes, by the cost model, and what links allow then."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from htrain.advising.advice import LINKS, Candidate, Table, Traffic
from htrain.costs.expected import expected_counts
from htrain.costs.predict import demands_of, resource_seconds
from htrain.executor.record.measured import predicted_edges
from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import numel
from htrain.ops import OPS
from htrain.ops.cache_rates import CacheRates, Rates
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster

CONSTANTS = ("distinct_percent", "cache_hit_percent")  # of the cluster, that data tells
_BITS = 8
_KINDS = ("trainer", "group_ps", "sparse_ps", "dense_ps")


def traffic_of(plan: Plan, rates: Rates) -> Traffic:
    """The traffic of a plan whose caches ask for rows at `rates`, or which has none."""
    of_rows = sum(
        num_bytes for pair, num_bytes in predicted_edges(plan, rates).items() if SPARSE_PS in map(role_of, pair)
    )
    demands = demands_of(plan.nets, plan.cluster, plan.options, rates)
    steps = float(plan.options.dense_sync.round_steps)
    eps = []
    for link in LINKS:
        rate = round(link * 1e9 / _BITS)
        cluster = with_values(plan.cluster, {f"{kind}_bandwidth": rate for kind in _KINDS})
        seconds = [
            resource_seconds(device, demands.at(device, plan.options, steps), cluster, plan.options)["network"]
            for device in cluster.devices
        ]
        eps.append(1 / max(seconds) if max(seconds) > 0 else float("inf"))
    return Traffic(of_rows, tuple(eps))


def with_constants(plan: Plan, chosen: Candidate, tables: Sequence[Table]) -> Cluster:
    """The plan's cluster with the constants of the cost model as the data has them, one number each for all tables."""
    blobs = {blob for cache in chosen.rates.caches.values() for blob in cache.ids}
    ids = sum(numel(plan.train.blobs[blob].shape[:1], plan.options.batch_size) for blob in blobs)
    asked = sum(table.asked for table in tables)
    percents = 100 * asked / ids, 100 * chosen.share.valid
    return with_values(plan.cluster, {name: max(1, round(p)) for name, p in zip(CONSTANTS, percents, strict=True)})


def with_values(cluster: Cluster, values: Mapping[str, Any]) -> Cluster:
    """The cluster with other values of some fields."""
    return replace(cluster, **values)


def without_cache(plan: Plan, tables: Sequence[Table]) -> Traffic:
    """The traffic of a plan without caches, whose batches ask for as many distinct rows of each of the tables."""
    asked = {table.name: table.asked for table in tables}
    alike = expected_counts(plan.train, plan.cluster, plan.options.batch_size)
    read = {ids for op in plan.train.ops for _, ids, _ in OPS[op.type].reads(op)}
    ids: dict[str, float] = {}
    for op in plan.train.ops:
        shards = [name for name in op.outputs if name in read and op.module in asked]
        total = sum(alike[name] for name in shards)
        ids.update({name: asked[op.module] * alike[name] / total for name in shards})
    nothing = CacheRates(ids=ids, hits=0.0, cold=0.0, loaded=0.0, evicted=0.0, shards=())
    return traffic_of(plan, Rates({"": nothing}))
