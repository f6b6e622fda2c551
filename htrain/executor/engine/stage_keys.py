"""Where a device's net is cut into stages: what each op waits for (docs/decisions/engine.md)."""

from collections.abc import Iterator, Mapping, Sequence

from htrain.net.names import SPARSE_PS, TRAINER, role_of
from htrain.net.net import Net, Op
from htrain.net.slices import blobs_leading_to
from htrain.ops import OPS
from htrain.ops.comm import begin_signal
from htrain.ops.weights import WeightReaders

GATE = -1  # what optimizer steps of dense weights wait for besides messages, where a gate is: its grant
ROUND = -2  # what a pull of a bulk-synchronous server waits for: the pushes of all workers
ANNOUNCE, PREFETCH, PREPARE, TAKE_ROWS, COMPUTE = range(5)
StageKey = tuple[frozenset[int], int]


def stage_keys(net: Net, *, gated: bool) -> list[StageKey]:
    """What each op waits for: messages, through blobs or through the order of ops on one parameter.

    Where the trainer tells that a step has begun, what reads trained weights waits for that, or for another message of the trainer's.
    Weights are converted when they are first used: a pass that has begun, but waits for its inputs, has not read them (HT 3.1.1).
    """
    waits: dict[str, frozenset[int]] = {name: frozenset() for name in net.inputs}
    touched: dict[str, frozenset[int]] = {}
    changed: dict[str, frozenset[int]] = {}
    updated: frozenset[int] = frozenset()
    needs: list[frozenset[int]] = []
    late, weights = _late_casts(net), WeightReaders(net)
    from_trainer, begun = _from_trainer(net)
    for place, op in enumerate(net.ops):
        need: frozenset[int] = frozenset({message_of(op)}) if op.type == "Recv" else frozenset()
        need = need.union(*(waits[name] for name in op.inputs if name not in net.parameters))
        if weights.reads(op) and need.isdisjoint(from_trainer):
            need |= begun
        written = OPS[op.type].written(op)
        need = need.union(
            *(touched.get(name, frozenset()) for name in written),
            *(changed.get(name, frozenset()) for name in op.inputs),
        )
        if gated and OPS[op.type].steps_weights:
            need |= {GATE}
        if op.attrs.get("barrier"):
            need |= {ROUND}
        if op.type == "Ack":
            need |= updated
        for name in op.inputs:
            if name in net.parameters:
                touched[name] = touched.get(name, frozenset()) | need
        updated = updated | need if written else updated
        changed.update({name: changed.get(name, frozenset()) | need for name in written})
        waits.update(dict.fromkeys(op.outputs, need))
        needs.append(need)
        for cast in late.get(place, ()):
            needs[cast] = waits[net.ops[cast].outputs[0]] = need
            (weight,) = net.ops[cast].inputs
            touched[weight] = touched.get(weight, frozenset()) | need
    leading = blobs_leading_to(net.ops, _ask_ahead(net, waits))
    announces = any(OPS[op.type].phase == "announce" for op in net.ops)
    kinds = [_kind(op, need, leading, announces) for op, need in zip(net.ops, needs, strict=True)]
    return list(zip(needs, _prepared(net, needs, kinds), strict=True))


def _prepared(net: Net, needs: Sequence[frozenset[int]], kinds: Sequence[int]) -> Iterator[int]:
    """The kinds, where slots and what an accelerator takes are made ahead of a step, in a stage of their own, with all that these are made of."""
    packed = [name for op in net.ops if OPS[op.type].phase == "prepare" for name in op.outputs]
    made = blobs_leading_to(net.ops, packed)
    for op, need, kind in zip(net.ops, needs, kinds, strict=True):
        yield PREPARE if kind == COMPUTE and not need and not made.isdisjoint(op.outputs) else kind


def _from_trainer(net: Net) -> tuple[frozenset[int], frozenset[int]]:
    """The messages that the trainer sends once a step has begun; and the one of them, if it is there, that says just this."""
    received = [op for op in net.ops if op.type == "Recv" and op.attrs["peer"] == TRAINER]
    signals = (op for op in received if op.outputs[0] == begin_signal(op.node_name))
    return frozenset(map(message_of, received)), frozenset(map(message_of, signals))


def _late_casts(net: Net) -> dict[int, list[int]]:
    """By the place of the first op that reads them: the places of weights' conversions, where nothing writes the weight in between."""
    found: dict[int, list[int]] = {}
    for place, op in enumerate(net.ops):
        if op.type != "Cast" or op.inputs[0] not in net.parameters:
            continue
        for later, other in enumerate(net.ops[place + 1 :], place + 1):
            if op.outputs[0] in other.inputs:
                found.setdefault(later, []).append(place)
            if op.outputs[0] in other.inputs or op.inputs[0] in OPS[other.type].written(other):
                break
    return found


def _kind(op: Op, need: frozenset[int], leading: set[str], announces: bool) -> int:
    definition = OPS[op.type]
    if definition.phase == "announce":
        return COMPUTE if need else ANNOUNCE
    if not need and _prefetches(op, leading):
        return ANNOUNCE if announces and not definition.transfer and definition.phase != "ask" else PREFETCH
    return TAKE_ROWS if definition.phase == "take" else COMPUTE


def _ask_ahead(net: Net, waits: Mapping[str, frozenset[int]]) -> Iterator[str]:
    """The ids that sparse PSs are asked for, where these wait for nothing, and those that a window is prefetched by."""
    for op in net.ops:
        if OPS[op.type].phase == "announce":
            yield from op.inputs
        elif op.type == "Send" and _asks_for_rows(op) and not waits[op.inputs[0]]:
            yield op.inputs[0]


def _prefetches(op: Op, leading: set[str]) -> bool:
    return _asks_for_rows(op) if op.type == "Send" else bool(leading.intersection(op.outputs))


def _asks_for_rows(op: Op) -> bool:
    return role_of(str(op.attrs["peer"])) == SPARSE_PS


def message_of(op: Op) -> int:
    """The number by which a Send and its Recv know each other in the nets of a plan."""
    message = op.attrs["message"]
    assert isinstance(message, int)
    return message
