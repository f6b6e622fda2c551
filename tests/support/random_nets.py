"""Random nets of one device, and what they compute op by op: what a program must agree with, in whatever order messages come.

Every blob and parameter is float32[2,3]. A net reads a parameter before it writes it, as the compiler's do.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from interpreter import run_op

from htrain.executor.engine.stage_keys import GATE
from htrain.net.net import Attr, Blob, Init, Net, Op, Parameter
from htrain.ops import OPS
from htrain.ops.base import constant_of

SHAPE = (2, 3)
DEVICE = "group_ps:0"
PEERS = ("trainer", "group_ps:1", "sparse_ps:0")
WEIGHTS, TABLES = ("w0", "w1", "w2"), ("t0", "t1")
Letter = tuple[str, str]  # to whom, which blob


@dataclass
class _Writer:
    draw: random.Random
    ops: list[Op] = field(default_factory=list)
    blobs: list[str] = field(default_factory=lambda: ["x0", "x1"])
    messages: int = 0

    def add(self, type: str, *inputs: str, outputs: int = 1, **attrs: Attr) -> None:
        made = tuple(f"b{len(self.blobs) + i}" for i in range(outputs))
        self.ops.append(Op(type, inputs, made, attrs, DEVICE, f"op{len(self.ops)}"))
        self.blobs += made

    def blob(self) -> str:
        return self.draw.choice(self.blobs)

    def number(self) -> int:
        self.messages += 1
        return self.messages - 1

    def one(self) -> None:
        """One more op that writes no parameter."""
        kind = self.draw.choice(
            ("recv", "recv", "unary", "binary", "read", "view", "constant", "split", "send", "send")
        )
        if kind == "recv":
            peer, message = self.draw.choice(PEERS), self.number()
            for _ in range(self.draw.choice((1, 2))):
                self.add("Recv", peer=peer, message=message)
        elif kind == "unary":
            self.add(self.draw.choice(("Relu", "Sigmoid", "Tanh")), self.blob())
        elif kind == "binary":
            self.add(self.draw.choice(("Add", "Mul", "Sub")), self.blob(), self.blob())
        elif kind == "read":
            self.add("Mul", self.blob(), self.draw.choice(WEIGHTS + TABLES))
        elif kind == "view":
            self.add("Reshape", self.draw.choice(WEIGHTS), shape=SHAPE)
        elif kind == "constant":
            self.add("Constant", value=constant_of(torch.full(SHAPE, 0.5)))
        elif kind == "split":
            self.add("Split", self.blob(), axis=1, split=(3,))
        else:
            self.send(self.blob(), self.draw.choice(PEERS))

    def send(self, blob: str, peer: str) -> None:
        if not any(op.type == "Send" and (op.inputs[0], op.attrs["peer"]) == (blob, peer) for op in self.ops):
            self.add("Send", blob, outputs=0, peer=peer, message=-2)

    def update(self, name: str) -> None:
        """A step of one parameter, or an exchange with its centre."""
        kind = self.draw.choice(("step", "exchange", "none")) if name in TABLES else self.draw.choice(("step", "none"))
        if kind == "exchange":
            self.add("ElasticDifference", name, self.blob(), alpha=0.25)
        elif kind == "step":
            self.add(
                "Relax" if name in TABLES else "Sgd",
                name,
                self.blob(),
                outputs=0,
                **({} if name in TABLES else {"lr": 0.5}),
            )
        if kind != "none" and name in TABLES and self.draw.random() < 0.5:
            self.add("Snapshot", name)
            self.send(self.blobs[-1], self.draw.choice(PEERS[:2]))  # what sparse PSs are asked by is no parameter


def random_net(draw: random.Random) -> Net:
    """Some ops, then steps of some parameters, an Ack for them, and Sends of what was made; its outputs are one or two blobs."""
    writer = _Writer(draw)
    for _ in range(draw.randrange(1, 14)):
        writer.one()
    for name in draw.sample(WEIGHTS + TABLES, draw.randrange(len(WEIGHTS + TABLES))):
        writer.update(name)
    writer.add("Ack")
    writer.send(writer.blobs[-1], "trainer")
    blobs = {name: Blob(name, SHAPE, "float32") for name in writer.blobs}
    parameters = {
        name: Parameter(name, SHAPE, "float32", "weight" if name in WEIGHTS else "table", Init("constant", (0.0,)))
        for name in WEIGHTS + TABLES
    }
    outputs = tuple(draw.sample(writer.blobs, draw.choice((1, 2))))
    return _numbered(Net("random", tuple(writer.ops), ("x0", "x1"), outputs, blobs, parameters))


def _numbered(net: Net) -> Net:
    """The net with one message for the values that wait for the same and go the same way."""
    needs = messages_for(net)
    numbers: dict[tuple[object, frozenset[int]], int] = {}
    ops = []
    for op, need in zip(net.ops, needs, strict=True):
        if op.type == "Send":
            number = numbers.setdefault((op.attrs["peer"], need), 1000 + len(numbers))
            op = replace(op, attrs={**op.attrs, "message": number})
        ops.append(op)
    return replace(net, ops=tuple(ops))


def draw_values(names: tuple[str, ...], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(SHAPE, generator=generator) for name in names}


def run_in_order(
    net: Net, parameters: dict[str, torch.Tensor], arriving: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[Letter, torch.Tensor]]:
    """Run a net op by op, its inputs and received blobs in `arriving`: all blobs, and what is sent."""
    values = {name: arriving[name] for name in net.inputs}
    sent: dict[Letter, torch.Tensor] = {}
    for op in net.ops:
        if op.type == "Recv":
            values[op.outputs[0]] = arriving[op.outputs[0]]
        elif op.type == "Send":
            sent[str(op.attrs["peer"]), op.inputs[0]] = values[op.inputs[0]]
        else:
            run_op(net, op, parameters, values)
            values.update({name: values[name].clone() for name in op.outputs})
    return values, sent


def messages_for(net: Net) -> list[frozenset[int]]:
    """The messages that each op must wait for: of what it reads, of what touched a parameter before it writes it, of what wrote one before it reads
    it, of updates before an Ack.

    A step of a dense weight waits for the gate, too.
    """
    needs: list[frozenset[int]] = []
    for j, op in enumerate(net.ops):
        written = OPS[op.type].written(op)
        before = [
            i
            for i, other in enumerate(net.ops[:j])
            if set(other.outputs) & set(op.inputs)
            or written & set(other.inputs)
            or OPS[other.type].written(other) & set(op.inputs)
            or (op.type == "Ack" and OPS[other.type].writes)
        ]
        own = {int(str(op.attrs["message"]))} if op.type == "Recv" else {GATE} if op.type == "Sgd" else set()
        needs.append(frozenset(own.union(*(needs[i] for i in before))))
    return needs
