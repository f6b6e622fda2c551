"""`htrain eval`: what a checkpoint is worth on data."""

from dataclasses import asdict
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import htrain
from htrain.cli.flags import FilePath, Named, PlanCommand, json_flag, put, ranking_flags, scoring_flag, trained_flags

if TYPE_CHECKING:
    from htrain.data.ranking import Ranking
    from htrain.executor.launch.evaluate import Evaluation, Head


@click.command(name="eval", cls=PlanCommand)
@click.argument("run_folder", type=FilePath())
@click.option("--data", required=True, help="FORMAT:PATH[?key=value], such as criteo:test.tsv.")
@trained_flags
@click.option(
    "--label-of",
    "labels",
    multiple=True,
    type=Named("HEAD=INPUT"),
    help="The input that is the label of a head, another output of the model, or of score; once for each. [default: that of its name]",
)
@ranking_flags("--")
@scoring_flag
@json_flag
def evaluate(run_folder: Path, as_json: bool, plan: Path | None, labels: Any, group_by: str, **what: Any) -> None:
    """Evaluate the last checkpoint of RUN_FOLDER, or the best: NE, AUC, log loss and calibration, AUC of heads whose labels are known, and with --group-by
    rankings within groups."""
    found = htrain.evaluate(run_folder, plan=plan or "", labels=dict(labels), group_by=group_by, **what)
    texts = [f"{found.examples:,} examples: {measures_of(found)}"]
    texts += [measures_within(found.ranking)] if found.ranking else []
    text = "; ".join([*texts, *map(measures_of_head, found.heads.items())])
    left_out = import_module("htrain.data.malformed").left_out(found.malformed, found.malformed_example)
    put(asdict(found), f"{text}; {left_out}" if left_out else text, as_json)


def measures_of(found: "Evaluation") -> str:
    """What was evaluated, as far as the loss has it: NE is of clicks alone."""
    ranked = "" if isnan(found.auc) else f"AUC {found.auc:.4f}, "
    if found.loss == "mse":
        return f"{ranked}mean squared error {found.log_loss:.4f}, mean label {found.positive_rate:.4f}"
    if found.loss == "own":
        return f"{ranked}loss {found.log_loss:.4f}, mean label {found.positive_rate:.4f}"
    return (
        f"NE {found.ne:.4f}, AUC {found.auc:.4f}, log loss {found.log_loss:.4f}, positive rate {found.positive_rate:.4f}, "
        f"calibration {found.calibration:.4f}"
    )


def measures_within(found: "Ranking") -> str:
    """How well the examples of each group are ranked."""
    if not found.groups:
        return f"no {found.group_by} of {found.all_groups:,} has examples of label 1 and of label 0, by which they could be ranked"
    of_top = f"NDCG@{found.top} {found.ndcg:.4f}, recall@{found.top} {found.recall:.4f}"
    return f"within {found.groups:,} of {found.all_groups:,} {found.group_by}: GAUC {found.gauc:.4f}, {of_top}, MRR {found.mrr:.4f}"


def measures_of_head(named: tuple[str, "Head"]) -> str:
    """What was evaluated of a head of the model: AUC is of clicks."""
    name, found = named
    measure = f"squared error {found.squared_error:.4f}" if isnan(found.auc) else f"AUC {found.auc:.4f}"
    return f"{name}: {measure}, mean of {found.label} {found.mean_label:.4f}"
