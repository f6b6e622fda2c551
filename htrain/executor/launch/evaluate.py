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
    """`ne` and `log_loss` for the binary cross-entropies; `log_loss` is the mean squared error for MSE, and `ne` and `auc` nan."""

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
    binary = is_binary(trained.plan.options.loss)
    mean = total / examples
    return Evaluation(
        examples,
        mean,
        mean / entropy(rate) if binary else float("nan"),
        auc(score, label) if binary else float("nan"),
        rate,
    )
