"""A checkpoint of one role: written, read back, compared; and what each role of a plan holds of the whole."""

from pathlib import Path

import torch

from htrain.data.identity import DataIdentity
from htrain.executor.assembly import Assembly
from htrain.executor.record.checkpoint import (
    VERSION,
    Manifest,
    ReaderPosition,
    SavedFile,
    TrainerState,
    TrainerTotals,
    read_manifest,
    write_manifest,
)
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.kept import latest_checkpoint, new_checkpoint
from htrain.executor.record.role_file import load_role_into, save_role, verify
from htrain.net.net import Parameter
from htrain.plan.plan import Plan

Wholes = dict[str, torch.Tensor]
ROLE = "group_ps:0:1"
TRAINER = TrainerState(ReaderPosition(1, 4, 17), TrainerTotals(100, 10, 65.5, 31.0))
IDENTITY = Identity(PlanIdentity("abc", {"trainers": 1}, {"seed": 0}), DataIdentity(1, "criteo", {}, ()))


def tensors() -> dict[str, torch.Tensor]:
    return {
        "w": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7,
        "ids": torch.tensor([1, -(2**62), 2**62]),
        "half": torch.tensor([1.5, -2.25, 3e38]).to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
    }


def manifest_of(folder: Path, examples: int, *files: SavedFile, sequence: int = 1) -> Manifest:
    return Manifest(
        VERSION,
        folder.name,
        sequence,
        IDENTITY,
        examples,
        {"trainer:0:0": TRAINER},
        dict.fromkeys([ROLE], *files) if files else {},
    )


def save(run: Path, examples: int, values: dict[str, torch.Tensor] | None = None) -> Path:
    """A complete checkpoint of one role."""
    folder, sequence = new_checkpoint(run, examples)
    saved = save_role(folder, ROLE, values if values is not None else tensors())
    write_manifest(folder, manifest_of(folder, examples, saved, sequence=sequence))
    return folder


def load(folder: Path, target: dict[str, torch.Tensor]) -> None:
    manifest = read_manifest(folder)
    verify(folder, manifest)
    load_role_into(folder, ROLE, manifest, target)


def latest(run: Path) -> Path:
    return latest_checkpoint(run)[0]


def cleared() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in tensors().items()}


def equal(seen: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return seen.keys() == wanted.keys() and all(torch.equal(seen[name], wanted[name]) for name in wanted)


def part_of(plan: Plan, parameter: Parameter, wholes: Wholes) -> torch.Tensor:
    """What a parameter holds of the whole, as its plan says."""
    owner = plan.train.parameters[parameter.of] if parameter.kind == "state" else parameter
    whole = wholes[owner.whole + (parameter.name.removeprefix(owner.name) if parameter.kind == "state" else "")]
    if not parameter.shape or parameter.name == f"{owner.name}:step":  # of all of a weight, however it is cut
        return whole
    rows = whole[owner.first_row : owner.first_row + parameter.shape[0]]
    return rows[:, owner.first_column : owner.first_column + parameter.shape[1]] if len(parameter.shape) > 1 else rows


def whole_role(plan: Plan, role: str) -> Assembly:
    """A role with all that it has in a run."""
    parts = Assembly(plan, role, replicas=1)
    if parts.role.kind != "trainer":
        parts.server()
    parts.sync()
    if parts.hosts_centres:
        parts.centres()
    return parts
