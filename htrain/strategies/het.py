"""Lookups through caches: HET's client on the trainers, its server on the sparse PSs (HET 3)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from htrain.errors import UsageError
from htrain.net.names import TRAINER, NetName, number_of, shard_name
from htrain.net.net import Attr, Init, Net, Op, Parameter
from htrain.net.placement import Shard
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.ops.het import ANSWER, REQUEST, UNBOUNDED, row_width
from htrain.spec.cache import HetCache, capacity_rows
from htrain.spec.optimizers import Adagrad, Optimizer, RowwiseAdagrad
from htrain.strategies.strategy import HoldsRows
from htrain.transform.shard_lookups import shard_lookups, shard_parameters

_FLUSH = NetName.flush(TRAINER)
_UNUSED_EPS = 1e-10  # of an optimizer without one, whose steps do not read it


class Het(HoldsRows[HetCache]):
    """Lookups and optimizer steps of cached tables go through caches on the trainers, which are emptied at a pause and at the end."""

    def lookups(self, net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
        caches = choose_caches(net, self.section)
        cached = {table for spec in caches for table in spec.tables}
        net = shard_lookups(net, {table: parts for table, parts in shards.items() if table not in cached})
        for spec in caches:
            net = _Behind(net, spec, shards, self.options.sparse_optimizer).rewrite()
        return net

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        return {str(_FLUSH): flush_net(parts[TRAINER])}

    def notes(self, train: Net) -> Iterator[str]:
        for ask in (op for op in train.ops if op.type == "HetAsk"):
            bounds, tables = ask.attrs["bounds"], len(ask.inputs) - 1
            assert isinstance(bounds, tuple)
            bound = f"s = {ask.attrs['staleness']}" if ask.attrs["staleness"] != UNBOUNDED else "no bound on staleness"
            yield (
                f"{ask.inputs[0]} holds {ask.attrs['capacity']:,} of {bounds[-1]:,} rows of {tables} tables on each trainer "
                f"({ask.attrs['policy']}, {bound})"
            )


@dataclass(frozen=True)
class CacheSpec:
    """A cache: the tables that share it, all of one width, and how many of their rows it holds; `asked` is the user's section."""

    name: str
    tables: tuple[str, ...]
    width: int
    capacity: int
    asked: HetCache


def choose_caches(net: Net, cache: HetCache) -> tuple[CacheSpec, ...]:
    """The caches that the user asks for: one per width, and one for each table that has a capacity of its own. Frozen tables have none.

    Raises UsageError for a pattern of `tables` that no table matches.
    """
    tables = {n: p for n, p in net.parameters.items() if p.kind == "table" and p.trained}
    own = _own_capacities(tables, cache)
    shared: dict[int, list[str]] = {}
    specs: list[CacheSpec] = []
    for name, table in tables.items():
        rows, width = table.shape
        if name not in own:
            shared.setdefault(width, []).append(name)
        elif own[name] != "none":
            capacity = capacity_rows(own[name], rows, where=f"--cache-table {name}")
            specs.append(CacheSpec(f"cache_{name}", (name,), width, capacity, cache))
    for width, names in shared.items():
        capacity = capacity_rows(cache.capacity, sum(tables[n].shape[0] for n in names), where="--cache-capacity")
        specs.append(CacheSpec(f"cache_{width}", tuple(names), width, capacity, cache))
    return tuple(specs)


def _own_capacities(tables: Mapping[str, Parameter], cache: HetCache) -> dict[str, str]:
    own: dict[str, str] = {}
    for pattern, capacity in cache.tables:
        matched = [name for name in tables if fnmatchcase(name, pattern)]
        if not matched:
            raise UsageError(
                f"--cache-table {pattern}={capacity}: no trained table matches; there are {', '.join(tables)}"
            )
        own.update(dict.fromkeys(matched, capacity))
    return own


