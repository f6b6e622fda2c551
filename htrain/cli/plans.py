"""The commands that read plans: `htrain show`, `explain`, `check`, `diff`."""

import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import click

from htrain.cli.flags import FilePath, PlanCommand, json_flag, put
from htrain.spec.tree import document_of


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.option("--net", default="", help="Print one net as text: train, trainer, group_ps_0, ...")
@click.option("--html", type=FilePath(), help="Write a page for a browser: the net by device, every decision.")
@json_flag
def show(plan: Path, net: str, html: Path | None, as_json: bool) -> None:
    """Show a plan: per device its ops, flops, bytes and memory; where tables and modules are, and why."""
    loaded = import_module("htrain.plan.plan").load_plan(plan)
    if html:
        import_module("htrain.report.page").write_report(loaded, html)
    texts = import_module("htrain.plan.text")
    text = texts.net_text(loaded, net) if net else texts.plan_text(loaded)
    document = {
        "model": loaded.model,
        "digest": loaded.digest,
        "cluster": asdict(loaded.cluster),
        "options": document_of(loaded.options),
        "predicted_eps": loaded.predicted_eps,
        "notes": loaded.notes,
        "search": {**asdict(loaded.search), "gap": loaded.search.gap},
        "devices": {device: asdict(load) for device, load in loaded.loads.items()},
        "tables": {table: [asdict(s) for s in shards] for table, shards in loaded.tables.items()},
        "decisions": [asdict(d) for d in loaded.decisions],
        **({"net": net, "text": text} if net else {}),
    }
    put(document, text, as_json)


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.argument("name")
@json_flag
def explain(plan: Path, name: str, as_json: bool) -> None:
    """Say why NAME is where it is, and what moving it would cost. NAME is a module, a value, a parameter or a table of PLAN."""
    text = import_module("htrain.tagging.explain").explain(import_module("htrain.plan.plan").load_plan(plan), name)
    put({"plan": str(plan), "name": name, "text": text}, text, as_json)


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@json_flag
def check(plan: Path, as_json: bool) -> None:
    """Check a plan folder; what would stop a run is an error that names it."""
    loaded = import_module("htrain.plan.check").check_plan(import_module("htrain.plan.plan").load_plan(plan))
    put({"plan": str(plan), "digest": loaded.digest, "ok": True}, f"{plan}: ok", as_json)


@click.command(cls=PlanCommand)
@click.argument("old", type=FilePath())
@click.argument("new", type=FilePath())
@json_flag
def diff(old: Path, new: Path, as_json: bool) -> None:
    """Say what moved from plan OLD to plan NEW. Exits with 0 when nothing did, 1 otherwise."""
    load = import_module("htrain.plan.plan").load_plan
    lines = import_module("htrain.plan.text").plan_diff(load(old), load(new))
    put({"changes": lines}, "\n".join(lines) or "no difference", as_json)
    sys.exit(1 if lines else 0)
