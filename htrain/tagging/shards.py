"""Tables onto sparse PSs: whole or in row ranges, balanced by bytes, within memory (HT 3.2.2, 4.3).

A table needs room for its rows and their optimizer state, and for what the steps under way hold of it: ids that have come, rows that have not left,
gradients that have come (htrain.costs.memory).
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from htrain.costs.expected import expected_blobs
from htrain.costs.roles import contexts_of
from htrain.errors import PlacementError
from htrain.net.names import SPARSE_PS, Device, number_of
from htrain.net.net import Net, Parameter
from htrain.net.placement import Shard
from htrain.ops import OPS
from htrain.sizes import memory_text
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import role_bytes
from htrain.spec.options import Options

_MOST_SPARSE_PS = 2000  # beyond that, larger ones are the answer
NO_LIMIT = 1 << 60  # bytes
NOT_PINNED: Mapping[str, str] = {}
NO_OWNERS: Mapping[str, int] = {}
NOTHING_HELD: Mapping[str, int] = {}


def table_bytes(net: Net) -> dict[str, int]:
    """Bytes of each table with its optimizer's state."""
    tables = {name: p.num_bytes for name, p in net.parameters.items() if p.kind == "table"}
    for parameter in net.parameters.values():
        if parameter.kind == "state" and parameter.of in tables:
            tables[parameter.of] += parameter.num_bytes
    return tables


def held_by_steps(net: Net, cluster: Cluster, options: Options) -> dict[str, int]:
    """Bytes that all steps under way hold of each table, on the sparse PSs that it is on; a HET server's clocks are in it.

    Requires: lowered lookups, before tables are cut.
    """
    sized = expected_blobs(net, cluster, options.batch_size)
    steps = contexts_of("sparse_ps", cluster, options)
    held = {
        name: options.holder.server_row_bytes * p.shape[0] for name, p in net.parameters.items() if p.kind == "table"
    }
    for table, ids, rows in (read for op in net.ops for read in OPS[op.type].reads(op)):
        ways = 2 if net.parameters[table].trained else 1  # rows, and their gradients
        once = sized[ids].num_bytes(options.batch_size) + ways * sized[rows].num_bytes(options.batch_size)
        held[table] += steps * once
    return held


def place_tables(
    net: Net,
    cluster: Cluster,
    forced: Mapping[str, int],
    pinned: Mapping[str, str] = NOT_PINNED,
    held: Mapping[str, int] = NOTHING_HELD,
) -> dict[str, tuple[Shard, ...]]:
    """Shards of every table, in row order.

    A table larger than an even share of all bytes is cut into row ranges of that share and a rest; `forced` says into how many
    pieces a table is cut whatever its size. Pieces go to the emptiest sparse PS, largest first; the pieces of a table in `pinned` to
    the device that stands there. `held` are the bytes that steps under way hold of each table. Without sparse PSs, tables stay whole on the
    trainer.
    Raises PlacementError when they do not fit, saying what would.
    """
    sizes = {name: stored + held.get(name, 0) for name, stored in table_bytes(net).items()}
    tables = {name: net.parameters[name] for name in sizes}
    if not cluster.sparse_ps:
        return {name: (Shard(name, 0, p.shape[0], "trainer"),) for name, p in tables.items()}
    capacity = max(0, cluster.sparse_ps_memory - role_bytes(cluster.sparse_ps_processes))
    if sum(sizes.values()) > capacity * cluster.sparse_ps:
        raise _too_much(sizes, cluster, _enough(tables.values(), sizes, capacity, forced))
    pieces = _cut(tables.values(), sizes, capacity, cluster.sparse_ps, forced)
    owners = {table: number_of(device) for table, device in pinned.items()}
    devices, left = _balance(pieces, capacity, cluster.sparse_ps, owners)
    if left:
        raise _does_not_fit(*left)
    shards: dict[str, list[Shard]] = {name: [] for name in tables}
    for (_, table, first_row, num_rows), k in zip(pieces, devices, strict=True):
        shards[table].append(Shard(table, first_row, num_rows, str(Device(SPARSE_PS, k))))
    return {name: tuple(parts) for name, parts in shards.items()}


def without_limits(cluster: Cluster) -> Cluster:
    """A cluster whose sparse PSs have room for all tables, which are in files and need not be in memory."""
    return replace(cluster, trainer_memory=NO_LIMIT, sparse_ps_memory=NO_LIMIT)


