"""Rows between look-ahead caches and the tables of a device, of all tables at once (cDLRM 5, docs/decisions/look-ahead-cache.md).

A role makes this op of the passes of its tables (`htrain.executor.strategies.lookahead.joint_passes`):

    fetched_1 .. = ExchangeRows(table_1, states of it, table_2 .., keys_1 .., values_1 .., wanted_1 ..)      as WriteBack of each, then Prefetch of each
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from htrain.net.net import Blob, Op
from htrain.ops import lookahead_loops
from htrain.ops.base import Cost, OpDef, RowChange, Signature


def _exchange(*values: torch.Tensor, parts: tuple[int, ...], first_row: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Of each table `parts` tensors, itself and its states; then the keys, the values and what is wanted of each."""
    arrays, tables, count = [value.numpy() for value in values], len(parts), sum(parts)
    ends = [0, *accumulate(parts)]
    stored = [arrays[begin:end] for begin, end in pairwise(ends)]
    keys, rows, wanted = (arrays[count + place * tables : count + (place + 1) * tables] for place in range(3))
    lookahead_loops.write_tables(stored, keys, rows, first_row)
    return tuple(map(torch.from_numpy, lookahead_loops.read_tables(stored, wanted, first_row)))


def _changes_all(op: Op) -> Sequence[RowChange]:
    parts, first_row = op.attrs["parts"], op.attrs["first_row"]
    assert isinstance(parts, tuple)
    assert isinstance(first_row, tuple)
    ends = [0, *accumulate(map(int, parts))]
    keys = op.inputs[ends[-1] :]
    found = zip(pairwise(ends), keys, first_row, strict=False)
    return [RowChange(op.inputs[begin:end], ids, int(first)) for (begin, end), ids, first in found]


def _exchange_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Rows that come back with their states, read and written; and rows that are read."""
    return Cost(0.0, float(2 * sum(b.num_bytes(batch_size) for b in (*inputs[-3 * len(outputs) :], *outputs))))


def _made_at_start(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    raise AssertionError(f"{op.label} is made where a role starts: its blobs are given")


DEFINITIONS = (
    OpDef(
        "ExchangeRows",
        _exchange,
        _made_at_start,
        _exchange_cost,
        None,
        many=True,
        effects=True,
        changes=_changes_all,
        on_host=True,
        phase="push",
        work="scatter",
        serves_cache=True,
    ),
)
