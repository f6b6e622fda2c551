"""A tagged train net as parts, a module's ops on one device each, and the values that one part makes and another reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from htrain.net.net import COMPRESS, Net, Op

READER = "reader"


@dataclass(frozen=True)
class Part:
    """What a module computes forward on one device. `depth` counts the ops before it, `kinds` are the types of its forward ops, and
    `num_ops` counts all of its ops there, gradients and optimizer steps included. The reader of batches is a part, too, without ops."""

    module: str
    device: str
    depth: int
    kinds: tuple[str, ...]
    num_ops: int


@dataclass(frozen=True)
class Value:
    """A blob that part `source` makes and part `target` reads, by their numbers: `num_bytes` of an example, as it travels.
    `back` is the way of gradients."""

    name: str
    source: int
    target: int
    num_bytes: float
    back: bool


def parts_of(net: Net) -> tuple[Part, ...]:
    """The parts of a train net, in run order of their first ops; the reader first."""
    kinds: dict[tuple[str, str], list[str]] = {(READER, "trainer"): []}
    depth: dict[tuple[str, str], int] = {(READER, "trainer"): 0}
    num_ops: dict[tuple[str, str], int] = {}
    made: dict[str, int] = {}
    for op, back in _directed(net):
        key = op.module, op.node_name
        below = 1 + max((made.get(name, 0) for name in op.inputs), default=0)
        made.update(dict.fromkeys(op.outputs, below))
        if op.module == COMPRESS:
            continue
        num_ops[key] = num_ops.get(key, 0) + 1
        if not back:
            depth.setdefault(key, below)
            kinds.setdefault(key, []).append(op.type)
    return tuple(Part(*key, depth[key], tuple(types), num_ops.get(key, 0)) for key, types in kinds.items())


def _directed(net: Net) -> Iterator[tuple[Op, bool]]:
    """The ops, and whether each belongs to the way back."""
    back = False
    for op in net.ops:
        back = back or op.type == "GradientSeed"
        yield op, back


@dataclass
class _Made:
    """Blobs by name: the part that made each, the device that it is on, and its bytes.

    The bytes of a decoded value are those of what was sent for it.
    """

    part: dict[str, int] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    num_bytes: dict[str, float] = field(default_factory=dict)
    back: dict[str, bool] = field(default_factory=dict)


def values_between(net: Net, parts: Sequence[Part], batch_size: int) -> Iterator[Value]:
    """Every blob that one part makes and another reads, once for each reader; of encoded ones, what travels."""
    number = {(part.module, part.device): index for index, part in enumerate(parts)}
    made = _Made()
    for name in net.inputs:
        made.part[name], made.device[name], made.back[name] = number[READER, "trainer"], "trainer", False
        made.num_bytes[name] = _size(net, name, batch_size)
    seen: set[tuple[str, int]] = set()
    for op, back in _directed(net):
        home = number.get((op.module, op.node_name), -1)
        for name in op.inputs:
            source = made.part.get(name, -1)
            if -1 in (source, home) or source == home or (name, home) in seen or op.module == COMPRESS:
                continue
            seen.add((name, home))
            yield Value(name, source, home, made.num_bytes[name], made.back[name])
        _note(op, net, made, home=home, back=back, batch_size=batch_size)


def _note(op: Op, net: Net, made: _Made, *, home: int, back: bool, batch_size: int) -> None:
    """Note what `op` makes; an encoded or decoded value belongs to the part that made the value itself."""
    coded = op.module == COMPRESS
    sent = sum(made.num_bytes[name] for name in op.inputs if made.device.get(name, op.node_name) != op.node_name)
    for name in op.outputs:
        made.part[name] = made.part.get(op.inputs[0], -1) if coded else home
        made.back[name] = made.back.get(op.inputs[0], back) if coded else back
        made.num_bytes[name] = sent if coded and sent else _size(net, name, batch_size)
        made.device[name] = op.node_name


def _size(net: Net, name: str, batch_size: int) -> float:
    return net.blobs[name].num_bytes(batch_size) / batch_size
