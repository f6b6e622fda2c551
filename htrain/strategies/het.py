"""Lookups through caches: HET's client on the trainers, its server on the sparse PSs (HET 3)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from htrain.errors import ModelError, UsageError
from htrain.net.names import TRAINER, NetName
from htrain.net.net import Attr, Init, Net, Parameter
from htrain.net.placement import Shard
from htrain.net.slices import leading_to
from htrain.ops.asked_rows import row_width
from htrain.ops.het import ANSWER, UNBOUNDED
from htrain.spec.cache import HetCache, capacity_rows
from htrain.spec.optimizers import Optimizer
from htrain.strategies.behind import Behind, flush_nets, numbered, rates_of
from htrain.strategies.strategy import HoldsRows
from htrain.transform.shard_lookups import shard_lookups

_FLUSH = NetName.flush(TRAINER)
_UNUSED_EPS = 1e-10  # of an optimizer without one, whose steps do not read it


class Het(HoldsRows[HetCache]):
    """Lookups and optimizer steps of cached tables go through caches on the trainers, which push every update at a pause and at the end."""

    def lookups(self, net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
        caches = choose_caches(net, self.section)
        cached = {table for spec in caches for table in spec.tables}
        self.require_tables(cached)
        _require_ids_of_batches(net, caches)
        net = shard_lookups(net, {table: parts for table, parts in shards.items() if table not in cached})
        for spec in caches:
            net = _Behind(net, spec, shards, self.options.sparse_optimizer).rewrite()
        return net

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        return flush_nets(parts, "Het", ANSWER)

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
    """A cache: the tables that share it, all of one width and one rate, and how many of their rows it holds; `asked` is the user's section."""

    name: str
    tables: tuple[str, ...]
    width: int
    capacity: int
    asked: HetCache


def _require_ids_of_batches(net: Net, caches: Sequence[CacheSpec]) -> None:
    """Raises ModelError for a cached table whose ids are computed of rows: a step asks its caches, one message a server, before it has any. Beside a table
    without a cache, one cache may wait for its rows."""
    cached = {table for spec in caches for table in spec.tables}
    for lookup in (op for op in net.ops if op.type == "Lookup" and op.inputs[0] in cached):
        for op in (net.ops[place] for place in leading_to(net.ops, [lookup.inputs[1]])):
            if op.type == "Lookup" and (op.inputs[0] in cached or len(caches) > 1):
                raise ModelError(
                    f"table '{lookup.inputs[0]}' cannot be behind a cache beside other tables: its ids are computed of rows of '{op.inputs[0]}', "
                    f"and a step asks all caches at once: leave it out (--cache-table {lookup.inputs[0]}=none)"
                )


def choose_caches(net: Net, cache: HetCache) -> tuple[CacheSpec, ...]:
    """The caches that the user asks for: one per width and rate, and one for each table that has a capacity of its own. Frozen tables have none.

    Raises UsageError for a pattern of `tables` that no table matches.
    """
    tables = {n: p for n, p in net.parameters.items() if p.kind == "table" and p.trained}
    own = _own_capacities(tables, cache)
    rates, shared = rates_of(net), dict[tuple[int, Attr], list[str]]()
    specs: list[CacheSpec] = []
    for name, table in tables.items():
        rows, width = table.shape
        if name not in own:
            shared.setdefault((width, rates.get(name, 0.0)), []).append(name)
        elif own[name] != "none":
            capacity = capacity_rows(own[name], rows, where=f"--cache-table {name}")
            specs.append(CacheSpec(f"cache_{name}", (name,), width, capacity, cache))
    for (width, _), names in shared.items():
        capacity = capacity_rows(cache.capacity, sum(tables[n].shape[0] for n in names), where="--cache-capacity")
        called = numbered(f"cache_{width}", [spec.name for spec in specs])
        specs.append(CacheSpec(called, tuple(names), width, capacity, cache))
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


class _Behind(Behind):
    """One cache's rewriting of a net."""

    family, answer = "Het", ANSWER

    def __init__(self, net: Net, spec: CacheSpec, shards: Mapping[str, Sequence[Shard]], optimizer: Optimizer) -> None:
        super().__init__(net, spec.name, spec.tables, shards, optimizer)
        self.spec = spec

    def holds(self) -> Parameter:
        shape = (self.spec.capacity, row_width(self.spec.width, self.optimizer.kind))
        return Parameter(self.spec.name, shape, "float32", "cache", Init("constant", (0.0,)), trained=False)

    def announce(self) -> None:
        if self.spec.asked.window > 1:
            first = {"first_keys": self.territory["first_keys"]}
            self.builder.add("HetAnnounce", (self.spec.name, *self.ids), attrs=first, module=self.spec.name)

    def asked(self) -> dict[str, Attr]:
        return {
            "width": self.spec.width, "capacity": self.spec.capacity, "staleness": self._staleness(), "policy": self.spec.asked.policy, **self.step(),
        }  # fmt: skip

    def pushed(self) -> dict[str, Attr]:
        return {"staleness": self._staleness(), **self.step()}

    def pulled(self) -> dict[str, Attr]:
        return {"barrier": self.spec.asked.staleness == 0}

    def _staleness(self) -> int:
        bound = self.spec.asked.staleness
        return UNBOUNDED if bound == "unbounded" else bound


COMPILE = Het
