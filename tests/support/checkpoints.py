"""A checkpoint of one role: written, read back, compared."""

from pathlib import Path

import torch

from htrain.data.identity import DataIdentity
from htrain.executor.record.checkpoint import (
    VERSION,
    Manifest,
    ReaderPosition,
    SavedFile,
    TrainerState,
    TrainerTotals,
    latest_checkpoint,
    load_role_into,
    new_checkpoint,
    read_manifest,
    save_role,
    verify,
    write_manifest,
)
from htrain.executor.record.identity import Identity, PlanIdentity

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
