"""The operator set: a file per family, and `OPS`, the table of all of them by type."""

from htrain.ops import (
    accelerated,
    averaging,
    batch_norm,
    bounds,
    collective,
    comm,
    compress,
    counted_steps,
    draw,
    dropout,
    elementwise,
    embedding,
    fc,
    fields,
    gmp,
    het,
    init,
    interaction,
    joint,
    joint_passes,
    lookahead,
    loss,
    low_precision,
    matrix,
    optimizer,
    pointwise,
    reduce,
    served,
    shape,
    taken,
    torch_ops,
    transfer,
)
from htrain.ops.base import OpDef, vjp_gradient
from htrain.ops.vjp import vjp_definition

_FAMILIES = (
    fc, low_precision, elementwise, matrix, interaction,
    batch_norm, draw, dropout, torch_ops, pointwise,
    reduce, shape, embedding, bounds, fields, taken, served, het, gmp, lookahead, joint, joint_passes,
    loss, optimizer, counted_steps, comm, averaging, collective, compress, init, transfer,
)  # fmt: skip
_WRITTEN = {definition.type: definition for family in _FAMILIES for definition in family.DEFINITIONS}
_GENERIC = {
    definition.type + "Gradient": vjp_definition(definition)
    for definition in _WRITTEN.values()
    if definition.gradient is vjp_gradient or definition.type == "MatMul"
}

_ACCELERATED = {
    accelerated.accelerated_type(d.type): accelerated.on_accelerator(d) for d in _WRITTEN.values() if d.accelerated
}

# A gradient that is written by hand comes before the generic one.
OPS: dict[str, OpDef] = {**_GENERIC, **_WRITTEN, **_ACCELERATED}
OWN = frozenset(OPS)  # the types of htrain's own, to which users add theirs

__all__ = ["OPS", "OWN", "OpDef"]
