"""Evaluating a checkpoint: NE, AUC and log loss of its scores of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.data import Dataset, Malformed
from htrain.data.evaluation import auc, entropy
from htrain.data.labels import is_binary
from htrain.data.ranking import Grouping, Ranking, group_of, ranking, require_column
from htrain.errors import UsageError
from htrain.executor.launch.forward import Which, batch_size_of, load_trained, scored, widths_of
from htrain.net.net import Net
from htrain.plan.plan import Plan

_Column = NDArray[np.float32]
_SCORE = "score"


@dataclass(frozen=True)
class Evaluation:
    """What was found of a checkpoint. `heads` has those of the model's other outputs whose labels are known.

    `ne`, `auc` and `log_loss` for the binary cross-entropies; else `ne` is nan, and `log_loss` the mean squared error, or the model's own loss: there
    `auc` and `ranking` are of labels that are 0 and 1, and nan for others. `malformed` rows are left out; `malformed_example` says where the
    first stands, and what is wrong. `loss` is the plan's, as `--loss` has it. `calibration` is the mean probability over the mean label, nan for other losses
    than the cross-entropies (He et al. 2014). `ranking` is that within groups, where these were asked for."""

    examples: int
    log_loss: float
    ne: float
    auc: float
    positive_rate: float
    malformed: int = 0
    malformed_example: str = ""
    loss: str = "bce"
    heads: Mapping[str, "Head"] = field(default_factory=dict)
    calibration: float = float("nan")
    ranking: Ranking | None = None


@dataclass(frozen=True)
class Head:
    """A head of the model against a column of the data, `label`: `auc` where that is 0 and 1, else nan; the mean squared error; and the mean label."""

    label: str
    auc: float
    squared_error: float
    mean_label: float


def evaluate_run(
    plan_folder: Path,
    run_folder: Path,
    data: str,
    *,
    replica: str,
    checkpoint: Which = "last",
    labels: Mapping[str, str],
    grouping: Grouping | None = None,
    workers: int = 0,
) -> Evaluation:
    """Evaluate the last checkpoint of a run on a dataset, or the best that its validations have kept.

    `replica` says whose dense parameters: `center` (the centres; group 0's where all groups hold the same) or `group:N`. `labels` say of heads
    which input of the model is their label, and of the `score` of a model with a loss of its own; a head that has an input's name has that, and the score the
    data's label, if nothing else is said. `grouping` says within which groups the score is ranked, too.
    Raises CheckpointError, PlanError, DataError, and UsageError for labels that are none, and for a column that is none.
    """
    trained = load_trained(plan_folder, run_folder, replica, checkpoint)
    net = trained.forward
    labels = labels_of(trained.plan, net, labels)
    dataset = trained.dataset(data)
    if grouping:
        require_column(dataset.schema, grouping.column, what="--group-by")
    return evaluate(
        trained.plan, net, trained.parameters(net), dataset, labels=labels, grouping=grouping, workers=workers
    )


def labels_of(plan: Plan, net: Net, said: Mapping[str, str]) -> dict[str, str]:
    """The label of the score, and of each head that has one: what is `said`, or the data's, and the input of its name. Raises UsageError for what is none."""
    if _SCORE in said and plan.options.loss != "own":
        raise UsageError(f"labels: '{_SCORE}' has the data's label, by which --loss {plan.options.loss} trains it")
    numbers = [name for name, width in widths_of(net).items() if not width]
    columns = [
        name for name in net.inputs if net.blobs[name].dtype == "float32" and net.blobs[name].shape[1:] in ((), (1,))
    ]
    for output, column in said.items():
        if output not in (_SCORE, *numbers):
            known = ", ".join(numbers) or "none"
            raise UsageError(
                f"labels: '{output}' is no head of the model, a number for each example that it returns beside what is scored; it has {known}"
            )
        if column not in columns:
            known = ", ".join(columns) or "none"
            raise UsageError(
                f"labels: '{column}' is no input of the model of one number for each example; it has {known}"
            )
    return {_SCORE: "label", **{name: name for name in numbers if name in columns}, **said}


def evaluate(
    plan: Plan,
    net: Net,
    parameters: Mapping[str, torch.Tensor],
    dataset: Dataset,
    *,
    labels: Mapping[str, str],
    grouping: Grouping | None = None,
    workers: int = 0,
    on_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Run the forward net over all of a dataset, with so many `workers` (`scored`); `on_batch` is called after each batch, and what it raises ends it.
    See `labels_of`.

    Requires: `grouping` names a column that the data has (`require_column`).
    """
    scores, wanted, groups, total, examples, malformed = [], [], [], 0.0, 0, Malformed()
    heads: dict[str, list[tuple[_Column, _Column]]] = {name: [] for name in labels if name != _SCORE}
    for batch in scored(net, parameters, dataset, malformed, batch_size_of(plan), workers=workers):
        scores.append(batch.logit)
        wanted.append(batch.columns[labels[_SCORE]].reshape(-1))
        for name, found in heads.items():
            found.append((batch.heads[name], batch.columns[labels[name]].reshape(-1)))
        if grouping:
            groups.append(group_of(dataset.schema, grouping.column, batch.columns))
        total += batch.loss * batch.label.size
        examples += batch.label.size
        on_batch()
    score, label = np.concatenate(scores), np.concatenate(wanted)
    rate, mean = float(label.mean(dtype=np.float64)), total / examples
    binary = is_binary(plan.options.loss)
    ranked = binary or _is_of_clicks(label)
    within = _within(groups, score, label if ranked else np.zeros_like(label), grouping)
    return Evaluation(
        examples,
        mean,
        mean / entropy(rate) if binary else float("nan"),
        auc(score, label) if ranked else float("nan"),
        rate,
        malformed.count,
        malformed.example,
        plan.options.loss,
        {name: _head(labels[name], found) for name, found in heads.items()},
        _calibration(score, rate, plan.options.loss),
        within,
    )


def _within(
    groups: Sequence[NDArray[Any]], score: _Column, label: _Column, grouping: Grouping | None
) -> Ranking | None:
    return ranking(np.concatenate(groups), score, label, grouping) if grouping else None


def _calibration(score: _Column, rate: float, loss: str) -> float:
    """How much is predicted of what there is: 1.02 is 2 % too much."""
    if not is_binary(loss) or not rate:
        return float("nan")
    probabilities = torch.from_numpy(score).sigmoid().numpy() if loss == "bce" else score
    return float(probabilities.mean(dtype=np.float64)) / rate


def _head(label: str, batches: Sequence[tuple[_Column, _Column]]) -> Head:
    scores, wanted = (np.concatenate(columns) for columns in zip(*batches, strict=True))
    error = float(np.square(scores - wanted, dtype=np.float64).mean())
    ranked = auc(scores, wanted) if _is_of_clicks(wanted) else float("nan")
    return Head(label, ranked, error, float(wanted.mean(dtype=np.float64)))


def _is_of_clicks(label: _Column) -> bool:
    return bool(np.isin(label, (0, 1)).all())
