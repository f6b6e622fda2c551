"""A strategy of a user's own, as one would write it: groups send to a centre, which goes a part of the way, and all go to where it is then."""

from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta

from htrain import InRounds, OpDef, about, register, register_strategy
from htrain.executor.strategies.strategy import RunsSync
from htrain.ops.base import no_outputs, same_as_input
from htrain.strategies.centres import Centred
from htrain.sync.rounds import SyncRounds


@dataclass(frozen=True)
class Halfway(InRounds):
    """A centre moves `share` of the way to each snapshot, and the group by how far it is off then."""

    kind = "halfway"
    share: Annotated[Annotated[float, Meta(gt=0, le=1)], about("How far the centre moves.")] = 0.5


def meet(center: torch.Tensor, snapshot: torch.Tensor, *, share: float) -> torch.Tensor:
    center.lerp_(snapshot, share)
    return center - snapshot


def follow(weight: torch.Tensor, off: torch.Tensor) -> None:
    weight.add_(off)


register(OpDef("Meet", meet, same_as_input(1), gradient=None, effects=True, writes=(0,)))
register(OpDef("Follow", follow, no_outputs, gradient=None, effects=True, writes=(0,)))


class Compiled(Centred[Halfway]):
    """What it does to a plan."""

    def absorb(self, weight, snapshot, answer):
        return "Meet", (weight, snapshot), {"share": self.section.share}

    def take(self, weight, answer):
        return "Follow", (weight, answer), {}

    def notes(self, train):
        yield f"groups meet halfway, {self.section.share:.0%} of it"


class Runs(RunsSync[Halfway]):
    """What a role does: twice as many rounds as the period asks for."""

    def rounds(self):
        return SyncRounds(max(1, self.section.period // 2))


register_strategy(Halfway, compile=Compiled, run=Runs)
