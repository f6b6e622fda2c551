"""What a run begins with of another one's last checkpoint: weights, tables and optimizer states of the same model, whatever the cluster was.

Parameters are known by their names in the model, and rows of tables by their numbers there: another number of sparse PSs, of groups, another split of an FC, or
another partition of the data makes no difference.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch

from htrain.data import Schema
from htrain.errors import CheckpointError, UsageError
from htrain.executor.launch.inputs import check_grown
from htrain.executor.record.checkpoint import Manifest, read_manifest
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.layout import Layout, read_layout
from htrain.executor.record.pieces import Rows, is_models, load_pieces, owner_of, paste, whole_name, whole_of
from htrain.executor.record.reading import Reading, read_beside
from htrain.executor.record.role_file import verify
from htrain.executor.record.run_folder import is_served, read_record, refuse_served
from htrain.net.net import Net, Parameter
from htrain.ops.padding import rows_taken_for_zeros
from htrain.plan.plan import Plan, load_plan
from htrain.spec.centres import is_owed

_UPDATES = ":updates"
_COUNT = ":step"  # a state of all of a weight, however it is cut: how many steps there were


@dataclass(frozen=True)
class Beginning:
    """Where to find it: the plan of the earlier run, and its checkpoint, which that run keeps for as long as somebody has the `reading` of it."""

    plan: str
    checkpoint: str
    reading: Reading | None = field(default=None, repr=False, compare=False)


def beginning_of(run_folder: Path) -> Beginning:
    """The last checkpoint of a run, to begin with. Raises CheckpointError where there is none that is whole."""
    reading = read_beside(lambda: latest_checkpoint(run_folder))
    verify(reading.folder, reading.manifest)
    return Beginning(read_record(run_folder).plan, str(reading.folder), reading)


@contextmanager
def begun_with(run_folder: str | Path) -> Iterator[tuple[str, str]]:
    """The same as settings have it, "" where there is no such run. Its checkpoint stays within the context."""
    beginning = beginning_of(Path(run_folder)) if run_folder else Beginning("", "")
    yield beginning.plan, beginning.checkpoint
    del beginning  # and its reading


def _layout(beginning: Beginning, manifest: Manifest) -> Layout:
    """How the parameters of a checkpoint were cut: as its run folder says, or the plan, where an older htrain made it. Raises CheckpointError, PlanError."""
    folder, digest = Path(beginning.checkpoint), manifest.identity.plan.digest
    if layout := read_layout(folder.parent.parent, digest):
        return layout
    plan = load_plan(Path(beginning.plan))
    if plan.digest != digest:
        raise CheckpointError(f"{folder}: belongs to another plan than {beginning.plan}, which has been made again")
    return Layout.of(plan, beginning.plan)


def places_of(beginning: Beginning) -> list[str]:
    """The folders that are read to begin so: the checkpoint, and the plan where the run folder does not say how that has cut the model's parameters. Raises
    CheckpointError for a checkpoint that is not there."""
    folder = Path(beginning.checkpoint)
    layout = read_layout(folder.parent.parent, read_manifest(folder).identity.plan.digest)
    return [beginning.checkpoint] if layout else [beginning.checkpoint, beginning.plan]


# States of a weight: what they are called behind its name, and how many dimensions they have.
_Kept = frozenset[tuple[str, int]]


def optimizers_of(parameters: Mapping[str, Parameter]) -> dict[str, _Kept]:
    """What an optimizer keeps beside each weight or table, by the name of that in the model: another one keeps something else. The count of updates is left
    out, which is there for a schedule alone, too."""
    found: dict[str, set[tuple[str, int]]] = {name: set() for name in shapes_of(parameters)}
    for parameter in parameters.values():
        owner = owner_of(parameters, parameter)
        if parameter.kind == "state" and not parameter.name.endswith(_UPDATES):
            found.setdefault(owner.whole, set()).add((parameter.name.removeprefix(owner.name), len(parameter.shape)))
    return {name: frozenset(kept) for name, kept in found.items()}


def shapes_of(parameters: Mapping[str, Parameter]) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's own parameters, by their names there."""
    parts: dict[str, list[Parameter]] = {}
    for parameter in parameters.values():
        if is_models(parameter):
            parts.setdefault(parameter.whole, []).append(parameter)
    return {name: whole_of(name, found).shape for name, found in parts.items()}


