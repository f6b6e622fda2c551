"""What a run begins with of another one's last checkpoint: weights, tables and optimizer states of the same model, whatever the cluster was.

Parameters are known by their names in the model, and rows of tables by their numbers there: another number of sparse PSs, of groups, another split of an FC, or
another partition of the data makes no difference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import ROWS, latest_checkpoint, read_manifest, verify
from htrain.executor.record.parameters import load_parameters
from htrain.executor.record.run_folder import read_record
from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import Net, Parameter
from htrain.plan.plan import Plan, load_plan
from htrain.spec.centres import is_owed

Rows = NDArray[np.int64]
_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Beginning:
    """Where to find it: the plan of the earlier run, and its checkpoint."""

    plan: str
    checkpoint: str


@dataclass(frozen=True)
class _Piece:
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
        order = np.argsort(self.rows, kind="stable")
        near = np.minimum(np.searchsorted(self.rows, rows, sorter=order), len(order) - 1)
        here = np.flatnonzero(self.rows[order[near]] == rows)
        return here, order[near[here]]


def beginning_of(run_folder: Path) -> Beginning:
    """The last checkpoint of a run, to begin with. Raises CheckpointError where there is none that is whole."""
    folder, manifest = latest_checkpoint(run_folder)
    verify(folder, manifest)
    return Beginning(read_record(run_folder).plan, str(folder))


class Earlier:
    """The parameters of a checkpoint, mapped from its files. Servers of tables have these alone: `tables_only`."""

    def __init__(self, beginning: Beginning, *, tables_only: bool = False) -> None:
        """Raises CheckpointError, PlanError for what cannot be read, or does not belong together."""
        folder = Path(beginning.checkpoint)
        plan, manifest = load_plan(Path(beginning.plan)), read_manifest(folder)
        if manifest.identity.plan.digest != plan.digest:
            raise CheckpointError(f"{folder}: belongs to another plan than {beginning.plan}, which has been made again")
        self._name = str(folder)
        self._kinds = ("table",) if tables_only else ("weight", "table")
        owned = [(name, p, _owner(plan.train.parameters, p)) for name, p in plan.train.parameters.items()]
        saved = {n: p for n, p, owner in owned if p.kind != "cache" and (owner.kind == "table" or not tables_only)}
        values = load_parameters(plan, replace(plan.train, parameters=saved), folder, manifest, "center")
        files = [folder / saved.name for role, saved in manifest.files.items() if role_of(role) == SPARSE_PS]
        rows = dict(item for path in files for item in _rows_in(path))
        self._pieces: dict[str, list[_Piece]] = {}
        for name, parameter in saved.items():
            owner = _owner(plan.train.parameters, parameter)
            piece = _Piece(owner.first_row, owner.first_column, values[name], rows.get(owner.name))
            self._pieces.setdefault(_key(owner, parameter), []).append(piece)

    def require(self, plan: Plan) -> None:
        """Raises CheckpointError for a weight or a table of a plan that is not here."""
        for parameter in plan.train.parameters.values():
            if parameter.kind in self._kinds and parameter.whole not in self._pieces:
                raise CheckpointError(
                    f"{self._name}: holds no '{parameter.whole}', which the plan has: begin with a run of the same model"
                )

    def copy_into(self, net: Net, parameter: Parameter, target: torch.Tensor, rows: Rows | None) -> None:
        """Give a parameter of an init net its values, where it is a weight, a table, or a state of one that is here. `rows` are the numbers of its rows where
        they are no range. Raises CheckpointError for rows or weights that are not here."""
        if parameter.kind == "cache" or is_owed(parameter.name):
            return
        owner = _owner(net.parameters, parameter)
        pieces = self._pieces.get(_key(owner, parameter))
        if pieces is None:
            if parameter.kind == "state":
                return
            raise CheckpointError(
                f"{self._name}: holds no '{parameter.whole}', which the plan has: begin with a run of the same model"
            )
        filled = _pasted(target, owner, rows, pieces)
        if filled < target.numel():
            raise CheckpointError(
                f"{self._name}: has {filled:,} of the {target.numel():,} numbers of '{parameter.name}': begin with a run of a model of the same size"
            )


def _owner(parameters: Mapping[str, Parameter], parameter: Parameter) -> Parameter:
    """The weight or table that a state is of; itself otherwise."""
    return parameters.get(parameter.of, parameter) if parameter.kind == "state" else parameter


def _key(owner: Parameter, parameter: Parameter) -> str:
    return owner.whole + parameter.name.removeprefix(owner.name) if parameter.kind == "state" else owner.whole


def _rows_in(path: Path) -> Iterator[tuple[str, Rows]]:
    """The numbers of the rows of each table of a file that are no range, by the table's name. Raises CheckpointError."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                if name.endswith(ROWS):
                    yield name.removesuffix(ROWS), file.get_tensor(name).numpy().astype(np.int64)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _pasted(target: torch.Tensor, owner: Parameter, rows: Rows | None, pieces: list[_Piece]) -> int:
    """Copy what pieces have of a parameter into it; how many numbers."""
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


def _paste_rows(target: torch.Tensor, first_column: int, here: torch.Tensor, piece: _Piece, at: torch.Tensor) -> int:
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
