"""validations.jsonl in the run folder: what was found of a run's checkpoints on its validation data, a line each, in the order of training."""

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from htrain.decoding import converted, from_json
from htrain.errors import CheckpointError
from htrain.executor.record.progress import decimal, duration
from htrain.files import read_file
from htrain.spec.settings import BestBy

VALIDATIONS = "validations.jsonl"
_MOST_BYTES = 1 << 28
_RANKINGS = ("gauc", "ndcg", "recall", "mrr")
_NUMBERS = ("ne", "auc", "log_loss", "calibration", *_RANKINGS)  # that may be nan, which JSON does not know


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One evaluation of a run's checkpoint on its validation data, which took so many `seconds`.

    `examples` had been trained by the whole job at the checkpoint. `log_loss` is the mean squared error for MSE, and `ne` is nan there; `auc` is of labels of
    clicks. `heads` has the AUC of each of the model's other outputs that has a label of clicks (`htrain.evaluate`). `gauc`, `ndcg`, `recall` and `mrr` are
    of rankings within the groups of a column, `group_by`, of the first `top` of each; nan where none were asked for, and where none of the `groups` has
    examples of both labels.
    `content` is a digest of the data as it was, "" where an older htrain has not written it: the files of `data` may change between the parts of a run.
    `is_best` says that none before it, on the same data, is better by what the run goes by; a checkpoint that is `kept` stays until a better one comes.
    """

    examples: int
    ne: float
    auc: float
    log_loss: float
    seconds: float
    checkpoint: str
    data: str
    is_best: bool = False
    kept: bool = False
    heads: dict[str, float] = {}
    calibration: float = math.nan
    gauc: float = math.nan
    ndcg: float = math.nan
    recall: float = math.nan
    mrr: float = math.nan
    top: int = 0
    group_by: str = ""
    groups: int = 0
    content: str = ""

    def is_of_data(self, other: "Validation") -> bool:
        """Whether another is of the same data, as far as both say it."""
        return self.data == other.data and self.content in ("", other.content or self.content)

    def is_comparable(self, best_by: BestBy, other: "Validation") -> bool:
        """Whether another's measure is of the same: one of rankings says nothing of those within other groups, or of other places."""
        if not self.is_of_data(other) or best_by in ("loss", "auc"):
            return self.is_of_data(other)
        return self.group_by == other.group_by and (self.top == other.top or best_by in ("gauc", "mrr"))

    def value(self, best_by: BestBy) -> float:
        """What a measure says of the checkpoint; of the loss the lower, of others the higher is better."""
        return self.log_loss if best_by == "loss" else float(getattr(self, best_by))

    def cost(self, best_by: BestBy) -> float:
        """What is the lower the better the checkpoint is, by a measure."""
        return self.value(best_by) * (1 if best_by == "loss" else -1)


def news_of(found: Validation) -> str:
    """A validation on one line."""
    known = {"NE": found.ne, "AUC": found.auc, "loss": found.log_loss}
    measures = [f"{name} {decimal(value)}" for name, value in known.items() if name == "loss" or not math.isnan(value)]
    ranked = {
        "GAUC": found.gauc,
        f"NDCG@{found.top}": found.ndcg,
        f"recall@{found.top}": found.recall,
        "MRR": found.mrr,
    }
    measures += [f"{name} {decimal(value)}" for name, value in ranked.items() if not math.isnan(value)]
    if found.group_by and not found.groups:
        measures.append(f"no {found.group_by} to rank in")
    measures += [f"AUC of {name} {decimal(value)}" for name, value in found.heads.items()]
    best = ", the best so far" if found.is_best else ""
    return f"validation at {found.examples:,} examples: {', '.join(measures)} ({duration(found.seconds)}){best}"


def to_dict(validation: Validation) -> dict[str, Any]:
    """For JSON: what is not finite becomes None."""
    values = msgspec.structs.asdict(validation)
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def read_validations(run_folder: Path) -> tuple[Validation, ...]:
    """Those of a run so far, none where it had none. A last line that was cut off is left out. Raises CheckpointError for a file that is damaged."""
    path = run_folder / VALIDATIONS
    try:
        whole, _, _ = read_file(path, most_bytes=_MOST_BYTES).rpartition(b"\n")
        return tuple(_parsed(line) for line in whole.splitlines() if line.strip())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: {error}: remove it to go on without the validations so far") from error


def _parsed(line: bytes) -> Validation:
    values = from_json(line, dict[str, Any])
    unknown = {name: math.nan for name in _NUMBERS if values.get(name, 0.0) is None}
    return converted(values | unknown, Validation)


def write_validations(run_folder: Path, validations: Iterable[Validation]) -> None:
    """Write all of them, whole or not at all. Raises OSError."""
    path = run_folder / VALIDATIONS
    partial = path.with_name(f".{VALIDATIONS}.partial")
    try:
        partial.write_bytes(b"".join(msgspec.json.encode(to_dict(each)) + b"\n" for each in validations))
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def kept_checkpoint(validations: Iterable[Validation]) -> str:
    """The name of the checkpoint that is kept beside the last ones, "" for none."""
    return next((each.checkpoint for each in reversed(tuple(validations)) if each.kept), "")


def best_checkpoint(run_folder: Path) -> str:
    """The name of the checkpoint with the best value. Raises CheckpointError where none was kept."""
    if not (name := kept_checkpoint(read_validations(run_folder))):
        raise CheckpointError(
            f"{run_folder}: keeps no best checkpoint: it was not trained with --keep-best; evaluate its last one (--checkpoint last)"
        )
    return name
