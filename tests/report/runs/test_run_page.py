"""The page of a plan with a run beside it, as a browser's parser sees it."""

import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded import reports_at, write_checkpoint, write_run

from htrain.plan.plan import Plan
from htrain.report.names import printable
from htrain.report.page import report_html
from htrain.report.runs.charts import HEIGHT, WIDTH, charts
from htrain.report.runs.folder import read_run
from htrain.report.runs.metrics import History, Moment, Point, RunLine

NOTHING = Moment(RunLine(), {})
figures = st.floats(allow_nan=True, allow_infinity=True)
points = st.builds(Point, st.floats(0, 1e9), *[figures] * 8)


class Page(HTMLParser):
    """Captions of charts, the `d` of their paths, and the text of the section about the run."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.charts: list[str] = []
        self.paths: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section" and (given.get("id") == "run" or self.open):
            self.open.append(tag)
        if self.open and tag == "svg":
            self.charts.append(str(given.get("aria-label")))
        if self.open and tag == "path":
            self.paths.append(str(given.get("d")))

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == "section":
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text += data


def trained(folder: Path, plan: Plan, **given: object) -> Path:
    moments = [(float(t), reports_at(plan, t, **given)) for t in range(1, 30)]  # type: ignore[arg-type]
    return write_run(folder, plan, moments)


def test_a_finished_run_is_charted_and_compared(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan, caches={"hits": 9, "misses": 1})
    write_checkpoint(folder, plan, examples=10**9, finished=True)
    page = Page(report_html(plan, read_run(plan, folder)))
    assert page.charts == [
        f"{name} over time" for name in ("EPS", "loss", "NE", "staleness", "cache hits", "sync rounds")
    ]
    assert "came to its end after 1,000,000,000 examples" in page.text
    assert all(name in page.text for name in plan.loads)
    assert "EPS measured" in page.text


def test_without_a_cache_there_is_no_chart_of_hits_and_a_resume_is_marked(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    html = report_html(plan, read_run(plan, trained(folder, plan)))
    assert "cache hits over time" not in Page(html).charts
    assert html.count('class="mark"') == len(Page(html).charts)
    assert "it was resumed at the dashed lines" in html


def test_a_run_without_metrics_is_a_line_on_the_page(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "metrics.jsonl").unlink()
    page = Page(report_html(plan, read_run(plan, folder)))
    assert page.charts == []
    assert "has no metrics that can be read: there is nothing to compare with the plan." in page.text


def test_a_plan_alone_says_nothing_of_a_run(plan: Plan) -> None:
    assert Page(report_html(plan)).text == ""


@pytest.mark.parametrize("name", ["<script>alert(1)", '"><b>', "{{7*7}}", "\u202egnp"])
def test_the_name_of_a_run_folder_is_text(plan: Plan, tmp_path: Path, name: str) -> None:
    html = report_html(plan, read_run(plan, trained(tmp_path / name, plan)))
    assert printable(name) in Page(html).text
    assert "<script>alert" not in html


def test_roles_and_texts_in_metrics_are_refused_or_text(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"role": "run", "seconds": "<b>"}\n{"role": "run", "seconds": 40, "eps": 1e999}\n')
    run = read_run(plan, folder)
    assert run.history
    assert run.history.num_damaged + run.history.is_cut == 2
    assert report_html(plan, run)


LARGEST = sys.float_info.max


@example([Point(0.0, *[-LARGEST] * 8), Point(1.0, *[LARGEST] * 8)], 0.0, [])
@example([Point(0.0, *[LARGEST] * 8), Point(1.0, *[LARGEST] * 8)], 0.0, [])
@example([Point(0.0, *[5e-324] * 8), Point(1.0, *[0.0] * 8)], 0.0, [])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(points, min_size=1, max_size=400), st.floats(0, 1e12), st.lists(st.floats(0, 1e9), max_size=3))
def test_every_figure_is_drawn_within_its_chart(found: list[Point], eps: float, resumed: list[float]) -> None:
    found.sort(key=lambda point: point.seconds)
    history = History(tuple(found), tuple(resumed), 0, frozenset(), 0, False, NOTHING, NOTHING)
    for chart in charts(history, eps):
        for curve in chart.curves:
            numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e-?\d+)?|nan|inf", curve.path)]
            assert all(math.isfinite(n) for n in numbers)
            assert all(0 <= x <= WIDTH for x in numbers[::2])
            assert all(0 <= y <= HEIGHT for y in numbers[1::2])
        assert all(0 <= y <= HEIGHT for _, y in chart.ticks)
