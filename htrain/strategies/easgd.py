"""EASGD: groups and their centre move towards each other in background rounds (HT 3.1.2, ShadowSync)."""

from htrain.spec.dense_sync import Easgd
from htrain.strategies.centres import Call, Centred
from htrain.sync.easgd import alpha_of


class Elastic(Centred[Easgd]):
    """The centre answers with the elastic difference, by which both move."""

    def absorb(self, centre: str, snapshot: str, answer: str) -> Call:
        return "ElasticDifference", (centre, snapshot), {"alpha": alpha_of(self.section)}

    def take(self, weight: str, answer: str) -> Call:
        return "Relax", (weight, answer), {}


COMPILE = Elastic
