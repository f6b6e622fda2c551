"""What a frontend gives: the forward net, and the values that the model came with."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from htrain.net import Net


@dataclass(frozen=True)
class Captured:
    """A forward net with one output, the logit. `values` are the tensors of parameters whose init is `file`.

    `notes` say, a sentence each, what the frontend decided that the user may want to know.
    """

    net: Net
    values: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()
