"""Lookups behind what a trainer holds of rows: a request to each server of a step, and the rows (HET 3, HET-GMP 5.3).

A family of ops goes with it, whose names begin alike: Ask, Push, Pull, Read, Write; Flush and Flushed.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from htrain.net.names import TRAINER, NetName, number_of, shard_name
from htrain.net.net import Attr, Init, Net, Op, Parameter
from htrain.net.placement import Shard
from htrain.ops import OPS
from htrain.ops.asked_rows import REQUEST
from htrain.ops.builder import NetBuilder
from htrain.spec.optimizers import Adagrad, Ftrl, Optimizer, RowwiseAdagrad
from htrain.transform.shard_lookups import shard_parameters

_FLUSH = NetName.flush(TRAINER)
_UNUSED_EPS = 1e-10  # of an optimizer without one, whose steps do not read it


class Behind:
    """The rewriting of a net for one cache, called `name`: the lookups and optimizer steps of its tables go behind it.

    Requires: lowered lookups with their optimizer steps, of one rate; `shards` of each of `tables` in row order, on sparse PSs.
    Ensures:  the ids of all tables of a cache are known before its first row is used; each sparse PS gets one request per cache and step.

    A subclass says what its `family` of ops is called, the parts of an `answer`, and what attributes its ops have.
    """

    family: ClassVar[str]
    answer: ClassVar[Sequence[str]]

    def __init__(
        self, net: Net, name: str, tables: Sequence[str], shards: Mapping[str, Sequence[Shard]], optimizer: Optimizer
    ) -> None:
        self.net, self.name, self.optimizer = net, name, optimizer
        self.shards = {table: shards[table] for table in tables}
        self.servers = sorted({s.device for parts in self.shards.values() for s in parts}, key=number_of)
        pieces = (piece for p in net.parameters.values() for piece in shard_parameters(p, self.shards))
        self.builder = NetBuilder.beside(net, pieces)
        mine = [op for op in net.ops if self._table(op)]
        self.dedupes = [op for op in mine if op.type == "Dedupe"]
        self.lookups = [op for op in mine if op.type == "Lookup"]
        self.steps = [op for op in mine if OPS[op.type].steps_rows]
        self.ids = [op.inputs[1] for op in self.lookups]
        self.territory, self.rows_of = self._territory()

    @abstractmethod
    def holds(self) -> Parameter:
        """The cache."""

    @abstractmethod
    def asked(self) -> dict[str, Attr]:
        """The attributes of Ask, besides those that say which key is which row of which server."""

    @abstractmethod
    def pushed(self) -> dict[str, Attr]:
        """The attributes of Push, besides how many tables it serves."""

    @abstractmethod
    def pulled(self) -> dict[str, Attr]:
        """The attributes of Pull, besides how many tables it serves."""

    def announce(self) -> None:
        """What is done with ids before they are asked for."""

    def beside_ids(self) -> Sequence[str]:
        """What Ask reads besides ids."""
        return ()

    def rewrite(self) -> Net:
        """The net with its lookups behind the cache."""
        builder = self.builder
        mine = {id(op) for op in (*self.dedupes, *self.lookups, *self.steps)}
        for op in self.net.ops:
            if op is self.dedupes[0]:
                self._look_up()
            if id(op) not in mine:
                builder.copy(op)
            if op is self.steps[-1]:
                self._write()
        return builder.build(self.net.outputs)

    def step(self) -> dict[str, Attr]:
        """How rows step."""
        optimizer = self.optimizer
        eps = optimizer.eps if isinstance(optimizer, Adagrad | RowwiseAdagrad) else _UNUSED_EPS
        ftrl = {"beta": optimizer.beta, "l1": optimizer.l1, "l2": optimizer.l2} if isinstance(optimizer, Ftrl) else {}
        return {"optimizer": optimizer.kind, "lr": self.steps[0].attrs["lr"], "eps": eps, **ftrl}

    def _table(self, op: Op) -> str:
        """The table of a Dedupe, Lookup or optimizer step, if it is one of the cache's."""
        name = op.module if op.type == "Dedupe" else op.inputs[0] if op.inputs else ""
        return name if name in self.shards else ""

    def _look_up(self) -> None:
        """All ids, a request to each server, and the rows."""
        builder = self.builder
        for op in self.dedupes:
            builder.copy(op)
        builder.parameter(self.holds())
        names = [builder.fresh(f"{self.name}_slots")]
        for server in self.servers:
            names += [builder.fresh(f"{self.name}_{part}_{number_of(server)}") for part in REQUEST]
        self.announce()
        self.slots, *request = builder.add(
            f"{self.family}Ask", (self.name, *self.ids, *self.beside_ids()), attrs=self.territory | self.asked(), module=self.name, outputs=names
        )  # fmt: skip
        answers: list[str] = []
        for k, server in enumerate(self.servers):
            answers += self._serve(server, request[k * len(REQUEST) : (k + 1) * len(REQUEST)])
        attrs: dict[str, Attr] = {"num_tables": len(self.ids), "width": self.width}
        rows = [op.outputs[0] for op in self.lookups]
        builder.add(
            f"{self.family}Read", (self.name, self.slots, *self.ids, *answers), attrs=attrs, module=self.name, outputs=rows
        )  # fmt: skip

    @property
    def width(self) -> int:
        """That of the rows of its tables."""
        return self.net.parameters[self.lookups[0].inputs[0]].shape[1]

    def _territory(self) -> tuple[dict[str, Attr], Mapping[str, int]]:
        """Which key is which row of which server, and how many rows each has."""
        first_keys, bounds, servers, first_rows, key = [], [], [], [], 0
        used = dict.fromkeys(self.servers, 0)
        for table in (op.inputs[0] for op in self.lookups):
            first_keys.append(key)
            for shard in self.shards[table]:
                bounds.append(key)
                servers.append(self.servers.index(shard.device))
                first_rows.append(used[shard.device])
                used[shard.device] += shard.num_rows
                key += shard.num_rows
        return {
            "first_keys": tuple(first_keys), "bounds": (*bounds, key), "servers": tuple(servers), "first_rows": tuple(first_rows),
        }, used  # fmt: skip

    def _serve(self, server: str, request: Sequence[str]) -> list[str]:
        """Push and pull on one sparse PS."""
        builder = self.builder
        clock = f"{self.name}_clocks:{number_of(server)}"
        builder.parameter(
            Parameter(clock, (self.rows_of[server],), "int32", "cache", Init("constant", (0.0,)), trained=False)
        )
        held = [
            shard_name(table, k, len(self.shards[table]))
            for table in (op.inputs[0] for op in self.lookups)
            for k, shard in enumerate(self.shards[table])
            if shard.device == server
        ]
        states = [
            name for table in held for name, p in builder.parameters.items() if p.kind == "state" and p.of == table
        ]
        inputs = (clock, *held, *states, *request)
        attrs: dict[str, Attr] = {"num_tables": len(held)}
        builder.add(f"{self.family}Push", inputs, attrs=attrs | self.pushed(), module=self.name)
        names = [builder.fresh(f"{self.name}_{_ANSWERED.get(part, part)}_{number_of(server)}") for part in self.answer]
        return list(
            builder.add(f"{self.family}Pull", inputs, attrs=attrs | self.pulled(), module=self.name, outputs=names)
        )

    def _write(self) -> None:
        gradients = {op.inputs[0]: op.inputs[-1] for op in self.steps}
        ordered = [gradients[op.inputs[0]] for op in self.lookups]
        self.builder.add(f"{self.family}Write", (self.name, self.slots, *ordered), module=self.name)


