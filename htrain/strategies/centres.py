"""Rounds with centres: one sync net per holder of dense weights, and its counterpart on each host of centres (HT 3.2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from htrain.net.names import NetName, device_at, number_of
from htrain.net.net import Attr, Blob, Init, Net, Op, Parameter
from htrain.net.placement import spread
from htrain.ops.codec import Codec, weight_codec
from htrain.spec.centres import EACH, centre_name, hosts_of, in_group
from htrain.spec.dense_sync import DenseSync
from htrain.strategies.strategy import Strategy
from htrain.transform.init_nets import init_net

C = TypeVar("C", bound=DenseSync)
Call = tuple[str, tuple[str, ...], dict[str, Attr]]  # of an op: its type, inputs, attributes
Packet = tuple[str, int]  # the peer and the number of a message
NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})
_NOTHING = Init("constant", (0.0,))


class Centred(Strategy[C], ABC):
    """Every trained weight has a centre, on a dense PS or with one of the groups. A holder sends a snapshot of each, and takes what its centre answers.

    A round is one of each group by itself, or of all: where a strategy has something to `collect`, and its `absorb` is called with `barrier`, it is answered
    once the snapshots of all groups have been collected. There is nothing to do where there is one group.
    """

    def kept(self, centre: Parameter) -> Sequence[Parameter]:
        """What a host keeps of a weight: its centre, and what stands beside it."""
        return (centre,)

    def collect(self, centre: str, snapshot: str) -> Call | None:
        """The op that takes a snapshot to those of the other groups; None where no round waits for them."""
        return None

    def collect_statistic(self, centre: str, snapshot: str) -> Call | None:
        """The same for a running statistic, of which `kept` has made the centre."""
        return self.collect(centre, snapshot)

    @abstractmethod
    def absorb(self, centre: str, snapshot: str, answer: str) -> Call:
        """The op that takes a snapshot into the centre and makes the answer, or only makes it where snapshots are collected."""

    @abstractmethod
    def take(self, weight: str, answer: str) -> Call:
        """The op that takes the answer into a holder's weight."""

    def centers(self, parts: Mapping[str, Net]) -> Mapping[str, str]:
        hosts = hosts_of(self.section, self.cluster)
        return assign_centers(_holders(parts), hosts) if hosts else {}

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        centers = self.centers(parts)
        nets: dict[str, Net] = {}
        for holder, part in _holders(parts).items() if centers else ():
            sync, name = self.sync_net(holder, part, centers), NetName.sync(holder)
            nets[sync.name] = sync
            own = {name: p for name, p in sync.parameters.items() if name not in part.parameters}
            if own:
                nets[str(name.init)] = init_net(holder, replace(sync, parameters=own), self.options.seed)
            for host in sorted({centers[name] for name in part.parameters if name in centers}):
                center, name = self.center_net(host, holder, part, centers), NetName.centre(host, holder)
                nets[center.name] = center
                nets[str(name.init)] = init_net(str(name.run_by), center, self.options.seed)
        return nets

    def sync_net(self, holder: str, net: Net, centers: Mapping[str, str]) -> Net:
        """The net that sends a snapshot of every weight of `holder` to its centre and takes the answer."""
        made = _Made(holder)
        weights = _synced(net, centers)
        for weight in weights:
            made.parameters.append(weight)
            packet = centers[weight.name], _message(centers, weight, 0)
            snapshot = made.op("Snapshot", (weight.name,), weight, "snapshot")
            codec = self._codec(f"{weight.name}:moved", weight)
            if not codec:
                made.send([_blob(weight, "snapshot")], packet)
                continue
            sent = made.parameter(_known(weight, "sent"))
            before = made.op("Snapshot", (sent,), weight, "before")
            parts = made.encode(codec, made.op("Sub", (snapshot, before), weight, "moved"), weight)
            made.change("Advance", (sent, made.decode(codec, weight, "advance")), {}, weight)
            made.send(parts, packet)
        for weight in weights:
            packet = centers[weight.name], _message(centers, weight, 1)
            codec = self._codec(f"{weight.name}:difference", weight)
            if codec:
                made.receive(codec.parts, packet)
                answer = made.decode(codec, weight, "answer")
                made.change(*self.take(_known(weight, "sent").name, answer), weight)
            else:
                answer = made.receive([_blob(weight, "difference")], packet)
            made.change(*self.take(weight.name, answer), weight)
        return made.net(NetName.sync(holder))

    def center_net(self, host: str, holder: str, net: Net, centers: Mapping[str, str]) -> Net:
        """What `host` runs when a round of `holder` arrives: absorb each snapshot, and answer."""
        made = _Made(device_at(host, holder))
        for weight in (w for w in _synced(net, centers) if centers[w.name] == host):
            centre = _centre(weight, host)
            made.parameters += self.kept(centre)
            codecs = self._codec(f"{weight.name}:moved", weight), self._codec(f"{weight.name}:difference", weight)
            come, go = ((holder, _message(centers, weight, direction)) for direction in (0, 1))
            snapshot = self._arrived(made, weight, centre, codecs[0], come)
            collect = self.collect_statistic if weight.kind == "statistic" else self.collect
            if collected := collect(centre.name, snapshot):
                made.change(*collected, weight)
            type, inputs, attrs = self.absorb(centre.name, snapshot, f"{weight.name}:difference")
            answer = made.op(type, inputs, weight, "difference", attrs)
            if codecs[1]:
                made.change(*self.take(_known(centre, "known", each=True).name, answer), weight)
                self._owe(made, weight, centre=centre, codec=codecs[1], answer=answer, packet=go)
            else:
                made.send([_blob(weight, "difference")], go)
        return made.net(NetName.centre(host, holder))

    def _codec(self, name: str, weight: Parameter) -> Codec | None:
        """None for what travels as it is. Statistics do: they are few, and a variance that is a little off may be below 0."""
        if weight.kind == "statistic":
            return None
        shape = tuple(dim for dim in weight.shape if isinstance(dim, int))
        return weight_codec(name, shape, *self.section.travels_as) if self.section.encodes else None

    def _arrived(self, made: "_Made", weight: Parameter, centre: Parameter, codec: Codec | None, packet: Packet) -> str:
        """A holder's snapshot. Where differences travel, it is where the holder will be once it has all that it is owed."""
        if not codec:
            return made.receive([_blob(weight, "snapshot")], packet)
        made.receive(codec.parts, packet)
        known = made.parameter(_known(centre, "known", each=True))
        made.change("Advance", (known, made.decode(codec, weight, "advance")), {}, weight)
        return made.op("Snapshot", (known,), weight, "snapshot")

    def _owe(
        self, made: "_Made", weight: Parameter, centre: Parameter, codec: Codec, answer: str, packet: Packet
    ) -> None:
        """Send an answer as short as it is to be; what is left out is added to the holder's next one (error feedback)."""
        owed = made.parameter(replace(_known(centre, "owed", each=True), init=_NOTHING))
        made.change("Advance", (owed, answer), {}, weight)
        parts = made.encode(codec, made.op("Snapshot", (owed,), weight, "due"), weight)
        made.change("Relax", (owed, made.decode(codec, weight, "paid")), {}, weight)
        made.send(parts, packet)


