"""The EPS that a plan is told to have, and the loads at it: those of its steady state, in which steps wait for each other and for the network."""

from collections.abc import Iterator
from dataclasses import replace
from math import floor

from htrain.costs.predict import Rounds, demands_of, device_loads, rounds_at
from htrain.plan.plan import Plan
from htrain.simulation.steady import steady_state
from htrain.simulation.strategies.strategy import has_threads

_RARE = 2.0  # times as many steps as were asked for


def with_steady_state(plan: Plan) -> Plan:
    """The plan with what it will reach by the simulation's account. One whose caches do something beside steps, in windows that grow, has no steady step of
    one replica: it keeps what its busiest device allows."""
    if has_threads(plan):
        return plan
    eps = float(floor(steady_state(plan).eps))
    holds = {device: load.holds for device, load in plan.loads.items()}
    demands = demands_of(plan.nets, plan.cluster, plan.options)
    loads = device_loads(plan.nets, holds, demands, plan.cluster, plan.options, eps=eps)
    notes = (
        *plan.notes,
        *_rare_rounds(rounds_at(demands, plan.cluster, plan.options, eps), plan.options.dense_sync.round_steps),
    )
    return replace(plan, predicted_eps=eps, loads=loads, notes=notes)


def _rare_rounds(rounds: Rounds, asked: int) -> Iterator[str]:
    """A note where groups share their weights far more rarely than they were told to: it costs no speed, so nothing else says so."""
    if rounds.steps >= _RARE * asked:
        resource = {"cpu": "CPU", "network": "network", "lock": "Python's lock"}[rounds.resource]
        yield (
            f"rounds of the background sync come every {rounds.steps:,.0f} steps of a group, not every {asked}: the {resource} of {rounds.device} "
            f"allows no more (more dense PSs, faster ones, or a longer --sync-period)"
        )
