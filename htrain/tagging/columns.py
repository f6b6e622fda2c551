"""Which columns of the data the ids of each table are: found by running the ops that lead to them on numbers that can be told apart."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from htrain.data import Input
from htrain.net.net import BatchDim, Net
from htrain.net.slices import leading_to
from htrain.ops import OPS
from htrain.ops.base import UNFIT

_SHIFT, _BITS = (
    40,
    20,
)  # a marker is a column's number, of so many bits, above it, and below it what a model adds to ids
_PROBES = (1, 2)  # columns have other numbers in each: what is computed of some of them is no other's in both
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


def _probed(net: Net, ids: Sequence[str], inputs: Sequence[Input], probe: int) -> tuple[Piece, ...] | None:
    """What a probe tells of some ids; None where they are no column's."""
    tables = [table for each in inputs for table in each.tables]
    numbers = random.Random(probe).sample(range(1, 1 << _BITS), len(tables))
    columns = dict(zip(numbers, tables, strict=True))
    values = _marked(net, inputs, numbers)
    for place in leading_to(net.ops, ids):
        op = net.ops[place]
        if any(name not in values for name in op.inputs):
            return None
        try:
            made = OPS[op.type].run(op, [values[name] for name in op.inputs], _BATCH)
        except UNFIT:
            return None
        values.update(zip(op.outputs, made, strict=True))
    seen: set[Piece] = set()
    for name in ids:
        if name not in values:
            return None
        for value in values[name].flatten().tolist():
            number, rest = divmod(int(value), 1 << _SHIFT)
            if number not in columns:
                return None
            seen.add(Piece(columns[number], rest))
    return tuple(sorted(seen, key=lambda piece: (piece.first_row, piece.table)))


def _marked(net: Net, inputs: Sequence[Input], numbers: Sequence[int]) -> dict[str, torch.Tensor]:
    """A batch whose ids are markers of their columns, which have these numbers."""
    values: dict[str, torch.Tensor] = {}
    left = iter(numbers)
    for each in inputs:
        marks = [next(left) << _SHIFT for _ in each.tables]
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