class _Made:
    """A net of rounds while it is made: ops of one device."""

    def __init__(self, device: str) -> None:
        self.parameters: list[Parameter] = []
        self._device = device
        self._ops: list[Op] = []
        self._blobs: list[Blob] = []

    def parameter(self, parameter: Parameter) -> str:
        self.parameters.append(parameter)
        return parameter.name

    def op(
        self, type: str, inputs: tuple[str, ...], weight: Parameter, what: str, attrs: Mapping[str, Attr] = NO_ATTRS
    ) -> str:
        """An op that makes a blob of a weight's shape."""
        blob = _blob(weight, what)
        self._blobs.append(blob)
        self._ops.append(Op(type, inputs, (blob.name,), dict(attrs), node_name=self._device, module=weight.name))
        return blob.name

    def change(self, type: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr], weight: Parameter) -> None:
        """An op that changes parameters."""
        self._ops.append(Op(type, inputs, (), dict(attrs), node_name=self._device, module=weight.name))

    def encode(self, codec: Codec, blob: str, weight: Parameter) -> Sequence[Blob]:
        self._blobs += codec.parts
        self._ops.append(
            Op(codec.encode, (blob,), tuple(part.name for part in codec.parts), dict(codec.encode_attrs), node_name=self._device, module=weight.name),
        )  # fmt: skip
        return codec.parts

    def decode(self, codec: Codec, weight: Parameter, what: str) -> str:
        return self.op(codec.decode, tuple(part.name for part in codec.parts), weight, what, codec.decode_attrs)

    def send(self, blobs: Sequence[Blob], packet: Packet) -> None:
        to: dict[str, Attr] = {"peer": packet[0], "message": packet[1]}
        self._ops += [Op("Send", (blob.name,), (), to, node_name=self._device, module="send") for blob in blobs]

    def receive(self, blobs: Sequence[Blob], packet: Packet) -> str:
        """The name of the first."""
        of: dict[str, Attr] = {"peer": packet[0], "message": packet[1]}
        self._blobs += blobs
        self._ops += [Op("Recv", (), (blob.name,), of, node_name=self._device, module="recv") for blob in blobs]
        return blobs[0].name

    def net(self, name: NetName) -> Net:
        return Net(str(name), (), (), outputs=(), blobs={}, parameters={p.name: p for p in self.parameters}).with_ops(
            self._ops, self._blobs
        )


