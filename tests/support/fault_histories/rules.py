"""What must hold of every history, found by what is on the disk, and read without the product's code: safety (docs/guarantees.md)."""

import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fault_histories.counting import BATCH, Case, counts_of
from fault_histories.world import Violation, World
from htrain.executor.settings import RunSettings
from htrain.net.names import DENSE_PS, GROUP_PS, SPARSE_PS, role_of


class Stepped:
    """The examples by which steps have changed the weights of groups, as it was seen at their parameters: in one try, and in those that it goes on from."""

    def __init__(self, examples: float) -> None:
        self.examples = examples


class Rules:
    """The checkpoints of one history. `closed` are the names of those that the launcher was told are valid, in their order."""

    def __init__(self, world: World, case: Case, batches: int, run_folder: Path) -> None:
        self.closed: list[str] = []
        self.damaged: set[str] = set()  # on purpose, with what builds on them
        self._shares: dict[str, set[tuple[str, str]]] = {}  # of others, that they build on: the checkpoint and the file
        self._unsound: set[tuple[str, str]] = set()  # such as are damaged
        self.needs: dict[str, set[str]] = {}
        self._world, self._case, self._batches = world, case, batches
        self._folder = run_folder / "checkpoints"
        self._sequences: dict[str, int] = {}
        # Batches, by trainer and number, that may have been trained once more.
        self._repeats: list[tuple[str, int]] = []
        self._repeats_of: dict[str, list[tuple[str, int]]] = {}  # by checkpoint
        # How often rows were trained that do not know it any more, [ROWS]: those of sparse PSs that went back to a checkpoint by themselves.
        self._forgotten = case.rows_of([])
        self._forgotten_of: dict[str, np.ndarray] = {}
        self.stepped = Stepped(0.0)  # in the try under way
        self._stepped_of: dict[str, float] = {}  # by checkpoint
        self._newest = ""  # that a launcher knows of
        self._rows_of: dict[str, np.ndarray] = {}  # of checkpoints that were read when all their files were sound

    @property
    def whole(self) -> list[str]:
        """Those that were closed and are to be read, of which a run keeps the last two."""
        return [name for name in self.closed if name not in self.damaged]

    def damage(self, path: Path) -> None:
        """A file of a checkpoint is not as it was written any more. What builds on it needs some of its shares, and not its manifest."""
        share = path.parent.name, path.name
        self._unsound.add(share)
        self.damaged |= {path.parent.name} | {each for each, shares in self._shares.items() if share in shares}

    def independent(self, name: str) -> str:
        """The newest checkpoint before this one that has no file in common with it, and may be read; "" for none."""
        parts = {name} | self.needs[name]
        before = self.whole[: self.whole.index(name)]
        return next((each for each in reversed(before) if not parts & ({each} | self.needs[each])), "")

    def check_newest(self) -> None:
        """The newest that was closed is there: it stays until a newer one is, be it that the launcher was killed before it was told so."""
        if not self.whole or (self._folder / self.whole[-1] / "manifest.json").exists():
            return
        for folder in sorted(self._folder.iterdir(), reverse=True):
            if folder.name not in self.closed and (folder / "manifest.json").exists():
                self.check_cut(folder)
                return
        raise Violation(f"the checkpoint {self.whole[-1]} was closed, and is gone before a newer one is")

    def begins_again(self, trainer: str, begun: Collection[int], announced: int) -> None:
        """A trainer is begun again alone. Of the batches that it had `begun` and not ended each may be trained once more; so many were announced."""
        self._world.count("trainers begun again")
        most = 2 * self._case.plan.options.net_replicas
        if not len(begun) <= announced <= most:
            raise Violation(f"{trainer} trains {sorted(begun)} again, {announced} are announced, of {most} at most")
        self._repeats = [*self._repeats, *((trainer, number) for number in begun)]

    def goes_back(self, server: str, checkpoint: str, left: np.ndarray) -> None:
        """A sparse PS is begun again alone, with the rows of a checkpoint: the newest. What the last process of it had trained since, of whose rows it has
        `left` these counts, is forgotten."""
        self._world.count("sparse PSs begun again")
        name, first = Path(checkpoint).name, self._case.first_row(server)
        if name != self._newest:
            raise Violation(f"{server} goes back to '{name}', the newest checkpoint is '{self._newest}'")
        if name not in self._rows_of:  # it builds on a file that is damaged: whoever goes back to it has to say so
            return
        forgotten = left - self._rows_of[name][first : first + len(left)]
        if (forgotten < 0).any():
            raise Violation(f"{server} goes back to '{name}', which knows more than it: {left.tolist()}")
        self._forgotten = self._forgotten.copy()
        self._forgotten[first : first + len(left)] += forgotten

    def opens(self, folder: Path) -> None:
        """A checkpoint is begun; all are at rest."""
        self._repeats_of[folder.name], self._forgotten_of[folder.name] = self._repeats, self._forgotten
        self._stepped_of[folder.name] = self.stepped.examples

    def fails(self, error: Exception, *, only_replaced: bool) -> None:
        """A try ends by an error. Where nothing has gone wrong but roles which were, or are to be, begun again, it is to go on."""
        if only_replaced:
            raise Violation(f"a try fails, though nothing goes wrong but roles that are begun again: {error}")

    def has_closed(self, folder: Path, *, finished: bool) -> None:
        """The launcher has made a checkpoint valid. It is whole, a cut, and where the run has `finished`, of all data."""
        manifest = self._manifest(folder)
        self.needs[folder.name] = {base for base, *_ in manifest.get("bases", {}).values()}
        self._shares[folder.name] = {
            (base, f"{role.replace(':', '_')}.safetensors") for role, (base, *_) in manifest.get("bases", {}).items()
        }
        if self._shares[folder.name] & self._unsound:
            self.damaged.add(folder.name)
        else:
            self.check_cut(folder)
        self.closed.append(folder.name)
        self._newest = folder.name
        self._sequences[folder.name] = manifest["sequence"]
        self._world.count("checkpoints")
        if finished and any(at["row"] != BATCH * self._batches for at in _positions(manifest).values()):
            raise Violation(
                f"{folder.name} is of a run that has finished, and trainers stand at {_positions(manifest)}"
            )

    def goes_on(self, settings: RunSettings) -> None:
        """A try begins: from the newest checkpoint that was closed and can be read, or one that was nearly closed behind it."""
        self._newest = Path(settings.restore).name
        self._repeats = self._repeats_of[self._newest] if settings.restore else []
        self._forgotten = self._forgotten_of[self._newest] if settings.restore else self._case.rows_of([])
        self.stepped = Stepped(self._stepped_of[self._newest] if settings.restore else 0.0)
        if not settings.restore:
            if self.whole:
                raise Violation(f"a try begins anew, though {self.whole[-1]} was closed")
            return
        folder = Path(settings.restore)
        manifest = self.check_cut(folder)
        if folder.name in self.damaged:
            raise Violation(f"a try goes on from {folder.name}, which is damaged")
        if self.whole and manifest["sequence"] < self._sequences[self.whole[-1]]:
            raise Violation(f"a try goes on from {folder.name}, though {self.whole[-1]} was closed behind it")
        if {name: state["position"] for name, state in settings.positions.items()} != _positions(manifest):
            raise Violation(f"trainers begin at {settings.positions}, the checkpoint has {_positions(manifest)}")

    def check_cut(self, folder: Path) -> dict[str, Any]:
        """A checkpoint is whole, and of one moment: tables and weights have what was read up to the positions, each example once, or once more where a trainer
        was begun again that had begun with it; but for what sparse PSs have forgotten. Its manifest."""
        manifest = self._manifest(folder)
        positions = _positions(manifest)
        examples = sum(at["row"] for at in positions.values())
        counted = sum(state["totals"]["examples"] for state in manifest["trainers"].values())
        if not examples == counted == manifest["examples"]:
            raise Violation(f"{folder.name}: readers stand behind {examples} examples, {counted} were counted")
        forgotten = self._forgotten_of[folder.name]
        owed, rows, bias = self._case.rows_after(positions) - forgotten, self._case.rows_of([]), 0.0
        for role, (name, size, crc) in manifest["files"].items():
            tensors = _tensors(folder / name, size, crc)
            if role in manifest.get("bases", {}):
                base, *written = manifest["bases"][role]
                tensors = _on_top(_tensors(folder.parent / base / name, *written), tensors)
                self._world.count("shares of changed rows")
            if role_of(role) == SPARSE_PS:
                (values,) = tensors.values()
                first = self._case.first_row(role)
                rows[first : first + len(values)] = counts_of(values)
            elif role_of(role) in (GROUP_PS, DENSE_PS):
                bias += float(-tensors["count.bias"][0])
        self._rows_of[folder.name] = rows
        repeats = self._repeats_of[folder.name]
        if (rows < owed).any() or (rows > owed + self._case.rows_of(repeats)).any():
            raise Violation(
                f"{folder.name} is no cut: rows were trained {rows.tolist()} times, by its positions {owed.tolist()}{_but(repeats)}{_without(forgotten)}"
            )
        if self._case.counts_weights and not -1e-3 < bias - examples < BATCH * len(repeats) + 1e-3:
            raise Violation(
                f"{folder.name} is no cut: weights were stepped by {bias:g} examples, by its positions {examples}{_but(repeats)}"
            )
        if self._case.counts_weights and abs(bias - self._stepped_of[folder.name]) > 1e-3:
            raise Violation(
                f"{folder.name}: steps have changed weights by {self._stepped_of[folder.name]:g} examples, those of groups and centres have {bias:g}"
            )
        if (rows > owed).any():
            self._world.count("checkpoints with batches that were trained twice")
        if forgotten.any():
            self._world.count("checkpoints with rows that went back")
        return manifest

    def _manifest(self, folder: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        except (OSError, ValueError) as error:
            raise Violation(f"{folder.name} has no manifest that can be read: {error}") from error
        return found


def _but(repeats: Sequence[tuple[str, int]]) -> str:
    return f", but for {repeats}" if repeats else ""


def _without(forgotten: np.ndarray) -> str:
    return f", without {forgotten.tolist()} that were forgotten" if forgotten.any() else ""


def _positions(manifest: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {name: state["position"] for name, state in manifest["trainers"].items()}


def _tensors(path: Path, size: int, crc: int) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file, and its int32 numbers of rows."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Violation(f"{path.name} of a checkpoint cannot be read: {error}") from error
    if (len(data), zlib.crc32(data)) != (size, crc):
        raise Violation(f"{path.name} of a checkpoint is not what its manifest says: {len(data)} bytes of {size}")
    begin = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:begin])
    found = {}
    for name, entry in entries.items():
        first, last = entry["data_offsets"]
        found[name] = np.frombuffer(
            data[begin + first : begin + last], {"F32": np.float32, "I32": np.int32}[entry["dtype"]]
        )
    return found


def _on_top(base: Mapping[str, np.ndarray], changed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of one column whose rows that are `changed` are these."""
    found = {}
    for name, values in base.items():
        found[name] = values.copy()
        found[name][changed.get(f"{name}:changed", slice(None))] = changed[name]
    return found


def newest_files(folder: Path) -> list[Path]:
    """The files of a checkpoint, by name."""
    return [folder / name for name in sorted(os.listdir(folder))]
