"""A trainer's step on its accelerator (cDLRM 5): dense layers, lookups out of caches and their optimizer steps; ids stay on the host."""

from collections.abc import Collection
from dataclasses import replace

from htrain.net.net import Blob, Net, Op
from htrain.net.slices import blobs_leading_to
from htrain.ops import OPS
from htrain.ops.accelerated import accelerated_type
from htrain.ops.effects import in_order

_MOVES = ("ToAccelerator", "ToHost")


def accelerate(net: Net, device: str) -> Net:
    """Have the ops of a net compute on an accelerator, all but those whose kernels take host memory only and those of integers from the host,
    which make the ids that caches are asked for.

    Ensures: inputs and received values are on the host, sent ones anywhere; a value that is used on the other side is brought there once, all of
    those that are known before the step together.
    """
    return _packed(_moved(net, device), device)


def accelerated_parameters(net: Net) -> set[str]:
    """The parameters of an accelerated net that are on the accelerator: those that an op there takes, caches' slots among them."""
    ops = [op for op in net.ops if not OPS[op.type].on_host]
    return {name for op in ops for name in op.inputs if name in net.parameters}


def _moved(net: Net, device: str) -> Net:
    host = set(net.inputs)
    blobs = dict(net.blobs)
    ops: list[Op] = []
    copies: dict[str, str] = {}

    def brought(name: str, *, to_host: bool) -> str:
        if name in net.parameters or (name in host) == to_host:
            return name
        if name not in copies:
            copies[name] = f"{name}:on_{'host' if to_host else 'accelerator'}"  # no blob of a model has such a name
            blobs[copies[name]] = replace(blobs[name], name=copies[name])
            kind, attrs = ("ToHost", {}) if to_host else ("ToAccelerator", {"device": device})
            ops.append(Op(kind, (name,), (copies[name],), attrs, node_name="", module="transfer"))
        return copies[name]

    for op in net.ops:
        on_host, shapes = _stays(net, op, host), OPS[op.type].shaped_by(op)
        inputs = op.inputs
        if op.type != "Send":
            inputs = tuple(name if name in shapes else brought(name, to_host=on_host) for name in op.inputs)
        ops.append(replace(op, type=accelerated_type(op.type) if OPS[op.type].accelerated else op.type, inputs=inputs))
        host.update(op.outputs if on_host else ())
    return Net(net.name, tuple(ops), net.inputs, outputs=net.outputs, blobs=blobs, parameters=net.parameters)


def _stays(net: Net, op: Op, host: Collection[str]) -> bool:
    """Whether an op runs on the host, where the blobs `host` are."""
    if OPS[op.type].accelerated:
        return False
    integers = all(name in host and net.blobs[name].dtype == "int64" for name in op.inputs)
    return OPS[op.type].on_host or integers


def _packed(net: Net, device: str) -> Net:
    """What is known on the host before any stage that computes goes to the accelerator in one copy."""
    early = _known_early(net)
    copies = [op for op in net.ops if op.type == "ToAccelerator" and op.inputs[0] in early]
    if not copies:
        return net
    first = copies[0]
    packet = Blob(":packet", (), "int64")
    moved = tuple(op.inputs[0] for op in copies)
    pack = replace(first, type="PackBatch", inputs=moved, outputs=(packet.name,))
    unpack = replace(first, type="UnpackBatch", inputs=(packet.name,), outputs=tuple(op.outputs[0] for op in copies), attrs={})  # fmt: skip
    rest = [op for op in net.ops if op not in copies]
    leading = blobs_leading_to(rest, moved)
    before = [op for op in rest if not leading.isdisjoint(op.outputs) or OPS[op.type].phase == "announce"]
    after = [op for op in rest if op not in before]
    return net.with_ops(in_order(net, [*before, pack, unpack, *after]), [packet])


def _known_early(net: Net) -> set[str]:
    """Blobs on the host that are made of the batch, and of what its ids have in the caches, alone."""
    known = set(net.inputs)
    for op in net.ops:
        blobs = [name for name in op.inputs if name not in net.parameters]
        is_known = known.issuperset(blobs) and bool(blobs)
        if is_known and op.type not in _MOVES and not OPS[op.type].transfer and _stays(net, op, known):
            known.update(op.outputs)
    return known
