"""Which columns of the data the ids of each table are: found by running the ops that lead to them on numbers that can be told apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from htrain.data import Input
from htrain.net.net import BatchDim, Net
from htrain.net.slices import leading_to
from htrain.ops import OPS

_SHIFT = 40  # a marker is a column's number above it, and below it what a model adds to ids
_PROBES = (1, 3)  # what columns' numbers are multiplied by: what is not a column's own number differs between the two
_BATCH = 2


@dataclass(frozen=True)
class Piece:
    """The rows of a model's table, from `first_row` on, that ids of the data's `table` look up."""

    table: str
    first_row: int


def columns_of(net: Net, inputs: Sequence[Input]) -> dict[str, tuple[Piece, ...]]:
    """By each table of a net, what of the data looks it up, in row order; a table whose ids are not the data's own, or the data's plus a number, is left out.

    Requires: lowered lookups.
    """
    found: dict[str, tuple[Piece, ...]] = {}
    for op in net.ops:
        if op.type == "Dedupe":
            probes = [_probed(net, op.inputs, inputs, factor) for factor in _PROBES]
            if probes[0] is not None and probes[0] == probes[1]:
                found[op.module] = probes[0]
    return found


def _probed(net: Net, ids: Sequence[str], inputs: Sequence[Input], factor: int) -> tuple[Piece, ...] | None:
    """What a probe tells of some ids; None where they are no column's."""
    markers = [(each.name, table) for each in inputs for table in each.tables]
    values = _marked(net, inputs, factor)
    for place in leading_to(net.ops, ids):
        op = net.ops[place]
        if any(name not in values for name in op.inputs):
            return None
        values.update(zip(op.outputs, OPS[op.type].run(op, [values[name] for name in op.inputs], _BATCH), strict=True))
    seen: set[Piece] = set()
    for name in ids:
        if name not in values:
            return None
        for value in values[name].flatten().tolist():
            number, rest = divmod(int(value), factor << _SHIFT)
            if not 0 < number <= len(markers) or rest >= 1 << _SHIFT:
                return None
            seen.add(Piece(markers[number - 1][1], rest))
    return tuple(sorted(seen, key=lambda piece: (piece.first_row, piece.table)))


def _marked(net: Net, inputs: Sequence[Input], factor: int) -> dict[str, torch.Tensor]:
    """A batch whose ids are markers of their columns."""
    values: dict[str, torch.Tensor] = {}
    number = 0
    for each in inputs:
        marks = [(number + k + 1) * factor << _SHIFT for k in range(len(each.tables))]
        number += len(each.tables)
        if each.name not in net.blobs:
            continue
        shape = [d.at(_BATCH) if isinstance(d, BatchDim) else d for d in net.blobs[each.name].shape]
        if each.kind == "ids":
            values[each.name] = torch.tensor(marks).expand(shape).clone()
        elif each.kind != "dense":
            values[each.name] = torch.full(shape, marks[0])
            values[f"{each.name}_length"] = torch.full((_BATCH,), each.width)
            values[f"{each.name}_offsets"] = torch.zeros(_BATCH, dtype=torch.int64)
    return values
