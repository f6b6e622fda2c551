"""Values that travel, encoded by their maker and decoded by each reader (HT 4.2)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from htrain.net.names import IN_GROUP, Device, role_of
from htrain.net.net import COMPRESS, Blob, Net, Op
from htrain.net.placement import Encoding
from htrain.net.rewriting import reading
from htrain.net.slices import homes
from htrain.ops.codec import codec_of
from htrain.spec.options import Options


def compress_values(net: Net, encodings: Mapping[str, Encoding], options: Options) -> Net:
    """Encode the blobs that `encodings` names where a device of the group reads them that does not make them.

    Requires: every op is tagged.
    Ensures:  on its own device a blob is as it was; elsewhere in the group its readers see what its encoding keeps. Sparse PSs
              see it as it was.
    """
    return encode_crossing(net, encodings, options, lambda maker, reader: _in_group(maker) and _in_group(reader))


def encode_crossing(
    net: Net, encodings: Mapping[str, Encoding], options: Options, crosses: Callable[[str, str], bool]
) -> Net:
    """Encode blobs where `crosses` says so of the device that makes one and another that reads it."""
    home = homes(net)
    away: dict[str, list[str]] = {}  # blob -> the devices that get it encoded
    for op in net.ops:
        for name in op.inputs:
            if name in encodings and op.node_name != home[name] and crosses(home[name], op.node_name):
                away.setdefault(name, []).append(op.node_name)
    ops: list[Op] = []
    blobs: list[Blob] = []

    def travel(name: str) -> None:
        codec = codec_of(net.blobs[name], encodings[name])
        parts = tuple(part.name for part in codec.parts)
        ops.append(Op(codec.encode, (name,), parts, dict(codec.encode_attrs), node_name=home[name], module=COMPRESS))
        for device in dict.fromkeys(away[name]):
            decoded = _at(name, encodings[name], device)
            ops.append(Op(codec.decode, parts, (decoded,), dict(codec.decode_attrs), node_name=device, module=COMPRESS))
            blobs.append(replace(net.blobs[name], name=decoded))
        blobs.extend(codec.parts)

    for name in net.inputs:
        if name in away:
            travel(name)
    for op in net.ops:
        mine = (name for name in op.inputs if op.node_name in away.get(name, ()))
        ops.append(reading(op, {name: _at(name, encodings[name], op.node_name) for name in mine}))
        for name in op.outputs:
            if name in away:
                travel(name)
    return net.with_ops(ops, blobs)


def _at(name: str, encoding: Encoding, device: str) -> str:
    """The name of a decoded blob on one device: it is not quite the blob that was encoded."""
    return f"{name}/{encoding}/{Device.parse(device).plain}"


def _in_group(device: str) -> bool:
    return role_of(device) in IN_GROUP
