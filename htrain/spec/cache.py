"""What stands between a trainer and the tables: the table of caches, as users name them."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from htrain.errors import ClusterError, UsageError
from htrain.spec.fields import Count, about
from htrain.spec.policies import POLICIES
from htrain.spec.row_holder import RowHolder

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options

_NUMBER = r"(?!0+(\.0*)?%?$)(100(\.0{1,9})?%|[0-9]{1,2}(\.[0-9]{1,9})?%|[0-9]{1,18})"
_CAPACITY = "a capacity: want a share such as 10%, or a number of rows from 1 on, as text"
Capacity = Annotated[str, Meta(pattern=f"^{_NUMBER}$", extra={"wanted": _CAPACITY})]
TableCapacities = Annotated[
    tuple[tuple[str, Annotated[str, Meta(pattern=f"^({_NUMBER}|none)$")]], ...],
    Meta(extra={"wanted": "tables and capacities, such as *.C1.*=50% or *.C2.*=none", "pair": "TABLE=CAPACITY"}),
]
UpdatedShare = Annotated[
    str,
    Meta(
        pattern=r"^(?!0+(\.0*)?%$)[0-9]{1,3}(\.[0-9]{1,9})?%$",
        extra={"wanted": "a share of the caches' rows such as 5%"},
    ),
]
Window = Annotated[int, Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Cache(RowHolder):
    """A cache of tables that are elsewhere, or none."""


@dataclass(frozen=True)
class NoCache(Cache):
    """Every row that a step reads is asked for."""

    kind = "none"


@dataclass(frozen=True)
class HetCache(Cache):
    """Rows stay on the trainers within a bound on their clocks (HET 3).

    The cache holds `capacity` rows, a share such as 10% of those of the cached tables or a number. `tables` are pairs of a pattern and a capacity,
    or `none`, for tables that have a cache of their own, or none.
    """

    kind = "het"
    home = "het"
    runs = True
    holds_rows = True
    is_joined = True
    server_row_bytes = 4  # a clock
    batch_copies = 8  # its distinct ids, where each stands, the index of them (`python tools/bench/role_memory.py`)
    hits_as_given = True
    capacity: Annotated[
        Capacity, about("Rows that the cache holds: a share of those of its tables such as 10%, or a number.")
    ] = "10%"
    staleness: Annotated[
        Annotated[int, Meta(ge=0, le=999_999_999)] | Literal["unbounded"],
        about("HET's s: by how many updates a row that is read may be behind."),
    ] = 100
    policy: Annotated[
        Annotated[str, Meta(extra={"choices": POLICIES})], about("Which rows leave a full cache first.")
    ] = "light-lfu"
    window: Annotated[
        Window, about("Batches that a trainer reads ahead; rows that they use are the last to leave.")
    ] = 64
    tables: Annotated[
        TableCapacities,
        about("A cache of its own for tables by name or pattern, such as *.C1.*=50%, or none.", flag="cache-table"),
    ] = ()

    @property
    def reads_ahead(self) -> int:
        """The batches of `window`."""
        return self.window

    @property
    def no_prefetch(self) -> str:
        """With staleness 0, a row must be as new as the step that reads it."""
        return "" if self.staleness else "a cache without staleness asks for nothing ahead"

    @property
    def whole(self) -> bool:
        """Whether no table is left out by `tables`."""
        return _is_whole(self.tables)

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError without sparse PSs, and for staleness 0 where trainers do not step together."""
        if not cluster.sparse_ps:
            raise ClusterError("a het cache stands between trainers and sparse PSs: sparse_ps must be at least 1")
        if self.staleness == 0 and cluster.groups * cluster.trainers > 1 and not options.dense_sync.lockstep:
            raise ClusterError(
                "a cache without staleness makes all trainers step together: it wants dense sync allreduce"
            )


@dataclass(frozen=True)
class LookAheadCache(Cache):
    """A trainer brings the rows of the next batches into a set-associative cache beside its compute (cDLRM 3 to 5).

    Each table has the next prime of `sets` sets of `ways` rows, or is held whole where it has no more rows than sets; `auto` are as many as the
    window needs. A window of `auto` is 500 batches, or what the trainer's memory holds. With `patch`, a prefetched row that has changed since it was
    read is put right; without, it is used as it is, as in the paper, and the change is lost. With `device` cuda, the
    cache and all of a trainer's steps are on its CUDA device. Several trainers have replicas of the same caches, and average the rows that they have changed
    every `average` steps, or when the updates since the last time are such a share of the caches' rows, 5% say (6.1: lambda).
    """

    kind = "lookahead"
    home = "lookahead"
    runs = True
    holds_rows = True
    averages_rows = True
    batch_copies = 3  # its distinct ids, those of the window
    window: Annotated[
        Window | Literal["auto"],
        about("Batches whose rows are brought ahead; auto is 500, or what the trainer's memory holds."),
    ] = "auto"
    sets: Annotated[
        Annotated[int, Meta(ge=1, le=999_999_999)] | Literal["auto"],
        about("Sets of each table's cache; auto is as many as the window needs."),
    ] = "auto"
    ways: Annotated[Annotated[int, Meta(ge=1, le=4096)], about("Rows of a set.")] = 16
    patch: Annotated[
        bool,
        about(
            "Put right a prefetched row that has changed since it was read; without, its updates since then are lost."
        ),
    ] = True
    average: Annotated[
        Count | UpdatedShare,
        about(
            "Steps between two averages of what several trainers have changed (cDLRM's lambda), or updates until the next, as a share of the caches' rows."
        ),
    ] = 1
    device: Annotated[Literal["cpu", "cuda"], about("Where the cache is, and with it the trainer's steps.")] = "cpu"
    tables: Annotated[
        TableCapacities, about("Tables without a cache, by name or pattern, such as *.C1.*=none.", flag="cache-table")
    ] = ()

    @property
    def reads_ahead(self) -> int:
        """The batches of `window`, of which `auto` are at most 500."""
        return 500 if self.window == "auto" else self.window

    @property
    def no_prefetch(self) -> str:
        """Rows of later batches are brought by the cache itself."""
        return "a look-ahead cache brings the rows of later batches itself"

    @property
    def whole(self) -> bool:
        """Whether no table is left out by `tables`."""
        return _is_whole(self.tables)

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError where several trainers do not step together."""
        trainers = cluster.groups * cluster.trainers
        if trainers > 1 and not options.dense_sync.lockstep:
            raise ClusterError(
                f"several trainers keep their look-ahead caches alike step by step: {trainers} of them want dense sync allreduce, and groups: "
                f"{trainers}, trainers: 1, group_ps: 0"
            )

    def idle(self, field: str, cluster: "Cluster") -> str:
        """`average` changes nothing with one trainer."""
        alone = cluster.groups * cluster.trainers == 1
        return (
            "there is one trainer, whose cache has no replica to average with" if alone and field == "average" else ""
        )


def _is_whole(tables: tuple[tuple[str, str], ...]) -> bool:
    return not any(capacity == "none" for _, capacity in tables)


CACHES: dict[str, type[Cache]] = {kind.kind: kind for kind in (NoCache, HetCache, LookAheadCache)}


def capacity_rows(text: str, num_rows: int, *, where: str) -> int:
    """The rows that a cache over `num_rows` rows holds: `10%` of them, or `5000`. Raises UsageError beginning with `where`."""
    if not re.fullmatch(_NUMBER, text):
        raise UsageError(f"{where}: '{text}' is not {_CAPACITY}")
    if not text.endswith("%"):
        return min(int(text), num_rows)
    return max(1, round(float(text.removesuffix("%")) / 100 * num_rows))
