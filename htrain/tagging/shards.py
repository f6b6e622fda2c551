"""Tables onto sparse PSs: whole or in row ranges, balanced by bytes, within memory (HT 3.2.2, 4.3)."""

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise

from htrain.cluster import GIB, Cluster
from htrain.errors import PlacementError
from htrain.net import Net, Parameter
from htrain.placement import Shard

DYNAMIC_SHARE = 0.1  # of a sparse PS's memory, kept free for messages and activations


def table_bytes(net: Net) -> dict[str, int]:
    """Bytes of each table with its optimizer's state."""
    tables = {name: p.num_bytes for name, p in net.parameters.items() if p.kind == "table"}
    for parameter in net.parameters.values():
        if parameter.kind == "state" and parameter.of in tables:
            tables[parameter.of] += parameter.num_bytes
    return tables


def place_tables(net: Net, cluster: Cluster, forced: Mapping[str, int]) -> dict[str, tuple[Shard, ...]]:
    """Shards of every table, in row order.

    A table larger than an even share of all bytes is cut into row ranges of that share and a rest; `forced` says into how many
    pieces a table is cut whatever its size. Pieces go to the emptiest sparse PS, largest first. Without sparse PSs, tables
    stay whole on the trainer.
    Raises PlacementError when they do not fit, saying what would.
    """
    sizes = table_bytes(net)
    tables = {name: net.parameters[name] for name in sizes}
    if not cluster.sparse_ps:
        _check_trainer(sizes, cluster)
        return {name: (Shard(name, 0, p.shape[0], "trainer"),) for name, p in tables.items()}
    capacity = int(cluster.sparse_ps_memory * (1 - DYNAMIC_SHARE))
    _check_total(sizes, capacity, cluster)
    share = max(1, -(-sum(sizes.values()) // cluster.sparse_ps))
    limit = min(share, capacity)
    pieces = [piece for name, p in tables.items() for piece in _pieces(p, sizes[name], limit, forced.get(name, 0))]
    devices = _balance(pieces, capacity, cluster)
    shards: dict[str, list[Shard]] = {name: [] for name in tables}
    for (_, table, first_row, num_rows), device in zip(pieces, devices, strict=True):
        shards[table].append(Shard(table, first_row, num_rows, device))
    return {name: tuple(parts) for name, parts in shards.items()}


Piece = tuple[int, str, int, int]  # bytes, table, first row, rows


def _pieces(table: Parameter, num_bytes: int, limit_bytes: int, forced: int) -> list[Piece]:
    """Row ranges of a table: `forced` equal ones, or as many of `limit_bytes` as it takes and one with what is left."""
    rows = table.shape[0]
    if forced:
        count = min(rows, forced)
        cuts = [rows * k // count for k in range(count + 1)]
    else:
        cuts = [*range(0, rows, max(1, limit_bytes * rows // num_bytes)), rows]
    return [(num_bytes * (end - start) // rows, table.name, start, end - start) for start, end in pairwise(cuts)]


def _balance(pieces: Sequence[Piece], capacity: int, cluster: Cluster) -> list[str]:
    """A device for each piece: the emptiest so far, the largest piece first."""
    heap = [(0, k) for k in range(cluster.sparse_ps)]
    devices = [""] * len(pieces)
    for index in sorted(range(len(pieces)), key=lambda i: (-pieces[i][0], i)):
        used, k = heapq.heappop(heap)
        num_bytes, table, first_row, num_rows = pieces[index]
        if used + num_bytes > capacity:
            raise PlacementError(
                f"rows {first_row} to {first_row + num_rows - 1} of table '{table}' need {_size(num_bytes)} with optimizer state, the emptiest sparse PS "
                f"(sparse_ps:{k}) has {_size(capacity - used)} left: add a sparse PS, or raise sparse_ps_memory"
            )
        devices[index] = f"sparse_ps:{k}"
        heapq.heappush(heap, (used + num_bytes, k))
    return devices


def _check_total(sizes: Mapping[str, int], capacity: int, cluster: Cluster) -> None:
    total = sum(sizes.values())
    if total > capacity * cluster.sparse_ps:
        largest = max(sizes, key=sizes.__getitem__)
        raise PlacementError(
            f"the tables need {_size(total)} with optimizer state (largest: '{largest}', {_size(sizes[largest])}), {cluster.sparse_ps} sparse PSs of "
            f"{_size(cluster.sparse_ps_memory)} hold {_size(capacity * cluster.sparse_ps)}: {-(-total // max(capacity, 1))} sparse PSs of this size would do"
        )


def _check_trainer(sizes: Mapping[str, int], cluster: Cluster) -> None:
    total = sum(sizes.values())
    if total > cluster.trainer_memory:
        raise PlacementError(
            f"the tables need {_size(total)} with optimizer state, the trainer has {_size(cluster.trainer_memory)}: add sparse PSs or raise trainer_memory"
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / 2**20:.1f} MiB"
