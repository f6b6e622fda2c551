"""AllGather: every trainer has all tables, and steps them with the gradients of all trainers."""

from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.spec.sparse_sync import AllGather
from htrain.strategies.strategy import Strategy


class AllGathered(Strategy[AllGather]):
    """Tables on every trainer."""

    def steps(self, net: Net) -> Net:
        return all_gather_rows(net)


def all_gather_rows(net: Net) -> Net:
    """Every trainer has all tables, and steps them with the gradients of all trainers: what AllReduce comes to where gradients are sparse.

    Requires: optimizer steps.  Ensures: one AllGather for all tables; a row has one step, with the sum of all trainers' gradients.
    """
    builder = NetBuilder.beside(net)
    steps = [op for op in net.ops if OPS[op.type].steps_rows]
    for op in net.ops:
        if op not in steps:
            builder.copy(op)
    sparse = [name for op in steps for name in op.inputs[-2:]]
    names = [builder.fresh(f"{name}_all") for name in sparse]
    everybody = builder.add("AllGather", sparse, module="all_gather", outputs=names) if steps else ()
    for number, op in enumerate(steps):
        summed = builder.add("SumRows", everybody[2 * number : 2 * number + 2], module=op.module)
        builder.add(op.type, (*op.inputs[:-2], *summed), attrs=op.attrs, module=op.module)
    return builder.build(net.outputs)


COMPILE = AllGathered
