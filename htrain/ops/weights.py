"""Which ops read dense weights, and when (HT 3.1.1)."""

from htrain.net.net import Net, Op


class WeightReaders:
    """Tells, op by op in a net's order, which ones read a dense weight that is trained.

    The conversion of a weight to another dtype is made when it is first read, so it is the ops which read that conversion that count.
    """

    def __init__(self, net: Net) -> None:
        self._names = {name for name, p in net.parameters.items() if p.kind == "weight" and p.trained}

    def reads(self, op: Op) -> bool:
        """Whether `op` reads a trained weight. The ops before it in the net must have been asked about."""
        if self._names.isdisjoint(op.inputs):
            return False
        if op.type == "Cast":
            self._names.update(op.outputs)
            return False
        return True
