"""EASGD in the background: one sync net per holder of dense weights, and its counterpart on each dense PS (HT 3.2.2)."""

from collections.abc import Mapping

from htrain.net import Attr, Blob, Net, Op, Parameter
from htrain.placement import spread


def assign_centers(holders: Mapping[str, Net], num_dense_ps: int) -> dict[str, str]:
    """The dense PS of each trained weight, balanced by bytes, the largest first."""
    weights = [p for net in holders.values() for p in net.parameters.values() if p.kind == "weight" and p.trained]
    places = spread({weight.name: weight.num_bytes for weight in weights}, num_dense_ps)
    return {name: f"dense_ps:{k}" for name, k in places.items()}


def sync_net(holder: str, net: Net, centers: Mapping[str, str]) -> Net:
    """The net that sends every weight of `holder` to its centre and takes the elastic difference back."""
    ops: list[Op] = []
    weights = _synced(net, centers)
    for weight in weights:
        sent, _ = _names(weight)
        ops += [
            Op("Snapshot", (weight.name,), (sent.name,), {}, holder, weight.name),
            Op(
                "Send",
                (sent.name,),
                (),
                {"peer": centers[weight.name], "message": _message(centers, weight, 0)},
                holder,
                "send",
            ),
        ]
    for weight in weights:
        _, difference = _names(weight)
        attrs: dict[str, Attr] = {"peer": centers[weight.name], "message": _message(centers, weight, 1)}
        ops += [
            Op("Recv", (), (difference.name,), attrs, holder, "recv"),
            Op("Relax", (weight.name, difference.name), (), {}, holder, weight.name),
        ]
    return _net(f"sync_{holder.replace(':', '_')}", ops, weights)


def center_net(dense_ps: str, holder: str, net: Net, centers: Mapping[str, str], alpha: float) -> Net:
    """What `dense_ps` runs when a round of `holder` arrives: absorb each snapshot, answer with the difference."""
    ops: list[Op] = []
    weights = [w for w in _synced(net, centers) if centers[w.name] == dense_ps]
    for weight in weights:
        sent, difference = _names(weight)
        ops += [
            Op("Recv", (), (sent.name,), {"peer": holder, "message": _message(centers, weight, 0)}, dense_ps, "recv"),
            Op(
                "ElasticDifference",
                (weight.name, sent.name),
                (difference.name,),
                {"alpha": alpha},
                dense_ps,
                weight.name,
            ),
            Op(
                "Send",
                (difference.name,),
                (),
                {"peer": holder, "message": _message(centers, weight, 1)},
                dense_ps,
                "send",
            ),
        ]
    return _net(f"center_{dense_ps}_{holder}".replace(":", "_"), ops, weights)


def _synced(net: Net, centers: Mapping[str, str]) -> list[Parameter]:
    return [p for p in net.parameters.values() if p.name in centers]


def _names(weight: Parameter) -> tuple[Blob, Blob]:
    return Blob(f"{weight.name}:snapshot", weight.shape, weight.dtype), Blob(
        f"{weight.name}:difference", weight.shape, weight.dtype
    )


def _message(centers: Mapping[str, str], weight: Parameter, direction: int) -> int:
    """One message each way per dense PS."""
    return 2 * int(centers[weight.name].split(":")[1]) + direction


def _net(name: str, ops: list[Op], weights: list[Parameter]) -> Net:
    blobs = {blob.name: blob for weight in weights for blob in _names(weight)}
    return Net(name, (), (), (), {}, {w.name: w for w in weights}).with_ops(ops, blobs.values())