def numbered(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where that is taken."""
    names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 2)))
    return next(found for found in names if found not in taken)


def rates_of(net: Net) -> dict[str, Attr]:
    """The rate that each trained table steps with."""
    return {op.inputs[0]: op.attrs["lr"] for op in net.ops if OPS[op.type].steps_rows}


_ANSWERED = {"clocks": "row_clocks"}  # the request has a blob of that name


def flush_nets(parts: Mapping[str, Net], family: str, answer: Sequence[str]) -> dict[str, Net]:
    """The flush net of a trainer's net, by its name; without ops where that has no cache.

    Ensures: its messages are those of a step's lookups, so that the sparse PSs need no other nets.
    """
    trainer = parts[TRAINER]
    ops: list[Op] = []
    for ask in (op for op in trainer.ops if op.type == f"{family}Ask"):
        read = next(op for op in trainer.ops if op.type == f"{family}Read" and op.inputs[0] == ask.inputs[0])
        servers = (len(ask.outputs) - 1) // len(REQUEST)
        names, answers = ask.outputs[1:], read.inputs[-servers * len(answer) :]
        attrs = {name: ask.attrs[name] for name in ("bounds", "servers", "first_rows", "width")}
        ops.append(Op(f"{family}Flush", ask.inputs[:1], names, attrs, node_name=ask.node_name, module=ask.module))
        ops += [op for op in trainer.ops if op.type == "Send" and op.inputs[0] in names]
        ops += [op for op in trainer.ops if op.type == "Recv" and op.outputs[0] in answers]
        ops.append(Op(f"{family}Flushed", (*ask.inputs[:1], *answers), (), {}, node_name=ask.node_name, module=ask.module))  # fmt: skip
    flush = Net(str(_FLUSH), (), (), outputs=(), blobs=dict(trainer.blobs), parameters=dict(trainer.parameters))
    return {str(_FLUSH): flush.with_ops(ops)}
