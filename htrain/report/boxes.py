"""What a drawn net consists of: a lane for each device, boxes of modules that are alike, and what flows between them.

A module with forward ops on two devices (a table: its ids at the trainer, its rows on a sparse PS) is in a box of each. Modules of a lane
are one box where they are alike: equally deep, with the same ops, and with names that differ in numbers only. A lane with more than
MOST_BOXES of these folds further until it has at most that many. So a net of a thousand ops is drawn in a few dozen boxes.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from htrain.net.names import GROUP_PS, SPARSE_PS, TRAINER, role_of
from htrain.net.net import Net
from htrain.report.parts import Part, Value, parts_of, values_between

MOST_BOXES = 40
_MOST_SPARSE_LANES = 2  # more sparse PSs share a lane: they look alike
_ROLES = (SPARSE_PS, TRAINER, GROUP_PS)  # from left to right: tables and the net's dense part stand beside the trainer


@dataclass(frozen=True)
class Lane:
    """A device, or the sparse PSs together where there are many."""

    name: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """Modules of one lane drawn as one; `lane` is its number, `kinds` the types of their forward ops without repetition."""

    lane: int
    modules: tuple[str, ...]
    kinds: tuple[str, ...]
    num_ops: int
    depth: int


@dataclass(frozen=True)
class Flow:
    """What box `source` makes and boxes `targets`, all of lane `lane`, read: bytes of an example that cross the network `there`, and of
    gradients that come `back` for them; both are 0 within a device."""

    source: int
    lane: int
    targets: tuple[int, ...]
    names: tuple[str, ...]
    there_bytes: float
    back_bytes: float


@dataclass(frozen=True)
class Picture:
    """Lanes from left to right, boxes in an order that follows the flows where these have no cycle, and the flows."""

    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]
    flows: tuple[Flow, ...]


def picture_of(net: Net, batch_size: int) -> Picture:
    """The forward part of a tagged train net."""
    parts = parts_of(net)
    lanes = _lanes({part.device for part in parts})
    lane_of = {device: index for index, lane in enumerate(lanes) for device in lane.devices}
    groups = [group for lane in lanes for group in _groups([p for p in parts if p.device in lane.devices])]
    boxes = [_box(group, lane_of[group[0].device]) for group in groups]
    box_of = {part: index for index, group in enumerate(groups) for part in group}
    flows = _flows(parts, box_of, boxes, values_between(net, parts, batch_size))
    order = _run_order(boxes, flows)
    place = {box: index for index, box in enumerate(order)}
    moved = (
        Flow(
            place[f.source],
            f.lane,
            tuple(sorted(place[t] for t in f.targets)),
            names=f.names,
            there_bytes=f.there_bytes,
            back_bytes=f.back_bytes,
        )
        for f in flows
    )
    return Picture(lanes, tuple(boxes[b] for b in order), tuple(sorted(moved, key=lambda f: (f.source, f.lane))))


def _lanes(devices: set[str]) -> tuple[Lane, ...]:
    found = sorted(devices, key=lambda d: (_ROLES.index(role_of(d)), len(d), d))
    sparse = tuple(d for d in found if role_of(d) == SPARSE_PS)
    if len(sparse) <= _MOST_SPARSE_LANES:
        return tuple(Lane(device, (device,)) for device in found)
    rest = (Lane(device, (device,)) for device in found if device not in sparse)
    return (Lane(f"{len(sparse)} sparse PSs", sparse), *rest)


def _box(group: Sequence[Part], lane: int) -> Box:
    return Box(
        lane,
        tuple(dict.fromkeys(part.module for part in group)),
        tuple(dict.fromkeys(kind for part in group for kind in part.kinds)),
        sum(part.num_ops for part in group),
        min(part.depth for part in group),
    )


def _groups(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts of a lane by what they have in common, at the finest grain that leaves at most MOST_BOXES groups."""
    ranks = {depth: rank for rank, depth in enumerate(sorted({part.depth for part in parts}))}
    groups: dict[Hashable, list[Part]] = {}
    for grain in _grains(ranks):
        groups = {}
        for part in parts:
            groups.setdefault(grain(part), []).append(part)
        if len(groups) <= MOST_BOXES:
            break
    return list(groups.values())


def _grains(ranks: Mapping[int, int]) -> Iterator[Callable[[Part], Hashable]]:
    """Ever coarser: alike and equally deep; of one parent in a band of depths; a band of depths. The last has one group."""
    yield lambda part: (_pattern(part.module), part.depth, part.kinds)
    bands = [2**k for k in range(1, 1 + len(ranks).bit_length())]
    for band in bands:
        yield lambda part, band=band: (_parent(part.module), ranks[part.depth] // band)  # type: ignore[misc]
    for band in bands:
        yield lambda part, band=band: ranks[part.depth] // band  # type: ignore[misc]


def _pattern(module: str) -> str:
    """The name without its numbers; `select` is the first of `select_1`, `select_2`."""
    return re.sub(r"\d+", "#", re.sub(r"_\d+$", "", module))


def _parent(module: str) -> str:
    return _pattern(re.split(r"[./]", module)[0])


def _flows(
    parts: Sequence[Part], box_of: Mapping[Part, int], boxes: Sequence[Box], values: Iterator[Value]
) -> list[Flow]:
    """Values between boxes, together where they go from one box to one lane; a device gets each value once."""
    names: dict[tuple[int, int], dict[str, None]] = {}
    targets: dict[tuple[int, int], set[int]] = {}
    there: dict[tuple[int, int], float] = {}
    back: dict[tuple[int, int], float] = {}
    sent: set[tuple[str, str]] = set()
    for value in values:
        source, target = box_of[parts[value.source]], box_of[parts[value.target]]
        device = parts[value.target].device
        crosses = parts[value.source].device != device and (value.name, device) not in sent
        sent.add((value.name, device))
        size = value.num_bytes if crosses else 0.0
        if value.back:
            way = target, boxes[source].lane
            back[way] = back.get(way, 0.0) + size
        elif source != target:
            way = source, boxes[target].lane
            names.setdefault(way, {})[value.name] = None
            targets.setdefault(way, set()).add(target)
            there[way] = there.get(way, 0.0) + size
    return [
        Flow(*way, tuple(sorted(targets[way])), tuple(names[way]), there[way], back.get(way, 0.0)) for way in targets
    ]


def _run_order(boxes: Sequence[Box], flows: Sequence[Flow]) -> list[int]:
    """Boxes after all that they read; of several that could come next, one that goes on where its lane is, then the least deep.
    Where folding made a cycle, its least deep box comes first."""
    readers: dict[int, list[int]] = {}
    waits = dict.fromkeys(range(len(boxes)), 0)
    for flow in flows:
        readers.setdefault(flow.source, []).extend(flow.targets)
        for target in flow.targets:
            waits[target] += 1
    goes_on: set[int] = set()
    order: list[int] = []
    while waits:
        ready = [box for box, count in waits.items() if count <= 0] or list(waits)
        box = min(ready, key=lambda b: (b not in goes_on, boxes[b].depth, b))
        order.append(box)
        del waits[box]
        goes_on = {b for b in goes_on if boxes[b].lane != boxes[box].lane}
        for reader in readers.get(box, ()):
            if reader in waits:
                waits[reader] -= 1
            if boxes[reader].lane == boxes[box].lane:
                goes_on.add(reader)
    return order
