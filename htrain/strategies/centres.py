"""Rounds through dense PSs: one sync net per holder of dense weights, and its counterpart on each dense PS (HT 3.2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from htrain.net import Attr, Blob, Net, Op, Parameter
from htrain.placement import spread
from htrain.plan import net_name
from htrain.spec.dense_sync import DenseSync
from htrain.strategies.strategy import Strategy
from htrain.transform.init_nets import init_net

C = TypeVar("C", bound=DenseSync)


class Centred(Strategy[C], ABC):
    """Dense PSs hold a centre of every trained weight. A holder sends a snapshot of each, and takes what its centre answers.

    There is nothing to do where there is one group.
    """

    @abstractmethod
    def absorb(self, weight: str, snapshot: str, answer: str) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
        """The op that takes a snapshot into the centre and makes the answer: type, inputs, attributes."""

    @abstractmethod
    def take(self, weight: str, answer: str) -> tuple[str, tuple[str, ...], dict[str, Attr]]:
        """The op that takes the answer into a holder's weight."""

    def centers(self, parts: Mapping[str, Net]) -> Mapping[str, str]:
        return assign_centers(_holders(parts), self.cluster.dense_ps) if self.section.has_rounds(self.cluster) else {}

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        centers = self.centers(parts)
        nets: dict[str, Net] = {}
        for holder, part in _holders(parts).items() if centers else ():
            nets[f"sync_{net_name(holder)}"] = self.sync_net(holder, part, centers)
            for dense_ps in sorted({centers[name] for name in part.parameters if name in centers}):
                center = self.center_net(dense_ps, holder, part, centers)
                nets[center.name] = center
                nets["init_" + center.name] = init_net(dense_ps, center, self.options.seed)
        return nets

    def sync_net(self, holder: str, net: Net, centers: Mapping[str, str]) -> Net:
        """The net that sends a snapshot of every weight of `holder` to its centre and takes the answer."""
        ops: list[Op] = []
        weights = _synced(net, centers)
        for weight in weights:
            sent, _ = _names(weight)
            to: dict[str, Attr] = {"peer": centers[weight.name], "message": _message(centers, weight, 0)}
            ops += [Op("Snapshot", (weight.name,), (sent.name,), {}, holder, weight.name), Op("Send", (sent.name,), (), to, holder, "send")]
        for weight in weights:
            _, answer = _names(weight)
            type, inputs, attrs = self.take(weight.name, answer.name)
            back: dict[str, Attr] = {"peer": centers[weight.name], "message": _message(centers, weight, 1)}
            ops += [Op("Recv", (), (answer.name,), back, holder, "recv"), Op(type, inputs, (), attrs, holder, weight.name)]
        return _net(f"sync_{net_name(holder)}", ops, weights)

    def center_net(self, dense_ps: str, holder: str, net: Net, centers: Mapping[str, str]) -> Net:
        """What `dense_ps` runs when a round of `holder` arrives: absorb each snapshot, and answer."""
        ops: list[Op] = []
        weights = [w for w in _synced(net, centers) if centers[w.name] == dense_ps]
        for weight in weights:
            sent, answer = _names(weight)
            type, inputs, attrs = self.absorb(weight.name, sent.name, answer.name)
            ops += [
                Op("Recv", (), (sent.name,), {"peer": holder, "message": _message(centers, weight, 0)}, dense_ps, "recv"),
                Op(type, inputs, (answer.name,), attrs, dense_ps, weight.name),
                Op("Send", (answer.name,), (), {"peer": holder, "message": _message(centers, weight, 1)}, dense_ps, "send"),
            ]
        return _net(f"center_{net_name(dense_ps)}_{net_name(holder)}", ops, weights)


def assign_centers(holders: Mapping[str, Net], num_dense_ps: int) -> dict[str, str]:
    """The dense PS of each trained weight, balanced by bytes, the largest first."""
    weights = [p for net in holders.values() for p in net.parameters.values() if _is_synced(p)]
    places = spread({weight.name: weight.num_bytes for weight in weights}, num_dense_ps)
    return {name: f"dense_ps:{k}" for name, k in places.items()}


def _is_synced(parameter: Parameter) -> bool:
    return parameter.kind == "weight" and parameter.trained


def _holders(parts: Mapping[str, Net]) -> dict[str, Net]:
    return {device: part for device, part in parts.items() if any(map(_is_synced, part.parameters.values()))}


def _synced(net: Net, centers: Mapping[str, str]) -> list[Parameter]:
    return [p for p in net.parameters.values() if p.name in centers]


def _names(weight: Parameter) -> tuple[Blob, Blob]:
    """The snapshot of a weight and the answer to it, as they travel."""
    return Blob(f"{weight.name}:snapshot", weight.shape, weight.dtype), Blob(f"{weight.name}:difference", weight.shape, weight.dtype)


def _message(centers: Mapping[str, str], weight: Parameter, direction: int) -> int:
    """One message each way per dense PS."""
    return 2 * int(centers[weight.name].split(":")[1]) + direction


def _net(name: str, ops: list[Op], weights: list[Parameter]) -> Net:
    blobs = {blob.name: blob for weight in weights for blob in _names(weight)}
    return Net(name, (), (), (), {}, {w.name: w for w in weights}).with_ops(ops, blobs.values())
