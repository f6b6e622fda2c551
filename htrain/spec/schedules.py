"""Schedules of learning rates: what share of an optimizer's rate an update steps with."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from htrain.spec.fields import Count, Kinds, Rate, Section, Share, about

Milestones = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,12}(,[0-9]{1,12})*$",
        extra={"wanted": "numbers of updates between commas, such as 1000,3000"},
    ),
]
_END = "Share of the rate at which the decay ends."
_DECAY = "Updates that the decay takes, behind the warm-up."


@dataclass(frozen=True)
class Schedule(Section):
    """How a learning rate changes over the updates of a weight, or of a table; it grows linearly in the first `warmup` of them."""

    warmup: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000_000)], about("Updates in which the rate grows linearly to its full.")
    ] = 0


@dataclass(frozen=True)
class ConstantRate(Schedule):
    """The optimizer's rate stays."""

    kind = "constant"


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """The rate falls linearly to a share of itself, and stays there."""

    kind = "linear"
    decay: Annotated[Count, about(_DECAY)] = 100_000
    share: Annotated[Share, about(_END)] = 0.0


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """The rate falls to a share of itself as half a period of a cosine does, and stays there."""

    kind = "cosine"
    decay: Annotated[Count, about(_DECAY)] = 100_000
    share: Annotated[Share, about(_END)] = 0.0


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The rate is multiplied by `gamma` at each of some milestones."""

    kind = "steps"
    milestones: Annotated[Milestones, about("Updates, behind the warm-up, from which on the rate is smaller.")] = (
        "100000"
    )
    gamma: Annotated[Rate, about("What each milestone multiplies the rate by.")] = 0.1


SCHEDULES: Kinds = {kind.kind: kind for kind in (ConstantRate, LinearDecay, CosineDecay, StepDecay)}
