"""From a plan with a cache and a user's data to advice: one pass over the data, then every setting is played on what
was kept of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from htrain.advising.advice import Advice, Basis, Candidate, Grid, Setting, Table
from htrain.advising.groups import groups_of
from htrain.advising.knee import recommended
from htrain.advising.playing import Played, share_of, shares_by_table
from htrain.advising.recording import Listener, read
from htrain.advising.traffic import traffic_of, with_constants, without_cache
from htrain.errors import DataError, UsageError
from htrain.ops.cache_rates import Rates
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import IdSource
from htrain.simulation.strategies.strategy import sizes_of
from htrain.spec.cache import Cache, NoCache


@dataclass(frozen=True)
class Request:
    """What is asked for: settings to try, how often the data comes, and how many accesses are kept of a pass over it,
    at most, infinity for all; of more, a sample."""

    grid: Grid
    epochs: int
    budget: float


def require_trained_table(plan: Plan) -> None:
    """Raises UsageError for a plan without a table that is trained: no cache holds rows of others."""
    if not any(parameter.kind == "table" and parameter.trained for parameter in plan.train.parameters.values()):
        raise UsageError(
            f"{plan.model} has no trained table that a cache would hold rows of: there is nothing to advise"
        )


def advise(plan: Plan, uncached: Plan, source: IdSource, request: Request, listener: Listener) -> Advice:
    """Advice for `plan`, which has caches; `uncached` is the same without. The staleness of what is recommended is
    the plan's.

    Raises DataError for data that the plan does not take, or that has no batches; UsageError for a kind of cache that
    is of one size.
    """
    sizes = sizes_of(plan)
    groups = groups_of(plan.train, sizes.caches(plan))
    records = read(plan, groups, source, request.budget, listener)
    if not any(record.asked.any() for record in records):
        raise DataError(f"{source}: no batch of it asks for a row: there is nothing to advise on")
    played = [Played(record, sizes, plan, request.grid, request.epochs) for record in records]
    grid = request.grid
    for capacity in grid.capacities:
        listener.step(f"playing caches of {capacity}")
        for each, policy, window in product(played, grid.policies, grid.windows):
            each.exchanged(capacity, policy, window)
    candidates = tuple(
        _candidate(plan, Setting(*key, staleness), played, str(source))
        for key in product(grid.capacities, grid.policies, grid.windows)
        for staleness in grid.staleness
    )
    listener.step("stack distances and Belady's bounds")
    return _advice(plan, uncached, request, played, candidates, str(source))


def _candidate(plan: Plan, setting: Setting, played: Sequence[Played], source: str) -> Candidate:
    found = [each.estimate(setting) for each in played]
    rates = Rates(
        {cache.cache: one.rates(cache) for one in found for cache in one.counted.group.caches},
        source,
        batches=played[0].num_batches,
        counted=-(-played[0].num_batches // 2),
    )
    tables = tuple(share for one in found for share in shares_by_table(one))
    return Candidate(setting, share_of(found), tables, traffic_of(plan, rates), rates)


def _advice(
    plan: Plan, uncached: Plan, request: Request, played: Sequence[Played], candidates: Sequence[Candidate], source: str
) -> Advice:
    tables = tuple(table for each in played for table in _tables(plan, each))
    traffic = without_cache(uncached, tables)
    wanted = plan.options.cache
    usual = [each for each in candidates if each.setting.staleness == wanted.staleness]  # type: ignore[attr-defined]
    rows = [float(sum(len(p.group.caches) * p.rows_of(each.setting.capacity) for p in played)) for each in usual]
    chosen = recommended(usual, rows, traffic.bytes_per_example)
    uses = {each: len(each.group.caches) * float(each.counted.uses.sum()) for each in played}
    best = {
        capacity: sum(len(each.group.caches) * float(each.best[capacity].sum()) for each in played) / sum(uses.values())
        for capacity in request.grid.capacities
    }
    advice = Advice(
        basis=_basis(plan, request, played, source),
        tables=tables,
        curves=tuple(each.curve(cache) for each in played for cache in each.group.caches),
        candidates=tuple(candidates),
        uncached=traffic,
        best=best,
        recommended=chosen,
        cluster=with_constants(plan, chosen, tables),
        options=replace(plan.options, cache=_section(plan, chosen.setting)),
    )
    return advice if advice.saves else replace(advice, options=replace(plan.options, cache=NoCache()))


def _section(plan: Plan, setting: Setting) -> Cache:
    chosen: Any = {"capacity": setting.capacity, "policy": setting.policy, "window": setting.window}
    return replace(plan.options.cache, **chosen)


def _basis(plan: Plan, request: Request, played: Sequence[Played], source: str) -> Basis:
    return Basis(
        data=source,
        model=plan.model,
        trainers=plan.cluster.groups * plan.cluster.trainers,
        batch_size=plan.options.batch_size,
        epochs=request.epochs,
        accesses=sum(len(each.group.caches) * each.num_accesses for each in played),
        rate=min(each.counted.rate for each in played),
        batches=played[0].num_batches,
        counted=-(-played[0].num_batches // 2),
    )


def _tables(plan: Plan, played: Played) -> Iterator[Table]:
    made_by = {name: op.module for op in plan.train.ops for name in op.outputs}
    asked = played.counted.by_table(played.counted.uses) / max(1, played.counted.batches)
    for cache in played.group.caches:
        each = zip(cache.first_keys, played.group.table_rows(), played.used_rows(), asked, strict=True)
        for blob, rows, used, of_batch in each:
            yield Table(made_by[blob], cache.cache, rows, float(used), float(of_batch))
