"""A trainer's step on its accelerator (cDLRM 5): dense layers, lookups out of caches and their optimizer steps; ids stay on the host."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.ops import OPS
from htrain.ops.accelerated import accelerated_type


def accelerate(net: Net) -> Net:
    """Have the ops of a net compute on an accelerator, all but those whose kernels take host memory only and those of integers from the host,
    which make the ids that caches are asked for.

    Ensures: inputs and received values are on the host, sent ones anywhere; a value that is used on the other side is brought there once.
    """
    host = set(net.inputs)
    blobs = dict(net.blobs)
    ops: list[Op] = []
    copies: dict[str, str] = {}

    def brought(name: str, *, to_host: bool) -> str:
        if name in net.parameters or (name in host) == to_host:
            return name
        if name not in copies:
            copies[name] = f"{name}_on_{'host' if to_host else 'accelerator'}"
            blobs[copies[name]] = replace(blobs[name], name=copies[name])
            kind = "ToHost" if to_host else "ToAccelerator"
            ops.append(Op(kind, (name,), (copies[name],), {}, node_name="", module="transfer"))
        return copies[name]

    for op in net.ops:
        on_host = _stays(net, op, host)
        inputs = op.inputs if op.type == "Send" else tuple(brought(name, to_host=on_host) for name in op.inputs)
        ops.append(replace(op, type=accelerated_type(op.type) if OPS[op.type].accelerated else op.type, inputs=inputs))
        host.update(op.outputs if on_host else ())
    return Net(net.name, tuple(ops), net.inputs, outputs=net.outputs, blobs=blobs, parameters=net.parameters)


def accelerated_parameters(net: Net) -> set[str]:
    """The parameters of an accelerated net that are on the accelerator: those that an op there takes, caches' slots among them."""
    ops = [op for op in net.ops if not OPS[op.type].on_host]
    return {name for op in ops for name in op.inputs if name in net.parameters}


def _stays(net: Net, op: Op, host: set[str]) -> bool:
    """Whether an op runs on the host."""
    if OPS[op.type].accelerated:
        return False
    integers = all(name in host and net.blobs[name].dtype == "int64" for name in op.inputs)
    return OPS[op.type].on_host or integers
