"""Where tables live: the table of these strategies, as users name them."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from msgspec import Meta

from htrain.errors import ClusterError
from htrain.spec.fields import Section, about
from htrain.spec.numerics import GradientDtype, RowDtype
from htrain.spec.row_holder import RowHolder

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options

OTHER_BATCHES = "the partition was made for batches of"  # begins the note of a plan whose own are others


@dataclass(frozen=True)
class SparseSync(Section):
    """A way to hold tables. With `lockstep`, all trainers step together; with `served`, sparse PSs have the tables, or one trainer that is alone.

    Tables and their optimizer's state are in memory, or in files in the run's folder that are mapped into it: then they may be larger than a role's
    memory, of which they take what the machine has to spare. With `beside`, there is a sparse PS for each trainer, in its process.
    """

    lockstep: ClassVar[bool] = False
    served: ClassVar[bool] = True
    beside: ClassVar[bool] = False
    store: Annotated[
        Literal["memory", "mapped"],
        about(
            "Where the numbers of tables are: in memory, or in mapped files of the run's folder.", flag="table-store"
        ),
    ] = "memory"

    @property
    def partition_file(self) -> str:
        """The partition of the data by which tables are held, as it was named; "" where there is none."""
        return ""

    def found_from_anywhere(self) -> Self:
        """The same with whole paths of files: a plan is run, and read, in other folders than that in which it was compiled."""
        return self


@dataclass(frozen=True)
class TableServers(SparseSync):
    """Tables are on sparse PSs, whole or in row ranges.

    Rows leave as `row_dtype`, int8 with a range for each row, and their gradients come as `row_gradient_dtype`; those that a cache exchanges travel as
    they are. Tables and their optimizer's state stay float32.
    """

    kind = "ps"
    home = "table_servers"
    row_dtype: Annotated[RowDtype, about("In which dtype rows leave a sparse PS.", flag="row-dtype")] = "float32"
    row_gradient_dtype: Annotated[
        GradientDtype, about("In which dtype gradients of rows come to it.", flag="row-gradient-dtype")
    ] = "float32"

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError where several trainers would share tables without sparse PSs."""
        trainers = cluster.groups * cluster.trainers
        if not cluster.sparse_ps and trainers > 1:
            raise ClusterError(f"{trainers} trainers share the tables: sparse_ps must be at least 1")


@dataclass(frozen=True)
class AllGather(SparseSync):
    """Every trainer has all tables, and sends the gradients of its rows to all others."""

    kind = "allgather"
    home = "allgather"
    lockstep = True
    served = False

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError unless trainers step together, without a cache."""
        if not options.dense_sync.lockstep or options.cache.holds_rows:
            raise ClusterError(
                "sparse sync allgather has all tables on every trainer: it wants dense sync allreduce, and no cache"
            )


@dataclass(frozen=True)
class Gmp(SparseSync, RowHolder):
    """Tables are in the trainers' processes, by a `partition` of the data: rows of others are replicated where they are used most, and their replicas held
    within `staleness` updates (HET-GMP 5).

    `intra` holds a replica to its primary, `inter` to the other rows of a sample. Updates of others' rows leave with the next step (`through`), or when
    `staleness` of them have come together (`deferred`).
    """

    kind = "gmp"
    home = "gmp"
    runs = True
    lockstep = True
    beside = True
    holds_rows = True
    by_partition = True
    server_row_bytes = 4  # a clock
    batch_copies = 3  # its distinct ids, and where each stands
    partition: Annotated[str, about("The partition of the data, made by htrain partition.", flag="partition")] = ""
    staleness: Annotated[
        Annotated[int, Meta(ge=0, le=999_999_999)] | Literal["unbounded"],
        about("HET-GMP's s: by how many updates a replica that is read may be behind.", flag="gmp-staleness"),
    ] = 100
    write: Annotated[
        Literal["through", "deferred"],
        about("Updates of others' rows leave with the next step, or s of them together.", flag="gmp-write"),
    ] = "through"
    intra: Annotated[bool, about("Hold replicas to their primaries.", flag="gmp-intra")] = True
    inter: Annotated[bool, about("Hold replicas to the other rows of a sample.", flag="gmp-inter")] = True

    @property
    def partition_file(self) -> str:
        return self.partition

    def found_from_anywhere(self) -> Self:
        return replace(self, partition=os.path.abspath(self.partition))

    @property
    def words(self) -> str:
        """What sentences call it."""
        return f"sparse sync {self.kind}"

    @property
    def no_prefetch(self) -> str:
        """With staleness 0, a row must be as new as the step that reads it."""
        return "" if self.staleness else "sparse sync gmp without staleness asks for nothing ahead"

    @property
    def whole(self) -> bool:
        """All tables are behind it."""
        return True

    def require(self, cluster: "Cluster", options: "Options") -> None:
        """Raises ClusterError unless there is a partition, and trainers step together without a cache, two or more, each with its own dense weights."""
        if not self.partition:
            raise ClusterError(
                "sparse sync gmp wants the partition of the data: --partition FILE, made by htrain partition"
            )
        if not options.dense_sync.lockstep or options.cache.holds_rows:
            raise ClusterError(
                "sparse sync gmp has its own replicas of rows: it wants dense sync allreduce, and no cache"
            )
        if cluster.groups < 2 or cluster.trainers > 1 or cluster.group_ps:
            raise ClusterError(
                f"sparse sync gmp wants groups: K for a partition among K workers, two or more, and trainers: 1, group_ps: 0; these are "
                f"{cluster.groups} groups of {cluster.trainers} trainers and {cluster.group_ps} group PSs"
            )
        if self.staleness == 0 and not self.intra:
            raise ClusterError("sparse sync gmp without staleness holds replicas to their primaries: leave intra on")

    def idle(self, field: str, cluster: "Cluster") -> str:
        """What changes nothing without staleness, or without a bound."""
        if field == "inter" and self.staleness == 0:
            return "without staleness every replica that is read is as new as its primary"
        if field in ("intra", "inter") and self.staleness == "unbounded":
            return "replicas have no bound"
        return ""


SPARSE_SYNCS: dict[str, type[SparseSync]] = {kind.kind: kind for kind in (TableServers, AllGather, Gmp)}