class _Behind:
    """One cache's rewriting of a net: the lookups and optimizer steps of its tables go behind it.

    Requires: lowered lookups with their optimizer steps; `shards` of each cached table in row order, on sparse PSs.
    Ensures:  the ids of all tables of a cache are known before its first row is used; each sparse PS gets one request per cache and step.
    """

    def __init__(self, net: Net, spec: CacheSpec, shards: Mapping[str, Sequence[Shard]], optimizer: Optimizer) -> None:
        self.net, self.spec, self.optimizer = net, spec, optimizer
        self.shards = {table: shards[table] for table in spec.tables}
        self.servers = sorted({s.device for parts in self.shards.values() for s in parts}, key=number_of)
        pieces = (piece for p in net.parameters.values() for piece in shard_parameters(p, self.shards))
        self.builder = NetBuilder.beside(net, pieces)
        mine = [op for op in net.ops if self._table(op)]
        self.dedupes = [op for op in mine if op.type == "Dedupe"]
        self.lookups = [op for op in mine if op.type == "Lookup"]
        self.steps = [op for op in mine if OPS[op.type].steps_rows]

    def rewrite(self) -> Net:
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

    def _table(self, op: Op) -> str:
        """The table of a Dedupe, Lookup or optimizer step, if it is one of the cache's."""
        name = op.module if op.type == "Dedupe" else op.inputs[0] if op.inputs else ""
        return name if name in self.shards else ""

    def _look_up(self) -> None:
        """All ids, a request to each server, and the rows."""
        builder, spec = self.builder, self.spec
        for op in self.dedupes:
            builder.copy(op)
        self.ids = [op.inputs[1] for op in self.lookups]
        shape = (spec.capacity, row_width(spec.width, self.optimizer.kind))
        builder.parameter(Parameter(spec.name, shape, "float32", "cache", Init("constant", (0.0,)), trained=False))
        names = [builder.fresh(f"{spec.name}_slots")]
        for server in self.servers:
            names += [builder.fresh(f"{spec.name}_{part}_{number_of(server)}") for part in REQUEST]
        territory = self._territory()
        if spec.asked.window > 1:
            first = {"first_keys": territory["first_keys"]}
            builder.add("HetAnnounce", (spec.name, *self.ids), attrs=first, module=spec.name)
        self.slots, *request = builder.add(
            "HetAsk", (spec.name, *self.ids), attrs=territory, module=spec.name, outputs=names
        )
        answers: list[str] = []
        for k, server in enumerate(self.servers):
            answers += self._serve(server, request[k * len(REQUEST) : (k + 1) * len(REQUEST)])
        attrs: dict[str, Attr] = {"num_tables": len(self.ids), "width": spec.width}
        rows = [op.outputs[0] for op in self.lookups]
        builder.add(
            "HetRead", (spec.name, self.slots, *self.ids, *answers), attrs=attrs, module=spec.name, outputs=rows
        )

    def _territory(self) -> dict[str, Attr]:
        """Which key is which row of which server, and what the cache is."""
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
        self.rows_of = used
        return {
            "first_keys": tuple(first_keys), "bounds": (*bounds, key), "servers": tuple(servers), "first_rows": tuple(first_rows),
            "width": self.spec.width, "capacity": self.spec.capacity, "staleness": self._staleness(),
            "policy": self.spec.asked.policy, **self._step(),
        }  # fmt: skip

    def _serve(self, server: str, request: Sequence[str]) -> list[str]:
        """Push and pull on one sparse PS."""
        builder, spec = self.builder, self.spec
        clock = f"{spec.name}_clocks:{number_of(server)}"
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
        builder.add("HetPush", inputs, attrs=attrs | {"staleness": self._staleness()} | self._step(), module=spec.name)
        names = [builder.fresh(f"{spec.name}_{part}_{number_of(server)}") for part in ("rows", "row_clocks", "stale")]
        attrs["barrier"] = spec.asked.staleness == 0
        return list(builder.add("HetPull", inputs, attrs=attrs, module=spec.name, outputs=names))

    def _staleness(self) -> int:
        bound = self.spec.asked.staleness
        return UNBOUNDED if bound == "unbounded" else bound

    def _step(self) -> dict[str, Attr]:
        """How rows step."""
        optimizer = self.optimizer
        eps = optimizer.eps if isinstance(optimizer, Adagrad | RowwiseAdagrad) else _UNUSED_EPS
        return {"optimizer": optimizer.kind, "lr": optimizer.lr, "eps": eps}

    def _write(self) -> None:
        gradients = {op.inputs[0]: op.inputs[-1] for op in self.steps}
        ordered = [gradients[op.inputs[0]] for op in self.lookups]
        self.builder.add("HetWrite", (self.spec.name, self.slots, *ordered), module=self.spec.name)


def flush_net(trainer: Net) -> Net:
    """The flush net of a trainer's net; without ops where that has no cache.

    Ensures: its messages are those of a step's lookups, so that the sparse PSs need no other nets.
    """
    ops: list[Op] = []
    for ask in (op for op in trainer.ops if op.type == "HetAsk"):
        names, answers = ask.outputs[1:], _answers(trainer, ask)
        attrs = {name: ask.attrs[name] for name in ("bounds", "servers", "first_rows", "width")}
        ops.append(Op("HetFlush", ask.inputs[:1], names, attrs, node_name=ask.node_name, module=ask.module))
        ops += [op for op in trainer.ops if op.type == "Send" and op.inputs[0] in names]
        ops += [op for op in trainer.ops if op.type == "Recv" and op.outputs[0] in answers]
        ops.append(Op("HetFlushed", (*ask.inputs[:1], *answers), (), {}, node_name=ask.node_name, module=ask.module))
    flush = Net(str(_FLUSH), (), (), outputs=(), blobs=dict(trainer.blobs), parameters=dict(trainer.parameters))
    return flush.with_ops(ops)


def _answers(trainer: Net, ask: Op) -> tuple[str, ...]:
    """What the servers answer to an ask, in its order of servers."""
    read = next(op for op in trainer.ops if op.type == "HetRead" and op.inputs[0] == ask.inputs[0])
    servers = (len(ask.outputs) - 1) // len(REQUEST)
    return read.inputs[-servers * len(ANSWER) :]


COMPILE = Het
