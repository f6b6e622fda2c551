"""What rates of caches make of a plan's bytes, by the cost model, and what links allow then."""

from collections.abc import Sequence
from dataclasses import replace

from htrain.advising.advice import LINKS, Table, Traffic
from htrain.costs.expected import expected_counts
from htrain.costs.predict import demands_of, resource_seconds
from htrain.executor.record.measured import predicted_edges
from htrain.net.names import SPARSE_PS, role_of
from htrain.ops import OPS
from htrain.ops.cache_rates import CacheRates, Rates
from htrain.plan.plan import Plan

_BITS = 8
_KINDS = ("trainer", "group_ps", "sparse_ps", "dense_ps")


def traffic_of(plan: Plan, rates: Rates) -> Traffic:
    """The traffic of a plan whose caches ask for rows at `rates`, or which has none."""
    of_rows = sum(
        num_bytes
        for pair, num_bytes in predicted_edges(plan, rates).items()
        if SPARSE_PS in map(role_of, pair)
    )
    demands = demands_of(plan.nets, plan.cluster, plan.options, rates)
    steps = float(plan.options.dense_sync.round_steps)
    eps = []
    for link in LINKS:
        rate = round(link * 1e9 / _BITS)
        cluster = replace(plan.cluster, **{f"{kind}_bandwidth": rate for kind in _KINDS})
        seconds = [
            resource_seconds(device, demands.at(device, plan.options, steps), cluster, plan.options)["network"]
            for device in cluster.devices
        ]
        eps.append(1 / max(seconds) if max(seconds) > 0 else float("inf"))
    return Traffic(of_rows, tuple(eps))


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
