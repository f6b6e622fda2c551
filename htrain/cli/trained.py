"""The commands that take something out of a trained run: `htrain predict`, `export`."""

from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli.flags import FilePath, PlanCommand, json_flag, put, require_alone, scoring_flag, tell, trained_flags


@click.command(cls=PlanCommand)
@click.argument("run_folder", type=FilePath())
@click.option("--data", required=True, help="FORMAT:PATH[?key=value], such as criteo:test.tsv.")
@click.option("--out", required=True, type=FilePath(), help="The file to write: .parquet, .csv or .npy.")
@trained_flags
@scoring_flag
@json_flag
def predict(run_folder: Path, plan: Path | None, as_json: bool, **what: Any) -> None:
    """Write the scores of the last checkpoint of RUN_FOLDER on data: probabilities, predictions for --loss mse, and what forward scores for own.

    A row for each row of the data, in its order, with columns score and label, and one for each head of the model.

    \b
    htrain predict runs/a --data criteo:test.tsv --out scores.parquet
    """
    found = htrain.predict(run_folder, plan=plan or "", **what)
    text = f"{found.path}: {found.examples:,} {found.scores}, mean {found.mean_score:.4f}"
    document = {
        "path": str(found.path),
        "examples": found.examples,
        "scores": found.scores,
        "mean_score": found.mean_score,
    }
    put(document, text, as_json)


@click.command(cls=PlanCommand)
@click.argument("run_folder", type=FilePath())
@click.option(
    "--to",
    required=True,
    type=click.Choice(["torch", "onnx", "tables"]),
    help="Weights for PyTorch (safetensors), an ONNX model, or tables in pieces.",
)
@click.option("--out", required=True, type=FilePath(), help="The file to write; for tables, a new folder.")
@trained_flags
@click.option(
    "--format",
    default="safetensors",
    type=click.Choice(["safetensors", "parquet", "npy"]),
    help="Of tables: the kind of their files. [default: safetensors]",
)
@click.option(
    "--piece-rows",
    default=1_000_000,
    type=click.IntRange(1, 1_000_000_000),
    help="Of tables: rows of a file at most. [default: 1000000]",
)
@json_flag
def export(run_folder: Path, to: Any, out: Path, plan: Path | None, as_json: bool, **settings: Any) -> None:
    """Write the model of the last checkpoint of RUN_FOLDER for others to use: PyTorch, an ONNX runtime, or what reads tables.

    \b
    htrain export runs/a --to torch --out model.safetensors
    htrain export runs/a --to onnx --out model.onnx
    htrain export runs/a --to tables --out tables/ --format parquet
    """
    if to != "tables":
        require_alone(f"--to {to}", "format", "piece_rows")
    found = htrain.export(run_folder, to=to, out=out, plan=plan or "", **settings)
    for note in found.notes:
        tell(f"note: {note}")
    what = "pieces of tables" if to == "tables" else "weights and tables"
    files = " and ".join(map(str, found.files))
    document = {
        "files": list(map(str, found.files)),
        "tensors": found.tensors,
        "bytes": found.num_bytes,
        "notes": found.notes,
    }
    put(document, f"{files}: {found.tensors:,} {what}, {found.num_bytes / 1e6:,.1f} MB", as_json)
