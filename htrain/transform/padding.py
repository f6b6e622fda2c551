"""Padding rows that are read: an Embedding's `padding_idx` keeps gradients from a row, it does not make that row zero."""

from collections.abc import Mapping

import torch

from htrain.net.net import Net, Parameter
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.ops.padding import without_padding_gradient


def read_padding_rows(net: Net, values: Mapping[str, torch.Tensor]) -> Net:
    """Look up the padding row wherever it may hold anything but zeros; its gradient is stopped behind the lookup.

    Requires: forward ops only; `values` are those of parameters whose init is `file`.
    Ensures:  an `Embedding` has a padding_idx only where that row starts as zeros and no other lookup steps it, so that
    nobody need read it.
              An EmbeddingBag keeps its padding_idx, as it leaves the padding row out of every bag.
    """
    paddings: dict[str, set[object]] = {}
    for op in net.ops:
        if OPS[op.type].over_rows:
            paddings.setdefault(op.inputs[0], set()).add(op.attrs["padding_idx"])
    if all(op.type != "Embedding" or op.attrs["padding_idx"] == -1 for op in net.ops):
        return net
    builder = NetBuilder.beside(net)
    builder.reserve(net.blobs)
    for op in net.ops:
        row = op.attrs.get("padding_idx", -1)
        if op.type != "Embedding" or row == -1:
            builder.copy(op)
            continue
        assert isinstance(row, int)
        table = net.parameters[op.inputs[0]]
        if len(paddings[table.name]) == 1 and starts_as_zeros(table, row, values.get(table.name)):
            builder.copy(op)
        else:
            rows = builder.add("Embedding", op.inputs, attrs={"padding_idx": -1}, module=op.module)[0]
            without_padding_gradient(builder, rows, op.inputs[1], row, module=op.module, outputs=op.outputs)
    return builder.build(net.outputs)


def starts_as_zeros(table: Parameter, row: int, value: torch.Tensor | None) -> bool:
    """Whether a row of a table is zeros before the first step; `value`[R,D] is the table where its init is `file`."""
    if value is not None:
        return not bool(value[row].any())
    return row in table.init.zero_rows or (table.init.kind == "constant" and not any(table.init.arguments))
