"""What a strategy that holds rows asks of its tables: its own decisions, played without a network or dense math."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from htrain.errors import PlanError
from htrain.ops.cache_rates import CacheRates
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import IdSource
from htrain.spec.halves import HALVES


@dataclass(frozen=True)
class Round:
    """Some `batches` of each trainer, and what the caches asked for in their course, per batch of one trainer, by the name of the cache."""

    batches: int
    rates: Mapping[str, CacheRates]


class PlaysCache:
    """The caches of a plan, on all of its trainers; `most_batches` of each will be played at most."""

    def __init__(self, plan: Plan, source: IdSource, most_batches: int) -> None:
        self.plan, self.source, self.most_batches = plan, source, most_batches
        self.trainers = plan.cluster.groups * plan.cluster.trainers

    @property
    def least_rounds(self) -> int:
        """Rounds of which it cannot be told whether what comes behind them is like them."""
        return 0

    def rounds(self) -> Iterator[Round]:
        """From empty caches on, as long as all trainers have batches."""
        yield from ()


def plays_of(plan: Plan) -> type[PlaysCache]:
    """How the caches of a plan are played. Raises PlanError for a cache of a user's own, whose decisions are elsewhere."""
    section = plan.options.cache
    if type(section) in HALVES or not section.runs:
        raise PlanError(
            f"what a cache of the kind {section.kind} asks for is not known here: say --cache-hit-percent instead"
        )
    plays: type[PlaysCache] = import_module(f"htrain.simulation.strategies.{section.home}").PLAYS
    return plays
