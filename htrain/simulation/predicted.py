"""The EPS that a plan is told to have, and the loads at it: those of its steady state, in which steps wait for each other and for the network."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import floor

from htrain.costs.loads import DeviceLoad
from htrain.costs.predict import Rounds, demands_of, device_loads, rounds_at
from htrain.net.names import SPARSE_PS, role_of
from htrain.plan.plan import Plan
from htrain.simulation.steady import steady_state
from htrain.simulation.strategies.strategy import has_threads

_RARE = 2.0  # times as many steps as were asked for
_FULL = 0.9  # share of the time
_MORE, _LEAST_CORES = (4, 8, 16), 2  # processes to advise, and the cores that each of them uses at least


def with_steady_state(plan: Plan) -> Plan:
    """The plan with what it will reach by the simulation's account. One whose caches do something beside steps, in windows that grow, has no steady step of
    one replica: it keeps what its busiest device allows."""
    if has_threads(plan):
        return plan
    eps = float(floor(steady_state(plan).eps))
    holds = {device: load.holds for device, load in plan.loads.items()}
    demands = demands_of(plan.nets, plan.cluster, plan.options, plan.rates)
    loads = device_loads(plan.nets, holds, demands, plan.cluster, plan.options, eps=eps)
    notes = (
        *plan.notes,
        *_full_lock(plan, loads),
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


def _full_lock(plan: Plan, loads: Mapping[str, DeviceLoad]) -> Iterator[str]:
    """A note where a sparse PS is held up by Python's lock, although it has cores for more processes."""
    cluster = plan.cluster
    processes, cores = cluster.sparse_ps_processes, cluster.shared_cores or cluster.sparse_ps_cores
    full = [device for device, load in loads.items() if role_of(device) == SPARSE_PS and load.lock >= _FULL]
    more = next((n for n in _MORE if n > processes and n * _LEAST_CORES <= cores), 0)
    if full and more and not plan.options.holder.holds_rows:
        yield (
            f"Python's lock is held {max(loads[device].lock for device in full):.0%} of the time on {full[0]}{' and others' * (len(full) > 1)}: "
            f"--sparse-ps-processes {more} gives its steps {more} locks"
        )
