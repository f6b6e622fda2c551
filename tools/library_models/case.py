"""What is asked of htrain: one model of a library, and the inputs that its adapter takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Ids:
    """An input of whole numbers [B,width]: from 0 to below `rows`."""

    width: int
    rows: int


@dataclass(frozen=True)
class Numbers:
    """An input of normal numbers [B,width], float32."""

    width: int


Inputs = Mapping[str, Ids | Numbers]


@dataclass(frozen=True)
class Case:
    """A model of `library` as it is shipped; `build` makes it behind an adapter whose forward() takes `inputs` by name."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    logit: str = ""


def drawn(inputs: Inputs, num_rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random values of every input for `num_rows` examples."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, kind.rows, (num_rows, kind.width), generator=generator)
        if isinstance(kind, Ids)
        else torch.randn(num_rows, kind.width, generator=generator)
        for name, kind in inputs.items()
    }
