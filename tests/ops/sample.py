"""What a sample of an op is, and how the values of its inputs are drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from htrain.net.net import Attr, Shape

Draw = Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]
Operand = tuple[Shape, Draw]


def normal(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def wide(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return 4 * normal(generator, shape)


def positive(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return normal(generator, shape).abs() + 0.1


def single(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """float32, for the kernels of embeddings, which know nothing else."""
    return normal(generator, shape).float()


def short(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return normal(generator, shape).bfloat16()


def flags(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return normal(generator, shape) > 0


def labels(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return flags(generator, shape).float()


def below(count: int, least: int = 0) -> Draw:
    """Integers in [least, count)."""
    return lambda generator, shape: torch.randint(least, count, shape, generator=generator)


def half(draw: Draw) -> Draw:
    """Half of the rows that the bound allows."""
    return lambda generator, shape: draw(generator, (shape[0] // 2, *shape[1:]))


def starts(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Offsets of bags, of which the first is empty and the last takes the rest."""
    return torch.arange(shape[0]).sub(1).clamp(min=0)


def distinct(count: int) -> Draw:
    return lambda generator, shape: torch.randperm(count, generator=generator)[: shape[0]]


@dataclass(frozen=True)
class Sample:
    """One op with inputs. `held` are the positions that are data: labels, which no rule differentiates."""

    type: str
    operands: tuple[Operand, ...]
    reference: Callable[..., Any]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    held: tuple[int, ...] = ()


def moments(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, (x - mean).square().mean(dims, keepdim=True)
