"""Measures of predicted probabilities: NE and AUC, as the papers report them."""

import math

import numpy as np


def entropy(rate: float) -> float:
    """The entropy, in nats, of a label that is 1 with probability `rate`; nan at 0 and 1."""
    if not 0 < rate < 1:
        return math.nan
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def normalized_entropy(log_loss: float, positives: float, examples: float) -> float:
    """NE: the mean log loss over the entropy of the base rate (He et al. 2014; HT 5.1). It is nan when all labels are
    the same, and without examples.

    `log_loss` is the sum over `examples` examples, in nats, of which `positives` have label 1.
    """
    return log_loss / examples / entropy(positives / examples) if examples else math.nan


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve of scores[n] for labels[n] in {0, 1}; tied scores count half.

    It is nan where all labels are the same, and where a score is nan.
    """
    positive = labels > 0.5
    num_positive = int(positive.sum())
    num_negative = positive.size - num_positive
    if not num_positive or not num_negative or np.isnan(scores).any():
        return math.nan
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.concatenate([starts[1:], [ordered.size]])
    ranks = np.empty(ordered.size)
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)  # the mean rank, from 1, of each run of ties
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
