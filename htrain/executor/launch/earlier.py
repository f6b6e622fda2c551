"""What a run begins with of another one's last checkpoint: weights, tables and optimizer states of the same model, whatever the cluster was.

Parameters are known by their names in the model, and rows of tables by their numbers there: another number of sparse PSs, of groups, another split of an FC, or
another partition of the data makes no difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from htrain.errors import CheckpointError
from htrain.executor.launch.inputs import check_vocabularies
from htrain.executor.record.checkpoint import latest_checkpoint, read_manifest, verify
from htrain.executor.record.pieces import Rows, load_pieces, owner_of, paste, whole_name
from htrain.executor.record.run_folder import read_record
from htrain.net.net import Net, Parameter
from htrain.plan.plan import Plan, load_plan
from htrain.spec.centres import is_owed

_COUNT = ":step"  # a state of all of a weight, however it is cut: how many steps there were


@dataclass(frozen=True)
class Beginning:
    """Where to find it: the plan of the earlier run, and its checkpoint."""

    plan: str
    checkpoint: str


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
        self._data = manifest.identity.data
        self._kinds = ("table",) if tables_only else ("weight", "table")
        owned = [(name, p, owner_of(plan.train.parameters, p)) for name, p in plan.train.parameters.items()]
        saved = {n: p for n, p, owner in owned if p.kind != "cache" and (owner.kind == "table" or not tables_only)}
        self._pieces = load_pieces(plan, saved, folder, manifest=manifest, replica="center")

    def require(self, plan: Plan) -> None:
        """Raises CheckpointError for a weight or a table of a plan that is not here."""
        for parameter in plan.train.parameters.values():
            if parameter.kind in self._kinds and parameter.whole not in self._pieces:
                raise CheckpointError(
                    f"{self._name}: holds no '{parameter.whole}', which the plan has: begin with a run of the same model"
                )

    def require_values(self, data: str, vocabularies: Mapping[str, str]) -> None:
        """Raises DataError where rows of `data` are those of other values, by its vocabularies, than in the earlier run."""
        if self._data.files:  # servers of workers from outside do not know what these had
            check_vocabularies(data, vocabularies, self._data.vocabularies, whose="of the run to begin with")

    def copy_into(self, net: Net, parameter: Parameter, target: torch.Tensor, rows: Rows | None) -> None:
        """Give a parameter of an init net its values, where it is a weight, a table, or a state of one that is here. `rows` are the numbers of its rows where
        they are no range. Raises CheckpointError for rows or weights that are not here."""
        if parameter.kind == "cache" or is_owed(parameter.name):
            return
        owner = owner_of(net.parameters, parameter)
        pieces = self._pieces.get(whole_name(owner, parameter))
        if pieces is None:
            if parameter.kind == "state":
                return
            raise CheckpointError(
                f"{self._name}: holds no '{parameter.whole}', which the plan has: begin with a run of the same model"
            )
        if parameter.name == f"{owner.name}{_COUNT}":
            target.copy_(pieces[0].values)
            return
        filled = paste(target, owner, rows, pieces)
        if filled < target.numel():
            raise CheckpointError(
                f"{self._name}: has {filled:,} of the {target.numel():,} numbers of '{parameter.name}': begin with a run of a model of the same size"
            )
