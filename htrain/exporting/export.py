"""The model of a run's last checkpoint, written in one of three ways."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from htrain.errors import DataError, ModelError
from htrain.executor.launch.forward import Trained
from htrain.exporting.onnx_file import is_exported, write_onnx
from htrain.exporting.safetensors_file import is_exported as is_exported_weights
from htrain.exporting.safetensors_file import write_wholes
from htrain.exporting.tables_folder import require_new, write_tables
from htrain.exporting.wholes import Whole, load_tables, load_wholes
from htrain.files import new_file, place_to_write
from htrain.plan.plan import Plan


@dataclass(frozen=True)
class Exported:
    """What was written: `files`, or a folder, with `tensors` weights and tables, or pieces of tables; `notes` say what whoever uses them should know."""

    files: tuple[Path, ...]
    tensors: int
    num_bytes: int
    notes: tuple[str, ...]


def export_torch(trained: Trained, out: Path) -> Exported:
    """Write all weights and tables, under the names of the module's own parameters, to a safetensors file.

    Raises CheckpointError for a checkpoint that lacks something, DataError for a file that cannot be written.
    """
    try:
        place_to_write(out, is_exported_weights)
        wholes = list(load_wholes(trained).values())
        with new_file(out, is_exported_weights) as file:
            write_wholes(file, wholes)
    except OSError as error:
        raise _unwritable(out, error) from error
    return Exported((out,), len(wholes), _total(wholes), tuple(_torch_notes(trained.plan)))


def _torch_notes(plan: Plan) -> Iterator[str]:
    yield (
        "load it with module.load_state_dict(safetensors.torch.load_file(PATH), strict=False): a parameter that has several names is here under one of them, "
        "which gives it to all; small buffers, and what the logit does not depend on, are not here"
    )
    yield from (note for note in plan.notes if "not in the plan" in note)  # they name such parameters


def export_onnx(trained: Trained, out: Path) -> Exported:
    """Write the forward net as an ONNX model of standard ops, whose inputs have the model's names and any batch size.

    Raises ModelError naming an op that has no form in ONNX, CheckpointError for a checkpoint that lacks something, DataError for a file that cannot be written.
    """
    try:
        place_to_write(out, is_exported)
        written = write_onnx(trained, out)
        num_bytes = sum(file.stat().st_size for file in written.files)
    except OSError as error:
        raise _unwritable(out, error) from error
    of_logits = trained.plan.options.loss == "bce"
    ours, heads = written.outputs[: 1 + of_logits], written.outputs[1 + of_logits :]
    note = (
        f"inputs are {', '.join(written.inputs)}; outputs {', and '.join(ours)}{', its sigmoid' if of_logits else ''}"
    )
    note += f"; and heads {', '.join(heads)}" if heads else ""
    return Exported(written.files, written.tensors, num_bytes, (note,))


def export_tables(trained: Trained, out: Path, *, form: str, piece_rows: int) -> Exported:
    """Write the rows of all tables to a new folder, in pieces of at most `piece_rows` rows, with an index.

    Raises ModelError for a model without tables, UsageError for a form that a table's dtype has not, CheckpointError for a checkpoint that lacks something,
    DataError for a folder that is there, or cannot be written.
    """
    require_new(out)
    wholes = list(load_tables(trained).values())
    if not wholes:
        raise ModelError(f"{trained.plan.model}: has no embedding table: --to torch or --to onnx have its weights")
    try:
        pieces = write_tables(wholes, out, form=form, piece_rows=piece_rows)
    except OSError as error:
        raise _unwritable(out, error) from error
    return Exported((out,), pieces, _total(wholes), ())


def _total(wholes: Sequence[Whole]) -> int:
    return sum(whole.num_bytes for whole in wholes)


def _unwritable(out: Path, error: OSError) -> DataError:
    return DataError(f"{out}: cannot be written: {error.strerror or error}")
