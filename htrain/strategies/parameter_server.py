"""The classic parameter server: trainers compute with a copy of the dense weights that they fetch for every step (HET 5, its baseline)."""

from htrain.net.names import GROUP_PS, TRAINER, Device
from htrain.net.net import Net
from htrain.net.placement import spread
from htrain.net.rewriting import reading
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.spec.dense_sync import ParameterServer
from htrain.strategies.strategy import Strategy, Tags


class Pulled(Strategy[ParameterServer]):
    """Weights and their steps on the group PSs, all else of the dense part on the trainers."""

    def steps(self, net: Net) -> Net:
        return pull_weights(net)

    def tags(self, net: Net, fixed: Tags) -> Tags:
        return pulled_tags(net, fixed, self.cluster.group_ps)


def pull_weights(net: Net) -> Net:
    """Let every reader of a trained weight but its optimizer step read a snapshot of it, taken when the step begins."""
    builder = NetBuilder.beside(net)
    weights = [name for name, p in net.parameters.items() if p.kind == "weight" and p.trained]
    copies = {w: builder.add("Snapshot", (w,), module=w, outputs=(builder.fresh(f"{w}_pulled"),))[0] for w in weights}
    for op in net.ops:
        builder.copy(op if OPS[op.type].steps_weights else reading(op, copies))
    return builder.build(net.outputs)


def pulled_tags(net: Net, fixed: Tags, num_group_ps: int) -> dict[int, str]:
    """The tags of a net whose trainers fetch the dense weights: these, their snapshots and steps are on group PSs, balanced by bytes; what
    is not `fixed` elsewhere is on the trainer."""
    weights = {name: p.num_bytes for name, p in net.parameters.items() if p.kind == "weight" and p.trained}
    owners = {name: str(Device(GROUP_PS, k)) for name, k in spread(weights, num_group_ps).items()}
    on_owner = (next((owners[name] for name in op.inputs if name in owners), TRAINER) for op in net.ops)
    return {index: fixed.get(index, device) for index, device in enumerate(on_owner)}


COMPILE = Pulled
