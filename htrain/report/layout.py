"""Where boxes and flows of a drawn net stand, in pixels: time goes down, as in a sequence diagram.

A box stands under everything that its lane drew before it and under the values that it reads from other lanes. Such a value is a horizontal
line in a row of its own, right under the box that makes it: lines and boxes never overlap, and a line's label has room. At its lane the
line turns into the margin beside the boxes and goes down there to its readers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from htrain.report.boxes import Box, Flow, Picture

WIDTH = 1336  # of the page's content on a screen of 1400 pixels
_LEAST_LANE, _MOST_LANE, _WIDE_LANE = 95, 300, 170
_SLOT, _TOP = 8, 64
_LINE_SLOTS = 2
_TRACK = 5


Point = tuple[int, int]
Path = tuple[Point, ...]


@dataclass(frozen=True)
class Sizes:
    """Pixels: lanes stand `lane` apart, boxes are `box` wide and `height` high, `margin` left and right of a box; `lines` of
    `letters` of a title fit into a box at `font`, and `note_letters` under it."""

    lane: int
    box: int
    height: int
    margin: int
    letters: int
    note_letters: int
    lines: int
    font: float


@dataclass(frozen=True)
class Line:
    """A value, or several, on the way to other lanes: down from `start` to `row` y, along it to each branch; `num_bytes` there and back
    of an example, for each branch."""

    source: int
    start: Point
    row: int
    branches: tuple["Branch", ...]
    there_bytes: float
    back_bytes: float


@dataclass(frozen=True)
class Branch:
    """Where a line turns off at `x` to the sides of boxes, `ends` (x, y)."""

    flow: Flow
    x: int
    ends: Path


@dataclass(frozen=True)
class Layout:
    """A picture with places: `corners[b]` (x, y) of its boxes, `lines` between lanes, and `links` within a lane: a flow's polylines."""

    picture: Picture
    sizes: Sizes
    width: int
    height: int
    corners: Path
    lines: tuple[Line, ...]
    links: tuple[tuple[Flow, tuple[Path, ...]], ...]


def layout_of(picture: Picture) -> Layout:
    """The layout of a picture; the same picture gives the same one."""
    sizes = _sizes(len(picture.lanes))
    rows = _stack(picture, sizes)
    corners = tuple(
        (box.lane * sizes.lane + sizes.margin, _TOP + rows.box[b] * _SLOT) for b, box in enumerate(picture.boxes)
    )
    tracks = _Tracks(sizes)
    lines = tuple(_line(b, flows, row, corners, tracks) for b, flows, row in rows.lines)
    links = tuple(_links(picture, corners, tracks))
    height = _TOP + (rows.end + 1) * _SLOT
    return Layout(
        picture,
        sizes,
        sizes.lane * max(1, len(picture.lanes)),
        height=height,
        corners=corners,
        lines=lines,
        links=links,
    )


def _sizes(num_lanes: int) -> Sizes:
    lane = min(_MOST_LANE, max(_LEAST_LANE, WIDTH // max(1, num_lanes)))
    if lane < _WIDE_LANE:
        return Sizes(
            lane,
            lane - 22,
            48,
            margin=11,
            letters=int((lane - 32) / 6.1),
            note_letters=int((lane - 34) / 6.2),
            lines=2,
            font=10.0,
        )
    return Sizes(
        lane,
        lane - 68,
        40,
        margin=34,
        letters=int((lane - 80) / 7.3),
        note_letters=int((lane - 82) / 6.2),
        lines=1,
        font=12.0,
    )


@dataclass
class _Rows:
    """Slots from the top: of each box, of each line with its flows, and the first that nothing uses."""

    box: list[int] = field(default_factory=list)
    lines: list[tuple[int, tuple[Flow, ...], int]] = field(default_factory=list)
    end: int = 0


def _stack(picture: Picture, sizes: Sizes) -> _Rows:
    """Give every box and every line the first free row under what it must be under."""
    rows, slots = _Rows(), sizes.height // _SLOT
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


class _Tracks:
    """The margins beside the boxes of each lane, in tracks; what goes down in one track does not overlap while there are tracks."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._count = max(1, (sizes.margin - 6) // _TRACK)
        self._used: dict[tuple[int, bool], list[list[tuple[int, int]]]] = {}

    def x(self, lane: int, top: int, bottom: int, *, left: bool) -> int:
        """Where in the left or right margin of a lane there is room from `top` to `bottom`."""
        tracks = self._used.setdefault((lane, left), [[] for _ in range(self._count)])
        free = (k for k, taken in enumerate(tracks) if all(bottom <= a or top >= b for a, b in taken))
        track = next(free, self._count - 1)
        tracks[track].append((top, bottom))
        away = self.sizes.margin - 6 - track * _TRACK
        return lane * self.sizes.lane + away if left else (lane + 1) * self.sizes.lane - away


def _line(source: int, flows: Sequence[Flow], row: int, corners: Sequence[Point], tracks: _Tracks) -> Line:
    sizes, (x, y) = tracks.sizes, corners[source]
    home = x // sizes.lane
    at = _TOP + (row + _LINE_SLOTS) * _SLOT - 3
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


def _links(picture: Picture, corners: Sequence[Point], tracks: _Tracks) -> Iterator[tuple[Flow, tuple[Path, ...]]]:
    """Within a lane: straight down to the next box, through the left margin to others."""
    sizes = tracks.sizes
    following = _next_in_lane(picture.boxes)
    for flow in picture.flows:
        if flow.lane != picture.boxes[flow.source].lane:
            continue
        x, y = corners[flow.source]
        paths: list[Path] = []
        for target in flow.targets:
            end = corners[target][1]
            if following.get(flow.source) == target:
                middle = x + sizes.box // 2
                paths.append(((middle, y + sizes.height), (middle, end)))
            else:
                start, stop = y + sizes.height // 2 + 6, end + sizes.height // 2 - 6
                turn = tracks.x(flow.lane, min(start, stop), max(start, stop), left=True)
                paths.append(((x, start), (turn, start), (turn, stop), (x, stop)))
        yield flow, tuple(paths)


def _next_in_lane(boxes: Sequence[Box]) -> dict[int, int]:
    last: dict[int, int] = {}
    following: dict[int, int] = {}
    for index, box in enumerate(boxes):
        if box.lane in last:
            following[last[box.lane]] = index
        last[box.lane] = index
    return following
