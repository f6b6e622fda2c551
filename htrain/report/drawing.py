"""A layout as SVG."""

from collections.abc import Iterator
from html import escape

from htrain.report.layout import Layout

_LANE, _BOX_WIDTH, _BOX_HEIGHT, _GAP, _TOP = 250, 206, 34, 16, 40
_MOST_LETTERS = 27


def drawing(layout: Layout) -> str:
    """The net by device. A box's full names and an arrow's bytes are its tooltip."""
    rows = max((box.row for box in layout.boxes), default=0) + 1
    width, height = _LANE * max(1, len(layout.lanes)), _TOP + rows * (_BOX_HEIGHT + _GAP) + _GAP
    body = "".join([*_lanes(layout, height), *_arrows(layout), *_boxes(layout)])
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="the net by device">{body}</svg>'


def _lanes(layout: Layout, height: int) -> Iterator[str]:
    for k, name in enumerate(layout.lanes):
        x = k * _LANE
        yield f'<rect class="lane" x="{x + 4}" y="4" width="{_LANE - 8}" height="{height - 8}" rx="6"/>'
        yield f'<text class="lane-name" x="{x + _LANE // 2}" y="26" text-anchor="middle">{escape(name)}</text>'


def _place(layout: Layout, box: int) -> tuple[int, int]:
    found = layout.boxes[box]
    x = found.lane * _LANE + (_LANE - _BOX_WIDTH) // 2
    return x, _TOP + found.row * (_BOX_HEIGHT + _GAP)


def _arrows(layout: Layout) -> Iterator[str]:
    for arrow in layout.arrows:
        (x0, y0), (x1, y1) = _place(layout, arrow.source), _place(layout, arrow.target)
        across = layout.boxes[arrow.source].lane != layout.boxes[arrow.target].lane
        text = escape(
            f"{layout.boxes[arrow.source].title} to {layout.boxes[arrow.target].title}: {arrow.num_bytes:,.0f} bytes an example"
        )
        if across:
            right = x1 > x0
            a, b = (x0 + _BOX_WIDTH, x1) if right else (x0, x1 + _BOX_WIDTH)
            ya, yb = y0 + _BOX_HEIGHT // 2, y1 + _BOX_HEIGHT // 2
            bend = 40 if right else -40
            path = f"M{a} {ya} C{a + bend} {ya} {b - bend} {yb} {b} {yb}"
        elif layout.boxes[arrow.target].row == layout.boxes[arrow.source].row + 1:
            path = f"M{x0 + _BOX_WIDTH // 2} {y0 + _BOX_HEIGHT} V{y1}"
        else:
            ya, yb = y0 + _BOX_HEIGHT // 2, y1 + _BOX_HEIGHT // 2
            path = f"M{x0} {ya} C{x0 - 18} {ya} {x0 - 18} {yb} {x0} {yb}"
        weight = 1 + min(3.0, arrow.num_bytes / 2048)
        kind = "across" if across else "inside"
        yield f'<path class="{kind}" d="{path}" stroke-width="{weight:.1f}"><title>{text}</title></path>'


def _boxes(layout: Layout) -> Iterator[str]:
    for index, box in enumerate(layout.boxes):
        x, y = _place(layout, index)
        title = box.title if len(box.title) <= _MOST_LETTERS else box.title[: _MOST_LETTERS - 1] + "…"
        count = f"{box.num_ops} ops" + (f", {len(box.modules)} modules" if len(box.modules) > 1 else "")
        yield (
            f'<g class="box"><title>{escape(", ".join(box.modules[:40]))}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4"/>'
            f'<text x="{x + 8}" y="{y + 15}">{escape(title)}</text><text class="small" x="{x + 8}" y="{y + 28}">{count}</text></g>'
        )
