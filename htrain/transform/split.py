"""Cut the tagged train net into one net per device (HT 3.2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from htrain.errors import PlanError
from htrain.net.names import GROUP_PS, SPARSE_PS, TRAINER, WORKERS, net_name, role_of
from htrain.net.net import Blob, Net, Op
from htrain.net.slices import blobs_leading_to, homes
from htrain.ops import OPS
from htrain.ops.comm import begin_signal, done_signal
from htrain.ops.weights import WeightReaders

GATE = -1  # optimizer steps of dense weights wait for the staleness gate, too: what they write is a stage of its own


@dataclass
class _Part:
    """One device's net in the making. `needs[blob]` is the set of messages that the blob waits for, directly or not;
    `lookup` holds the ops whose only use is to find out which rows to ask for."""

    ops: list[Op] = field(default_factory=list)
    received: set[str] = field(default_factory=set)


# What values must have in common to travel as one: the device that makes them, the messages that they wait for, whether
# they only lead to lookups, and their bucket.
MessageKey = tuple[str, frozenset[int], bool, str]


def split_by_node(net: Net, devices: Sequence[str] = ()) -> dict[str, Net]:
    """Cut `net` where an edge crosses node_names; put a Send/Recv pair on each cut edge.

    Requires: every op is tagged; ops are in def-before-use order.
    Ensures:  every device of `devices` has a net, be it an empty one; running the nets together computes what `net` computes;
              there is exactly one Send and one Recv per (blob, reader); values that become ready together and go the same
              way carry the same `message` number and travel as one; each device that updates parameters acknowledges the
              end of the step to the trainer; the trainer tells the beginning of the step to each device that sends what waits
              for nothing, such as what is computed of parameters alone. No device reads a trained dense weight for a step before
              the trainer has begun it: the rows of the next step may be there long before (HT 3.1.1's bound on staleness counts
              the steps that have begun).
    """
    cutter = _cut(net, devices, frozenset())
    if cutter.early:  # a device that waits for the beginning makes others wait, never fewer: a second cut is the last
        cutter = _cut(net, devices, frozenset(cutter.early))
    return {device: cutter.finish(device) for device in cutter.parts}


def _cut(net: Net, devices: Sequence[str], begun: frozenset[str]) -> "_Cutter":
    """The net cut once; the devices of `begun` wait with dense weights until they are told that the step has begun."""
    cutter = _Cutter(net, begun)
    for device in devices:
        cutter.parts.setdefault(device, _Part())
    for op in net.ops:
        cutter.place(op)
    for output in net.outputs:
        cutter.fetch(output, TRAINER)
    for device in list(cutter.parts):
        cutter.acknowledge(device)
    return cutter


class _Cutter:
    """The state of one cut: parts by device, and what every blob and parameter on a device waits for.

    `ahead` are the messages that may come before their step has begun: what asks for its rows, and what follows from that alone; those
    `from_trainer` come later. `early` are the devices that would read a trained dense weight for a step that has not begun.
    """

    def __init__(self, net: Net, begun: frozenset[str]) -> None:
        self.net = net
        self.begun = begun
        self.early: set[str] = set()
        self.ahead: set[int] = set()
        self.from_trainer: set[int] = set()
        self.weights = WeightReaders(net)
        self.parts: dict[str, _Part] = {TRAINER: _Part()}
        self.home = homes(net)
        asked = (name for op in net.ops for name in OPS[op.type].asked_by(op))
        # needed only, or first, to know which rows to look up: their messages may leave before the step begins
        self.leads_to_lookup = blobs_leading_to(net.ops, asked)
        self.waits: dict[tuple[str, str], frozenset[int]] = {(TRAINER, name): frozenset() for name in net.inputs}
        self.touched: dict[
            str, frozenset[int]
        ] = {}  # parameter -> messages that its readers and writers so far wait for
        self.updated: dict[str, frozenset[int]] = {}  # device -> messages that its updates wait for
        self.messages: dict[tuple[MessageKey, str], int] = {}
        self.signals: dict[str, Blob] = {}

    def place(self, op: Op) -> None:
        """Append `op` to its device's net, fetching what it reads from elsewhere."""
        device = op.node_name
        if not device:
            raise PlanError(f"{op.label} has no node_name")
        part = self.parts.setdefault(device, _Part())
        waits: frozenset[int] = frozenset()
        for name in op.inputs:
            if name not in self.net.parameters:
                self.fetch(name, device, _travels_apart(op))
                waits |= self.waits[device, name]
        waits |= self._beginning(op, waits)
        if OPS[op.type].steps_weights:
            waits |= {GATE}
        waits |= self._order_on_parameters(op, waits)
        part.ops.append(op)
        self.waits.update({(device, output): waits for output in op.outputs})

    def _beginning(self, op: Op, waits: frozenset[int]) -> frozenset[int]:
        """What an op waits for besides `waits` because it reads a trained dense weight: a message of the trainer, for the step has begun then."""
        device = op.node_name
        if not self.weights.reads(op) or role_of(device) != GROUP_PS or not waits.isdisjoint(self.from_trainer):
            return frozenset()
        if device in self.begun:
            self.begin(device)
            return self.waits[device, begin_signal(device)]
        if waits <= self.ahead:
            self.early.add(device)
        return frozenset()

    def _order_on_parameters(self, op: Op, waits: frozenset[int]) -> frozenset[int]:
        """An op that writes a parameter comes after all that touched it before, also when no blob says so."""
        written = OPS[op.type].written(op)
        for name in op.inputs:
            if name in self.net.parameters:
                if name in written:
                    waits |= self.touched.get(name, frozenset())
                self.touched[name] = self.touched.get(name, frozenset()) | waits
        if written:
            self.updated[op.node_name] = self.updated.get(op.node_name, frozenset()) | waits
        return waits

    def fetch(self, name: str, device: str, bucket: str = "") -> None:
        """Make blob `name` known on `device`: a Send where it is made, a Recv here, once. A `bucket` travels by itself."""
        home = self.home[name]
        part = self.parts[device]
        if home == device or name in part.received:
            return
        if home != TRAINER and not self.waits[home, name]:
            self.begin(home)
        key = (home, self.waits[home, name], name in self.leads_to_lookup, bucket)
        message = self._number(key, device)
        if self.waits[home, name] <= self.ahead and (home != TRAINER or role_of(device) == SPARSE_PS):
            self.ahead.add(message)
        elif home == TRAINER:
            self.from_trainer.add(message)
        self.parts[home].ops.append(
            Op("Send", (name,), (), {"peer": device, "message": message}, node_name=home, module="send")
        )
        part.ops.append(Op("Recv", (), (name,), {"peer": home, "message": message}, node_name=device, module="recv"))
        part.received.add(name)
        self.waits[device, name] = frozenset({message})

    def _number(self, key: MessageKey, reader: str) -> int:
        return self.messages.setdefault((key, reader), len(self.messages))

    def begin(self, device: str) -> None:
        """Before all else, tell `device` that the step has begun."""
        blob = Blob(begin_signal(device), (0,), "int8")
        if blob.name in self.signals:
            return
        self.signals[blob.name] = blob
        self.parts[TRAINER].ops.insert(0, Op("Begin", (), (blob.name,), {}, node_name=TRAINER, module="begin"))
        self.home[blob.name] = TRAINER
        self.waits[TRAINER, blob.name] = frozenset()
        self.fetch(blob.name, device)

    def acknowledge(self, device: str) -> None:
        """After all updates of `device`, tell the trainer."""
        if device == TRAINER or device not in self.updated:
            return
        blob = Blob(done_signal(device), (0,), "int8")
        self.signals[blob.name] = blob
        self.parts[device].ops.append(Op("Ack", (), (blob.name,), {}, node_name=device, module="ack"))
        self.home[blob.name] = device
        self.waits[device, blob.name] = self.updated[device]
        self.fetch(blob.name, TRAINER)

    def finish(self, device: str) -> Net:
        """The net of one device: sends stand right after the op that makes their value."""
        ops = _sends_early(self.parts[device].ops)
        declared = replace(self.net, blobs={**self.net.blobs, **self.signals})
        inputs = tuple(name for name in self.net.inputs) if device == TRAINER else ()
        outputs = self.net.outputs if device == TRAINER else ()
        return replace(declared, name=net_name(device), inputs=inputs, outputs=outputs).with_ops(ops)


def _travels_apart(op: Op) -> str:
    """What an op reads in a message of its own: a bucket of gradients, and the requests of all caches, which a flush sends alone."""
    return op.module if op.node_name == WORKERS else "caches" if OPS[op.type].serves_cache else ""


def _sends_early(ops: Sequence[Op]) -> list[Op]:
    """Sends moved up behind the op (or input) that makes their value, in a stable order."""
    after: dict[str, list[Op]] = {}
    made = {output for op in ops for output in op.outputs}
    for op in ops:
        if op.type == "Send":
            after.setdefault(op.inputs[0] if op.inputs[0] in made else "", []).append(op)
    moved = list(after.get("", ()))
    for op in ops:
        if op.type != "Send":
            moved.append(op)
            moved += [send for output in op.outputs for send in after.get(output, ())]
    return moved
