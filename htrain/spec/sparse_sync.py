"""Where tables live: the table of these strategies, as users name them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from htrain.errors import ClusterError
from htrain.spec.fields import Section, about
from htrain.spec.numerics import GradientDtype, RowDtype

if TYPE_CHECKING:
    from htrain.spec.cluster import Cluster
    from htrain.spec.options import Options


@dataclass(frozen=True)
class SparseSync(Section):
    """A way to hold tables. With `lockstep`, all trainers step together; with `served`, sparse PSs have the tables, or one trainer that is alone.

    Tables and their optimizer's state are in memory, or in files in the run's folder that are mapped into it: then they may be larger than a role's
    memory, of which they take what the machine has to spare.
    """

    lockstep: ClassVar[bool] = False
    served: ClassVar[bool] = True
    store: Annotated[
        Literal["memory", "mapped"],
        about(
            "Where the numbers of tables are: in memory, or in mapped files of the run's folder.", flag="table-store"
        ),
    ] = "memory"


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


SPARSE_SYNCS: dict[str, type[SparseSync]] = {kind.kind: kind for kind in (TableServers, AllGather)}
