"""Which ops make a blob, which read it, which lead to it, and which it leads to.

All of these take ops in run order, so that a blob is written before it is read: a net's, or a run of them.
"""

from collections.abc import Callable, Iterable, Sequence

from htrain.net.names import TRAINER
from htrain.net.net import Net, Op


def makers(ops: Iterable[Op]) -> dict[str, int]:
    """The position of the op that writes each blob; inputs and parameters have none."""
    return {output: place for place, op in enumerate(ops) for output in op.outputs}


def readers(ops: Sequence[Op]) -> dict[str, list[int]]:
    """The positions of the ops that read each blob or parameter, in order, each once; of a blob that nobody reads, none.

    Names come in the order in which they are first read, those that nobody reads last.
    """
    found: dict[str, list[int]] = {}
    for place, op in enumerate(ops):
        for name in dict.fromkeys(op.inputs):
            found.setdefault(name, []).append(place)
    for name in makers(ops):
        found.setdefault(name, [])
    return found


def blobs_leading_to(ops: Sequence[Op], names: Iterable[str]) -> set[str]:
    """`names`, and the blobs, inputs and parameters that these are made of, directly or not."""
    found = set(names)
    for op in reversed(ops):
        if not found.isdisjoint(op.outputs):
            found.update(op.inputs)
    return found


def leading_to(ops: Sequence[Op], names: Iterable[str]) -> list[int]:
    """The positions of the ops that make the blobs `names`, or what these are made of, in order."""
    found = blobs_leading_to(ops, names)
    return [place for place, op in enumerate(ops) if not found.isdisjoint(op.outputs)]


def anything(name: str) -> bool:
    """True for every blob: `led_from` stops at none."""
    return True


def led_from(ops: Iterable[Op], names: Iterable[str], through: Callable[[str], bool] = anything) -> set[str]:
    """`names`, and the blobs that are made of them, directly or not, by way of blobs that are `through`."""
    found = set(names)
    for op in ops:
        if not found.isdisjoint(op.inputs):
            found.update(filter(through, op.outputs))
    return found


def homes(net: Net) -> dict[str, str]:
    """The device that makes each blob. Requires: every op is tagged.  Ensures: inputs are the trainer's."""
    return dict.fromkeys(net.inputs, TRAINER) | {output: op.node_name for op in net.ops for output in op.outputs}
