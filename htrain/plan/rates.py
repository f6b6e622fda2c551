"""Rates of caches that come from outside: whether they are those of a net's caches."""

from collections.abc import Iterator
from dataclasses import astuple, fields
from math import isfinite

from htrain.errors import PlanError
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.asked_rows import REQUEST
from htrain.ops.cache_rates import CacheRates, Rates

_CURE = "they are of another model, cluster or placement: run htrain advise again with this cluster"


def require_own_rates(train: Net, rates: Rates) -> None:
    """Raises PlanError where there are rates and they are not of the caches of a train net, their tables and servers,
    or hold what is no number of rows."""
    if not rates.caches:
        return
    asks = {op.inputs[0]: op for op in train.ops if OPS[op.type].phase == "ask" and op.inputs}
    if asks.keys() != rates.caches.keys():
        has = ", ".join(asks) or "no cache"
        raise PlanError(f"rates of {', '.join(rates.caches)}, the plan has {has}: {_CURE}")
    for name, found in rates.caches.items():
        tables, servers = set(asks[name].inputs[1:]), (len(asks[name].outputs) - 1) // len(REQUEST)
        if tables != set(found.ids) or servers != len(found.shards):
            raise PlanError(
                f"rates of {name} with {len(found.ids)} tables on {len(found.shards)} servers, the plan's has {len(tables)} on {servers}: {_CURE}"
            )
        if not all(isfinite(number) and number >= 0 for number in _numbers(found)):
            raise PlanError(f"rates of {name} hold what is no number of rows: run htrain advise again")


def _numbers(rates: CacheRates) -> Iterator[float]:
    yield from rates.ids.values()
    yield from (number for shard in rates.shards for number in astuple(shard))
    yield from (getattr(rates, f.name) for f in fields(rates) if f.name not in ("ids", "shards"))
