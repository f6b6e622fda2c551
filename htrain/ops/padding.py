"""Ops that keep gradients from the rows of a padding id, and what lookups take for zeros."""

from collections.abc import Sequence

import torch

from htrain.net.net import Net, Op
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder


def without_padding_gradient(
    builder: NetBuilder, rows: str, ids: str, padding_idx: int, *, module: str, outputs: Sequence[str] = ()
) -> str:
    """rows[..,D] that were read by ids[..] as they are, but no gradient comes back for those of `padding_idx`."""
    frozen = builder.add("Detach", (rows,), module=module)[0]
    padding = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor(padding_idx))}, module=module)[0]
    padded = builder.add("Equal", (ids, padding), module=module)[0]
    shape = (*(d if isinstance(d, int) else -1 for d in builder.blob(ids).shape), 1)
    column = builder.add("Reshape", (padded,), attrs={"shape": shape}, module=module)[0]
    return builder.add("Where", (column, frozen, rows), module=module, outputs=outputs)[0]


def rows_taken_for_zeros(net: Net) -> dict[str, int]:
    """The padding row of each table, by its name in the model, that a train net does not read and takes for zeros. Bags leave theirs out, whatever it holds."""
    found: dict[str, int] = {}
    for op in net.ops:
        row = op.attrs.get("padding_idx", -1)
        if op.type not in ("Dedupe", "DedupeSharded") or not isinstance(row, int) or row < 0:
            continue
        places = _places(op)
        readers = {reader.type for reader in net.ops if not places.isdisjoint(reader.inputs)}
        if readers - {"PoolRows", "PoolRowsGradient"}:
            found[op.module] = row
    return found


def _places(dedupe: Op) -> frozenset[str]:
    """Where the ids of each lookup are among the distinct ones, which come first: once, or for each shard."""
    bounds = dedupe.attrs.get("bounds", (0, 0))
    assert isinstance(bounds, tuple)
    return frozenset(dedupe.outputs[len(bounds) - 1 :])
