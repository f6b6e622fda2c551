"""Where boxes and flows of a net on several devices stand: time goes down, as in a sequence diagram.

A box stands under everything that its lane drew before it and under the values that it reads from other lanes. Such a value is a horizontal
line in a row of its own, right under the box that makes it: lines and boxes never overlap, and a line's label has room. At its lane the
line turns into the margin beside the boxes and goes down there to its readers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from htrain.report.boxes import Box, Flow, Picture
from htrain.report.geometry import (
    SLOT,
    TOP,
    WIDTH,
    Branch,
    Line,
    Path,
    PictureLayout,
    Point,
    Sizes,
    Tracks,
    link_down,
    link_in_column,
    narrow_sizes,
    wide_sizes,
)

_LEAST_LANE, _MOST_LANE, _WIDE_LANE = 95, 420, 170
_MARGIN = 34
_LINE_SLOTS = 2  # room for a line and its label


def in_lanes(picture: Picture) -> PictureLayout:
    """A lane for each device; the same picture gives the same layout."""
    sizes = _sizes(len(picture.lanes))
    rows = _stack(picture, sizes)
    corners = tuple(
        (box.lane * sizes.lane + sizes.margin, TOP + rows.box[b] * SLOT) for b, box in enumerate(picture.boxes)
    )
    tracks = Tracks(sizes)
    return PictureLayout(
        picture,
        sizes,
        width=sizes.lane * len(picture.lanes),
        height=TOP + (rows.end + 1) * SLOT,
        lane_width=sizes.lane,
        corners=corners,
        lines=tuple(_line(b, flows, row, corners=corners, tracks=tracks) for b, flows, row in rows.lines),
        links=tuple(_links(picture, corners, tracks)),
    )


def _sizes(num_lanes: int) -> Sizes:
    lane = min(_MOST_LANE, max(_LEAST_LANE, WIDTH // num_lanes))
    return wide_sizes(lane, _MARGIN) if lane >= _WIDE_LANE else narrow_sizes(lane)


@dataclass
class _Rows:
    """Slots from the top: of each box, of each line with its flows, and the first that nothing uses."""

    box: list[int] = field(default_factory=list)
    lines: list[tuple[int, tuple[Flow, ...], int]] = field(default_factory=list)
    end: int = 0


def _stack(picture: Picture, sizes: Sizes) -> _Rows:
    """Give every box and every line the first free row under what it must be under."""
    rows, slots = _Rows(), sizes.height // SLOT
    used: list[set[int]] = [set() for _ in picture.lanes]
    below = [0] * len(picture.lanes)
    arrived: dict[int, int] = {}
    leaving: dict[int, list[Flow]] = {}
    for flow in picture.flows:
        if flow.lane != picture.boxes[flow.source].lane:
            leaving.setdefault(flow.source, []).append(flow)
    for b, box in enumerate(picture.boxes):
        at = _first_free(used[box.lane : box.lane + 1], max(below[box.lane], arrived.get(b, 0)), slots + 1)
        rows.box.append(at)
        below[box.lane] = at + slots + 1
        used[box.lane].update(range(at, at + slots + 1))
        for flows in _alike(leaving.get(b, ()), box.lane):
            lanes = [box.lane, *(flow.lane for flow in flows)]
            between = used[min(lanes) : max(lanes) + 1]
            row = _first_free(between, at + slots, _LINE_SLOTS, but=(box.lane - min(lanes), at + slots))
            for slots_of_lane in between:
                slots_of_lane.update(range(row, row + _LINE_SLOTS))
            below[box.lane] = max(below[box.lane], row + _LINE_SLOTS + 1)
            rows.lines.append((b, flows, row))
            arrived.update({t: max(arrived.get(t, 0), row + _LINE_SLOTS) for flow in flows for t in flow.targets})
        rows.end = max(rows.end, *below)
    return rows


def _first_free(lanes: Sequence[set[int]], at: int, count: int, but: tuple[int, int] = (-1, -1)) -> int:
    """The first of `count` slots from `at` on that are free in all lanes; `but` (lane, slot) may be used: the gap under a box."""
    while True:
        taken = [
            slot
            for index, used in enumerate(lanes)
            for slot in range(at, at + count)
            if slot in used and (index, slot) != but
        ]
        if not taken:
            return at
        at = max(taken) + 1


def _alike(flows: Sequence[Flow], home: int) -> list[tuple[Flow, ...]]:
    """Flows of one box in lane `home` by the line that draws them: those with the same bytes. The longest is first, so that none crosses."""
    together: dict[tuple[float, float], list[Flow]] = {}
    for flow in flows:
        together.setdefault((flow.there_bytes, flow.back_bytes), []).append(flow)
    lines = [tuple(group) for group in together.values()]
    return sorted(lines, key=lambda line: -max(abs(flow.lane - home) for flow in line))


def _line(source: int, flows: Sequence[Flow], row: int, *, corners: Sequence[Point], tracks: Tracks) -> Line:
    sizes, (x, y) = tracks.sizes, corners[source]
    home = x // sizes.lane
    at = TOP + (row + _LINE_SLOTS) * SLOT - 3
    branches = []
    for flow in flows:
        left = flow.lane > home
        middles = [corners[t][1] + sizes.height // 2 for t in flow.targets]
        turn = tracks.x(flow.lane, min(at, *middles), max(at, *middles), left=left)
        side = flow.lane * sizes.lane + (sizes.margin if left else sizes.margin + sizes.box)
        branches.append(Branch(flow, turn, tuple((side, middle) for middle in middles)))
    inset = min(18, sizes.box // 4)
    rightwards = all(flow.lane > home for flow in flows)
    leftwards = all(flow.lane < home for flow in flows)
    start = x + (sizes.box - inset if rightwards else inset if leftwards else sizes.box // 2 + inset)
    return Line(
        source,
        (start, y + sizes.height),
        at,
        branches=tuple(branches),
        there_bytes=flows[0].there_bytes,
        back_bytes=flows[0].back_bytes,
    )


def _links(picture: Picture, corners: Sequence[Point], tracks: Tracks) -> Iterator[tuple[Flow, tuple[Path, ...]]]:
    """Within a lane: straight down to the next box, through the left margin to others."""
    following = _next_in_lane(picture.boxes)
    for flow in picture.flows:
        if flow.lane != picture.boxes[flow.source].lane:
            continue
        corner = corners[flow.source]
        yield (
            flow,
            tuple(
                link_down(corner, corners[target], tracks.sizes)
                if following.get(flow.source) == target
                else link_in_column(corner, corners[target], flow.lane, tracks)
                for target in flow.targets
            ),
        )


def _next_in_lane(boxes: Sequence[Box]) -> dict[int, int]:
    last: dict[int, int] = {}
    following: dict[int, int] = {}
    for index, box in enumerate(boxes):
        if box.lane in last:
            following[last[box.lane]] = index
        last[box.lane] = index
    return following
