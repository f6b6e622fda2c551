"""What may be left out of a net, ops whose outputs nobody reads, and which order effects leave the others (docs/decisions/net.md)."""

from collections.abc import Iterable, Iterator, Sequence

from htrain.net.net import Net, Op
from htrain.net.rewriting import only_needed
from htrain.ops import OPS


def has_effects(op: Op) -> bool:
    """Whether an op does more than make its outputs."""
    return OPS[op.type].effects


def without_unread(net: Net) -> Net:
    """The net without the ops that neither its outputs nor any op with effects depend on."""
    return only_needed(net, has_effects)


def in_order(net: Net, ops: Sequence[Op]) -> Iterator[Op]:
    """Ops as they stand, but each behind those that make its inputs: it is put off until these have come. What writes a parameter keeps its place among
    the ops of that parameter."""
    made = {name for op in ops for name in op.outputs}
    there: set[str] = set()
    late: list[Op] = []

    def waits(op: Op, before: Iterable[Op]) -> bool:
        return any(name in made and name not in there for name in op.inputs) or any(
            _conflict(net, op, other) for other in before
        )

    for op in ops:
        late.append(op)
        going = True
        while going:
            ready = next((k for k, one in enumerate(late) if not waits(one, late[:k])), None)
            going = ready is not None
            if ready is not None:
                one = late.pop(ready)
                there.update(one.outputs)
                yield one
    assert not late, f"{net.name}: ops wait for each other: {late}"


def _conflict(net: Net, op: Op, other: Op) -> bool:
    """Whether two ops may not change places: one writes a parameter that the other touches."""
    written = OPS[op.type].written(op) | OPS[other.type].written(other)
    return any(name in net.parameters and name in other.inputs and name in op.inputs for name in written)
