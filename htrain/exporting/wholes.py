"""Weights and tables of a checkpoint as the model has them, whole, a block of rows at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from htrain.errors import CheckpointError
from htrain.executor.launch.forward import Trained
from htrain.executor.record.layout import Layout
from htrain.executor.record.pieces import Piece, is_models, load_pieces, paste, whole_of
from htrain.net.net import DTYPE_BYTES, Parameter, numel
from htrain.ops.base import dtype_of

_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True)
class Whole:
    """A weight or a table: `parameter` as the model has it, and the pieces of it in a checkpoint."""

    parameter: Parameter
    pieces: Sequence[Piece]
    checkpoint: str

    @property
    def name(self) -> str:
        """Its name in the model."""
        return self.parameter.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the model."""
        return self.parameter.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return self.parameter.num_bytes

    def rows(self, first: int, end: int) -> torch.Tensor:
        """Rows `first` to `end` - 1; all of what has no rows. Raises CheckpointError where some are in no piece."""
        shape = (end - first, *self.shape[1:]) if self.shape else ()
        block = torch.empty(shape, dtype=dtype_of(self.parameter.dtype))
        filled = paste(block, self.parameter, np.arange(first, end), self.pieces)
        if filled < block.numel():
            raise CheckpointError(
                f"{self.checkpoint}: has {filled:,} of the {block.numel():,} numbers of '{self.name}' in rows {first:,} to {end - 1:,}"
            )
        return block

    def values(self) -> torch.Tensor:
        """All of it. Raises CheckpointError as `rows` does."""
        return self.rows(0, self.shape[0] if self.shape else 1)

    def blocks(self) -> Iterator[torch.Tensor]:
        """All of it, a block after another, each within 64 MiB where a row is. Raises CheckpointError as `rows` does."""
        count = self.shape[0] if self.shape else 1
        row_bytes = DTYPE_BYTES[self.parameter.dtype] * numel(self.shape[1:], 1)
        at_once = max(1, _BLOCK_BYTES // max(1, row_bytes))
        for first in range(0, count, at_once):
            yield self.rows(first, min(first + at_once, count))

    def original(self, row: int) -> int:
        """The number that a row of the plan's tables has in the model: another one where rows are numbered by a partition."""
        for piece in self.pieces:
            at = row - piece.first_row
            if piece.rows is not None and 0 <= at < len(piece.rows):
                return int(piece.rows[at])
        return row


def load_wholes(trained: Trained) -> dict[str, Whole]:
    """All weights, statistics and tables of a plan, by their names in the model. Raises CheckpointError."""
    return _load(trained, {name: p for name, p in trained.plan.train.parameters.items() if is_models(p)})


def load_tables(trained: Trained) -> dict[str, Whole]:
    """The tables alone, which servers of tables have, too. Raises CheckpointError."""
    return _load(trained, {name: p for name, p in trained.plan.train.parameters.items() if p.kind == "table"})


def _load(trained: Trained, saved: Mapping[str, Parameter]) -> dict[str, Whole]:
    plan = trained.plan
    pieces = load_pieces(Layout.of(plan), saved, trained.folder, manifest=trained.manifest, replica=trained.replica)
    parts: dict[str, list[Parameter]] = {}
    for parameter in saved.values():
        parts.setdefault(parameter.whole, []).append(parameter)
    return {name: Whole(whole_of(name, parts[name]), pieces[name], str(trained.folder)) for name in sorted(parts)}
