"""The placement of units as an integer program, exactly as `Workload` counts (HT 3.2.1): the only door to PuLP.

    minimise T   subject to, for every place d and dimension k:   load[d, k](x) <= T * capacity[d, k],   memory[d](x) <= capacity

x[u, d] puts unit u on place d; received[v, d] says whether value v is sent to d, copies[v, d] how often it is sent from d. These two
need not be integers: they are forced up by x and pushed down by T.

Two symmetries are broken. Group PSs are alike: units are numbered by weight, and a unit may open group PS k + 1 only if one before it is on group PS k.
Units of a class of twins, such as equal parts of a cut FC, are alike: their places ascend in that order. Of all placements that differ in the
names of group PSs and twins alone, the first in the order of words over places, read by units in that order, obeys both.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pulp

from htrain.errors import PlacementError
from htrain.tagging.twins import twins
from htrain.tagging.workload import CPU, LOCK, MEMORY, RECEIVED, SENT, Ints, Workload

Terms = dict[Any, float]
ALL_NODES = 2**31 - 1  # no limit: HiGHS takes an int32


@dataclass(frozen=True)
class Solved:
    """What the solver found: `places`, or None where none is better than asked for; `bound_seconds`, below which no placement can be;
    `status` is 'optimal', 'limit' (of time or nodes), 'nothing better', 'infeasible', or 'failed' and why."""

    places: Ints | None
    bound_seconds: float
    status: str


def solve(
    workload: Workload, *, at_most_seconds: float, time_limit_seconds: float, solver: str = "highs", most_nodes: int = ALL_NODES
) -> Solved:  # fmt: skip
    """The placement with the lowest seconds per example, if it is below `at_most_seconds` (infinite for any).

    `solver` is 'highs' or 'cbc'. `most_nodes` of HiGHS's search tree are looked at: a limit that, unlike time, gives the same result
    everywhere. Raises PlacementError for another solver.
    """
    scale = at_most_seconds if np.isfinite(at_most_seconds) else _all_in_one(workload)
    model = _Model(workload, scale, limit=1.0 if np.isfinite(at_most_seconds) else None)
    failure = _run(model.problem, _engine(solver, time_limit_seconds, most_nodes))
    if failure:
        return Solved(None, model.bound() * scale, failure)
    has_places = model.problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    found = model.places() if has_places else None
    if pulp.LpStatus[model.problem.status] == "Infeasible":
        return Solved(None, at_most_seconds, "nothing better" if np.isfinite(at_most_seconds) else "infeasible")
    optimal = model.problem.sol_status == pulp.LpSolutionOptimal
    bound = workload.seconds(found) if optimal and found is not None else model.bound() * scale
    return Solved(found, bound, "optimal" if optimal else "limit")


def _run(problem: pulp.LpProblem, engine: Any) -> str:
    """Run the solver; why it has no result, or nothing."""
    try:
        problem.solve(engine)
    except KeyError:  # PuLP has no word for HiGHS's limit of nodes
        return "limit"
    except (pulp.PulpError, OSError) as error:
        return f"failed ({' '.join(str(error).split()) or type(error).__name__})"
    return ""


def relaxed_bound(workload: Workload, *, scale_seconds: float, time_limit_seconds: float = 60.0) -> float:
    """Seconds per example that no placement can beat: the program with fractions of units allowed. 0 when the solver fails."""
    model = _Model(workload, scale_seconds, relaxed=True)
    if _run(model.problem, _engine("highs", time_limit_seconds)):
        return 0.0
    if model.problem.sol_status != pulp.LpSolutionOptimal:
        return 0.0
    return max(float(pulp.value(model.busiest)) * scale_seconds, heaviest(workload))


def heaviest(workload: Workload) -> float:
    """Seconds per example of the unit that is the slowest where it is the fastest: it cannot be cut."""
    speed = workload.capacity[: workload.num_places, CPU]
    alone = np.where(workload.allowed, workload.unit_cpu[:, None] / speed, np.inf).min(1)
    return float(alone.max(initial=0.0))


def anchored(workload: Workload) -> float:
    """Seconds per example of the busiest device that has fixed ops only, such as a sparse PS: no placement spares it its own ops, nor one message of
    each value that it makes for others or reads."""
    fixed = slice(workload.num_places, None)
    is_read = np.isin(np.arange(len(workload.values)), workload.read) | (
        workload.read_on[:, : workload.num_places] > 0
    ).any(1)
    loads = workload.base[fixed].copy()
    for row, d in enumerate(range(workload.num_places, len(workload.devices))):
        sent = (workload.made_on == d) * (
            is_read + (np.delete(workload.read_on, d, 1)[:, workload.num_places :] > 0).sum(1)
        )
        received = (workload.read_on[:, d] > 0) & (workload.made_on != d)
        messages = np.stack(
            [(sent + received) * workload.value_cpu, received * workload.value_bytes, sent * workload.value_bytes]
        )
        loads[row] += [*messages.sum(1), ((sent + received) * workload.value_lock).sum()]
    return float((loads / workload.capacity[fixed, :MEMORY]).max(initial=0.0))


def _all_in_one(workload: Workload) -> float:
    """A time that is near those of placements: all units on the trainer."""
    return max(workload.seconds(np.zeros(len(workload.units), np.int64)), 1e-12)


def _engine(solver: str, seconds: float, most_nodes: int = ALL_NODES) -> Any:
    if solver == "highs":
        return pulp.HiGHS(msg=False, timeLimit=seconds, threads=1, mip_max_nodes=most_nodes)
    if solver == "cbc":
        return pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False, timeLimit=seconds, threads=1)
    raise PlacementError(f"solver '{solver}': want highs or cbc")


class _Model:
    """The program of one workload, all seconds divided by `scale`."""

    def __init__(self, workload: Workload, scale: float, *, limit: float | None = None, relaxed: bool = False) -> None:
        self.workload = workload
        self.places_of_units = range(workload.num_places)
        self.problem = pulp.LpProblem("placement", pulp.LpMinimize)
        self.busiest = self.problem.add_variable("T", 0, limit)
        self.problem += self.busiest
        kind = pulp.LpContinuous if relaxed else pulp.LpInteger  # LpBinary would forget the bounds
        self.x = [
            [
                self.problem.add_variable(f"x_{u}_{d}", 0, 1 if workload.allowed[u, d] else 0, kind)
                for d in self.places_of_units
            ]
            for u in range(len(workload.units))
        ]
        self.loads: list[list[Terms]] = [[{} for _ in range(MEMORY + 1)] for _ in workload.devices]
        for row in self.x:
            self.problem += pulp.lpSum(row) == 1
        self._units()
        readers: list[list[int]] = [[] for _ in workload.values]
        for v, u in zip(workload.read.tolist(), workload.reader_of.tolist(), strict=True):
            readers[v].append(u)
        for v in range(len(workload.values)):
            self._value(v, readers[v])
        self._capacities(scale)
        if not relaxed:
            self._break_symmetries()

    def _units(self) -> None:
        for u, row in enumerate(self.x):
            for d, variable in enumerate(row):
                for k in range(MEMORY):
                    self.loads[d][k][variable] = float(self.workload.unit_load[u, k])
                self.loads[d][MEMORY][variable] = float(self.workload.unit_memory[u, d])

    def _value(self, v: int, readers: list[int]) -> None:
        """Count the messages of value v: one to every device that reads it, but for the one that makes it."""
        workload, maker, home = self.workload, int(self.workload.maker[v]), int(self.workload.made_on[v])
        received = [self.problem.add_variable(f"r_{v}_{d}", 0, 1) for d in self.places_of_units]
        for d in self.places_of_units:
            here = self.x[maker][d] if maker >= 0 else float(home == d)
            for u in readers:
                self.problem += received[d] >= self.x[u][d] - here
            if workload.read_on[v, d]:
                self.problem += received[d] >= 1 - here
            self._charge(v, d, RECEIVED, received[d], 1.0)
        outside = [s for s in range(workload.num_places, len(workload.devices)) if workload.read_on[v, s] and s != home]
        for s in outside:
            self._charge(v, s, RECEIVED, None, 1.0)
        if maker < 0:
            for variable in received:
                self._charge(v, home, SENT, variable, 1.0)
            self._charge(v, home, SENT, None, float(len(outside)))
            return
        most = min(len(readers) + int((workload.read_on[v] > 0).sum()), workload.num_places + len(outside))
        for d in self.places_of_units:
            copies = self.problem.add_variable(f"s_{v}_{d}", 0, most)
            self.problem += copies >= pulp.lpSum(received) + len(outside) - most * (1 - self.x[maker][d])
            for u in readers:
                self.problem += copies >= self.x[maker][d] - self.x[u][d] + len(outside) * self.x[maker][d]
            self._charge(v, d, SENT, copies, 1.0)

    def _charge(self, v: int, device: int, dimension: int, variable: Any, times: float) -> None:
        """Add `times` messages (times `variable`, where it is one) of value v to a device's loads; the constant stands under None."""
        workload = self.workload
        costs = [(dimension, workload.value_bytes[v]), (CPU, workload.value_cpu[v]), (LOCK, workload.value_lock[v])]
        for k, amount in costs + ([(MEMORY, workload.value_memory[v, device])] if dimension == RECEIVED else []):
            terms = self.loads[device][k]
            terms[variable] = terms.get(variable, 0.0) + times * float(amount)

    def _capacities(self, scale: float) -> None:
        workload = self.workload
        for d in range(len(workload.devices)):
            for k in range(MEMORY):
                most = float(workload.capacity[d, k]) * scale
                self.problem += self._sum(d, k, most) <= self.busiest
            most = float(workload.capacity[d, MEMORY])
            self.problem += self._sum(d, MEMORY, most) <= 1
        if workload.host_cores:
            most = workload.host_cores * scale
            self.problem += pulp.lpSum(self._sum(d, CPU, most) for d in range(len(workload.devices))) <= self.busiest

    def _sum(self, device: int, dimension: int, unit: float) -> Any:
        """A device's load in a dimension, in units of `unit`."""
        terms = self.loads[device][dimension]
        workload = self.workload
        base = workload.base_holds[device].total if dimension == MEMORY else float(workload.base[device, dimension])
        constant = (base + terms.get(None, 0.0)) / unit
        return pulp.LpAffineExpression([(x, a / unit) for x, a in terms.items() if x is not None], constant)

    def _break_symmetries(self) -> None:
        """Group PS k + 1 is opened only after group PS k, by units in the order of their CPU; places of twins ascend in the same order."""
        workload = self.workload
        order = sorted(range(len(self.x)), key=lambda u: (-workload.unit_cpu[u], u))
        if (workload.allowed[:, 1:] == workload.allowed[:, 1:2]).all():
            for k in range(2, workload.num_places):
                for position, u in enumerate(order):
                    self.problem += self.x[u][k] <= pulp.lpSum(self.x[w][k - 1] for w in order[:position])
        for members in twins(workload):  # alike in CPU, too: ascending is the order above
            for u, w in pairwise(members):
                for k in range(1, workload.num_places):
                    self.problem += pulp.lpSum(self.x[u][k:]) <= pulp.lpSum(self.x[w][k:])

    def places(self) -> Ints:
        return np.array(
            [max(self.places_of_units, key=lambda d: variable[d].value() or 0.0) for variable in self.x], np.int64
        )

    def bound(self) -> float:
        """The solver's bound on T where it stopped; 0 where it tells none."""
        model: Any = getattr(self.problem, "solverModel", None)
        return max(0.0, float(model.getInfo().mip_dual_bound)) if hasattr(model, "getInfo") else 0.0
