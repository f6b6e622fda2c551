"""Where boxes and flows of a net on one device stand: down a column, and on at the top of the next.

Within a column, and to the next, lines go through the margins between boxes. A value for a column further away goes up its margin, along a
row of its own above all boxes, and down the margin of each column that reads it: lines and boxes never overlap.
"""

from collections.abc import Iterator, Sequence

from htrain.report.boxes import Flow, Picture
from htrain.report.geometry import (
    SLOT,
    TOP,
    WIDTH,
    Path,
    PictureLayout,
    Point,
    Sizes,
    Tracks,
    first_free,
    link_down,
    link_in_column,
    wide_sizes,
)

_LEAST_ROWS, _MOST_COLUMNS = 5, 4
_MOST_COLUMN = 420
_MARGINS = (34, 49, 64, 79)  # the narrowest with a track for every line
_ROW = 6  # between two rows above the boxes


def in_columns(picture: Picture) -> PictureLayout:
    """The boxes of a lone lane in up to four columns, as many as leave five boxes or more in each."""
    for margin in _MARGINS:
        layout, is_crowded = _laid_out(picture, margin)
        if not is_crowded:
            break
    return layout


def _laid_out(picture: Picture, margin: int) -> tuple[PictureLayout, bool]:
    """A layout, and whether lines lie upon each other in its margins."""
    count = len(picture.boxes)
    num_rows = max(_LEAST_ROWS, -(-count // _MOST_COLUMNS))
    num_columns = -(-count // num_rows)
    num_rows = -(-count // num_columns)
    sizes = wide_sizes(min(_MOST_COLUMN, WIDTH // num_columns), margin)
    router = _Router(sizes, num_rows)
    links = tuple((flow, tuple(router.paths(flow))) for flow in picture.flows)
    top = TOP + _ROW * (len(router.rows) + 1) * bool(router.rows)
    drop = top - TOP
    width = sizes.lane * num_columns
    layout = PictureLayout(
        picture,
        sizes,
        width=width,
        height=top + num_rows * router.pitch + SLOT,
        lane_width=width,
        corners=_lowered([router.corner(b) for b in range(count)], drop),
        lines=(),
        links=tuple((flow, tuple(_lowered(path, drop) for path in paths)) for flow, paths in links),
    )
    return layout, router.tracks.is_crowded


def _lowered(path: Sequence[Point], drop: int) -> Path:
    return tuple((x, y + drop) for x, y in path)


class _Router:
    """Lines between boxes in columns of `num_rows`. `rows` above the boxes fill as values come; the first is the lowest, above TOP."""

    def __init__(self, sizes: Sizes, num_rows: int) -> None:
        self.sizes = sizes
        self.tracks = Tracks(sizes)
        self.rows: list[list[tuple[int, int]]] = []
        self.pitch = sizes.height + SLOT
        self._num_rows = num_rows

    def corner(self, box: int) -> Point:
        column, row = divmod(box, self._num_rows)
        return column * self.sizes.lane + self.sizes.margin, TOP + row * self.pitch

    def paths(self, flow: Flow) -> Iterator[Path]:
        """The polylines of a flow, those to columns further away together."""
        home = flow.source // self._num_rows
        far: dict[int, list[int]] = {}
        for target in flow.targets:
            column = target // self._num_rows
            if column not in (home, home + 1):
                far.setdefault(column, []).append(target)
            elif target == flow.source + 1 and column == home:
                yield link_down(self.corner(flow.source), self.corner(target), self.sizes)
            elif column == home:
                yield link_in_column(self.corner(flow.source), self.corner(target), home, self.tracks)
            else:
                yield self._to_next(flow.source, target, column)
        if far:
            yield from self._to_far(flow.source, far)

    def _to_next(self, source: int, target: int, column: int) -> Path:
        x, y = self._exit(source)
        side, end = self._entry(target)
        turn = self.tracks.x(column, min(y, end), max(y, end), left=True)
        return (x, y), (turn, y), (turn, end), (side, end)

    def _to_far(self, source: int, columns: dict[int, list[int]]) -> Iterator[Path]:
        x, y = self._exit(source)
        up = self.tracks.x(source // self._num_rows, 0, y, left=False)
        downs = {
            column: self.tracks.x(column, 0, max(self._entry(t)[1] for t in targets), left=True)
            for column, targets in columns.items()
        }
        row = self._row(min(up, *downs.values()), max(up, *downs.values()))
        for column, targets in columns.items():
            for target in targets:
                side, end = self._entry(target)
                yield (x, y), (up, y), (up, row), (downs[column], row), (downs[column], end), (side, end)

    def _exit(self, box: int) -> Point:
        x, y = self.corner(box)
        return x + self.sizes.box, y + self.sizes.height // 2 + 6

    def _entry(self, box: int) -> Point:
        x, y = self.corner(box)
        return x, y + self.sizes.height // 2 - 6

    def _row(self, begin: int, end: int) -> int:
        """y of a row above the boxes that is free from x `begin` to `end`."""
        row = first_free(self.rows, begin, end)
        if row == len(self.rows):
            self.rows.append([])
        self.rows[row].append((begin, end))
        return TOP - _ROW * (row + 1)
