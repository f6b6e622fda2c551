"""Evaluating a checkpoint: NE, AUC and log loss of its scores of a dataset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from htrain.data import Dataset, Malformed
from htrain.data.evaluation import auc, entropy
from htrain.data.labels import is_binary
from htrain.executor.launch.forward import Which, forward_net, load_trained, scored
from htrain.net.net import Net
from htrain.plan.plan import Plan


@dataclass(frozen=True)
class Evaluation:
    """`ne`, `auc` and `log_loss` for the binary cross-entropies; else `ne` is nan, and `log_loss` the mean squared error, or the model's own loss: there
    `auc` is of labels that are 0 and 1, and nan for others. `malformed` rows are left out; `malformed_example` says where the
    first stands, and what is wrong. `loss` is the plan's, as `--loss` has it."""

    examples: int
    log_loss: float
    ne: float
    auc: float
    positive_rate: float
    malformed: int = 0
    malformed_example: str = ""
    loss: str = "bce"


def evaluate_run(
    plan_folder: Path, run_folder: Path, data: str, *, replica: str, checkpoint: Which = "last"
) -> Evaluation:
    """Evaluate the last checkpoint of a run on a dataset, or the best that its validations have kept.

    `replica` says whose dense parameters: `center` (the centres; group 0's where all groups hold the same) or `group:N`.
    Raises CheckpointError, PlanError, DataError.
    """
    trained = load_trained(plan_folder, run_folder, replica, checkpoint)
    dataset, net = trained.dataset(data), forward_net(trained.plan.train)
    return evaluate(trained.plan, net, trained.parameters(net), dataset)


def evaluate(
    plan: Plan,
    net: Net,
    parameters: Mapping[str, torch.Tensor],
    dataset: Dataset,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Run the forward net over all of a dataset; `on_batch` is called after each batch, and what it raises ends it."""
    scores, labels, total, examples, malformed = [], [], 0.0, 0, Malformed()
    for batch in scored(net, parameters, dataset, malformed):
        scores.append(batch.logit)
        labels.append(batch.label)
        total += batch.loss * batch.label.size
        examples += batch.label.size
        on_batch()
    score, label = np.concatenate(scores), np.concatenate(labels)
    rate, mean = float(label.mean(dtype=np.float64)), total / examples
    binary = is_binary(plan.options.loss)
    ranked = binary or (plan.options.loss == "own" and bool(np.isin(label, (0, 1)).all()))
    return Evaluation(
        examples,
        mean,
        mean / entropy(rate) if binary else float("nan"),
        auc(score, label) if ranked else float("nan"),
        rate,
        malformed.count,
        malformed.example,
        plan.options.loss,
    )
