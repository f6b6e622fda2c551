"""What a drawn net's places are made of, in pixels: sizes of boxes, lines, and tracks in which lines go down beside the boxes."""

from collections.abc import Sequence
from dataclasses import dataclass

from htrain.report.boxes import Flow, Picture

WIDTH = 1216  # of the page's content in a window of 1280 pixels
TOP, SLOT = 64, 8  # above the first box; the raster of boxes and lines
_TRACK = 5  # pixels from one line in a margin to the next

Point = tuple[int, int]
Path = tuple[Point, ...]


@dataclass(frozen=True)
class Sizes:
    """Pixels: lanes or columns stand `lane` apart, boxes are `box` wide and `height` high, `margin` left and right of a box; `lines` of
    `letters` of a title fit into a box at `font`, the first `first` from its top, and `note_letters` under it."""

    lane: int
    margin: int
    box: int
    height: int
    letters: int
    note_letters: int
    lines: int
    first: int
    font: float


def wide_sizes(lane: int, margin: int) -> Sizes:
    """Sizes of boxes with a title in one line."""
    box = lane - 2 * margin
    letters, note_letters = int((box - 12) / 7.3), int((box - 14) / 6.2)
    return Sizes(lane, margin, box, height=40, letters=letters, note_letters=note_letters, lines=1, first=16, font=12.0)


def narrow_sizes(lane: int) -> Sizes:
    """Sizes of boxes with a smaller title in two lines."""
    box = lane - 22
    letters, note_letters = int((box - 10) / 6.1), int((box - 12) / 6.2)
    return Sizes(lane, 11, box, height=48, letters=letters, note_letters=note_letters, lines=2, first=14, font=10.0)


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
class PictureLayout:
    """A picture with places: lanes `lane_width` wide, `corners[b]` (x, y) of its boxes, `lines` between lanes, and `links` within a lane: a
    flow's polylines."""

    picture: Picture
    sizes: Sizes
    width: int
    height: int
    lane_width: int
    corners: Path
    lines: tuple[Line, ...]
    links: tuple[tuple[Flow, tuple[Path, ...]], ...]

    @property
    def least_width(self) -> int:
        """The width in pixels below which the drawing is not scaled; in a narrower window it is scrolled."""
        return self.width if self.width > WIDTH else 0


class Tracks:
    """The margins beside the boxes of each lane or column, in tracks; what goes down in one track does not overlap while there are tracks."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.is_crowded = False
        self._count = max(1, (sizes.margin - 6) // _TRACK)
        self._used: dict[tuple[int, bool], list[list[tuple[int, int]]]] = {}

    def x(self, lane: int, top: int, bottom: int, *, left: bool) -> int:
        """Where in the left or right margin of a lane there is room from `top` to `bottom`."""
        tracks = self._used.setdefault((lane, left), [[] for _ in range(self._count)])
        track = first_free(tracks, top, bottom)
        self.is_crowded = self.is_crowded or track == self._count
        track = min(track, self._count - 1)
        tracks[track].append((top, bottom))
        away = self.sizes.margin - 6 - track * _TRACK
        return lane * self.sizes.lane + away if left else (lane + 1) * self.sizes.lane - away


def first_free(tracks: Sequence[Sequence[tuple[int, int]]], begin: int, end: int) -> int:
    """The first track that is empty from `begin` to `end`; the number of tracks where none is."""
    free = (k for k, taken in enumerate(tracks) if all(end <= a or begin >= b for a, b in taken))
    return next(free, len(tracks))


def link_in_column(source: Point, target: Point, lane: int, tracks: Tracks) -> Path:
    """A polyline from the side of a box, through the left margin, to a box of its column that does not follow it."""
    half = tracks.sizes.height // 2
    start, stop = source[1] + half + 6, target[1] + half - 6
    turn = tracks.x(lane, min(start, stop), max(start, stop), left=True)
    return (source[0], start), (turn, start), (turn, stop), (target[0], stop)


def link_down(source: Point, target: Point, sizes: Sizes) -> Path:
    """A polyline straight down to the next box."""
    middle = source[0] + sizes.box // 2
    return (middle, source[1] + sizes.height), (middle, target[1])
