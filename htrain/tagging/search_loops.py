"""The inner loops of a search over placements: one unit moved, the loads kept up to date, in time that the net's size does not enter.

A score is (bytes beyond memory, seconds of the busiest device, sum of the fourth powers of all utilizations): lower is better, in that
order. The third lets a search go on where several devices are equally busy.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numpy.typing import NDArray

from htrain.jit import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_CPU, _RECEIVED, _SENT, _LOCK, _MEMORY = 0, 1, 2, 3, 4
_NONE = np.int64(-1)  # no unit, no device. Of a plain -1 Numba would make loops of their own
_TIE = 1e-9  # scores closer than this are equal: sums are rounded


class Problem(NamedTuple):
    """What does not change. touched[starts[u]:starts[u+1]] are the values that unit u makes or reads, `reads` says which it reads;
    near[near_starts[u]:near_starts[u+1]] are the units that exchange values with u, and fixed_near[u, d] says whether fixed ops on d do.
    The rest is as in `Workload`."""

    num_places: int
    host_cores: float
    capacity: Floats
    allowed: NDArray[np.bool_]
    unit_load: Floats
    unit_memory: Floats
    value_bytes: Floats
    value_cpu: Floats
    value_lock: Floats
    value_memory: Floats
    maker: Ints
    made_on: Ints
    touched: Ints
    reads: Ints
    starts: Ints
    near: Ints
    near_starts: Ints
    fixed_near: NDArray[np.bool_]


class State(NamedTuple):
    """A placement: places[u], how many read value v on device d in readers[v, d], and loads[d, 5]."""

    places: Ints
    readers: Ints
    loads: Floats


class Best(NamedTuple):
    """The best change of one or two units found so far: its score[3], and (unit, device, unit, device) in change[4], -1 for none."""

    score: Floats
    change: Ints


def _empty() -> tuple[Problem, State]:
    """A problem of nothing, and its placement: of the types of all."""
    ints, floats, floats2 = np.empty(0, np.int64), np.empty(0), np.empty((0, 0))
    bools2 = np.empty((0, 0), np.bool_)
    problem = Problem(
        0, 0.0, capacity=floats2, allowed=bools2, unit_load=floats2, unit_memory=floats2,
        value_bytes=floats, value_cpu=floats, value_lock=floats, value_memory=floats2, maker=ints, made_on=ints,
        touched=ints, reads=ints, starts=ints, near=ints, near_starts=ints, fixed_near=bools2,
    )  # fmt: skip
    return problem, State(ints, np.empty((0, 0), np.int64), floats2)


def _types_to_score() -> tuple[Any, ...]:
    problem, state = _empty()
    return typeof(problem), typeof(state.loads), typeof(np.empty(0))


def _types_to_descend() -> tuple[Any, ...]:
    problem, state = _empty()
    return typeof(problem), typeof(state), typeof(0)


@njit(nogil=True, cache=True)
def _send(problem, loads, v, home, to, sign):  # type: ignore[no-untyped-def]
    """Add (or with sign -1 take away) what one message with value v from device `home` asks of both devices."""
    size, cpu, lock = sign * problem.value_bytes[v], sign * problem.value_cpu[v], sign * problem.value_lock[v]
    loads[to, _RECEIVED] += size
    loads[home, _SENT] += size
    loads[to, _CPU] += cpu
    loads[home, _CPU] += cpu
    loads[to, _LOCK] += lock
    loads[home, _LOCK] += lock
    loads[to, _MEMORY] += sign * problem.value_memory[v, to]


@njit(nogil=True, cache=True)
def _send_all(problem, state, v, home, sign):  # type: ignore[no-untyped-def]
    """Add (or take away) what all messages with value v ask, where it is made on device `home`."""
    for d in range(state.readers.shape[1]):
        if d != home and state.readers[v, d] > 0:
            _send(problem, state.loads, v=v, home=home, to=d, sign=sign)


@njit(nogil=True, cache=True)
def move(problem, state, u, to):  # type: ignore[no-untyped-def]
    """Put unit u on device `to`. Of a value that u only reads, what changes is the message to a device that had no other reader."""
    source, readers, loads = state.places[u], state.readers, state.loads
    for i in range(problem.starts[u], problem.starts[u + 1]):
        v, count = problem.touched[i], problem.reads[i]
        maker = problem.maker[v]
        if maker == u:
            _send_all(problem, state, v, source, -1.0)
            _send_all(problem, state, v, to, 1.0)
            continue
        home = state.places[maker] if maker >= 0 else problem.made_on[v]
        readers[v, source] -= count
        if source != home and readers[v, source] == 0:
            _send(problem, loads, v=v, home=home, to=source, sign=-1.0)
        if to != home and readers[v, to] == 0:
            _send(problem, loads, v=v, home=home, to=to, sign=1.0)
        readers[v, to] += count
    state.places[u] = to
    for k in range(_MEMORY):
        loads[source, k] -= problem.unit_load[u, k]
        loads[to, k] += problem.unit_load[u, k]
    loads[source, _MEMORY] -= problem.unit_memory[u, source]
    loads[to, _MEMORY] += problem.unit_memory[u, to]


@njit(nogil=True, cache=True, usual=_types_to_score)
def score(problem, loads, result):  # type: ignore[no-untyped-def]
    """Write the score of `loads` to result[3]."""
    overflow, busiest, spread, total = 0.0, 0.0, 0.0, 0.0
    for d in range(loads.shape[0]):
        overflow += max(loads[d, _MEMORY] / problem.capacity[d, _MEMORY] - 1.0, 0.0)
        for k in range(_MEMORY):
            busiest = max(busiest, loads[d, k] / problem.capacity[d, k])
    if problem.host_cores > 0:
        for d in range(loads.shape[0]):
            total += loads[d, _CPU]
        busiest = max(busiest, total / problem.host_cores)
    for d in range(problem.num_places):
        for k in range(_MEMORY):
            used = loads[d, k] / problem.capacity[d, k] / busiest if busiest > 0 else 0.0
            spread += used**4
    result[0] = overflow if overflow > _TIE else 0.0
    result[1] = busiest
    result[2] = spread * busiest


@njit(nogil=True, cache=True)
def better(a, b):  # type: ignore[no-untyped-def]
    """Whether score a is lower than b, by more than rounding."""
    for k in range(3):
        gap = _TIE * max(abs(a[k]), abs(b[k]))
        if a[k] < b[k] - gap:
            return True
        if a[k] > b[k] + gap:
            return False
    return False


@njit(nogil=True, cache=True)
def _hottest(problem, loads):  # type: ignore[no-untyped-def]
    """The bottleneck of those that units can be on: the device with the highest utilization; the one furthest beyond its memory before all others."""
    worst, most = 0, -1.0
    for d in range(problem.num_places):
        used = 0.0
        for k in range(_MEMORY):
            used = max(used, loads[d, k] / problem.capacity[d, k])
        memory = loads[d, _MEMORY] / problem.capacity[d, _MEMORY]
        if memory > 1.0 + _TIE:
            used += 1e18 * memory
        if used > most:
            worst, most = d, used
    return worst


@njit(nogil=True, cache=True)
def _is_near(problem, state, u, device):  # type: ignore[no-untyped-def]
    """Whether unit u exchanges a value with an op on `device`."""
    found = problem.fixed_near[u, device]
    for i in range(problem.near_starts[u], problem.near_starts[u + 1]):
        found = found or state.places[problem.near[i]] == device
    return found


@njit(nogil=True, cache=True)
def _try(problem, state, best, trial, u, to, w, w_to):  # type: ignore[no-untyped-def]
    """Score a change of unit u, and of w unless it is -1; keep it if it is the best. The state is as before afterwards."""
    home = state.places[u]
    move(problem, state, u, to)
    other = _NONE
    if w >= 0:
        other = state.places[w]
        move(problem, state, w, w_to)
    score(problem, state.loads, trial)
    if better(trial, best.score):
        for k in range(3):
            best.score[k] = trial[k]
        best.change[0], best.change[1], best.change[2], best.change[3] = u, to, w, w_to
    if w >= 0:
        move(problem, state, w, other)
    move(problem, state, u, home)


@njit(nogil=True, cache=True)
def _try_moves(problem, state, best, trial, hot, everywhere):  # type: ignore[no-untyped-def]
    """A unit leaves the bottleneck, or one that exchanges values with it joins it; `everywhere`, any unit goes anywhere."""
    tried = 0
    for u in range(state.places.size):
        home = state.places[u]
        leaves = everywhere or home == hot
        if not leaves and not _is_near(problem, state, u, hot):
            continue
        for to in range(problem.num_places):
            if to != home and problem.allowed[u, to] and (leaves or to == hot):
                _try(problem, state, best=best, trial=trial, u=u, to=to, w=_NONE, w_to=_NONE)
                tried += 1
    return tried


@njit(nogil=True, cache=True)
def _try_pairs(problem, state, best, trial, hot):  # type: ignore[no-untyped-def]
    """Two units that exchange a value move together: a cut between them may cost more than either gains."""
    tried = 0
    for u in range(state.places.size):
        if state.places[u] != hot:
            continue
        for i in range(problem.near_starts[u], problem.near_starts[u + 1]):
            w = problem.near[i]
            for to in range(problem.num_places):
                if to != hot and to != state.places[w] and problem.allowed[u, to] and problem.allowed[w, to]:
                    _try(problem, state, best=best, trial=trial, u=u, to=to, w=w, w_to=to)
                    tried += 1
    return tried


@njit(nogil=True, cache=True)
def _try_swaps(problem, state, best, trial, hot):  # type: ignore[no-untyped-def]
    """A unit of the bottleneck changes places with one elsewhere."""
    tried = 0
    for u in range(state.places.size):
        if state.places[u] != hot:
            continue
        for w in range(state.places.size):
            other = state.places[w]
            if other != hot and problem.allowed[u, other] and problem.allowed[w, hot]:
                _try(problem, state, best=best, trial=trial, u=u, to=other, w=w, w_to=hot)
                tried += 1
    return tried


@njit(nogil=True, cache=True, usual=_types_to_descend)
def descend(problem, state, budget):  # type: ignore[no-untyped-def]
    """Take the best single move, else the best move of two neighbours, else the best swap, until none helps or `budget` placements
    have been scored. Returns how many were, and how many changes were made."""
    best, trial = Best(np.zeros(3), np.full(4, -1)), np.zeros(3)
    tried, changes = 0, 0
    score(problem, state.loads, best.score)
    everywhere = problem.host_cores > 0
    while tried < budget:
        best.change[0] = -1
        hot = _hottest(problem, state.loads)
        tried += _try_moves(problem, state, best=best, trial=trial, hot=hot, everywhere=everywhere)
        if best.change[0] < 0:
            tried += _try_pairs(problem, state, best, trial, hot)
        if best.change[0] < 0:
            tried += _try_swaps(problem, state, best, trial, hot)
        if best.change[0] < 0:
            break
        move(problem, state, best.change[0], best.change[1])
        if best.change[2] >= 0:
            move(problem, state, best.change[2], best.change[3])
        changes += 1
    return tried, changes


LOOPS = descend, score  # that every search needs; the one that takes longest to compile first
