"""EASGD: groups and their centre move towards each other in background rounds (HT 3.1.2, ShadowSync)."""

from htrain.net import Attr
from htrain.spec.dense_sync import Easgd
from htrain.strategies.centres import Centred
from htrain.sync.easgd import alpha_of


class Elastic(Centred[Easgd]):
    """The centre answers with the elastic difference, by which both move."""

    def absorb(self, weight: str, snapshot: str, answer: str) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
        return "ElasticDifference", (weight, snapshot), {"alpha": alpha_of(self.section, self.cluster.groups)}

    def take(self, weight: str, answer: str) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
        return "Relax", (weight, answer), {}


COMPILE = Elastic
