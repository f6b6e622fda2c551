"""The parameters of a checkpoint as pieces of those of the model, whatever the cluster was.

Parameters are known by their names in the model, and rows of tables by their numbers there: how many sparse PSs held a table, how an FC was split, or how the
data was partitioned makes no difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import ROWS, Manifest
from htrain.executor.record.layout import Layout
from htrain.executor.record.parameters import load_parameters
from htrain.executor.record.role_file import role_values
from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import Parameter

Rows = NDArray[np.int64]
_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Piece:
    """A part of a parameter: its first row and column in the whole, its values, and the numbers of its rows where they are no range."""

    first_row: int
    first_column: int
    values: torch.Tensor
    rows: Rows | None

    def places(self, rows: Rows) -> tuple[Rows, Rows]:
        """Which of some rows of the whole are here, by their place among them, and as which of the rows here."""
        if self.rows is None:
            at = rows - self.first_row
            here = np.flatnonzero((at >= 0) & (at < len(self.values)))
            return here, at[here]
        order = self._order
        near = np.minimum(np.searchsorted(self.rows, rows, sorter=order), len(order) - 1)
        here = np.flatnonzero(self.rows[order[near]] == rows)
        return here, order[near[here]]

    @cached_property
    def _order(self) -> Rows:
        """The places of its rows by their numbers: a table is read block by block, and sorted once."""
        return np.argsort(self.rows, kind="stable") if self.rows is not None else np.empty(0, np.int64)


def load_pieces(
    layout: Layout, saved: Mapping[str, Parameter], folder: Path, *, manifest: Manifest, replica: str
) -> dict[str, list[Piece]]:
    """The pieces of each whole parameter of a checkpoint, by `whole_name`. `saved` are those of the layout's parameters to look for, by name.

    Raises CheckpointError for what is not there, or cannot be read.
    """
    values = load_parameters(layout, saved, folder, manifest=manifest, replica=replica)
    servers = [role for role in manifest.files if role_of(role) == SPARSE_PS]
    rows = dict(item for role in servers for item in _rows_of(folder, manifest, role))
    pieces: dict[str, list[Piece]] = {}
    for name, parameter in saved.items():
        owner = owner_of(layout.parameters, parameter)
        piece = Piece(owner.first_row, owner.first_column, values[name], rows.get(owner.name))
        pieces.setdefault(whole_name(owner, parameter), []).append(piece)
    return pieces


def owner_of(parameters: Mapping[str, Parameter], parameter: Parameter) -> Parameter:
    """The weight or table that a state is of; itself otherwise."""
    return parameters.get(parameter.of, parameter) if parameter.kind == "state" else parameter


def whole_name(owner: Parameter, parameter: Parameter) -> str:
    """The name, in the model, of what a parameter is a piece of; of a state that of its owner, and behind it what it is called there."""
    return owner.whole + parameter.name.removeprefix(owner.name) if parameter.kind == "state" else owner.whole


def _rows_of(folder: Path, manifest: Manifest, role: str) -> Iterator[tuple[str, Rows]]:
    """The numbers of the rows of each table of a role that are no range, by the table's name. Raises CheckpointError."""
    try:
        with role_values(folder, manifest, role) as held:
            for name in held.names:
                if name.endswith(ROWS):
                    yield name.removesuffix(ROWS), held.of(name).numpy().astype(np.int64)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / manifest.files[role].name}: cannot be read: {error}") from error


def whole_of(name: str, parts: Sequence[Parameter]) -> Parameter:
    """The parameter of the model that these are parts of."""
    first, shape = parts[0], list(parts[0].shape)
    if shape:
        shape[0] = max(part.first_row + part.shape[0] for part in parts)
    if len(shape) > 1:
        shape[1] = max(part.first_column + part.shape[1] for part in parts)
    return replace(first, name=name, shape=tuple(shape), of="", first_row=0, first_column=0)


def is_models(parameter: Parameter) -> bool:
    """Whether a parameter is one of the model's, not a state of an optimizer or of a cache."""
    return parameter.kind in ("table", "weight", "statistic")


def paste(target: torch.Tensor, owner: Parameter, rows: Rows | None, pieces: Sequence[Piece]) -> int:
    """Copy what pieces have of a parameter into it; how many numbers. `rows` are the numbers of its rows where they are not those from `owner.first_row` on."""
    if target.dim() == 0:
        target.copy_(pieces[0].values)
        return 1
    filled = 0
    for first in range(0, len(target), _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, len(target))
        wanted = np.arange(owner.first_row + first, owner.first_row + last) if rows is None else rows[first:last]
        for piece in pieces:
            here, at = piece.places(wanted)
            if here.size:
                filled += _paste_rows(
                    target[first:last], owner.first_column, torch.from_numpy(here), piece, torch.from_numpy(at)
                )
    return filled


def _paste_rows(target: torch.Tensor, first_column: int, here: torch.Tensor, piece: Piece, at: torch.Tensor) -> int:
    if target.dim() == 1:
        target[here] = piece.values[at]
        return len(here)
    begin = max(first_column, piece.first_column)
    end = min(first_column + target.shape[1], piece.first_column + piece.values.shape[1])
    if begin >= end:
        return 0
    target[here, begin - first_column : end - first_column] = piece.values[
        at, begin - piece.first_column : end - piece.first_column
    ]
    return len(here) * (end - begin) * int(np.prod(target.shape[2:], dtype=np.int64))
