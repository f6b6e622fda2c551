"""A layout as SVG. Full names, ops and bytes are tooltips."""

from collections.abc import Iterator, Mapping
from html import escape

from htrain.costs.loads import DeviceLoad
from htrain.report.boxes import Box, Flow, Lane
from htrain.report.layout import Layout, Line, Path
from htrain.report.markup import shown
from htrain.report.names import called, fitted, folded_name, printable, width_of
from htrain.sizes import traffic_text

_MOST_NAMES = 30


def drawing(layout: Layout, loads: Mapping[str, DeviceLoad], busiest: str) -> str:
    """The net by device; the lane of the device `busiest` is marked."""
    body = "\n".join(
        [
            *_lanes(layout, loads, busiest),
            *(_link(layout, flow, paths) for flow, paths in layout.links),
            *(_line(layout, line) for line in layout.lines),
            *(_box(layout, index) for index in range(len(layout.picture.boxes))),
            *(_label(line) for line in layout.lines),
        ]
    )
    size = f'width="{layout.width}" height="{layout.height}" viewBox="0 0 {layout.width} {layout.height}"'
    return f'<svg {size} role="img" aria-label="the net by device">\n{_MARKERS}\n{body}\n</svg>'


_MARKERS = "<defs>" + "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
    f'<path class="head-{name}" d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
    for name in ("sent", "kept")
) + "</defs>"  # fmt: skip


def _lanes(layout: Layout, loads: Mapping[str, DeviceLoad], busiest: str) -> Iterator[str]:
    width = layout.sizes.lane
    for k, lane in enumerate(layout.picture.lanes):
        middle = k * width + width // 2
        hot = " hot" if busiest in lane.devices else ""
        place = f'x="{k * width + 2}" y="1" width="{width - 4}" height="{layout.height - 2}"'
        yield (
            f'<g><title>{shown(", ".join(lane.devices))}</title><rect class="lane{hot}" {place} rx="8"/>'
            f'<text class="lane-name{hot}" font-size="{layout.sizes.font + 2:g}" x="{middle}" y="24" text-anchor="middle">{shown(lane.name)}</text>'
            f'<text class="note" x="{middle}" y="42" text-anchor="middle">{_use(lane, loads, layout)}</text></g>'
        )


def _use(lane: Lane, loads: Mapping[str, DeviceLoad], layout: Layout) -> str:
    found = [loads[device] for device in lane.devices if device in loads]
    cpu, network = (max((share(load) for load in found), default=0.0) for share in (_cpu, _network))
    if layout.sizes.lines > 1:
        return f"{cpu:.0%} · {network:.0%}"
    return f"CPU {cpu:.0%} · network {network:.0%}"


def _cpu(load: DeviceLoad) -> float:
    return load.cpu


def _network(load: DeviceLoad) -> float:
    return load.network


def _box(layout: Layout, index: int) -> str:
    box, (x, y), sizes = layout.picture.boxes[index], layout.corners[index], layout.sizes
    title, notes = box_text(box, layout.picture.lanes[box.lane])
    first = 16 if sizes.lines == 1 else 14
    lines = fitted(printable(title), sizes.letters, sizes.lines)
    names = "".join(
        f'<text class="name" font-size="{sizes.font:g}" x="{x + 7}" y="{y + first + 12 * k}">{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    note = next((n for n in notes if width_of(n) <= sizes.note_letters), notes[-1])
    under = "".join(fitted(printable(note), sizes.note_letters, 1))
    return (
        f'<g class="box{" many" if len(box.modules) > 1 else ""}"><title>{shown(_names(box.modules))}: {shown(notes[0])}</title>'
        f'<rect x="{x}" y="{y}" width="{sizes.box}" height="{sizes.height}" rx="5"/>{names}'
        f'<text class="note" x="{x + 7}" y="{y + sizes.height - 8}">{escape(under)}</text></g>'
    )


def box_text(box: Box, lane: Lane) -> tuple[str, tuple[str, ...]]:
    """Title, and the second line, long or short: how many modules the box holds, and the ops that they run in a step."""
    name, count, kinds = folded_name(box.modules), len(box.modules), ", ".join(box.kinds)
    if not box.num_ops:
        return name, ("batches",)
    if count > 1 and lane.devices[0].startswith("sparse_ps"):
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


def _link(layout: Layout, flow: Flow, paths: tuple[Path, ...]) -> str:
    drawn = "".join(f'<path d="{_d(path)}" marker-end="url(#kept)"/>' for path in paths)
    return f'<g class="kept"><title>{_flow_text(layout, flow)}</title>{drawn}</g>'


def _line(layout: Layout, line: Line) -> str:
    x, y = line.start
    drawn = "".join(
        f'<path d="{_d(((x, y), (x, line.row), (branch.x, line.row), (branch.x, end[1]), end))}" marker-end="url(#sent)"/>'
        for branch in line.branches
        for end in branch.ends
    )
    tips = "\n".join(_flow_text(layout, branch.flow) for branch in line.branches)
    return f'<g class="sent"><title>{tips}</title>{drawn}</g>'


def _label(line: Line) -> str:
    """The bytes, on the line beside the box that sends them; after all lines, so that none runs through it."""
    x, lefts = line.start[0], [branch.x < line.start[0] for branch in line.branches]
    each = f" to each of {len(lefts)}" if len(lefts) > 1 else ""
    at, anchor = (x - 6, "end") if all(lefts) else (x + 6, "start")
    text = bytes_text(line.there_bytes, line.back_bytes) + each
    return f'<text class="bytes" x="{at}" y="{line.row - 3}" text-anchor="{anchor}">{text}</text>'


def bytes_text(there: float, back: float) -> str:
    """Bytes there, and of gradients back: `64 B`, `64 B ⇄` where they are the same, `104 B ⇄ 832 B`."""
    if not back:
        return traffic_text(there)
    return f"{traffic_text(there)} ⇄" if there == back else f"{traffic_text(there)} ⇄ {traffic_text(back)}"


def _flow_text(layout: Layout, flow: Flow) -> str:
    boxes, lanes = layout.picture.boxes, layout.picture.lanes
    source = boxes[flow.source]
    ends = ", ".join(folded_name(boxes[t].modules) for t in flow.targets)
    text = f"{folded_name(source.modules)} → {ends}: {_names(flow.names)}"
    if not flow.there_bytes:
        return shown(text)
    back = f", {flow.back_bytes:,.0f} bytes of gradients back" if flow.back_bytes else ""
    return f"{shown(lanes[source.lane].name)} → {shown(lanes[flow.lane].name)}: {flow.there_bytes:,.0f} bytes an example{back}\n{shown(text)}"
