"""The report page: what was predicted, what limits it, where everything is, and why. One file, nothing loaded from elsewhere."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from htrain.errors import PlanError
from htrain.executor.measured import predicted_edges
from htrain.plan import Plan
from htrain.plan_text import bottleneck_of, found_text
from htrain.report.drawing import drawing
from htrain.report.layout import layout_of

_CSS = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--paper:#fff;--card:#f4f6f9;--line:#d5dbe3;--blue:#2c6fbb;--warm:#c8501e}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--dim:#98a3b3;--paper:#14181e;--card:#1d232b;--line:#343d49;--blue:#6aa7ea;--warm:#f08a55}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
max-width:1340px;padding:24px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:32px 0 8px}p{margin:6px 0}.dim,.small{color:var(--dim)}
.big{font-size:20px;margin:10px 0}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:4px 10px;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.bar{width:24%}.track{background:var(--card);height:16px;border-radius:3px;position:relative;min-width:70px;flex:1}
.fill{background:var(--blue);height:100%;border-radius:3px}.fill.hot{background:var(--warm)}.share{display:flex;gap:8px;align-items:center;font-size:13px}
.share span{width:52px;text-align:right;font-variant-numeric:tabular-nums}
.scroll{overflow:auto;max-height:900px;border:1px solid var(--line);border-radius:6px}input{font:inherit;padding:4px 8px;width:320px;margin:4px 0}
svg text{font:12.5px system-ui,sans-serif;fill:var(--ink)}svg .small{font-size:11px;fill:var(--dim)}svg .lane{fill:var(--card);stroke:var(--line)}
svg .lane-name{font-weight:600;font-size:14px}svg .box rect{fill:var(--paper);stroke:var(--dim)}svg path{fill:none}svg .across{stroke:var(--warm);opacity:.75}
svg .inside{stroke:var(--blue);opacity:.6}code{font-size:13px}
"""
_SCRIPT = """
for(const input of document.querySelectorAll('input[data-filter]'))input.addEventListener('input',()=>{const wanted=input.value.toLowerCase();
for(const row of document.querySelectorAll('#'+input.dataset.filter+' tbody tr'))row.hidden=!row.textContent.toLowerCase().includes(wanted);});
"""


def report_html(plan: Plan) -> str:
    """The page of a plan. The same plan gives the same bytes."""
    title = escape(f"htrain plan of {plan.model}")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        f'<link rel="icon" href="data:,"><style>{_CSS}</style></head><body>{"".join(_body(plan))}<script>{_SCRIPT}</script></body></html>\n'
    )


def write_report(plan: Plan, path: Path) -> None:
    """Write the page whole, or not at all. Raises PlanError."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(report_html(plan))
        partial.replace(path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _body(plan: Plan) -> Iterator[str]:
    cluster, options = plan.cluster, plan.options
    device, what = bottleneck_of(plan)
    yield f"<h1>Plan of {escape(plan.model)}</h1>"
    yield (
        f'<p class="dim">{cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs, {cluster.sparse_ps} sparse PSs, '
        f"{cluster.dense_ps} dense PSs; {options.net_replicas} net replicas per trainer, batch {options.batch_size}; digest <code>{plan.digest[:12]}</code></p>"
    )
    yield f'<p class="big">Predicted {plan.predicted_eps:,.0f} EPS; the bottleneck is the {escape(what)} of {escape(device)}.</p>'
    yield f"<p>{escape(found_text(plan.search))}</p>"
    yield from (f"<p>{escape(note)}</p>" for note in plan.notes)
    yield "<h2>Devices</h2>" + _devices(plan)
    yield '<h2>The net by device</h2><p class="dim">Forward ops, by module; orange crosses the network. Names in full, and bytes, under the pointer.</p>'
    yield f'<div class="scroll">{drawing(layout_of(plan.nets["train"], options.batch_size))}</div>'
    yield "<h2>Traffic</h2>" + _table(
        ("from", "to", "bytes of an example"),
        ((a, b, f"{size:,.0f}") for (a, b), size in sorted(predicted_edges(plan).items(), key=lambda e: -e[1])),
        numbers=(2,),
    )
    yield "<h2>Tables</h2>" + _table(("table", "rows", "on"), _tables(plan), numbers=(1,))
    yield '<h2>Decisions</h2><input data-filter="decisions" placeholder="filter by module, device, rule" aria-label="filter">'
    rows = ((d.module, d.device, d.rule, d.reason) for d in plan.decisions)
    yield _table(("module", "device", "rule", "reason"), rows, name="decisions")
    settings = [*asdict(options).items(), *((n, v) for n, v in asdict(cluster).items() if v not in ((), []))]
    yield (
        "<details><summary>Options and cluster</summary>"
        + _table(("field", "value"), ((n, str(v)) for n, v in settings))
        + "</details>"
    )


def _devices(plan: Plan) -> str:
    most = max((max(load.cpu, load.network) for load in plan.loads.values()), default=0.0)
    rows = []
    for device, load in plan.loads.items():
        bars = "".join(_bar(share, share > 0 and share >= most) for share in (load.cpu, load.network))
        rows.append(
            f'<tr><td>{escape(device)}</td><td class="n">{load.ops}</td><td class="n">{load.cpu_seconds_per_example * 1e6:,.2f}</td>'
            f'<td class="n">{load.received_per_example:,.0f}</td><td class="n">{load.sent_per_example:,.0f}</td>'
            f"{bars}{_bar(load.memory, load.memory > 1)}</tr>"
        )
    numbers = ("ops", "CPU us / ex", "in B / ex", "out B / ex")
    heads = "".join(f'<th class="n">{head}</th>' for head in numbers)
    heads = f"<th>device</th>{heads}<th>CPU</th><th>network</th><th>memory</th>"
    return f'<table id="devices"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _bar(share: float, hot: bool) -> str:
    width = min(100.0, 100 * share)
    kind = "fill hot" if hot else "fill"
    track = f'<div class="track"><div class="{kind}" style="width:{width:.1f}%"></div></div>'
    return f'<td class="bar"><div class="share">{track}<span>{share:.1%}</span></div></td>'


def _tables(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for table, shards in plan.tables.items():
        places = ", ".join(f"{s.device} [{s.first_row:,}, {s.first_row + s.num_rows:,})" for s in shards[:8])
        more = f" and {len(shards) - 8} more" if len(shards) > 8 else ""
        yield table, f"{sum(s.num_rows for s in shards):,}", places + more


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), name: str = "") -> str:
    kind = ['class="n"' if i in numbers else "" for i in range(len(heads))]
    head = "".join(f"<th {k}>{escape(h)}</th>" for h, k in zip(heads, kind, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {k}>{escape(cell)}</td>" for cell, k in zip(row, kind, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table id="{name or heads[0]}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
