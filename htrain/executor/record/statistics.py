"""Running statistics of a model whose groups step together, each by its own batches: those of the examples of all."""

from collections.abc import Mapping, Sequence

import torch


def of_all_groups(pairs: Mapping[str, str], held: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The running means, and the variance of each, of what all groups read: mean = E[mean_k], variance = E[variance_k + (mean_k - mean)^2], k being a group.
    `pairs` are a mean and its variance, `held` the values of each group.

    Groups count alike, as they read batches of one size; what one group alone has is left out. Where the examples of each are a sample of all, means differ by
    chance alone; where a partition has sorted them, no group sees how far means lie apart.
    """
    found: dict[str, torch.Tensor] = {}
    for mean, variance in pairs.items():
        of_groups = [(values[mean], values[variance]) for values in held if {mean, variance} <= values.keys()]
        if len(of_groups) < 2:
            continue
        means, variances = (torch.stack(each).double() for each in zip(*of_groups, strict=True))
        center = means.mean(0)
        found[mean] = center.to(of_groups[0][0].dtype)
        found[variance] = (variances + (means - center).square()).mean(0).to(of_groups[0][1].dtype)
    return found
