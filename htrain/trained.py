"""The Python API of what is taken out of a trained run: scores of data, and the model itself, as by `htrain predict` and `htrain export`."""

from pathlib import Path
from typing import Any, Literal

from htrain.errors import UsageError
from htrain.executor.launch.forward import load_trained
from htrain.executor.launch.predict import Prediction, predict_run
from htrain.executor.record.run_folder import plan_of, plan_of_tables
from htrain.exporting.export import Exported, export_onnx, export_tables, export_torch
from htrain.given import data_in_a_file, require_data, words
from htrain.spec.arguments import require_arguments
from htrain.spec.cluster import cores_here
from htrain.spec.settings import SchemaOf, Workers

_FORMAT: Literal["safetensors"] = "safetensors"
_PIECE_ROWS = 1_000_000


def predict(
    run_folder: str | Path,
    *,
    data: Any,
    schema: SchemaOf = "",
    out: str | Path,
    plan: str | Path = "",
    replica: str = "center",
    checkpoint: Literal["last", "best"] = "last",
    workers: Workers = "auto",
) -> Prediction:
    """Write the scores of the last checkpoint of a run, or of the best, which `keep_best` keeps, on `data` to the file `out`: .parquet, .csv or .npy. `data`
    is FORMAT:PATH, or, with its `schema`, a table in memory or batches of one, as for `htrain.pack`.

    Scores are probabilities for the loss bce, and predictions for mse; beside each are the label of its row, and the model's heads, what else it returns of
    the row, by their names. Rows are in the order of the data, which is read in batches. `plan` where the run's plan has moved; `replica` says whose dense
    parameters, `center` or `group:N`. As many threads compute as `workers` says, one for each core where that is `auto`: scores do not depend on it.
    The file appears whole or not at all, over nothing but an older Parquet file of scores.
    Raises UsageError for a name of another kind, CheckpointError and PlanError for a run that cannot be read, DataError for data that cannot be read or does
    not fit, for a malformed row, and for a file that cannot be written.

        import numpy as np

        import htrain

        htrain.predict("runs/a", data="packed:test.packed", out="scores.npy")
        scores = np.load("scores.npy")
        print(scores["score"][:10], scores["label"][:10])
    """
    require_arguments(
        "predict", run_folder=run_folder, data=words(data), out=out, plan=plan, replica=replica, checkpoint=checkpoint, workers=workers
    )  # fmt: skip
    require_data("predict", schema, data=data)
    folder = Path(run_folder)
    plan_folder = plan_of(folder, plan)
    with data_in_a_file("predict", data, schema) as address:
        return predict_run(
            plan_folder, folder, address, out=Path(out), replica=replica, checkpoint=checkpoint,
            workers=cores_here() if workers == "auto" else workers,
        )  # fmt: skip


def export(
    run_folder: str | Path,
    *,
    to: Literal["torch", "onnx", "tables"],
    out: str | Path,
    plan: str | Path = "",
    replica: str = "center",
    checkpoint: Literal["last", "best"] = "last",
    format: Literal["safetensors", "parquet", "npy"] = "safetensors",
    piece_rows: int = 1_000_000,
) -> Exported:
    """Write the model of the last checkpoint of a run, or of the best, which `keep_best` keeps, `to` what others use; weights are whole, and rows are those
    of the model, whatever the cluster was.

    `torch`: a safetensors file of weights and tables under the names of the module's own parameters, for `load_state_dict(..., strict=False)`.
    `onnx`: an ONNX file of the forward pass in standard ops, for any batch size. Its inputs have the model's names; its outputs are `score`, what
    `htrain.predict` writes, for the loss bce `logit` besides, and the model's heads. Weights of more than 1.5 GB are in `OUT.data` beside it.
    `tables`: a new folder with the rows of each table in files of a `format`, at most `piece_rows` rows each, and `index.json`, which lists them.
    Tables that were served, without a model around them, can be written so, too.

    `plan` where the run's plan has moved; `replica` says whose dense parameters, `center` or `group:N`. What is written appears whole or not at all, over
    nothing but an older file of the kind that htrain wrote.
    Raises UsageError for `format` and `piece_rows` of what are no tables, ModelError naming the op and module that have no form in ONNX, CheckpointError and
    PlanError for a run that cannot be read, DataError for an `out` that cannot be written.

        import htrain

        htrain.export("runs/a", to="onnx", out="model.onnx")
        exported = htrain.export("runs/a", to="torch", out="model.safetensors")
        print(f"{exported.tensors} tensors, {exported.num_bytes:,} bytes")
    """
    require_arguments(
        "export",
        run_folder=run_folder,
        to=to,
        out=out,
        plan=plan,
        replica=replica,
        checkpoint=checkpoint,
        format=format,
        piece_rows=piece_rows,
    )
    if to != "tables" and (format, piece_rows) != (_FORMAT, _PIECE_ROWS):
        raise UsageError(f"export: format= and piece_rows= have no effect with to='{to}': they are of tables")
    folder = Path(run_folder)
    plan_folder = plan_of_tables(folder, plan) if to == "tables" else plan_of(folder, plan)
    trained = load_trained(plan_folder, folder, replica, checkpoint)
    if to == "torch":
        return export_torch(trained, Path(out))
    if to == "onnx":
        return export_onnx(trained, Path(out))
    return export_tables(trained, Path(out), form=format, piece_rows=piece_rows)
