"""The rates at which a plan's caches ask for rows, and what they make of its costs and of its simulation.

`rates_of` plays the decisions of the plan's caches over batches of ids. The simulation sizes the nets of devices by them (`htrain.simulation.run.sized_nets`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from htrain.errors import DataError, UsageError
from htrain.ops.cache_rates import NO_RATES, Rates, mean_of
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import IdSource, Trace, Zipf
from htrain.simulation.result import Simulated
from htrain.simulation.run import simulate
from htrain.simulation.steady_part import Steady, steady_part
from htrain.simulation.strategies.strategy import Round, plays_of
from htrain.spec.cache import CACHES
from htrain.spec.row_holder import RowHolder
from htrain.spec.settings import Workers

MOST_BATCHES = 1000
_FIRST_LOOK = 128  # rounds, and whenever there are twice as many
_NEGLIGIBLE = 0.001  # of the rows that a batch asks for


def source_of(trace: str, zipf: float | Literal["none"], seed: int = 0) -> IdSource | None:
    """The source of ids that a user names; None for neither. Raises UsageError for both."""
    if trace and zipf != "none":
        raise UsageError(
            f"--zipf {zipf:g} has no effect beside --trace, which says what ids there are: leave one of them out"
        )
    if zipf != "none":
        return Zipf(zipf, seed)
    return Trace(trace) if trace else None


def require_cache(holder: RowHolder, source: IdSource) -> None:
    """Raises UsageError where nothing holds rows whose rates a source of ids could tell."""
    flag = "--zipf" if isinstance(source, Zipf) else "--trace"
    said = f"{source.exponent:g}" if isinstance(source, Zipf) else str(source)
    if not holder.holds_rows:
        kinds = " or ".join(kind for kind, section in CACHES.items() if section.holds_rows)
        raise UsageError(
            f"{flag} {said} has no effect: it says what rows a cache asks for, and the plan has none (--cache {kinds})"
        )
    if holder.by_partition and isinstance(source, Zipf):
        raise UsageError(
            f"{flag} {said}: ids that are drawn are not those of the partition of {holder.words}: give its data, --trace packed:FILE"
        )


def rates_of(plan: Plan, source: IdSource, *, most_batches: int = MOST_BATCHES) -> Rates:
    """What each cache of a plan asks for in the steady state, per batch of a trainer.

    All trainers of the plan are played, from empty caches on, until these are full, what is fetched and pushed has become steady
    (htrain.simulation.steady_part) and is known to 1 %, or `most_batches` of each trainer, or the source, are at an end. Batches of the unsteady
    beginning do not count.
    Raises UsageError for a plan without a cache, PlanError for a cache whose decisions are not known, DataError for data that the plan does not take.
    """
    require_cache(plan.options.holder, source)
    rounds: list[Round] = []
    plays = plays_of(plan)(plan, source, most_batches)
    look = max(_FIRST_LOOK, plays.least_rounds)
    for found in _until(plays.rounds(), most_batches):
        rounds.append(found)
        if len(rounds) == look:
            steady, look = _steady(rounds), 2 * look
            if steady.is_warm and steady.is_sure:
                break
    if not rounds:
        raise DataError(
            f"{source}: has no window of batches for each of the plan's trainers: nothing tells what caches ask for"
        )
    steady = _steady(rounds)
    counted = rounds[steady.first :]
    caches = {name: mean_of([found.rates[name] for found in counted]) for name in counted[0].rates}
    batches, of_them = (sum(found.batches for found in part) for part in (rounds, counted))
    return Rates(caches, str(source), batches, of_them, steady.is_warm)


def _steady(rounds: Sequence[Round]) -> Steady:
    """Where what caches exchange is steady, and their number of rows, too."""
    each = [list(found.rates.values()) for found in rounds]
    negligible = _NEGLIGIBLE * sum(cache.asked for cache in each[-1])
    moved = steady_part([sum(cache.fetched + cache.pushed for cache in caches) for caches in each], negligible)
    grown = steady_part([sum(cache.loaded - cache.evicted for cache in caches) for caches in each], negligible)
    return Steady(max(moved.first, grown.first), moved.is_warm and grown.is_warm, moved.is_sure)


def _until(rounds: Iterable[Round], most_batches: int) -> Iterator[Round]:
    taken = 0
    for found in rounds:
        if taken + found.batches > most_batches:
            return
        taken += found.batches
        yield found


class RatesOf:
    """The rates of plans that differ in their clusters, each found once."""

    def __init__(self, source: IdSource | None, most_batches: int = MOST_BATCHES) -> None:
        self._source, self._most_batches = source, most_batches
        self._known: dict[object, Rates] = {}

    def __call__(self, plan: Plan) -> Rates:
        """As `rates_of`; no rates without a source."""
        if self._source is None:
            return NO_RATES
        key = _what_decides(plan)
        if key not in self._known:
            self._known[key] = rates_of(plan, self._source, most_batches=self._most_batches)
        return self._known[key]


def _what_decides(plan: Plan) -> object:
    """Of a plan of some model, all that its caches' decisions depend on."""
    caches = [
        (op.type, op.inputs, tuple(sorted(op.attrs.items()))) for op in plan.train.ops if _is_cache(plan, op.inputs)
    ]
    return plan.cluster.groups, plan.cluster.trainers, plan.options.batch_size, plan.options.holder, tuple(caches)


def _is_cache(plan: Plan, inputs: Sequence[str]) -> bool:
    parameter = plan.train.parameters.get(inputs[0]) if inputs else None
    return parameter is not None and parameter.kind == "cache"


def simulate_at(
    plan: Plan, rates: Rates, *, steps: int, workers: Workers, seed: int = 0, python_lock: bool = True
) -> Simulated:
    """Simulate a plan whose caches ask for rows at `rates`; see `htrain.simulation.run.simulate`."""
    return simulate(plan, steps=steps, workers=workers, seed=seed, python_lock=python_lock, rates=rates)


def rates_text(rates: Rates) -> str:
    """The rates as a table, rows per batch of one trainer."""
    wide = max(map(len, ("cache", *rates.caches)))
    heads = ("rows", "hit rate", "fetched", "cold", "stale", "evicted", "pushed", "checked")
    lines = [f"{'cache':<{wide}}" + "".join(f"{head:>10}" for head in heads)]
    for name, cache in rates.caches.items():
        old = cache.run_out + cache.stale
        numbers = (cache.fetched, cache.cold, old, cache.evicted, cache.pushed, cache.checked)
        shown = "".join(f"{number:>10,.1f}" for number in numbers)
        lines.append(f"{name:<{wide}}{cache.asked:>10,.1f}{cache.hit_rate:>10.2%}{shown}")
    why = "" if rates.warm else "; what they fetch was still changing then: give more batches"
    last = f"the last {rates.counted} of {rates.batches} batches count{why}"
    return "\n".join([*lines, f"rows per batch of a trainer, of {rates.source}: {last}"])
