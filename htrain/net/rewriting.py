"""Changed nets: other ops in the places of some, other names read, what nobody needs left out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from htrain.net.net import COMPRESS, Blob, Net, Op
from htrain.net.slices import leading_to


class Rewriting:
    """A net that is being changed op by op: each op stands for itself until something is put in its place."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._instead: dict[int, tuple[Op, ...]] = {}

    def put(self, place: Op, *ops: Op) -> None:
        """Put `ops` in the place of an op of the net."""
        self._instead[id(place)] = ops

    def drop(self, *ops: Op) -> None:
        """Remove ops of the net."""
        for op in ops:
            self.put(op)

    def net(self, new_blobs: Iterable[Blob] = ()) -> Net:
        """The net as it is now, `new_blobs` declared; the blobs and parameters that nothing names any more are left out."""
        return self._net.with_ops((new for op in self._net.ops for new in self._instead.get(id(op), (op,))), new_blobs)


def reading(op: Op, instead: Mapping[str, str]) -> Op:
    """The op with other inputs, those that `instead` has a name for."""
    return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))


def nothing_else(op: Op) -> bool:
    """False for every op: `only_needed` keeps none but those that outputs depend on."""
    return False


def only_needed(net: Net, kept: Callable[[Op], bool] = nothing_else) -> Net:
    """The net without the ops and parameters that neither its outputs depend on, nor the ops that are `kept` whatever they give.

    Inputs stay: they are what the reader gives.
    """
    places = {place for place, op in enumerate(net.ops) if kept(op)}
    wanted = [*net.outputs, *(name for place in places for name in net.ops[place].inputs)]
    places.update(leading_to(net.ops, wanted))
    return net.with_ops(op for place, op in enumerate(net.ops) if place in places)


def with_heads(net: Net, heads: Net | None) -> Net:
    """The net and the ops that make heads of its values; its outputs, and behind these the heads."""
    if heads is None:
        return net
    blobs = [blob for name, blob in heads.blobs.items() if name not in net.blobs]
    both = replace(net, outputs=(*net.outputs, *heads.outputs), parameters={**net.parameters, **heads.parameters})
    return both.with_ops([*net.ops, *heads.ops], blobs)


def as_made(train: Net) -> Net:
    """The train net in which readers see a value as its maker made it, not what an encoding keeps of it."""
    made: dict[str, str] = {}
    ops = []
    for op in train.ops:
        if op.module == COMPRESS:
            made.update({output: made.get(op.inputs[0], op.inputs[0]) for output in op.outputs})
        else:
            ops.append(reading(op, made))
    return train.with_ops(ops)
