"""Ops that keep gradients from the rows of a padding id."""

from collections.abc import Sequence

import torch

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
