"""Lookups through look-ahead caches: a set-associative cache beside the compute for every table (cDLRM 3.2, 5)."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from htrain.errors import ModelError, UsageError
from htrain.net.names import shard_name
from htrain.net.net import Attr, BatchDim, Blob, Init, Net, Op, Parameter, numel
from htrain.net.placement import CacheGeometry, Shard, next_prime
from htrain.net.slices import leading_to
from htrain.ops.builder import NetBuilder
from htrain.ops.lookahead import REQUEST
from htrain.spec.cache import LookAheadCache
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import ROLE_BYTES
from htrain.strategies.strategy import HoldsRows
from htrain.transform.shard_lookups import shard_lookups, shard_parameters

PREFIX = "cached_"


class LookAhead(HoldsRows[LookAheadCache]):
    """Trained tables are looked up through caches beside the compute, but for those that are left out."""

    def lookups(self, net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
        cached = choose_lookahead(net, self.section, self.options.batch_size, self.cluster)
        ahead = {cache.table for cache in cached}
        self.require_tables(ahead)
        net = shard_lookups(net, {table: parts for table, parts in shards.items() if table not in ahead})
        return look_ahead(net, shards, cached)

    def notes(self, train: Net) -> Iterator[str]:
        caches = [op.attrs for op in train.ops if op.type == "LookaheadSlots"]
        whole = sum(attrs["sets"] == attrs["num_rows"] for attrs in caches)
        forms = Counter(
            f"{attrs['sets']:,} sets of {attrs['ways']}" for attrs in caches if attrs["sets"] != attrs["num_rows"]
        )
        kinds = [f"{count} in {form}" for form, count in forms.items()] + ([f"{whole} whole"] if whole else [])
        if caches:
            yield f"the trainer caches rows of {len(caches)} tables, up to {caches[0]['window']} batches ahead: {', '.join(kinds)}"


@dataclass(frozen=True)
class Cached:
    """A table that is looked up through a cache; `victims` are the slots of its victim table behind those of the sets. At most `window` batches
    are looked ahead; with `patch`, what changed meanwhile is put right."""

    table: str
    geometry: CacheGeometry
    victims: int
    window: int
    patch: bool

    @property
    def num_slots(self) -> int:
        """Rows that the cache and its victim table hold."""
        return self.geometry.num_slots + self.victims


_LOAD = (
    6 / 16
)  # of a set's ways that a window fills in the mean: of 16, fewer than 1 row in 10,000 finds more than 16 in its set
_MEMORY_SHARE = 0.5  # of a trainer's memory beside its process that caches may take where the window is not given


def choose_lookahead(net: Net, cache: LookAheadCache, batch_size: int, cluster: Cluster) -> tuple[Cached, ...]:
    """The caches of all trained tables that the cache's `tables` do not leave out.

    Raises UsageError for a pattern that no table matches, or a capacity: a look-ahead cache's is that of its sets and ways. Raises ModelError for a
    table whose ids parameters come into: nobody knows them a window ahead.
    """
    left_out = _left_out(net, cache)
    tables = [p for n, p in net.parameters.items() if p.kind == "table" and p.trained and n not in left_out]
    ids = {op.inputs[0]: op.inputs[1] for op in net.ops if op.type == "Lookup"}
    for table in tables:
        _check_known_ahead(net, table.name, ids[table.name])
    asked = {p.name: _per_example(net.blobs[ids[p.name]]) * batch_size for p in tables}
    trainers = cluster.groups * cluster.trainers  # which all hold the rows of all
    row_bytes = {p.name: 4 * _stored_width(net, p) for p in tables}
    window = cache.reads_ahead
    while True:
        cached = [_cached(p, trainers * asked[p.name], window, cache) for p in tables]
        needed = sum(c.num_slots * row_bytes[c.table] for c in cached)
        is_given = cache.window != "auto" or cache.sets != "auto"
        if is_given or window == 1 or needed <= (cluster.trainer_memory - ROLE_BYTES) * _MEMORY_SHARE:
            return tuple(cached)
        window //= 2


def _check_known_ahead(net: Net, table: str, ids: str) -> None:
    for op in (net.ops[place] for place in leading_to(net.ops, [ids])):
        if of := [name for name in op.inputs if name in net.parameters]:
            raise ModelError(
                f"table '{table}' cannot be looked up through a look-ahead cache: its ids are computed of '{of[0]}' ({op.label}), "
                f"so they are not known before their step: leave it out (--cache-table {table}=none)"
            )


def _cached(table: Parameter, ids_per_batch: int, window: int, cache: LookAheadCache) -> Cached:
    geometry = geometry_of(table.shape[0], ids_per_batch * window, cache)
    victims = 0 if geometry.sets == table.shape[0] else min(table.shape[0], ids_per_batch)
    return Cached(table.name, geometry, victims, window, cache.patch)


def geometry_of(rows: int, ids_per_window: int, cache: LookAheadCache) -> CacheGeometry:
    """The cache of a table: as the options say, or as many sets as a window's ids need if they are distinct; then a table is whole where that
    takes fewer slots."""
    if cache.sets != "auto":
        return CacheGeometry.of(rows, cache.sets, cache.ways)
    enough = CacheGeometry(next_prime(math.ceil(min(rows, ids_per_window) / (cache.ways * _LOAD))), cache.ways)
    return enough if enough.num_slots < rows else CacheGeometry(rows, 1)


def _left_out(net: Net, cache: LookAheadCache) -> set[str]:
    names = [name for name, p in net.parameters.items() if p.kind == "table"]
    left: set[str] = set()
    for pattern, capacity in cache.tables:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched or capacity != "none":
            why = "a look-ahead cache takes sets and ways; a table has one, or none" if matched else "no table matches"
            raise UsageError(f"--cache-table {pattern}={capacity}: {why}; there are {', '.join(names)}")
        left.update(matched)
    return left


def _per_example(ids: Blob) -> int:
    rows = ids.shape[0]
    return rows.per_example if isinstance(rows, BatchDim) else rows


def _stored_width(net: Net, table: Parameter) -> int:
    """Numbers that are kept of a row: itself and its optimizer's state."""
    return sum(numel(net.parameters[n].shape[1:], 1) for n in (table.name, *_states(net, table.name)))


