"""The commands that read plans: `htrain show`, `explain`, `check`, `diff`."""

import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from htrain.cli.flags import FilePath, PlanCommand, json_flag, put, require_alone
from htrain.printable import as_word
from htrain.spec.tree import document_of

if TYPE_CHECKING:
    from htrain.plan.plan import Plan


@click.command(cls=PlanCommand)
@click.argument("plan", type=FilePath())
@click.option("--net", default="", help="Print one net as text: train, trainer, group_ps_0, ...")
@click.option(
    "--html",
    type=FilePath(),
    help="Write a page for a browser: the net by device, every decision, a run over time; or what batches of a partition fetch.",
)
@click.option(
    "--run", type=FilePath(), help="Show this run of the plan: predicted against measured, and why they differ."
)
@json_flag
def show(plan: Path, net: str, html: Path | None, run: Path | None, as_json: bool) -> None:
    """Show a plan: per device its ops, flops, bytes and memory; where tables and modules are, and why.

    PLAN may be the folder of a run: then it is shown beside the plan that it was started with; a partition of data, made by
    `htrain partition`; or packed data, made by `htrain data pack`, by its name or as packed:FILE.
    """
    if _show_data(plan, html, as_json):
        return
    if run:
        require_alone("--run", "net")
    plan, run = _plan_and_run(plan, run)
    loaded = import_module("htrain.plan.plan").load_plan(plan)
    found = import_module("htrain.report.runs.folder").read_run(loaded, run) if run else None
    if html:
        import_module("htrain.report.page").write_report(loaded, html, found)
    if found:
        beside = import_module("htrain.report.runs.beside").beside(loaded, found)
        text = import_module("htrain.report.runs.text").run_text(beside)
        put({**_document(loaded), "run": beside.document()}, text, as_json)
        return
    texts = import_module("htrain.plan.text")
    text = texts.net_text(loaded, net) if net else texts.plan_text(loaded)
    put({**_document(loaded), **({"net": net, "text": text} if net else {})}, text, as_json)


def _show_data(path: Path, html: Path | None, as_json: bool) -> bool:
    """Show a partition or packed data; False where `path` is neither."""
    files = import_module("htrain.data.partition_file")
    if files.is_partition(path):
        require_alone(f"the partition {path}", "net", "run")
        made = files.read_partition(path)
        if html:
            import_module("htrain.report.partition_page").write_partition_page(made, html)
        put(to_builtins(made.facts), import_module("htrain.report.partition").partition_text(made), as_json)
        return True
    if path.is_dir():
        return False
    data = import_module("htrain.data.packed_contents")
    packed = data.packed_file(path)
    if packed:
        require_alone(f"the packed data {packed}", "net", "html", "run")
        contents = data.packed_contents(packed)
        put(to_builtins(contents), import_module("htrain.report.packed").packed_text(contents), as_json)
    return packed is not None


def _plan_and_run(plan: Path, run: Path | None) -> tuple[Path, Path | None]:
    """The plan and the run to show; the folder of a run names its plan."""
    record = import_module("htrain.executor.record.run_folder")
    if not (plan / record.RECORD).is_file():
        return plan, run
    require_alone(f"the run folder {plan}", "net", "run")
    found = Path(record.read_record(plan).plan)
    if not import_module("htrain.plan.folder").is_plan(found):
        raise click.ClickException(
            f"{plan}: its plan is not at {found} any more: htrain show PLAN --run {as_word(plan)}"
        )
    return found, plan


def _document(plan: "Plan") -> dict[str, Any]:
    return {
        "model": plan.model,
        "digest": plan.digest,
        "cluster": asdict(plan.cluster),
        "options": document_of(plan.options),
        "predicted_eps": plan.predicted_eps,
        "notes": plan.notes,
        "search": {**asdict(plan.search), "gap": plan.search.gap},
        "devices": {device: asdict(load) for device, load in plan.loads.items()},
        "tables": {table: [asdict(s) for s in shards] for table, shards in plan.tables.items()},
        "decisions": [asdict(d) for d in plan.decisions],
    }


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
    cache_of = import_module("htrain.executor.strategies.strategy").cache_of
    cache_of(loaded, loaded.cluster.roles[0]).require_partition()
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
