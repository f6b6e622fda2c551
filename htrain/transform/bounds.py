"""Tables whose rows have a largest norm: their rows are brought within it where the table is, before each step."""

from collections.abc import Mapping

from htrain.errors import ClusterError, ModelError
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options


def bounds_of(net: Net) -> dict[str, float]:
    """The largest norm of the rows of each table that has one, in a net of forward ops.

    Raises ModelError for a table that is read within a norm here and without, or within another, there.
    """
    within = {op.inputs[0]: float(str(op.attrs["max_norm"])) for op in net.ops if op.type == "BoundRows"}
    found: dict[str, set[float]] = {}
    for op in net.ops:
        if OPS[op.type].over_rows:
            found.setdefault(op.inputs[0], set()).add(within.get(op.outputs[0], 0.0))
    for table, norms in found.items():
        if len(norms) > 1:
            raise ModelError(
                f"table '{table}' is read with several max_norm ({', '.join(f'{norm:g}' if norm else 'none' for norm in sorted(norms))}): "
                "give all its modules one"
            )
    return {table: norm for table, (norm,) in found.items() if norm}


def bound_tables(net: Net, bounds: Mapping[str, float], cluster: Cluster, options: Options) -> Net:
    """Bring the rows of `bounds` within their norm before each step on them, as PyTorch does when it reads them.

    Requires: optimizer steps; one for each table, whole.  Ensures: a step is that of the rows that the batch has read.
    Raises ClusterError where somebody else than the table's device steps rows.
    """
    if not bounds:
        return net
    if options.holder.holds_rows or cluster.sparse_ps_processes > 1:
        who = (
            options.holder.words if options.holder.holds_rows else f"sparse_ps_processes {cluster.sparse_ps_processes}"
        )
        raise ClusterError(
            f"table '{next(iter(bounds))}' has max_norm {next(iter(bounds.values())):g}, and {who} would step its rows as they are: leave one of these out"
        )
    builder = NetBuilder.beside(net)
    for op in net.ops:
        if OPS[op.type].steps_rows and op.inputs[0] in bounds:
            table, ids = op.inputs[0], op.inputs[-2]
            attrs = {"max_norm": bounds[table], "first_row": 0}
            builder.add("BoundTable", (table, ids), attrs=attrs, module=op.module)
        builder.copy(op)
    return builder.build(net.outputs)
