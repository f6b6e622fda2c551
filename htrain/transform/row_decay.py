"""Lazy weight decay of tables: the rows of a batch decay, as if the loss had half of `decay` times their squares in it."""

from collections.abc import Mapping

from htrain.errors import ModelError
from htrain.net.net import Net
from htrain.ops.builder import NetBuilder


def decay_rows(net: Net, gradients: Mapping[str, str], decay: float) -> tuple[Net, Mapping[str, str]]:
    """Append to the gradient of each lookup's distinct rows `decay` times these rows.

    The gradient is where the rows are read, so that it is the same wherever these are stepped, and however many gradients come together there.

    Requires: lowered lookups; `gradients` as `add_gradients` gave them, of a loss whose share in that of all workers is in `decay`; no optimizer steps yet.
    Ensures:  the second result names, for the rows of each lookup, that gradient; those of weights stay as they are.
    Raises ModelError for rows that are read within a norm.
    """
    if not decay:
        return net, gradients
    if any(op.type == "BoundRows" for op in net.ops):
        raise ModelError(
            "lazy_weight_decay would decay rows as they are, and a table's max_norm bounds them: leave one of these out"
        )
    builder, changed = NetBuilder.of(net), dict(gradients)
    for rows in (op.outputs[0] for op in net.ops if op.type == "Lookup" and op.outputs[0] in gradients):
        names = (builder.fresh(f"{gradients[rows]}_decayed"),)
        inputs = (gradients[rows], rows)
        changed[rows] = builder.add("DecayedRows", inputs, attrs={"decay": decay}, module=rows, outputs=names)[0]
    return builder.build(net.outputs), changed
