"""What a server of rows holds, by the op that pushes to it: tables that lie in one piece, and their optimizer's states."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.executor.engine.store import Store, whole_of
from htrain.net.net import Op
from htrain.ops.asked_rows import REQUEST, number
from htrain.sync.row_steps import SparseStep

Rows = NDArray[np.float32]


def held_by(push: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tables that a push serves, and their states."""
    count = number(push, "num_tables")
    held = push.inputs[1 : -len(REQUEST)]
    return held[:count], held[count:]


def rows_of(push: Op, store: Store) -> tuple[Rows, Rows]:
    """All rows that a push serves, [R,D], and their states, [R,S]: the memory that the store has."""
    tables, states = ([store[name] for name in names] for names in held_by(push))
    table = whole_of(tables).numpy()
    return table, whole_of(states).numpy() if states else np.empty((len(table), 0), np.float32)


def step_of(op: Op) -> SparseStep:
    """How rows step."""
    attrs: Mapping[str, Any] = op.attrs
    rest = {name: attrs[name] for name in ("beta", "l1", "l2") if name in attrs}
    return SparseStep(attrs["optimizer"], attrs["lr"], attrs["eps"], **rest)
