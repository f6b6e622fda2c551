"""The net that empties a trainer's caches, at a pause and at the end of a run: HET's updates reach the sparse PSs (HET 3.3)."""

from htrain.net import Net, Op
from htrain.ops.het import ANSWER, REQUEST


def flush_net(trainer: Net) -> Net:
    """The flush net of a trainer's net; without ops where that has no cache.

    Ensures: its messages are those of a step's lookups, so that the sparse PSs need no other nets.
    """
    ops: list[Op] = []
    for ask in (op for op in trainer.ops if op.type == "HetAsk"):
        names, answers = ask.outputs[1:], _answers(trainer, ask)
        attrs = {name: ask.attrs[name] for name in ("bounds", "servers", "first_rows", "width")}
        ops.append(Op("HetFlush", ask.inputs[:1], names, attrs, ask.node_name, ask.module))
        ops += [op for op in trainer.ops if op.type == "Send" and op.inputs[0] in names]
        ops += [op for op in trainer.ops if op.type == "Recv" and op.outputs[0] in answers]
        ops.append(Op("HetFlushed", (*ask.inputs[:1], *answers), (), {}, ask.node_name, ask.module))
    flush = Net("flush_trainer", (), (), (), dict(trainer.blobs), dict(trainer.parameters))
    return flush.with_ops(ops)


def _answers(trainer: Net, ask: Op) -> tuple[str, ...]:
    """What the servers answer to an ask, in its order of servers."""
    read = next(op for op in trainer.ops if op.type == "HetRead" and op.inputs[0] == ask.inputs[0])
    servers = (len(ask.outputs) - 1) // len(REQUEST)
    return read.inputs[-servers * len(ANSWER) :]
