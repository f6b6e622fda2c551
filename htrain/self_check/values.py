"""Random values for the parameters of a model, whatever its size: equal or zero values would hide what is mixed up.

A table of more than a few rows is never allocated: row r holds the values of row r modulo `PERIOD` of a small one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from htrain.frontend.captured import Captured
from htrain.net.net import Parameter
from htrain.ops.base import dtype_of

PERIOD = 1009  # a prime: rows that a model takes for neighbours or multiples of each other have other values
_LARGE_ELEMENTS = 1 << 16


@dataclass(frozen=True, eq=False)  # tensors have no equality that is true or false
class Table:
    """The rows of a table of `num_rows` rows: `base[r % len(base)]`, but zeros for those in `zero_rows`."""

    num_rows: int
    base: torch.Tensor
    zero_rows: frozenset[int] = frozenset()

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[.., D] for ids[..], in memory of its own. Raises IndexError for an id that has no row."""
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.num_rows):
            raise IndexError(f"id {int(ids.min())} or {int(ids.max())} is no row of a table of {self.num_rows}")
        taken = self.base[ids % len(self.base)]
        for row in self.zero_rows:
            taken[ids == row] = 0
        return taken

    def whole(self) -> torch.Tensor:
        """All rows, of a table that is small."""
        return self.rows(torch.arange(self.num_rows))

    @property
    def is_small(self) -> bool:
        """Whether its rows may be made all at once."""
        return self.num_rows * self.base[0].numel() <= _LARGE_ELEMENTS if len(self.base) else True


@dataclass(frozen=True)
class Values:
    """The values of all parameters of a net: dense ones whole, tables by row."""

    dense: Mapping[str, torch.Tensor]
    tables: Mapping[str, Table]


def draw_values(captured: Captured, generator: torch.Generator, *, positive: bool, scale: float) -> Values:
    """Values of a size at which activations neither vanish nor explode, times `scale`; not below 0 where `positive`.

    What is not trained keeps what it has, its value or the constant of its init. Of an ONNX file, weights that it stores as one have one
    value, and what it does not store keeps the value that it was given.
    """
    fixed, origins = captured.values, captured.origins
    dense, tables = {}, {}
    for name, parameter in captured.net.parameters.items():
        drawn = parameter.trained or (name not in fixed and parameter.init.kind != "constant")
        if parameter.kind == "table":
            tables[name] = draw_table(parameter.shape, generator, positive=positive, scale=scale)
        elif drawn and (origins.get(name) or not origins):
            dense[name] = draw(parameter.shape, parameter.dtype, generator, positive=positive, scale=scale)
        else:
            dense[name] = fixed[name] if name in fixed else _constant(parameter)
    first = {found[0]: name for name, found in reversed(list(origins.items())) if found}
    same = {name: first[found[0]] for name, found in origins.items() if found}
    return Values({n: dense[same.get(n, n)] for n in dense}, {n: tables[same.get(n, n)] for n in tables})


def draw_table(shape: tuple[int, ...], generator: torch.Generator, *, positive: bool, scale: float) -> Table:
    """Random values for a table[R,D], float32; after PERIOD rows they come again."""
    return Table(
        shape[0],
        draw((min(shape[0], PERIOD), *shape[1:]), "float32", generator, positive=positive, scale=scale, spread=0.5),
    )


def draw(
    shape: tuple[int, ...], dtype: str, generator: torch.Generator, *, positive: bool, scale: float, spread: float = 0.0
) -> torch.Tensor:
    """Normal values; those of a matrix by the width of what it multiplies, where no `spread` is given."""
    drawn = (
        torch.randn(shape, generator=generator)
        * (spread or (math.sqrt(1 / shape[-1]) if len(shape) > 1 and shape[-1] else 0.5))
        * scale
    )
    return (drawn.abs() if positive else drawn).to(dtype_of(dtype))


def _constant(parameter: Parameter) -> torch.Tensor:
    return torch.full(parameter.shape, parameter.init.arguments[0], dtype=dtype_of(parameter.dtype))