def look_ahead(net: Net, shards: Mapping[str, Sequence[Shard]], cached: Sequence[Cached]) -> Net:
    """Put the lookups and optimizer steps of tables behind look-ahead caches.

    Requires: lowered lookups with their optimizer steps; `shards` of each cached table in row order.
    Ensures:  a step touches the caches alone; tables are read and written by passes of their own (htrain.ops.lookahead).
    """
    caches = {c.table: c for c in cached}
    cut = {table: parts for table, parts in shards.items() if table in caches}
    builder = NetBuilder.beside(net, (piece for p in net.parameters.values() for piece in shard_parameters(p, cut)))
    for table, cache in caches.items():
        _declare(builder, net, table, cache)
    for op in net.ops:
        table = op.inputs[0] if op.inputs else ""
        if table not in caches:
            builder.copy(op)
        elif op.type == "Lookup":
            _look_up(builder, net, op, caches[table], shards[table])
        else:
            _step(builder, op, caches[table])
    for table in caches:
        _exchange(builder, net, table, shards[table])
    return builder.build(net.outputs)


def _declare(builder: NetBuilder, net: Net, table: str, cache: Cached) -> None:
    """The cache: its occupancy table, and the slots for rows and optimizer state."""
    empty = Init("constant", (0.0,))
    slots = cache.geometry.num_slots
    builder.parameter(Parameter(PREFIX + table, (slots,), "int64", "cache", empty, trained=False))
    for stored in (table, *_states(net, table)):
        shape = (cache.num_slots, *net.parameters[stored].shape[1:])
        builder.parameter(Parameter(_rows(stored), shape, "float32", "cache", empty, trained=False))


def _rows(stored: str) -> str:
    """The slots for the rows of a table, or for those of its state."""
    return f"{PREFIX}{stored}:rows"


def _states(net: Net, table: str) -> tuple[str, ...]:
    return tuple(name for name, p in net.parameters.items() if p.kind == "state" and p.of == table)


def _look_up(builder: NetBuilder, net: Net, op: Op, cache: Cached, shards: Sequence[Shard]) -> None:
    table, ids = op.inputs
    stored = [_rows(name) for name in (table, *_states(net, table))]
    bounds = (*(s.first_row for s in shards), shards[-1].first_row + shards[-1].num_rows)
    attrs: dict[str, Attr] = {
        "num_rows": bounds[-1], "sets": cache.geometry.sets, "ways": cache.geometry.ways, "bounds": bounds, "patch": cache.patch,
        "window": cache.window,
    }  # fmt: skip
    builder.add("LookaheadAnnounce", (PREFIX + table, ids), module=PREFIX + table)
    names = (builder.fresh(f"{PREFIX}{table}_slots"),)
    (slots,) = builder.add(
        "LookaheadSlots", (PREFIX + table, *stored, ids), attrs=attrs, module=PREFIX + table, outputs=names
    )
    builder.add("Lookup", (stored[0], slots), attrs={"first_row": 0}, module=PREFIX + table, outputs=op.outputs)


def _step(builder: NetBuilder, op: Op, cache: Cached) -> None:
    *stored, _, gradient = op.inputs
    rows = [_rows(name) for name in stored]
    module = PREFIX + cache.table
    slots = next(o.outputs[0] for o in builder.ops if o.type == "LookaheadSlots" and o.module == module)
    builder.add(op.type, (*rows, slots, gradient), attrs=op.attrs, module=module)
    builder.add("FlushVictims", (PREFIX + cache.table, *rows), module=module)


def _exchange(builder: NetBuilder, net: Net, table: str, shards: Sequence[Shard]) -> None:
    """What prefetches rows of the table and writes them back."""
    states = _states(net, table)
    slots = next(o for o in builder.ops if o.type == "LookaheadSlots" and o.module == PREFIX + table)
    per_example = _per_example(builder.blob(slots.outputs[0]))
    attrs: dict[str, Attr] = {
        "shards": len(shards),
        "width": _stored_width(net, net.parameters[table]),
        "per_example": per_example,
    }
    names = [builder.fresh(f"{PREFIX}{table}_{part}_{k}") for k in range(len(shards)) for part in REQUEST]
    request = builder.add("LookaheadRequest", (PREFIX + table,), attrs=attrs, module=PREFIX + table, outputs=names)
    fetched: list[str] = []
    for k, shard in enumerate(shards):
        name = shard_name(table, k, len(shards))
        stored = (name, *(name + state.removeprefix(table) for state in states))
        keys, values, wanted = request[3 * k : 3 * k + 3]
        first = {"first_row": shard.first_row}
        builder.add("WriteBack", (*stored, keys, values), attrs=first, module=name)
        names = [builder.fresh(f"{PREFIX}{table}_fetched_{k}")]
        fetched += builder.add("Prefetch", (*stored, wanted), attrs=first, module=name, outputs=names)
    builder.add("LookaheadAnswer", (PREFIX + table, *fetched), module=PREFIX + table)


COMPILE = LookAhead
