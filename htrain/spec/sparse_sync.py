"""Where tables live: the table of these strategies, as users name them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from htrain.spec.fields import Kinds, Section, about
from htrain.spec.numerics import GradientDtype, RowDtype


@dataclass(frozen=True)
class SparseSync(Section):
    """A way to hold tables. With `lockstep`, all trainers step together.

    Tables and their optimizer's state are in memory, or in files in the run's folder that are mapped into it: then they may be larger than a role's
    memory, of which they take what the machine has to spare.
    """

    lockstep: ClassVar[bool] = False
    store: Annotated[
        Literal["memory", "mapped"], about("Where the numbers of tables are: in memory, or in mapped files of the run's folder.", flag="table-store")
    ] = "memory"


@dataclass(frozen=True)
class TableServers(SparseSync):
    """Tables are on sparse PSs, whole or in row ranges.

    Rows leave as `row_dtype`, int8 with a range for each row, and their gradients come as `row_gradient_dtype`; those that a cache exchanges travel as
    they are. Tables and their optimizer's state stay float32.
    """

    kind = "ps"
    row_dtype: Annotated[RowDtype, about("In which dtype rows leave a sparse PS.", flag="row-dtype")] = "float32"
    row_gradient_dtype: Annotated[GradientDtype, about("In which dtype gradients of rows come to it.", flag="row-gradient-dtype")] = "float32"


@dataclass(frozen=True)
class AllGather(SparseSync):
    """Every trainer has all tables, and sends the gradients of its rows to all others."""

    kind = "allgather"
    lockstep = True


SPARSE_SYNCS: Kinds = {kind.kind: kind for kind in (TableServers, AllGather)}