def _some(names: Sequence[str]) -> str:
    """Names, by the first."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _to_grow(names: Collection[str]) -> str:
    return " ".join(f"--grow {name}" for name in sorted(names))


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _is_longer(before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether something has more rows now, of the same shape."""
    return len(before) == len(now) > 0 and now[0] > before[0] and list(before[1:]) == list(now[1:])


class Earlier:
    """The parameters of a checkpoint, mapped from its files: `layout` says how they were cut. Servers of tables have these alone: `tables_only`. Who wants
    those of some `wholes` of the model reads no file that has none of them."""

    def __init__(
        self, beginning: Beginning, *, tables_only: bool = False, wholes: Collection[str] | None = None
    ) -> None:
        """Raises CheckpointError, PlanError for what cannot be read, or does not belong together."""
        folder = Path(beginning.checkpoint)
        manifest = read_manifest(folder)
        self.layout = layout = _layout(beginning, manifest)
        self._name = str(folder)
        self._data = manifest.identity.data
        self._kinds = ("table",) if tables_only else ("weight", "statistic", "table")
        self._served = folder.parent.parent if is_served(folder.parent.parent) else None
        owned = [(name, p, owner_of(layout.parameters, p)) for name, p in layout.parameters.items()]
        saved = {
            name: parameter
            for name, parameter, owner in owned
            if parameter.kind != "cache"
            and (owner.kind == "table" or not (tables_only or self._served))
            and (wholes is None or owner.whole in wholes)
        }
        self._shapes = shapes_of(saved)
        self._optimizers = optimizers_of(saved)
        self._pieces = load_pieces(layout, saved, folder, manifest=manifest, replica="center")

    def require(self, plan: Plan, may_grow: Collection[str] = ()) -> None:
        """Raises CheckpointError for a weight, a statistic or a table of a plan that is not here, or of another shape, but for those that `may_grow` more rows;
        and for padding that is not 0."""
        wanted = shapes_of({name: p for name, p in plan.train.parameters.items() if p.kind in self._kinds})
        for name, shape in wanted.items():
            if name not in self._pieces:
                if self._served and any(p.whole == name and p.kind != "table" for p in plan.train.parameters.values()):
                    refuse_served(self._served)  # it has none of a model's other weights
                raise CheckpointError(
                    f"{self._name}: holds no '{name}', which the plan has: begin with a run of the same model"
                )
            before = self._shapes[name]
            if before != shape and not (name in may_grow and _is_longer(before, shape)):
                longer = [each for each, now in wanted.items() if _is_longer(self._shapes.get(each, ()), now)]
                cure = (
                    ", or, in training, give the new rows to values that come behind those of that run (htrain data vocabulary --extends), in a table that is "
                    f"looked up by these alone; or say {_to_grow(set(longer) - set(may_grow))}, whose first rows are what they were in that run"
                )
                raise CheckpointError(
                    f"{self._name}: '{name}' is of shape {list(before)} there, the plan's of {list(shape)}: begin with a run of a model of the same size"
                    + (cure if _is_longer(before, shape) else "")
                )
        self._require_padding(plan)

    def _require_padding(self, plan: Plan) -> None:
        """Raises CheckpointError where a padding row is not zeros, which the plan takes for them and never reads."""
        if plan.options.holder.by_partition:
            return  # the padding has another number there than in the model
        for table, row in rows_taken_for_zeros(plan.train).items():
            part = next(p for p in plan.train.parameters.values() if p.kind == "table" and p.whole == table)
            held = torch.zeros(1, *part.shape[1:])
            paste(held, part, np.array([row]), self._pieces[table])
            if held.any():
                raise CheckpointError(
                    f"{self._name}: row {row} of '{table}' is not 0, and is padding of the plan's model, which looks it up as zeros: leave padding_idx out, "
                    "or have build() load these values (htrain export --to torch), so that the plan reads the row"
                )

    def news(self, plan: Plan) -> str:
        """What of it a plan has no place for, and of which optimizer states are replaced by first values, in words; "" where nothing is."""
        now = optimizers_of(plan.train.parameters)
        left = [name for name in self._shapes if name not in now]
        anew = [name for name, kept in self._optimizers.items() if kept and now.get(name) and now[name] != kept]
        of_plan = shapes_of(plan.train.parameters)
        grown = [name for name, shape in self._shapes.items() if name in of_plan and _is_longer(shape, of_plan[name])]
        rows = sum(of_plan[name][0] - self._shapes[name][0] for name in grown)
        said = [f"{_some(grown)} {_have(grown)} {rows:,} rows more than there, which begin anew"] if grown else []
        said += [f"{_some(left)} of its model {_are(left)} not in the plan, and left out"] if left else []
        said += [f"{_some(anew)} had another optimizer: its states, and counts of updates, begin anew"] if anew else []
        return f"{Path(self._name).name}: {'; '.join(said)}" if said else ""

    def require_same(self, plan: Plan) -> None:
        """Raises CheckpointError where a plan's model has other weights, tables or statistics, or of other shapes, than are here, and for padding that is
        not 0."""
        of_plan = shapes_of(plan.train.parameters)
        for name in sorted(self._shapes.keys() | of_plan.keys()):
            before, now = self._shapes.get(name), of_plan.get(name)
            if before != now:
                shown = ("not there" if shape is None else f"of shape {list(shape)}" for shape in (now, before))
                raise CheckpointError(
                    "{}: is of another model: '{}' is {} now, it was {}: begin a run of its own with --out".format(
                        self._name, name, *shown
                    )
                )
        self._require_padding(plan)

    def require_values(self, plan: Plan, data: str, schema: Schema, *, grow: Collection[str] = ()) -> frozenset[str]:
        """The tables and weights of a plan that may have more rows than here, since these are those of the same values, as the data shows, or the user says of
        those that are to `grow`. Raises DataError where rows and weights are those of other values of `data`, by what is known of how it is read, than in the
        earlier run; UsageError for a name to `grow` that the plan has not."""
        own = shapes_of(plan.train.parameters)
        for name in grow:
            if name not in own:
                close = get_close_matches(name, own, 3) or list(own)[:3]
                raise UsageError(f"--grow {name}: the plan has no such table or weight, but {', '.join(close)}")
        if self._data.files or self._data.meanings:  # servers of workers from outside do not know what these had
            return check_grown(plan, data, schema, self._data, whose="of the run to begin with", said=frozenset(grow))
        return frozenset(grow)

    def copy_into(self, net: Net, parameter: Parameter, target: torch.Tensor, rows: Rows | None) -> None:
        """Give a parameter of an init net its values, where it is a weight, a table, or a state of one that is here and had the same
        optimizer. `rows` are the numbers of its rows where they are no range; those behind the last here keep their first values. Raises CheckpointError for
        rows or weights that are not here.

        Requires: `require`.
        """
        if parameter.kind == "cache" or is_owed(parameter.name):
            return
        owner = owner_of(net.parameters, parameter)
        if (
            parameter.kind == "state"
            and self._optimizers.get(owner.whole) != optimizers_of(net.parameters)[owner.whole]
        ):
            return  # those of another optimizer mean something else, though some may have the same name
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
        filled, wanted = paste(target, owner, rows, pieces), self._held(target, owner, rows)
        if filled < wanted:
            raise CheckpointError(
                f"{self._name}: has {filled:,} of the {wanted:,} numbers of '{parameter.name}': begin with a run of a model of the same size"
            )

    def _held(self, target: torch.Tensor, owner: Parameter, rows: Rows | None) -> int:
        """How many numbers of a part of something are to be here: those of all rows up to the last that is."""
        before = self._shapes[owner.whole]
        if not before or not target.dim():
            return target.numel()
        here = int((rows < before[0]).sum()) if rows is not None else before[0] - owner.first_row
        return max(0, min(here, len(target))) * (target.numel() // max(1, len(target)))