Piece = tuple[int, str, int, int]  # bytes, table, first row, rows


def _cut(
    tables: Iterable[Parameter], sizes: Mapping[str, int], capacity: int, num_devices: int, forced: Mapping[str, int]
) -> list[Piece]:
    """Every table in pieces of at most an even share of all bytes."""
    share = max(1, -(-sum(sizes.values()) // num_devices))
    limit = min(share, capacity)
    return [piece for p in tables for piece in _pieces(p, sizes[p.name], limit, forced.get(p.name, 0))]


def _pieces(table: Parameter, num_bytes: int, limit_bytes: int, forced: int) -> list[Piece]:
    """Row ranges of a table: `forced` equal ones, or as many of `limit_bytes` as it takes and one with what is left."""
    rows = table.shape[0]
    if forced:
        count = min(rows, forced)
        cuts = [rows * k // count for k in range(count + 1)]
    else:
        cuts = [*range(0, rows, max(1, limit_bytes * rows // num_bytes)), rows]
    return [(num_bytes * (end - start) // rows, table.name, start, end - start) for start, end in pairwise(cuts)]


Left = tuple[Piece, int, int]  # a piece that does not fit, the emptiest device, the bytes that it has left


def _balance(
    pieces: Sequence[Piece], capacity: int, num_devices: int, owners: Mapping[str, int] = NO_OWNERS
) -> tuple[list[int], Left | None]:
    """A device for each piece: its owner, or the emptiest so far, the largest piece first; and the first piece that does not fit."""
    devices, used_by = [owners.get(table, 0) for _, table, _, _ in pieces], [0] * num_devices
    for (num_bytes, table, _, _), k in zip(pieces, devices, strict=True):
        used_by[k] += num_bytes if table in owners else 0
    for piece, k in zip(pieces, devices, strict=True):
        if piece[1] in owners and used_by[k] > capacity:
            return devices, (piece, k, max(0, capacity - used_by[k] + piece[0]))
    heap = [(used, k) for k, used in enumerate(used_by)]
    heapq.heapify(heap)
    for index in sorted(range(len(pieces)), key=lambda i: (-pieces[i][0], i)):
        if pieces[index][1] in owners:
            continue
        used, k = heapq.heappop(heap)
        if used + pieces[index][0] > capacity:
            return devices, (pieces[index], k, capacity - used)
        devices[index] = k
        heapq.heappush(heap, (used + pieces[index][0], k))
    return devices, None


def _enough(tables: Collection[Parameter], sizes: Mapping[str, int], capacity: int, forced: Mapping[str, int]) -> int:
    """The fewest sparse PSs on which the pieces fit; 0 when a piece is larger than one, or nobody would want as many."""
    fewest = -(-sum(sizes.values()) // capacity) if capacity else _MOST_SPARSE_PS
    for number in range(fewest, min(2 * fewest + 2, _MOST_SPARSE_PS)):
        if _balance(_cut(tables, sizes, capacity, number, forced), capacity, number)[1] is None:
            return number
    return 0


def _too_much(sizes: Mapping[str, int], cluster: Cluster, enough: int) -> PlacementError:
    largest, capacity = (
        max(sizes, key=sizes.__getitem__),
        max(0, cluster.sparse_ps_memory - role_bytes(cluster.sparse_ps_processes)),
    )
    cure = (
        f"{enough} sparse PSs of this size would do"
        if enough
        else "raise sparse_ps_memory" + (", or cut the tables into more pieces" if capacity else "")
    )
    return PlacementError(
        f"the tables need {memory_text(sum(sizes.values()))} with optimizer state and what steps hold (largest: '{largest}', "
        f"{memory_text(sizes[largest])}), {cluster.sparse_ps} sparse PSs of {memory_text(cluster.sparse_ps_memory)} have room for "
        f"{memory_text(capacity * cluster.sparse_ps)} beside their processes of {memory_text(role_bytes(cluster.sparse_ps_processes))}: {cure}"
    )


def _does_not_fit(piece: Piece, device: int, left_bytes: int) -> PlacementError:
    num_bytes, table, first_row, num_rows = piece
    return PlacementError(
        f"rows {first_row} to {first_row + num_rows - 1} of table '{table}' need {memory_text(num_bytes)} with optimizer state and what steps hold, "
        f"the emptiest sparse PS that may hold them (sparse_ps:{device}) has {memory_text(left_bytes)} left: add a sparse PS, or raise sparse_ps_memory"
    )
