"""The drawing of a lone device: boxes in columns, and lines that run through none of them."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.report.boxes import Box, Flow, Lane, Picture
from htrain.report.geometry import WIDTH, Path, PictureLayout
from htrain.report.layout import layout_of


def lone(count: int, reads: list[tuple[int, int]]) -> Picture:
    """A device with `count` boxes; of each pair, the second reads what the first makes."""
    boxes = tuple(Box(0, (f"m{i}",), ("FC",), 1, i) for i in range(count))
    targets: dict[int, set[int]] = {}
    for source, target in reads:
        if source % count != target % count:
            targets.setdefault(source % count, set()).add(target % count)
    flows = tuple(Flow(s, 0, tuple(sorted(found)), ("x",), 0.0, 0.0) for s, found in sorted(targets.items()))
    return Picture((Lane("trainer", ("trainer",)),), boxes, flows)


def chain(count: int) -> Picture:
    return lone(count, [(i, i + 1) for i in range(count - 1)])


def inside(path: Path, layout: PictureLayout) -> list[tuple[int, int]]:
    """The corners of boxes through which a path runs."""
    width, height = layout.sizes.box, layout.sizes.height
    return [
        (x, y)
        for (x1, y1), (x2, y2) in pairwise(path)
        for x, y in layout.corners
        if min(x1, x2) < x + width and max(x1, x2) > x and min(y1, y2) < y + height and max(y1, y2) > y
    ]


def test_boxes_fill_the_width_from_the_top_of_each_column() -> None:
    layout = layout_of(chain(14))
    columns = sorted({x for x, _ in layout.corners})
    assert len(columns) == 3
    assert 0.9 * WIDTH < layout.width <= WIDTH
    assert [sum(x == left for x, _ in layout.corners) for left in columns] == [5, 5, 4]
    assert layout.height < 400


def test_few_boxes_stand_in_one_column() -> None:
    assert len({x for x, _ in layout_of(chain(5)).corners}) == 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=50))
def test_boxes_do_not_overlap_and_lines_run_through_none(count: int, reads: list[tuple[int, int]]) -> None:
    picture = lone(count, reads)
    layout = layout_of(picture)
    assert layout.width <= WIDTH
    assert len(set(layout.corners)) == count
    for column in {x for x, _ in layout.corners}:
        tops = sorted(y for x, y in layout.corners if x == column)
        assert all(below - above > layout.sizes.height for above, below in pairwise(tops))
    assert all(
        0 <= x <= layout.width and 0 <= y <= layout.height for _, paths in layout.links for p in paths for x, y in p
    )
    assert [found for _, paths in layout.links for path in paths for found in inside(path, layout)] == []
    assert sum(len(paths) for _, paths in layout.links) == sum(len(flow.targets) for flow in picture.flows)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=50))
def test_a_line_ends_at_the_box_that_reads_it(count: int, reads: list[tuple[int, int]]) -> None:
    layout = layout_of(lone(count, reads))
    for flow, paths in layout.links:
        ends = {path[-1] for path in paths}
        sides = {
            corner: [
                e
                for e in ends
                if corner[0] <= e[0] <= corner[0] + layout.sizes.box and 0 <= e[1] - corner[1] <= layout.sizes.height
            ]
            for corner in (layout.corners[t] for t in flow.targets)
        }
        assert all(sides.values())
