"""The report page: everything that was decided is on it, in a form that a browser reads without complaint."""

import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from bench.placement_speed import Towers
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.errors import PlanError
from htrain.net.net import COMPRESS
from htrain.plan.plan import Plan
from htrain.report.boxes import MOST_BOXES, picture_of
from htrain.report.layout import layout_of
from htrain.report.names import printable
from htrain.report.page import report_html, write_report
from htrain.report.parts import READER
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
EMPTY = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """The text of a page by tag; fails when tags do not close as they opened."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.sources: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closed as it opens."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def thousand_ops() -> Plan:
    cluster = Cluster(trainers=2, group_ps=4)
    model, inputs = Towers(52, 3), {"dense": torch.zeros(4, 128)}
    return htrain.compile(
        model, example_inputs=inputs, cluster=cluster, options=Options(batch_size=128), solver="rules", fc_splits={}
    )


def test_every_decision_device_and_table_is_on_the_page(plan: Plan) -> None:
    page = Page(report_html(plan))
    for decision in plan.decisions:
        at = page.cells.index(decision.reason)
        assert (
            page.cells[at - 3 : at] == [decision.module, decision.device, decision.rule]
            or page.cells.count(decision.reason) > 1
        )
        assert decision.module in page.cells
    assert {*plan.loads, *plan.tables} <= set(page.cells)
    assert f"{plan.predicted_eps:,.0f} EPS predicted" in page.text


def test_nothing_is_loaded_from_elsewhere_and_the_same_plan_gives_the_same_page(plan: Plan) -> None:
    html = report_html(plan)
    assert Page(html).sources == ["data:,"]
    assert not [word for word in ("http:", "https:", "@import", "url(//") if word in html]
    assert report_html(plan) == html


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.text(min_size=1, max_size=30))
def test_names_cannot_break_the_page(plan: Plan, name: str) -> None:
    decisions = (replace(plan.decisions[0], module=name, reason=name), *plan.decisions[1:])
    page = Page(report_html(replace(plan, model=name, decisions=decisions, notes=(f"<script>{name}",))))
    assert page.open == []


def test_a_net_of_a_thousand_ops_is_drawn_in_few_boxes_that_do_not_overlap(thousand_ops: Plan) -> None:
    net = thousand_ops.nets["train"]
    assert len(net.ops) > 1000
    picture = picture_of(net, 128)
    for lane, devices in enumerate(picture.lanes):
        boxes = [box for box in picture.boxes if box.lane == lane]
        assert len(boxes) <= MOST_BOXES
        modules = [module for box in boxes for module in box.modules]
        assert len(set(modules)) == len(modules)
        assert {op.module for op in net.ops if op.node_name in devices.devices and op.module != COMPRESS} >= {
            module for module in modules if module != READER
        }
    found = layout_of(picture)
    for lane in range(len(picture.lanes)):
        tops = sorted(y for (_, y), box in zip(found.corners, picture.boxes, strict=True) if box.lane == lane)
        assert all(below - above > found.sizes.height for above, below in pairwise(tops))
    for line in found.lines:
        ends = [line.start[0], *(branch.x for branch in line.branches)]
        under = [(x, y) for x, y in found.corners if min(ends) < x + found.sizes.box and x < max(ends)]
        assert not [y for _, y in under if y < line.row < y + found.sizes.height]


def test_what_crosses_the_network_in_the_picture_is_what_is_sent(plan: Plan) -> None:
    picture = picture_of(plan.nets["train"], plan.options.batch_size)
    name_of = [lane.name for lane in picture.lanes]
    drawn = {(name_of[picture.boxes[f.source].lane], name_of[f.lane]) for f in picture.flows if f.there_bytes}
    sends = {
        (d, str(op.attrs["peer"]))
        for d in plan.cluster.devices
        if d != "dense_ps:0"
        for op in plan.net_of(d).ops
        if op.type == "Send"
    }
    assert drawn
    assert drawn <= sends
    assert {tuple(sorted(pair)) for pair in sends} == {tuple(sorted(pair)) for pair in drawn}


def test_a_place_that_cannot_be_written_is_named(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nowhere/r\.html: cannot be written"):
        write_report(plan, tmp_path / "nowhere" / "r.html")


def test_a_page_takes_the_place_of_an_older_one_and_of_nothing_else(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(plan, path)
    write_report(replace(plan, model="other"), path)
    assert "Plan of other" in path.read_text()
    path.write_text("mine")
    with pytest.raises(PlanError, match=r"r\.html: cannot be written: it holds something that htrain did not write"):
        write_report(plan, path)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    name=st.text(
        st.characters(exclude_categories=["Cs"], include_characters="<>&\"'{}%#\u202e"), min_size=1, max_size=30
    )
)
def test_a_name_is_seen_as_it_is_and_never_as_markup(plan: Plan, name: str) -> None:
    name = f"<b>{name}{{{{7*7}}}}"
    (first, shards), *others = plan.tables.items()
    page = Page(report_html(replace(plan, model=name, tables={name: shards, **dict(others)}, notes=(name,))))
    assert f"Plan of {printable(name)}" in page.text
    assert printable(name) in page.cells
    assert "\u202e" not in page.text
    assert first not in page.cells


def pixels_of(png: bytes) -> tuple[int, int, float]:
    """Width, height, and the share of bytes of the image data that differ from the commonest: 0 for a blank page."""
    width, height = struct.unpack(">II", png[16:24])
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(data)
    return width, height, 1 - max(raw.count(bytes([value])) for value in range(256)) / len(raw)


@pytest.mark.skipif(not BROWSER, reason="no chromium here")
@pytest.mark.parametrize("which", ["small", "thousand_ops"])
def test_a_real_browser_shows_it_without_errors(which: str, plan: Plan, thousand_ops: Plan, tmp_path: Path) -> None:
    write_report(plan if which == "small" else thousand_ops, tmp_path / "report.html")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}/profile",
    ]
    shot = tmp_path / "shot.png"
    run = subprocess.run(
        [*command, "--window-size=1400,1600", f"--screenshot={shot}", f"file://{tmp_path}/report.html"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "CONSOLE" not in run.stderr
    width, height, ink = pixels_of(shot.read_bytes())
    assert (width, height) == (1400, 1600)
    assert ink > 0.02
