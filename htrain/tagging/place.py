"""From a first placement to the one that a plan holds: rules, greedy refinement, the integer program where that fails (HT 3.2.1)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from htrain.costs.memory import too_large_text
from htrain.errors import PlacementError
from htrain.net.net import Net
from htrain.net.placement import Decision, Search
from htrain.tagging.greedy import refine
from htrain.tagging.ilp import ALL_NODES, anchored, heaviest, relaxed_bound, solve
from htrain.tagging.rules import tag_by_rules
from htrain.tagging.workload import CPU, MEMORY, Ints, Workload

Tagger = Callable[[Net, Workload], Sequence[Decision]]
Solver = Literal["rules", "greedy", "ilp", "cbc"]
_LARGEST_RELAXATION = 10_000  # values x places: a linear program of this size takes a second
_PROOF_NODES = 20  # of the integer program's tree, to prove a greedy placement; most need one


def by_rules(net: Net, workload: Workload) -> Sequence[Decision]:
    """The placement of htrain's own rules (htrain.tagging.rules)."""
    return tag_by_rules(net, workload.units, workload.num_places - 1)


def place_units(
    net: Net, workload: Workload, tagger: Tagger, solver: Solver, *, time_limit_seconds: float = 60.0
) -> tuple[list[Decision], Search]:
    """A device for every unit, with who decided it, and how good the whole is.

    `rules` keeps what `tagger` says, if that fits in memory. `greedy` refines it; the integer program then proves how good that is, as far as a
    few nodes of its tree go, and is asked in full where greedy finds nothing that fits. `ilp` (HiGHS) and `cbc` ask it always, for
    `time_limit_seconds`. The greedy placement stands unless they find a better one.
    Raises PlacementError naming the unit that is too large, or the device that is too full where no placement fits, under any solver.
    """
    decisions = decided(tagger, net, workload)
    start = places_of(decisions, workload)
    _check_size(workload)
    if (solver == "rules" or not len(start)) and workload.fits(start):
        seconds = workload.seconds(start) if len(start) else 0.0
        return decisions, Search("rules", seconds, seconds, bound_seconds=_bound(workload, seconds), tried=1, note="")
    free = _weights_stay(workload, start) if workload.host_cores else workload
    places, bound, tried, note = _searched(free, start, solver, time_limit_seconds)
    if free is not workload:
        bound, note = 0.0, f"{note}, weights kept where the rules put them"
        if not workload.fits(places):
            places, bound, tried, note = _searched(workload, start, solver, time_limit_seconds)
    if not workload.fits(places):
        raise _too_full(workload, places, note)
    if not workload.fits(start):
        note = f"what the rules say does not fit in memory; {note}"
    seconds = workload.seconds(places)
    bound = min(seconds, bound if bound > seconds * (1 - 1e-9) else max(bound, _bound(workload, seconds)))
    search = Search(solver, workload.seconds(start), seconds, bound_seconds=bound, tried=tried, note=note)
    return _explained(decisions, places, workload, search, fitted=workload.fits(start)), search


def _searched(
    workload: Workload, start: Ints, solver: Solver, time_limit_seconds: float
) -> tuple[Ints, float, int, str]:
    """The best placement found, seconds that none can beat (0 if unknown), how many were scored, and what stopped the search."""
    refined = refine(workload, start, time_limit_seconds=time_limit_seconds)
    fits, note = workload.fits(refined.places), f"greedy {refined.stopped_by}"
    if fits and refined.seconds <= anchored(workload) * (1 + 1e-9):
        return refined.places, refined.seconds, refined.tried, f"{note}; what cannot move takes as long"
    proof = solver in ("rules", "greedy") and fits
    if proof and not _is_small(workload):
        return refined.places, 0.0, refined.tried, note
    found = solve(
        workload,
        at_most_seconds=refined.seconds if fits else np.inf,
        time_limit_seconds=time_limit_seconds,
        solver="cbc" if solver == "cbc" else "highs",
        most_nodes=_PROOF_NODES if proof else ALL_NODES,
    )
    note = f"{note}; integer program: {found.status}"
    if found.places is not None and (not fits or workload.seconds(found.places) < refined.seconds * (1 - 1e-9)):
        return found.places, found.bound_seconds, refined.tried, f"{note}, better than greedy"
    return refined.places, found.bound_seconds, refined.tried, note


def _is_small(workload: Workload) -> bool:
    """Whether the integer program takes a second or so."""
    return len(workload.values) * workload.num_places <= _LARGEST_RELAXATION


