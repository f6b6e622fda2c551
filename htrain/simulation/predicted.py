"""The EPS that a plan is told to have, and the loads at it: those of its steady state, in which steps wait for each other and for the network."""

from dataclasses import replace
from math import floor

from htrain.costs.predict import demands_of, device_loads
from htrain.plan import Plan
from htrain.simulation.run import is_known
from htrain.simulation.steady import steady_state


def with_steady_state(plan: Plan) -> Plan:
    """The plan with what it will reach by the simulation's account. One that cannot be simulated, with a cache or collectives, keeps what its busiest
    device allows."""
    if not is_known(plan):
        return plan
    eps = float(floor(steady_state(plan).eps))
    holds = {device: load.holds for device, load in plan.loads.items()}
    demands = demands_of(plan.nets, plan.cluster, plan.options)
    return replace(plan, predicted_eps=eps, loads=device_loads(plan.nets, holds, demands, plan.cluster, plan.options, eps=eps))
