"""The report page: what was predicted, what limits it, where everything is, and why. One file; nothing is loaded from elsewhere."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from htrain.costs.expected import expected, expected_blobs
from htrain.errors import PlanError
from htrain.plan.plan import Plan
from htrain.plan.text import bottleneck_of, fold, found_text
from htrain.report import sections
from htrain.report.boxes import Picture, picture_of
from htrain.report.drawing import drawing
from htrain.report.fetches_of_plan import fetches_of_plan
from htrain.report.layout import layout_of
from htrain.report.rendering import rendered, write_page
from htrain.report.runs.beside import beside
from htrain.report.runs.charts import FRAME, charts
from htrain.report.runs.folder import Run
from htrain.report.traffic import edges_of, matrix


def report_html(plan: Plan, run: Run | None = None) -> str:
    """The page of a plan, with a run of it beside it where one is given. The same plan and run give the same text."""
    picture, bottleneck, edges = _picture(plan), bottleneck_of(plan), edges_of(plan)
    found = found_text(plan.search).removesuffix(f"; within {plan.search.gap:.1%} of the best possible")
    return rendered(
        "page.html",
        plan=plan,
        bottleneck=bottleneck,
        found=found[:1].upper() + found[1:],
        parameter_bytes=sum(load.holds.parameters for load in plan.loads.values()),
        devices=sections.devices(plan),
        about=" ".join(_about(plan, picture)),
        drawing=drawing(layout_of(picture), plan.loads, bottleneck[0]),
        edges=edges,
        matrix=matrix(edges),
        tables=sections.tables(plan),
        decisions=sections.decisions(plan),
        settings=sections.settings(plan),
        beside=beside(plan, run) if run else None,
        charts=charts(run.history, plan.predicted_eps) if run and run.history else (),
        frame=FRAME,
        fetches=fetches_of_plan(plan, run.measured if run else None),
    )


def write_report(plan: Plan, path: Path, run: Run | None = None) -> None:
    """Write the page to `path`: whole, or not at all; an older page there is replaced, and nothing else. Raises PlanError."""
    write_page(path, partial(report_html, plan, run), PlanError)


def _picture(plan: Plan) -> Picture:
    train, batch_size = plan.train, plan.options.batch_size
    return picture_of(expected(train, expected_blobs(train, plan.cluster, batch_size, plan.rates)), batch_size)


def _about(plan: Plan, picture: Picture) -> Iterator[str]:
    """What the drawing shows, and what it leaves out."""
    many = [box for box in picture.boxes if len(box.modules) > 1]
    way = "from top to bottom" + (", column by column" if len(picture.lanes) == 1 else "")
    yield f"The forward net, {way}; gradients and optimizer steps run where their module is. Names in full are under the pointer."
    if many:
        alike = sum(len(box.modules) for box in many)
        yield f"Shaded boxes fold {alike:,} modules that are alike into {len(many):,}."
    drawn = {device for lane in picture.lanes for device in lane.devices}
    idle = [device for device in plan.loads if device not in drawn]
    if idle:
        yield f"Nothing is on {', '.join(fold(idle))}."