def _weights_stay(workload: Workload, start: Ints) -> Workload:
    """Units with weights keep their first place where roles share a host's cores: each message that is saved helps there, and the
    search would draw everything onto one device and leave the other group PSs that were asked for without work."""
    allowed = workload.allowed.copy()
    for u, unit in enumerate(workload.units):
        if unit.weights and allowed[u, start[u]]:
            allowed[u] = np.arange(workload.num_places) == start[u]
    return replace(workload, allowed=allowed)


def places_of(decisions: Sequence[Decision], workload: Workload) -> Ints:
    """The device number of every unit, as the workload counts devices.

    Raises PlacementError naming the unit that has no device, or one where it may not be: rules of the user's own can say anything.
    """
    number = {device: d for d, device in enumerate(workload.devices[: workload.num_places])}
    device_of = {d.module: d.device for d in decisions}
    for u, unit in enumerate(workload.units):
        device = device_of.get(unit.name, "nowhere")
        if device not in number or not workload.allowed[u, number[device]]:
            may = ", ".join(workload.devices[d] for d in np.flatnonzero(workload.allowed[u]))
            raise PlacementError(f"the rules put module '{unit.name}' on {device}; it may be on {may}")
    return np.array([number[device_of[unit.name]] for unit in workload.units], np.int64)


def decided(tagger: Tagger, net: Net, workload: Workload) -> list[Decision]:
    """What the tagger says, but for pinned units, which are on their device whatever the rules say."""
    by_name = {d.module: d for d in tagger(net, workload)}
    for u, unit in enumerate(workload.units):
        if unit.name in workload.pinned:
            device = workload.devices[int(workload.allowed[u].argmax())]
            by_name[unit.name] = Decision(unit.name, device, "pin", workload.pinned[unit.name])
    return [by_name[unit.name] for unit in workload.units if unit.name in by_name]


def _explained(
    decisions: Sequence[Decision], places: Ints, workload: Workload, search: Search, *, fitted: bool
) -> list[Decision]:
    """Units that stayed keep their rule; for the others, the search says why. `fitted` says whether they could have stayed."""
    before, after = (f"{1 / seconds:,.0f}" if seconds else "" for seconds in (search.start_seconds, search.seconds))
    gain = f"to ease the bottleneck: {before} to {after} EPS of a group"
    gain = (
        gain if before != after else f"to ease the devices beside the bottleneck, which stays at {after} EPS of a group"
    )
    told = []
    by_name = {d.module: d for d in decisions}
    for unit, d in zip(workload.units, places.tolist(), strict=True):
        decision, device = by_name[unit.name], workload.devices[d]
        if device != decision.device:
            why = gain if fitted else "so that every device holds what is on it"
            reason = f"the search moved it from {decision.device} (rule '{decision.rule}') {why}"
            decision = replace(decision, device=device, rule="search", reason=reason)
        told.append(decision)
    return told


def _bound(workload: Workload, seconds: float) -> float:
    """Seconds per example that no placement can beat: the heaviest unit, what cannot move, all work spread evenly, and the relaxation where it is small."""
    spread = (workload.base[: workload.num_places, CPU].sum() + workload.unit_cpu.sum()) / workload.capacity[
        : workload.num_places, CPU
    ].sum()
    simple = max(heaviest(workload), anchored(workload), float(spread)) if len(workload.unit_cpu) else 0.0
    if not seconds or not _is_small(workload):
        return min(simple, seconds)
    return min(seconds, max(simple, relaxed_bound(workload, scale_seconds=seconds)))


def _check_size(workload: Workload) -> None:
    """Raises PlacementError early where ops that cannot move, or a unit that cannot be cut, are larger than the devices
    that may hold them (HT 4.3).
    """
    limits = workload.capacity[:, MEMORY].tolist()
    for device, use, limit in zip(workload.devices, workload.base_holds, limits, strict=True):
        if use.total > limit:
            raise PlacementError(too_large_text(device, use, int(limit)))
    taken = np.array([use.total for use in workload.base_holds[: workload.num_places]])
    capacity = workload.capacity[: workload.num_places, MEMORY]
    for u, unit in enumerate(workload.units):
        room = np.where(workload.allowed[u], capacity - taken - workload.unit_memory[u], -np.inf)
        if room.max() < 0:
            d = int(room.argmax())
            device, use = workload.devices[d], workload.holds_alone(u, d)
            raise PlacementError(
                f"module '{unit.name}' alone is too large for every device that may hold it: {too_large_text(device, use, int(capacity[d]))}"
            )


def _too_full(workload: Workload, places: Ints, note: str) -> PlacementError:
    d = int(workload.utilization(places)[:, MEMORY].argmax())
    text = too_large_text(workload.devices[d], workload.holds(places)[d], int(workload.capacity[d, MEMORY]))
    return PlacementError(f"no placement fits in memory ({note}): {text}")
