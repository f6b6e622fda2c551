"""The report page: what was predicted, what limits it, where everything is, and why. One file; nothing is loaded from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

from htrain.costs.expected import expected, expected_blobs
from htrain.errors import PlanError
from htrain.files import has_seal, place_to_write, sealed, write_file
from htrain.plan.plan import Plan
from htrain.plan.text import bottleneck_of, fold, found_text
from htrain.report import sections
from htrain.report.boxes import Picture, picture_of
from htrain.report.drawing import drawing
from htrain.report.layout import layout_of
from htrain.report.markup import shown
from htrain.report.style import CSS, SCRIPT, policy
from htrain.report.traffic import edge_table, edges_of, matrix
from htrain.sizes import memory_text


def report_html(plan: Plan) -> str:
    """The page of a plan. The same plan gives the same text."""
    title = shown(f"htrain plan of {plan.model}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy()}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><link rel="icon" href="data:,"><style>{CSS}</style></head>\n'
        f"<body>\n{''.join(_body(plan))}<script>{SCRIPT}</script></body></html>\n"
    )


def write_report(plan: Plan, path: Path) -> None:
    """Write the page to `path`: whole, or not at all; an older page there is replaced, and nothing else. Raises PlanError."""
    try:
        place_to_write(path, has_seal)
        write_file(path, sealed(report_html(plan), "<!-- {} -->"), has_seal)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror or error}") from error


def _body(plan: Plan) -> Iterator[str]:
    yield from _head(plan)
    yield _section(
        "Devices",
        "What one example asks of each device, and how busy that keeps it at the predicted EPS.",
        sections.devices(plan),
    )
    yield from _net(plan)
    edges = edges_of(plan)
    yield _section(
        "Traffic",
        "Bytes of an example from device to device, the background sync included. Rows of tables count as if no id came twice in a batch.",
        f"{matrix(edges)}<details><summary>Messages and bytes of all {len(edges)} edges</summary>{edge_table(edges)}</details>",
    )
    if plan.tables:
        yield _section("Tables", "Tables of one size and place share a row.", sections.tables(plan))
    yield _section(
        "Decisions", "Every module, where it is, and why. Click on a head to sort.", sections.decisions(plan)
    )
    yield _section("Cluster and options", "Each device of a role has this much.", sections.settings(plan))


def _section(title: str, about: str, body: str) -> str:
    return f'<h2>{title}</h2><p class="dim">{about}</p>\n{body}\n'


def _head(plan: Plan) -> Iterator[str]:
    cluster, options = plan.cluster, plan.options
    device, what = bottleneck_of(plan)
    yield f"<h1>Plan of {shown(plan.model)}</h1>\n"
    yield (
        f'<p class="headline"><b>{plan.predicted_eps:,.0f} EPS</b> predicted, within <b>{plan.search.gap:.1%}</b> of the best possible; '
        f'the bottleneck is the <b class="hot">{shown(what)}</b> of <b class="hot">{shown(device)}</b>.</p>\n'
    )
    found = found_text(plan.search).removesuffix(f"; within {plan.search.gap:.1%} of the best possible")
    yield f'<p class="dim">{shown(found[:1].upper() + found[1:])}.</p>\n'
    yield from (f"<p>{shown(note)}</p>\n" for note in plan.notes)
    cards = (
        (_count(cluster.groups, "group"), f"of {_count(cluster.trainers, 'trainer')} and {_count(cluster.group_ps, 'group PS')}"),
        (_count(cluster.sparse_ps, "sparse PS"), f"and {_count(cluster.dense_ps, 'dense PS')}"),
        (f"batch {options.batch_size:,}", f"{_count(options.net_replicas, 'net replica')} a trainer"),
        (f"{len(plan.nets['train'].ops):,} ops", f"in {len(plan.decisions):,} modules"),
        (_count(len(plan.tables), "table"), memory_text(_parameter_bytes(plan)) + " of parameters"),
        (shown(plan.digest[:12]), "digest"),
    )  # fmt: skip
    yield (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{big}</b><span>{small}</span></div>' for big, small in cards)
        + "</div>\n"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _parameter_bytes(plan: Plan) -> int:
    return sum(load.holds.parameters for load in plan.loads.values())


def _net(plan: Plan) -> Iterator[str]:
    train, batch_size = plan.nets["train"], plan.options.batch_size
    picture = picture_of(expected(train, expected_blobs(train, plan.cluster, batch_size)), batch_size)
    drawn = drawing(layout_of(picture), plan.loads, bottleneck_of(plan)[0])
    legend = (
        '<p class="legend dim"><i class="hot"></i>crosses the network: bytes of an example forward, after ⇄ those of gradients back'
        '<i style="color:var(--cool)"></i>stays on its device</p>'
    )
    yield _section("The net by device", " ".join(_about(plan, picture)), f'{legend}\n<div class="scroll">{drawn}</div>')


def _about(plan: Plan, picture: Picture) -> Iterator[str]:
    """What the drawing shows, and what it leaves out."""
    many = [box for box in picture.boxes if len(box.modules) > 1]
    yield "The forward net, from top to bottom; gradients and optimizer steps run where their module is. Names in full are under the pointer."
    if many:
        alike = sum(len(box.modules) for box in many)
        yield f"Shaded boxes fold {alike:,} modules that are alike into {len(many):,}."
    drawn = {device for lane in picture.lanes for device in lane.devices}
    idle = [device for device in plan.loads if device not in drawn]
    if idle:
        yield f"Nothing is on {shown(', '.join(fold(idle)))}."
