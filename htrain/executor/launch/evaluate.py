"""Evaluating a checkpoint: NE, AUC and log loss of its scores of a dataset."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from htrain.data import Malformed
from htrain.data.evaluation import auc, entropy
from htrain.data.labels import is_binary
from htrain.executor.launch.forward import forward_net, load_trained, scored


@dataclass(frozen=True)
class Evaluation:
    """`ne`, `auc` and `log_loss` for the binary cross-entropies; else `ne` is nan, and `log_loss` the mean squared error, or the model's own loss: there
    `auc` is of labels that are 0 and 1, and nan for others."""

    examples: int
    log_loss: float
    ne: float
    auc: float
    positive_rate: float


def evaluate_run(plan_folder: Path, run_folder: Path, data: str, *, replica: str) -> Evaluation:
    """Evaluate the last checkpoint of a run on a dataset.

    `replica` says whose dense parameters: `center` (the centres; group 0's where all groups hold the same) or `group:N`.
    Raises CheckpointError, PlanError, DataError.
    """
    trained = load_trained(plan_folder, run_folder, replica)
    dataset, net = trained.dataset(data), forward_net(trained.plan.train)
    scores, labels, total, examples = [], [], 0.0, 0
    for batch in scored(net, trained.parameters(net), dataset, Malformed()):
        scores.append(batch.logit)
        labels.append(batch.label)
        total += batch.loss * batch.label.size
        examples += batch.label.size
    score, label = np.concatenate(scores), np.concatenate(labels)
    rate = float(label.mean())
    loss = trained.plan.options.loss
    binary = is_binary(loss)
    ranked = binary or (loss == "own" and bool(np.isin(label, (0, 1)).all()))
    mean = total / examples
    return Evaluation(
        examples,
        mean,
        mean / entropy(rate) if binary else float("nan"),
        auc(score, label) if ranked else float("nan"),
        rate,
    )
