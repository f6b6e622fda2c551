"""Greedy refinement and the integer program against brute force over every placement of small random workloads."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_workloads import workloads, workloads_with_twins
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.errors import PlacementError
from htrain.frontend.captured import Captured
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.tagging.greedy import _problem, _state, refine
from htrain.tagging.ilp import anchored, heaviest, relaxed_bound, solve
from htrain.tagging.search_loops import move
from htrain.tagging.workload import CPU, LOCK, MEMORY, RECEIVED, SENT, Ints, Workload

searching = settings(max_examples=60, deadline=None, derandomize=True)


def every_placement(workload: Workload) -> list[Ints]:
    choices = [np.flatnonzero(row).tolist() for row in workload.allowed]
    return [np.array(choice, np.int64) for choice in itertools.product(*choices)]


def loads_by_hand(workload: Workload, places: Ints) -> np.ndarray:
    """Values one by one, as one would count them on paper."""
    loads = np.zeros((len(workload.devices), 5))
    loads[:, :MEMORY] = workload.base
    loads[:, MEMORY] = [use.own for use in workload.base_holds]
    for u, d in enumerate(places):
        loads[d, :MEMORY] += workload.unit_load[u]
        loads[d, MEMORY] += workload.unit_holds[u].weights + workload.unit_made[u] * workload.steps[d]
    for v in range(len(workload.values)):
        home = places[workload.maker[v]] if workload.maker[v] >= 0 else workload.made_on[v]
        readers = set(np.flatnonzero(workload.read_on[v]).tolist())
        readers |= {int(places[u]) for u, w in zip(workload.reader_of, workload.read, strict=True) if w == v}
        for d in readers - {int(home)}:
            loads[home, SENT] += workload.value_bytes[v]
            loads[d, RECEIVED] += workload.value_bytes[v]
            loads[[home, d], CPU] += workload.value_cpu[v]
            loads[[home, d], LOCK] += workload.value_lock[v]
            loads[d, MEMORY] += workload.value_memory[v, d]
    return loads


@searching
@given(workloads())
def test_loads_are_those_counted_by_hand(workload: Workload) -> None:
    for places in every_placement(workload)[:20]:
        np.testing.assert_allclose(workload.loads(places), loads_by_hand(workload, places), atol=1e-12)
        np.testing.assert_allclose([use.total for use in workload.holds(places)], workload.loads(places)[:, MEMORY])


@searching
@given(workloads(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=12))
def test_moving_a_unit_keeps_the_loads(workload: Workload, moves: list[tuple[int, int]]) -> None:
    problem, state = _problem(workload), _state(workload, np.zeros(len(workload.units), np.int64))
    for u, to in moves:
        move(problem, state, u % len(workload.units), to % workload.num_places)
    np.testing.assert_allclose(state.loads, workload.loads(state.places), atol=1e-9)


@searching
@given(workloads(tight=True), st.integers(0, 1 << 30))
def test_refinement_never_worsens_and_keeps_within_memory(workload: Workload, which: int) -> None:
    every = every_placement(workload)
    start = every[which % len(every)]
    refined = refine(workload, start)
    assert workload.allowed[np.arange(len(start)), refined.places].all()
    assert workload.fits(refined.places) or not workload.fits(start)
    assert refined.seconds <= workload.seconds(start) * (1 + 1e-9) or not workload.fits(start)
    assert np.array_equal(refine(workload, start).places, refined.places)


@searching
@given(workloads(tight=True), st.integers(0, 1 << 30))
def test_refinement_of_a_small_net_finds_the_best_placement(workload: Workload, which: int) -> None:
    every = every_placement(workload)
    fitting = [workload.seconds(places) for places in every if workload.fits(places)]
    refined = refine(workload, every[which % len(every)])
    if fitting:
        assert workload.fits(refined.places)
        assert refined.seconds <= min(fitting) * 1.001


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(workload=workloads(tight=True) | workloads_with_twins(tight=True))
def test_the_integer_program_is_exact(solver: str, workload: Workload) -> None:
    fitting = [workload.seconds(places) for places in every_placement(workload) if workload.fits(places)]
    solved = solve(workload, at_most_seconds=np.inf, time_limit_seconds=20, solver=solver)
    if not fitting:
        assert (solved.places, solved.status) == (None, "infeasible")
        return
    assert solved.status == "optimal"
    assert solved.places is not None
    assert workload.fits(solved.places)
    assert workload.seconds(solved.places) == pytest.approx(min(fitting), rel=1e-5)
    assert solve(workload, at_most_seconds=min(fitting) * 0.99, time_limit_seconds=20).status == "nothing better"


@searching
@given(workloads(tight=True))
def test_no_placement_is_below_the_bounds(workload: Workload) -> None:
    fitting = [workload.seconds(places) for places in every_placement(workload) if workload.fits(places)]
    if fitting:
        assert relaxed_bound(workload, scale_seconds=max(fitting)) <= min(fitting) * (1 + 1e-6)
        assert heaviest(workload) <= min(fitting) * (1 + 1e-9)
        assert anchored(workload) <= min(fitting) * (1 + 1e-9)


@given(workloads())
@settings(max_examples=1, deadline=None, derandomize=True)
def test_an_unknown_solver_is_refused(workload: Workload) -> None:
    with pytest.raises(PlacementError, match=r"^solver 'xpress': want highs or cbc$"):
        solve(workload, at_most_seconds=np.inf, time_limit_seconds=1, solver="xpress")


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30))
def test_bytes_of_a_placement_are_those_of_the_nets_that_it_is_cut_into(seed: int) -> None:
    """Workload counts on the whole net; the pass that cuts it makes a Send for each value and reader."""
    seen: list[tuple[Workload, Ints]] = []

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        chance = random.Random(seed)
        places = np.array([chance.choice(np.flatnonzero(row)) for row in workload.allowed], np.int64)
        seen.append((workload, places))
        return [
            Decision(u.name, workload.devices[d], "random", "drawn")
            for u, d in zip(workload.units, places, strict=True)
        ]

    cluster = Cluster(groups=2, trainers=2, group_ps=3, sparse_ps=2, dense_ps=1)
    plan = compile_net(
        Captured(small_dlrm(), {}),
        cluster,
        Options(batch_size=8),
        name="small",
        tagger=tagger,
        solver="rules",
        table_splits={"item.weight": 2},
    )
    workload, places = seen[0]
    loads = workload.loads(places)
    for d, device in enumerate(workload.devices):
        load = plan.loads[device]
        assert loads[d, RECEIVED] == pytest.approx(load.received_per_example)
        assert loads[d, SENT] == pytest.approx(load.sent_per_example)
