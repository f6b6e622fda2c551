"""Greedy refinement (HT 3.2.1): ease the bottleneck device until no change helps, then start again from a shaken placement.

The paper moves one operator off the bottleneck at a time. Here a change may also be two neighbours together or a swap. Where that ends,
other starts are descended from: the net cut into runs of neighbours, one run a group PS, since no single move leads from many messages to
few; then the best placement so far, shaken (a few units moved at random, seeded), as often as the budget of scored placements allows.
Deterministic: the budget counts placements, not seconds.
"""

import time
from dataclasses import dataclass

import numpy as np

from htrain.tagging.search_loops import Ints, Problem, State, better, descend, score
from htrain.tagging.workload import Workload

DEFAULT_BUDGET = 2_000_000  # placements that are scored
_MOST_KICKS = 1000  # new starts, where placements are cheap
_PATIENCE = 400  # kicks in a row that find nothing better


@dataclass(frozen=True)
class Refined:
    """A placement, and how it came about: `seconds` per example of the busiest device, `tried` placements, `kicks` new starts;
    `stopped_by` is 'balanced', 'budget' or 'time'."""

    places: Ints
    seconds: float
    tried: int
    kicks: int
    stopped_by: str


def refine(
    workload: Workload, start: Ints, *, budget: int = DEFAULT_BUDGET, time_limit_seconds: float = 60.0, seed: int = 0
) -> Refined:
    """A placement that is never worse than `start`: not further beyond memory, and not slower if equally far.

    `budget` is the number of placements to score; `time_limit_seconds` is a guard for huge nets: a run that meets it may differ from
    another one's.
    """
    deadline = time.monotonic() + time_limit_seconds
    problem = _problem(workload)
    chance = np.random.default_rng(seed)
    best, best_score = start.copy(), _score(problem, workload, start)
    tried, kicks, in_vain, stopped_by = 0, 0, 0, "balanced"
    starts = [start.copy(), *_runs(workload, start)]
    while True:
        current = starts.pop(0) if starts else _shaken(best, workload, chance)
        state = _state(workload, current)
        used, _ = descend(problem, state, budget - tried)
        tried += int(used)
        found = _score(problem, workload, state.places)
        if better(found, best_score):
            best, best_score, in_vain = state.places.copy(), found, 0
        if tried >= budget or time.monotonic() > deadline:
            stopped_by = "budget" if tried >= budget else "time"
            break
        if not starts and (kicks >= _MOST_KICKS or in_vain >= _PATIENCE or len(best) < 2):
            break
        kicks, in_vain = (kicks, in_vain) if starts else (kicks + 1, in_vain + 1)
    return Refined(best, workload.seconds(best), tried, kicks, stopped_by)


def _runs(workload: Workload, start: Ints) -> list[Ints]:
    """The units in the order of the net, cut into k runs of about equal CPU, and of equal memory, on k group PSs, for every k; once with the units without
    weights where `start` has them, once with all."""
    free = np.array([not unit.weights for unit in workload.units], bool)
    placements = []
    for amount in (workload.unit_cpu, workload.unit_memory[:, -1]):
        share = np.cumsum(amount) / max(float(amount.sum()), 1e-30) * (1 - 1e-9)
        for count in range(1, workload.num_places):
            device = 1 + (share * count).astype(np.int64)
            for stays in (free, np.zeros_like(free)):
                places = np.where(stays, start, device)
                placements.append(np.where(workload.allowed[np.arange(len(places)), places], places, start))
    return placements


def _shaken(places: Ints, workload: Workload, chance: np.random.Generator) -> Ints:
    """The placement with a few units moved elsewhere at random: so many that a descent does not simply come back."""
    shaken = places.copy()
    count = int(chance.integers(2, max(3, min(12, len(places) // 3 + 2))))
    for u in chance.choice(len(places), size=min(count, len(places)), replace=False):
        shaken[u] = chance.choice(np.flatnonzero(workload.allowed[u]))
    return shaken


def _score(problem: Problem, workload: Workload, places: Ints) -> np.ndarray:
    """The score of a placement from sums made afresh: those of a search gather rounding."""
    result = np.zeros(3)
    score(problem, workload.loads(places), result)
    return result


def _state(workload: Workload, places: Ints) -> State:
    readers = workload.read_on.copy()
    np.add.at(readers, (workload.read, places[workload.reader_of]), 1)
    return State(places.copy(), readers, workload.loads(places))


def _problem(workload: Workload) -> Problem:
    """The workload by unit: the values that each touches, and the units next to it."""
    num_units = len(workload.units)
    makes = np.flatnonzero(workload.maker >= 0)
    owner = np.concatenate([workload.reader_of, workload.maker[makes]])
    value = np.concatenate([workload.read, makes])
    reads = np.concatenate([np.ones(len(workload.read), np.int64), np.zeros(len(makes), np.int64)])
    order = np.argsort(owner, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=num_units))]).astype(np.int64)
    makers = workload.maker[workload.read]
    pairs = np.stack([workload.reader_of, makers], 1)[makers >= 0]
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0) if len(pairs) else np.empty((0, 2), np.int64)
    near_starts = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=num_units))]).astype(np.int64)
    return Problem(
        workload.num_places, workload.host_cores, capacity=workload.capacity,
        allowed=workload.allowed, unit_load=workload.unit_load, unit_memory=workload.unit_memory,
        value_bytes=workload.value_bytes, value_cpu=workload.value_cpu, value_lock=workload.value_lock,
        value_memory=workload.value_memory, maker=workload.maker, made_on=workload.made_on,
        touched=value[order], reads=reads[order], starts=starts,
        near=np.ascontiguousarray(pairs[:, 1]), near_starts=near_starts, fixed_near=_fixed_near(workload),
    )  # fmt: skip


def _fixed_near(workload: Workload) -> np.ndarray:
    """Which devices have a fixed op that exchanges a value with each unit."""
    near = np.zeros((len(workload.units), len(workload.devices)), bool)
    made = np.flatnonzero(workload.maker >= 0)
    np.logical_or.at(near, workload.maker[made], workload.read_on[made] > 0)
    outside = workload.maker[workload.read] < 0
    near[workload.reader_of[outside], workload.made_on[workload.read[outside]]] = True
    return near
