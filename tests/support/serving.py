"""Servers of a plan's tables, as threads of a test, over arrays that it sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from htrain.client.connecting import connect
from htrain.client.tables import Tables
from htrain.executor.loops.members import Members
from htrain.membership.served import Listening, Served, ServedCache, ServedTable, Serving
from htrain.sync.het.server import HetServer
from htrain.sync.row_steps import SparseStep

TOKEN = "word"


@dataclass(frozen=True)
class Kind:
    """How rows are cached and stepped."""

    staleness: int = 100
    capacity: int = 10_000
    policy: str = "light-lfu"
    optimizer: str = "sgd"
    lr: float = 0.1
    eps: float = 1e-10


class Serve:
    """Tables by name, [R,D], each cut in two between two servers; those of one width share a cache. Use as a context manager."""

    def __init__(
        self,
        tables: Mapping[str, np.ndarray],
        kind: Kind = Kind(),
        *,
        lease_seconds: float = 30.0,
        ports: Sequence[int] = (0, 0),
    ) -> None:
        widths = sorted({table.shape[1] for table in tables.values()})
        self.kind = kind
        self.num_servers = 2
        self.held: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self.places: dict[str, tuple[int, list[tuple[int, int, int]]]] = {}
        caches = [self._cache(width, {n: t for n, t in tables.items() if t.shape[1] == width}) for width in widths]
        self.served = Served("digest", "model", self.num_servers, tuple(caches))
        self._lease_seconds = lease_seconds
        self.members: list[Members] = []
        self.begin(ports)

    def _cache(self, width: int, tables: Mapping[str, np.ndarray]) -> ServedCache:
        kind, key, found = self.kind, 0, []
        bounds, servers, first_rows = [], [], []
        parts: dict[int, list[np.ndarray]] = {0: [], 1: []}
        for name, table in tables.items():
            found.append(ServedTable(name, key, len(table)))
            cut, pieces = len(table) // 3, []
            for server, piece in ((0, table[:cut]), (1, table[cut:])):
                first = sum(len(part) for part in parts[server])
                bounds.append(key)
                servers.append(server)
                first_rows.append(first)
                pieces.append((server, first, len(piece)))
                parts[server].append(piece)
                key += len(piece)
            self.places[name] = (width, pieces)
        states = SparseStep(kind.optimizer, kind.lr).state_width(width)
        for server, pieces in parts.items():
            rows = np.concatenate(pieces).astype(np.float32)
            self.held[width, server] = rows, np.zeros((len(rows), states), np.float32)
        return ServedCache(
            f"cache_{width}", tuple(found), width=width, devices=(0, 1), slots=("a", "b"), bounds=(*bounds, key), servers=tuple(servers),
            first_rows=tuple(first_rows), **{n: getattr(kind, n) for n in ("capacity", "staleness", "policy", "optimizer", "lr", "eps")},
        )  # fmt: skip

    def begin(self, ports: Sequence[int] = (0, 0)) -> None:
        """Begin to serve; again, with what the tables hold."""
        step = SparseStep(self.kind.optimizer, self.kind.lr, self.kind.eps)
        self.members = []
        for server in range(self.num_servers):
            serving = Serving(self.served, Listening("127.0.0.1", tuple(ports), TOKEN, self._lease_seconds))
            holders = [
                HetServer(*self.held[cache.width, server], staleness=self.kind.staleness, step=step)
                for cache in self.served.caches
            ]
            self.members.append(Members(server, serving, holders))
        for each in self.members:
            each.start([members.address for members in self.members])

    @property
    def ports(self) -> list[int]:
        """Where each server listens."""
        return [int(each.address.rpartition(":")[2]) for each in self.members]

    def connect(self, worker: str = "", **arguments: object) -> Tables:
        """A worker of these servers."""
        return connect(f"127.0.0.1:{self.ports[0]}", token=TOKEN, worker=worker, **arguments)  # type: ignore[arg-type]

    def table(self, name: str) -> np.ndarray:
        """A table as the servers have it."""
        width, pieces = self.places[name]
        return np.concatenate([self.held[width, server][0][first : first + rows] for server, first, rows in pieces])

    def end(self) -> None:
        """Serve no more."""
        for each in self.members:
            each.stop()
            assert not each.error, each.error

    def __enter__(self) -> "Serve":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
