"""First values of parameters: effects in the init net of the parameter's owner (HT 3.2.1).

    UniformFill(w), NormalFill(w), ConstantFill(w), FileFill(w)     w float32 of any shape; its first dimension is rows
    ZeroRows(w)                                                     sets `rows` to 0

Random fills are counter-based: a value depends on (seed, row, column) alone, so a table's rows are the same however it
is sharded, an FC's weight however it is split, and every group starts from the same dense replica. `first_row` and
`first_column` say where in the whole a part begins.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.net.net import Op
from htrain.ops import row_init
from htrain.ops.base import OpDef, no_outputs, runs


def _rows_of(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.reshape(parameter.shape[0], -1) if parameter.dim() else parameter.reshape(1, 1)


def _uniform(
    parameter: torch.Tensor, *, seed: int, first_row: int, low: float, high: float, first_column: int = 0
) -> None:
    row_init.fill_uniform(_rows_of(parameter).numpy(), seed, first_row, low, high, first_column=first_column)


def _normal(
    parameter: torch.Tensor, *, seed: int, first_row: int, mean: float, std: float, first_column: int = 0
) -> None:
    row_init.fill_normal(_rows_of(parameter).numpy(), seed, first_row, mean, std, first_column=first_column)


def _constant(parameter: torch.Tensor, *, value: float) -> None:
    parameter.fill_(value)


def _zero_rows(parameter: torch.Tensor, *, rows: tuple[int, ...], first_row: int) -> None:
    for row in rows:
        if first_row <= row < first_row + parameter.shape[0]:
            parameter[row - first_row].zero_()


def _from_file(parameter: torch.Tensor, **attrs: object) -> None:
    raise AssertionError("the executor reads a parameter's file; it knows the plan's folder")


def fill_rows(op: Op, parameter: torch.Tensor, rows: NDArray[np.int64]) -> None:
    """Run a fill on a parameter whose row r is row rows[r] of the whole: no range of it. Not for FileFill."""
    attrs: dict[str, Any] = {name: value for name, value in op.attrs.items() if name not in ("first_row", "seed")}
    seed: Any = op.attrs.get("seed", 0)
    if op.type == "UniformFill":
        row_init.fill_uniform_at(_rows_of(parameter).numpy(), seed, rows, **attrs)
    elif op.type == "NormalFill":
        row_init.fill_normal_at(_rows_of(parameter).numpy(), seed, rows, **attrs)
    elif op.type == "ConstantFill":
        _constant(parameter, **attrs)
    else:
        assert op.type == "ZeroRows", op.type
        parameter[torch.from_numpy(np.flatnonzero(np.isin(rows, attrs["rows"])))] = 0.0


DEFINITIONS = (
    OpDef("UniformFill", _uniform, no_outputs, gradient=None, effects=True, writes=(0,), loops=runs(*row_init.UNIFORM)),
    OpDef("NormalFill", _normal, no_outputs, gradient=None, effects=True, writes=(0,), loops=runs(*row_init.NORMAL)),
    OpDef("ConstantFill", _constant, no_outputs, gradient=None, effects=True, writes=(0,)),
    OpDef("ZeroRows", _zero_rows, no_outputs, gradient=None, effects=True, writes=(0,)),
    OpDef(
        "FileFill",
        _from_file,
        no_outputs,
        gradient=None,
        effects=True,
        writes=(0,),
        attributes={"first_row": int, "first_column": int},
    ),
)
