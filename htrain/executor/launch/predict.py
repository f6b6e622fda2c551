"""Scores of a checkpoint: what its forward net makes of each row of a dataset, to a file."""

from dataclasses import dataclass
from pathlib import Path

import torch

from htrain.data import Malformed
from htrain.data.labels import is_binary
from htrain.errors import DataError
from htrain.executor.launch.forward import Which, batch_size_of, load_trained, scored, widths_of
from htrain.executor.record.scores import require_scores, scores_file


@dataclass(frozen=True)
class Prediction:
    """What was written: `scores` are `probabilities`, or `predictions` where the loss is not of probabilities."""

    path: Path
    examples: int
    scores: str
    mean_score: float


def predict_run(
    plan_folder: Path,
    run_folder: Path,
    data: str,
    *,
    out: Path,
    replica: str,
    checkpoint: Which = "last",
    workers: int = 0,
) -> Prediction:
    """Write the scores of the last checkpoint of a run on a dataset, in the order of its rows, batch by batch.

    `replica` and `checkpoint` are as of `evaluate_run`, `workers` as of `scored`.
    Raises CheckpointError, PlanError, UsageError and DataError: also for a malformed row, as the scores behind it would stand in others' places.
    """
    require_scores(out)
    trained = load_trained(plan_folder, run_folder, replica, checkpoint)
    dataset, net = trained.dataset(data), trained.forward
    of_logits = trained.plan.options.loss == "bce"
    malformed, examples, total = Malformed(share=0.0), 0, 0.0
    parameters = trained.parameters(net)
    with scores_file(out, widths_of(net)) as write:
        for batch in scored(net, parameters, dataset, malformed, batch_size_of(trained.plan), workers=workers):
            _require_none(malformed)
            score = torch.from_numpy(batch.logit).sigmoid().numpy() if of_logits else batch.logit
            write({"score": score, "label": batch.label, **batch.heads})
            examples += score.size
            total += float(score.sum(dtype="float64"))
        _require_none(malformed)
    return Prediction(
        out, examples, "probabilities" if is_binary(trained.plan.options.loss) else "predictions", total / examples
    )


def _require_none(malformed: Malformed) -> None:
    if malformed.count:
        raise DataError(
            f"{malformed.examples[0]}: every row is to have its score: mend the row, or leave it out of the data"
        )
