"""Blockwise model-update filtering: the mean of all groups is a step that the centre takes with momentum (Chen and Huo 2016; ShadowSync)."""

from collections.abc import Sequence

from htrain.net.net import Init, Parameter
from htrain.spec.dense_sync import Bmuf
from htrain.strategies.centres import Call, Centred, averaged, collected
from htrain.sync.bmuf import momentum_of


class Filtered(Centred[Bmuf]):
    """The centre is where groups begin a block of steps; what they have learned in it, in the mean, moves it, and goes on to do so.

    A running statistic learns nothing: momentum would carry a variance past what any batch had, and below 0. Its centre is the mean of all groups.
    """

    def kept(self, centre: Parameter) -> Sequence[Parameter]:
        if centre.kind == "statistic":
            return centre, *collected(centre)
        momentum = Parameter(
            f"{centre.name}:momentum", centre.shape, centre.dtype, "state", Init("constant", (0.0,)), of=centre.name
        )
        return centre, momentum, *collected(centre)

    def collect(self, centre: str, snapshot: str) -> Call:
        held = centre, f"{centre}:momentum", f"{centre}:total", f"{centre}:arrived"
        decay = momentum_of(self.section, self.cluster.groups)
        return (
            "BlockStep",
            (*held, snapshot),
            {"groups": self.cluster.groups, "decay": decay, "lr": self.section.lr, "nesterov": self.section.nesterov},
        )

    def collect_statistic(self, centre: str, snapshot: str) -> Call:
        return averaged(centre, snapshot, self.cluster.groups)

    def absorb(self, centre: str, snapshot: str, answer: str) -> Call:
        return "OffCentre", (centre, snapshot), {"alpha": self.section.alpha, "barrier": True}

    def take(self, weight: str, answer: str) -> Call:
        return "Relax", (weight, answer), {}


COMPILE = Filtered
