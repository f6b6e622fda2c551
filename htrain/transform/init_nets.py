"""Init nets: first values of every parameter, on its owner (HT 3.2.1, 3.2.2)."""

import hashlib

from htrain.net.names import NetName
from htrain.net.net import Attr, Net, Op, Parameter

_FILLS = {
    "constant": ("ConstantFill", ("value",)),
    "uniform": ("UniformFill", ("low", "high")),
    "normal": ("NormalFill", ("mean", "std")),
}


def init_net(device: str, net: Net, seed: int) -> Net:
    """The net that fills every parameter of `net`, which `device` runs, but for caches: they begin empty.

    Ensures: a value depends on `seed`, the parameter's name and the place in it alone: parts of it and groups agree.
    """
    filled = [parameter for parameter in net.parameters.values() if parameter.kind != "cache"]
    ops = [op for parameter in filled for op in _fill(device, parameter, seed)]
    return Net(str(NetName.step(device).init), (), (), outputs=(), blobs={}, parameters=dict(net.parameters)).with_ops(
        ops
    )


def _fill(device: str, parameter: Parameter, seed: int) -> list[Op]:
    init = parameter.init
    if init.kind == "file":
        attrs: dict[str, Attr] = {"first_row": parameter.first_row, "first_column": parameter.first_column}
        return [Op("FileFill", (parameter.name,), (), attrs, node_name=device, module=parameter.name)]
    type, names = _FILLS[init.kind]
    attrs = dict(zip(names, init.arguments, strict=True))
    if init.kind != "constant":
        attrs |= {"seed": _seed(parameter, seed), "first_row": parameter.first_row}
        attrs |= {"first_column": parameter.first_column} if parameter.first_column else {}
    ops = [Op(type, (parameter.name,), (), attrs, node_name=device, module=parameter.name)]
    if init.zero_rows:
        attrs = {"rows": init.zero_rows, "first_row": parameter.first_row}
        ops.append(Op("ZeroRows", (parameter.name,), (), attrs, node_name=device, module=parameter.name))
    return ops


def _seed(parameter: Parameter, seed: int) -> int:
    """A seed of its own for every parameter; the parts of one share the whole's."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{parameter.whole}".encode(), digest_size=7).digest(), "big")
