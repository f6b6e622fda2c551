"""Where the boxes of a drawn net stand: a lane for each device, downwards in the order of the forward net.

Modules of one device whose names differ in numbers only, and that are equally deep, are one box; a lane that is still too full folds by
the first word of the name. So a net of a thousand ops is drawn with at most MOST_BOXES boxes in a lane.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from htrain.cluster import role_of
from htrain.net import COMPRESS, Net
from htrain.plan_text import fold

MOST_BOXES = 36
_MOST_SPARSE_LANES = 3


@dataclass(frozen=True)
class Box:
    """Modules drawn as one: `row` counts from the top of lane `lane`; `num_ops` with gradients and steps."""

    title: str
    modules: tuple[str, ...]
    lane: int
    row: int
    num_ops: int


@dataclass(frozen=True)
class Arrow:
    """A value, or several, from one box to another; `num_bytes` of an example."""

    source: int
    target: int
    num_bytes: float


@dataclass(frozen=True)
class Layout:
    """A drawn net. `lanes` are the devices' names."""

    lanes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def layout_of(net: Net, batch_size: int) -> Layout:
    """The layout of a tagged train net."""
    device, depth, num_ops = _modules(net)
    lanes = _lanes(device)
    keys = _keys(device, depth, lanes)
    members: dict[tuple[str, ...], list[str]] = {}
    for module in sorted(
        device, key=lambda m: (depth[m], list(device).index(m)) if len(device) < 400 else (depth[m], 0)
    ):
        members.setdefault(keys[module], []).append(module)
    box_of = {module: index for index, modules in enumerate(members.values()) for module in modules}
    arrows = tuple(_arrows(net, box_of, batch_size))
    lane_of = [lanes.index(key[0]) for key in members]
    rows = _rows(lane_of, arrows, len(lanes))
    boxes = []
    for index, (key, modules) in enumerate(members.items()):
        title = ", ".join(fold(modules)) if len(modules) < 60 else f"{key[1]} ({len(modules)} modules)"
        boxes.append(Box(title, tuple(modules), lane_of[index], rows[index], sum(num_ops[m] for m in modules)))
    return Layout(tuple(lanes), tuple(boxes), arrows)


def _rows(lane_of: Sequence[int], arrows: Sequence[Arrow], num_lanes: int) -> list[int]:
    """The first free row of a box's lane that is not above what it reads."""
    sources: dict[int, list[int]] = {}
    for arrow in arrows:
        sources.setdefault(arrow.target, []).append(arrow.source)
    rows: list[int] = []
    free = [0] * num_lanes
    for box, lane in enumerate(lane_of):
        above = (rows[s] + (lane_of[s] == lane) for s in sources.get(box, ()) if s < box)
        rows.append(max(free[lane], max(above, default=0)))
        free[lane] = rows[box] + 1
    return rows


def _modules(net: Net) -> tuple[dict[str, str], dict[str, int], dict[str, int]]:
    """Device, depth in the forward net, and number of ops of every module that computes forward."""
    device: dict[str, str] = {}
    depth: dict[str, int] = {}
    num_ops: dict[str, int] = {}
    made: dict[str, int] = {}
    forward = True
    for op in net.ops:
        forward = forward and op.type != "GradientSeed"
        below = 1 + max((made.get(name, 0) for name in op.inputs), default=0)
        made.update(dict.fromkeys(op.outputs, below))
        if op.module == COMPRESS:
            continue
        name = f"{op.module}@{op.node_name}" if device.get(op.module, op.node_name) != op.node_name else op.module
        num_ops[name] = num_ops.get(name, 0) + 1
        if forward:
            device.setdefault(name, op.node_name)
            depth.setdefault(name, below)
    return device, depth, {name: num_ops.get(name, 0) for name in device}


def _lanes(device: Mapping[str, str]) -> list[str]:
    order = {"trainer": 0, "group_ps": 1, "sparse_ps": 2}
    found = sorted(set(device.values()), key=lambda d: (order.get(role_of(d), 3), len(d), d))
    sparse = [d for d in found if role_of(d) == "sparse_ps"]
    if len(sparse) <= _MOST_SPARSE_LANES:
        return found
    return [*(d for d in found if d not in sparse), f"{len(sparse)} sparse PSs"]


def _keys(device: Mapping[str, str], depth: Mapping[str, int], lanes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What modules have in common that are drawn as one: the finest grain at which every lane has room."""
    grains = (
        lambda m: (re.sub(r"\d+", "#", m), str(depth[m])),
        lambda m: (re.sub(r"\d+", "#", m),),
        lambda m: (re.split(r"[./_\d]", m)[0] or m,),
    )
    keys: dict[str, tuple[str, ...]] = {}
    for lane in lanes:
        inside = [m for m, d in device.items() if d == lane or (lane not in device.values() and d not in lanes)]
        for grain in grains:
            found = {m: (lane, *grain(m)) for m in inside}
            if len(set(found.values())) <= MOST_BOXES:
                break
        keys.update(found)
    return keys


def _arrows(net: Net, box_of: Mapping[str, int], batch_size: int) -> list[Arrow]:
    """Values of the forward net between boxes, summed; through the ops that encode them."""
    maker: dict[str, int] = {}
    flows: dict[tuple[int, int], float] = {}
    seen: set[tuple[str, int]] = set()
    for op in net.ops:
        if op.type == "GradientSeed":
            break
        home = box_of.get(f"{op.module}@{op.node_name}", box_of.get(op.module, -1))
        if op.module == COMPRESS:
            home = maker.get(op.inputs[0], -1)
        for name in op.inputs:
            source = maker.get(name, -1)
            if source >= 0 and home >= 0 and source != home and (name, home) not in seen:
                seen.add((name, home))
                size = net.blob(name).num_bytes(batch_size) / batch_size
                flows[source, home] = flows.get((source, home), 0.0) + size
        maker.update(dict.fromkeys(op.outputs, home))
    return [Arrow(source, target, size) for (source, target), size in flows.items()]
