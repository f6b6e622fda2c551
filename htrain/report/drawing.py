"""What a drawn net shows, as values for the template of its SVG: texts and paths with their places. Full names, ops and bytes are tooltips."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from htrain.costs.loads import DeviceLoad
from htrain.net.names import SPARSE_PS, role_of
from htrain.report.boxes import Box, Flow, Lane
from htrain.report.geometry import Line, Path, PictureLayout
from htrain.report.names import called, fitted, folded_name, printable, width_of
from htrain.sizes import traffic_text

_MOST_NAMES = 30  # that a tooltip lists


@dataclass(frozen=True)
class DrawnLane:
    """A device, or several: the left side of its rectangle, and how busy it is."""

    tip: str
    name: str
    use: str
    left: int
    is_busiest: bool


@dataclass(frozen=True)
class DrawnBox:
    """A box at (x, y): the lines of its name, and a note under them."""

    tip: str
    x: int
    y: int
    name: tuple[str, ...]
    note: str
    is_many: bool


@dataclass(frozen=True)
class DrawnFlow:
    """Paths of a flow, as SVG writes them, and a line of tooltip for each value that flows there."""

    tips: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """The bytes of a line, on it, beside the box that sends them."""

    text: str
    x: int
    y: int
    anchor: str


@dataclass(frozen=True)
class Drawing:
    """A net by device: `links` stay on a device, `lines` cross the network."""

    layout: PictureLayout
    lanes: tuple[DrawnLane, ...]
    boxes: tuple[DrawnBox, ...]
    links: tuple[DrawnFlow, ...]
    lines: tuple[DrawnFlow, ...]
    labels: tuple[Label, ...]


def drawing(layout: PictureLayout, loads: Mapping[str, DeviceLoad], busiest: str) -> Drawing:
    """The net by device; the lane of the device `busiest` is marked."""
    return Drawing(
        layout,
        lanes=tuple(_lanes(layout, loads, busiest)),
        boxes=tuple(_box(layout, index) for index in range(len(layout.picture.boxes))),
        links=tuple(DrawnFlow(_tips(layout, flow), tuple(map(_d, paths))) for flow, paths in layout.links),
        lines=tuple(_line(layout, line) for line in layout.lines),
        labels=tuple(_label(line) for line in layout.lines),
    )


def _lanes(layout: PictureLayout, loads: Mapping[str, DeviceLoad], busiest: str) -> Iterator[DrawnLane]:
    for k, lane in enumerate(layout.picture.lanes):
        use = _use(lane, loads, is_short=layout.sizes.lines > 1)
        yield DrawnLane(", ".join(lane.devices), lane.name, use, k * layout.lane_width, busiest in lane.devices)


def _use(lane: Lane, loads: Mapping[str, DeviceLoad], *, is_short: bool) -> str:
    found = [loads[device] for device in lane.devices if device in loads]
    cpu = max((load.cpu for load in found), default=0.0)
    network = max((load.network for load in found), default=0.0)
    return f"{cpu:.0%} · {network:.0%}" if is_short else f"CPU {cpu:.0%} · network {network:.0%}"


def _box(layout: PictureLayout, index: int) -> DrawnBox:
    box, (x, y), sizes = layout.picture.boxes[index], layout.corners[index], layout.sizes
    title, notes = box_text(box, layout.picture.lanes[box.lane])
    note = next((n for n in notes if width_of(n) <= sizes.note_letters), notes[-1])
    return DrawnBox(
        f"{_names(box.modules)}: {notes[0]}",
        x,
        y,
        name=tuple(fitted(printable(title), sizes.letters, sizes.lines)),
        note="".join(fitted(printable(note), sizes.note_letters, 1)),
        is_many=len(box.modules) > 1,
    )


def box_text(box: Box, lane: Lane) -> tuple[str, tuple[str, ...]]:
    """Title, and the second line, long or short: how many modules the box holds, and the ops that they run in a step."""
    name, count, kinds = folded_name(box.modules), len(box.modules), ", ".join(box.kinds)
    if not box.num_ops:
        return name, ("batches",)
    if count > 1 and role_of(lane.devices[0]) == SPARSE_PS:
        return f"{count} tables", (name,)
    ops = f"{box.num_ops:,} op{'s' if box.num_ops > 1 else ''}"
    if count == 1:
        return name, (f"{kinds} · {ops}", ops)
    if len(box.kinds) == 1:
        return name, (f"{count} × {kinds} · {ops}", f"{count} × {kinds}", f"{count} modules")
    return name, (f"{count} modules: {kinds} · {ops}", f"{count} modules · {ops}", f"{count} modules")


def _names(names: tuple[str, ...]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(map(called, names[:_MOST_NAMES])) + (f" and {rest} more" if rest > 0 else "")


def _d(path: Path) -> str:
    return "M" + " L".join(f"{x} {y}" for x, y in path)


def _line(layout: PictureLayout, line: Line) -> DrawnFlow:
    x, y = line.start
    paths = tuple(
        _d(((x, y), (x, line.row), (branch.x, line.row), (branch.x, end[1]), end))
        for branch in line.branches
        for end in branch.ends
    )
    return DrawnFlow(tuple(tip for branch in line.branches for tip in _tips(layout, branch.flow)), paths)


def _label(line: Line) -> Label:
    x, lefts = line.start[0], [branch.x < line.start[0] for branch in line.branches]
    each = f" to each of {len(lefts)}" if len(lefts) > 1 else ""
    at, anchor = (x - 6, "end") if all(lefts) else (x + 6, "start")
    return Label(bytes_text(line.there_bytes, line.back_bytes) + each, at, line.row - 3, anchor)


def bytes_text(there: float, back: float) -> str:
    """Bytes there, and of gradients back: `64 B`, `64 B ⇄` where they are the same, `104 B ⇄ 832 B`."""
    if not back:
        return traffic_text(there)
    return f"{traffic_text(there)} ⇄" if there == back else f"{traffic_text(there)} ⇄ {traffic_text(back)}"


def _tips(layout: PictureLayout, flow: Flow) -> tuple[str, ...]:
    boxes, lanes = layout.picture.boxes, layout.picture.lanes
    source = boxes[flow.source]
    ends = ", ".join(folded_name(boxes[t].modules) for t in flow.targets)
    text = f"{folded_name(source.modules)} → {ends}: {_names(flow.names)}"
    if not flow.there_bytes:
        return (text,)
    back = f", {flow.back_bytes:,.0f} bytes of gradients back" if flow.back_bytes else ""
    return (
        f"{lanes[source.lane].name} → {lanes[flow.lane].name}: {flow.there_bytes:,.0f} bytes an example{back}",
        text,
    )
