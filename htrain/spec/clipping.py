"""Clipping of gradients, each weight's by itself, before its optimizer's step."""

from dataclasses import dataclass
from typing import Annotated

from htrain.spec.fields import Kinds, Rate, Section, about


@dataclass(frozen=True)
class Clip(Section):
    """What bounds the gradient of a weight."""


@dataclass(frozen=True)
class NoClip(Clip):
    """Gradients are as they are."""

    kind = "none"


@dataclass(frozen=True)
class ClipValue(Clip):
    """Each number of a gradient is at most `max_value` in size, as torch.nn.utils.clip_grad_value_ has it."""

    kind = "value"
    max_value: Annotated[Rate, about("The largest size of a number of a gradient.")] = 1.0


@dataclass(frozen=True)
class ClipNorm(Clip):
    """The gradient of each weight has at most this Euclidean norm, as torch.nn.utils.clip_grad_norm_ of that weight alone has it."""

    kind = "norm"
    max_norm: Annotated[Rate, about("The largest Euclidean norm of the gradient of a weight.")] = 1.0


CLIPS: Kinds = {kind.kind: kind for kind in (NoClip, ClipValue, ClipNorm)}
"""What bounds gradients of dense weights, as users name it."""
