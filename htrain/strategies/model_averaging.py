"""Model averaging: groups meet at the mean of their weights, round after round (ShadowSync; HT's references 48 and 51)."""

from collections.abc import Sequence

from htrain.net.net import Parameter
from htrain.spec.dense_sync import ModelAveraging
from htrain.strategies.centres import Call, Centred, averaged, collected


class Averaged(Centred[ModelAveraging]):
    """The centre is the mean of all snapshots of a round; each group goes towards it by as much as its own was off."""

    def kept(self, centre: Parameter) -> Sequence[Parameter]:
        return centre, *collected(centre)

    def collect(self, centre: str, snapshot: str) -> Call:
        return averaged(centre, snapshot, self.cluster.groups)

    def absorb(self, centre: str, snapshot: str, answer: str) -> Call:
        return "OffCentre", (centre, snapshot), {"alpha": self.section.alpha, "barrier": True}

    def take(self, weight: str, answer: str) -> Call:
        return "Relax", (weight, answer), {}


COMPILE = Averaged