def _known(of: Parameter, what: str, *, each: bool = False) -> Parameter:
    """What one side knows that the other has of a weight, with its first value; a host has one for each group."""
    return replace(of, name=f"{of.name}:{what}{EACH if each else ''}", of=of.whole)


def collected(centre: Parameter) -> tuple[Parameter, Parameter]:
    """What snapshots are added up in, and how many there are: `:total` and `:arrived`, both nothing between rounds."""
    total = Parameter(f"{centre.name}:total", centre.shape, centre.dtype, "state", _NOTHING, of=centre.name)
    return total, Parameter(f"{centre.name}:arrived", (1,), "float32", "state", _NOTHING, of=centre.name)


def averaged(centre: str, snapshot: str, groups: int) -> Call:
    """The op by which a centre becomes the mean of the snapshots of all groups, with what `collected` keeps beside it."""
    return "AverageSnapshots", (centre, f"{centre}:total", f"{centre}:arrived", snapshot), {"groups": groups}


def assign_centers(holders: Mapping[str, Net], hosts: Sequence[str]) -> dict[str, str]:
    """The host of each trained weight's centre, balanced by bytes, the largest first: over all dense PSs, or over the groups for each holder."""
    found: dict[str, str] = {}
    for nets in [[net] for net in holders.values()] if in_group(hosts[0]) else [list(holders.values())]:
        weights = {p.name: p.num_bytes for net in nets for p in net.parameters.values() if _is_synced(p)}
        found.update({name: hosts[k] for name, k in spread(weights, len(hosts)).items()})
    return found


def _centre(weight: Parameter, host: str) -> Parameter:
    """A weight as its centre is, with its first value."""
    name = centre_name(weight.name, host)
    return weight if name == weight.name else replace(weight, name=name, of=weight.whole)


def _is_synced(parameter: Parameter) -> bool:
    return parameter.is_replicated


def _holders(parts: Mapping[str, Net]) -> dict[str, Net]:
    return {device: part for device, part in parts.items() if any(map(_is_synced, part.parameters.values()))}


def _synced(net: Net, centers: Mapping[str, str]) -> list[Parameter]:
    return [p for p in net.parameters.values() if p.name in centers]


def _blob(weight: Parameter, what: str) -> Blob:
    return Blob(f"{weight.name}:{what}", weight.shape, weight.dtype)


def _message(centers: Mapping[str, str], weight: Parameter, direction: int) -> int:
    """One message each way per host."""
    return 2 * number_of(centers[weight.name]) + direction
