"""Shares that hold what has changed alone: whatever becomes of a run, its checkpoints hold what its roles held, read with what they build on."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch
from checkpoints import IDENTITY, TRAINER
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record import changes
from htrain.executor.record.changes import changed_since, warm_up
from htrain.executor.record.checkpoint import Base, SavedFile, base_path, read_manifest
from htrain.executor.record.deltas import Deltas, Wholes
from htrain.executor.record.kept import find_checkpoints
from htrain.executor.record.resume import last_whole
from htrain.executor.record.role_file import load_role_into, save_role, verify
from htrain.executor.record.saves import Saves
from htrain.executor.record.share import Share
from htrain.executor.record.tensor_file import values_of

ROLES = ("sparse_ps:0", "sparse_ps:1")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_LEAST_BYTES", 0)
    monkeypatch.setattr(changes, "_AT_ONCE", 1000)


def held(number: int) -> Tensors:
    """What a role holds: rows of 12, 4, 6 and 1 bytes, of which each has words of another width, and what has none."""
    return {
        "a": torch.full((700, 3), float(number)),
        "a:sum": torch.zeros(700),
        "b": torch.zeros(501, 3, dtype=torch.bfloat16),
        "c": torch.zeros(303, 1, dtype=torch.int8),
        "rows": torch.arange(700) + number,
        "none": torch.empty(0, 4),
        "step": torch.tensor(0.0),
    }


def copied(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(seen: Tensors, wanted: Tensors) -> bool:
    return all(torch.equal(seen[name].view(torch.uint8) if seen[name].dim() else seen[name],
                           wanted[name].view(torch.uint8) if wanted[name].dim() else wanted[name]) for name in wanted)  # fmt: skip


class Run(RuleBasedStateMachine):
    """Roles that step, save, die and come again, and a disk that refuses or damages; beside them, copies of what they held."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.held = {role: held(number) for number, role in enumerate(ROLES)}
        self.deltas = {role: Deltas(least_bytes=0) for role in ROLES}
        self.wholes = Wholes()
        self.examples = 0
        self.last = ""
        self.copies: dict[str, dict[str, Tensors]] = {}
        self.saves = Saves(self.folder, IDENTITY, lambda told: None)
        self.built = 0

    @rule(
        role=st.sampled_from(ROLES), rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 699)), max_size=9)
    )
    def step(self, role: str, rows: list[tuple[str, int]]) -> None:
        self.examples += 1
        for name, row in rows:
            table = self.held[role][name]
            table[row % len(table)] += 1
            if name == "a":
                self.held[role]["a:sum"][row] += 0.5
        self.held[role]["step"] += 1

    @rule(refused=st.sampled_from([*[""] * 9, *ROLES, "all"]), finished=st.sampled_from([*[False] * 9, True]))
    def save(self, refused: str, finished: bool) -> None:
        trainers = {"trainer:0:0": msgspec.to_builtins(TRAINER)}
        trainers["trainer:0:0"]["totals"]["examples"] = self.examples
        folder = self.saves.open(trainers)
        saved = {}
        last = "" if finished or self.wholes.is_due else self.last
        for role, tensors in self.held.items():
            base = self.deltas[role].base(last)
            share = Share(folder, role, values_of(copied(tensors)), base)
            if refused == role:
                self.deltas[role].refused()
                continue
            saved[role] = share.told(self.deltas[role], *share.write())
            self.built += "base" in saved[role]
            assert not (finished and "base" in saved[role])
        if refused:
            self.saves.discard()
            self.wholes.refused()
            return
        self.saves.close(trainers, saved, finished=finished)
        self.wholes.made(
            sum(each["file"][1] for each in saved.values()), is_on_top=any("base" in each for each in saved.values())
        )
        self.last = folder.name
        self.copies[self.last] = {role: copied(tensors) for role, tensors in self.held.items()}

    @rule()
    def step_and_save(self) -> None:
        self.step("sparse_ps:0", [("a", self.examples * 37 % 700)])
        self.save("", False)

    @rule()
    def die(self) -> None:
        """All begin again, with the last checkpoint that is whole."""
        self.deltas = {role: Deltas(least_bytes=0) for role in ROLES}
        self.wholes = Wholes()
        self.saves = Saves(self.folder, IDENTITY, lambda told: None)
        if not self.last:
            self.held = {role: held(number) for number, role in enumerate(ROLES)}
            return
        folder, manifest = last_whole(self.folder, find_checkpoints(self.folder), lambda told: None, lambda *_: None)
        assert folder.name == self.last
        for role in ROLES:
            load_role_into(folder, role, manifest, self.held[role])
            assert same(self.held[role], self.copies[self.last][role])

    @precondition(lambda self: self.has_independent())
    @rule(of_base=st.booleans(), role=st.sampled_from(ROLES), place=st.integers(0, 1 << 20), is_gone=st.booleans())
    def damage(self, of_base: bool, role: str, place: int, is_gone: bool) -> None:
        """A file of the newest checkpoint, or of what it builds on, is spoiled, and all begin again: with the newest that has no part in it."""
        complete = find_checkpoints(self.folder).complete
        folder, manifest = complete[0]
        base = manifest.base_of(role)
        path = base_path(folder, role, base) if base and of_base else folder / manifest.files[role].name
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= 1
        path.unlink() if is_gone else path.write_bytes(data)
        spoiled = [
            f for f, m in complete if path in (f / path.name, *(base_path(f, role, b) for b in [m.base_of(role)] if b))
        ]
        self.last = next(f.name for f, _ in complete if f not in spoiled)
        self.die()
        for each in spoiled:
            shutil.rmtree(each)
            self.copies.pop(each.name)

    def has_independent(self) -> bool:
        """Whether a checkpoint shares no file with the newest of all."""
        complete = find_checkpoints(self.folder).complete
        parts = [{folder.name} | manifest.needs for folder, manifest in complete]
        return any(not own & parts[0] for own in parts)

    @invariant()
    def all_that_are_kept_hold_what_was(self) -> None:
        complete = find_checkpoints(self.folder).complete
        for folder, manifest in complete:
            if folder.name not in self.copies:
                continue
            verify(folder, manifest)
            for role in ROLES:
                seen = {name: torch.empty_like(tensor) for name, tensor in self.held[role].items()}
                load_role_into(folder, role, manifest, seen)
                assert same(seen, self.copies[folder.name][role]), folder
        if self.last:
            assert complete[0][0].name == self.last
        assert len(complete) <= MOST

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


MOST = (
    2 + 2 + 1 + 1
)  # the newest two, the one that each builds on, and one that shares no file with the newest, with what that builds on


def test_checkpoints_hold_what_was_whatever_becomes_of_a_run() -> None:
    """In memory where there is such a folder: thousands of files are waited for until they are on a disk, which says nothing of what they hold."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        Run.folder = Path(folder) / "run"
        run_state_machine_as_test(Run, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))  # type: ignore[no-untyped-call]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=30, max_size=30))
def test_all_are_whole_again_as_soon_as_that_is_fewer_bytes(sizes: list[int]) -> None:
    """Beside the rule that is written down in words: the next one on top, as large as the last, would not be below the mean of all since the last whole one."""
    wholes, whole = Wholes(), 100
    since: list[int] = []
    for size in sizes:
        assert wholes.is_due == (not since or (len(since) > 1 and since[-1] >= sum(since) / len(since))), since
        since = [whole] if wholes.is_due else [*since, size]
        wholes.made(since[-1], is_on_top=len(since) > 1)


def test_where_as_many_rows_change_each_time_there_are_whole_ones_nevertheless() -> None:
    wholes = Wholes()
    kinds = []
    for _ in range(100):
        kinds.append(wholes.is_due)
        wholes.made(100 if wholes.is_due else 30, is_on_top=not wholes.is_due)
    assert [number for number, is_whole in enumerate(kinds) if is_whole] == [0, 31, 62, 93]


def test_rows_that_keep_changing_are_written_whole_for_a_while() -> None:
    wholes = Wholes()
    kinds = ""
    for _ in range(30):
        kinds += "." if wholes.is_due else "d"
        wholes.made(100 if wholes.is_due else 104, is_on_top=not wholes.is_due)
    assert kinds == ".d........d........d........d.."[: len(kinds)]


@pytest.mark.parametrize("num_roles", [2, 5])
def test_what_is_kept_does_not_grow_with_the_run_whatever_roles_change(tmp_path: Path, num_roles: int) -> None:
    """Each role had its own time to be whole again, once: the base of one built on another's, and that on a third, back to the beginning."""
    deltas = [Deltas(least_bytes=0) for _ in range(num_roles)]
    wholes, saves, last = Wholes(), Saves(tmp_path, IDENTITY, lambda told: None), ""
    values = [torch.zeros(4000, 4) for _ in deltas]
    for number in range(70):
        trainers = {"trainer:0:0": msgspec.to_builtins(TRAINER)}
        trainers["trainer:0:0"]["totals"]["examples"] = number
        folder, saved = saves.open(trainers), {}
        for role, (own, tensor) in enumerate(zip(deltas, values, strict=True)):
            tensor[(number * 37 * (role + 1)) % 4000 :][: 200 * (role + 1)] += 1
            share = Share(
                folder, f"sparse_ps:{role}", values_of({"a": tensor}), own.base("" if wholes.is_due else last)
            )
            saved[f"sparse_ps:{role}"] = share.told(own, *share.write())
        saves.close(trainers, saved, finished=False)
        wholes.made(
            sum(each["file"][1] for each in saved.values()), is_on_top=any("base" in each for each in saved.values())
        )
        last = folder.name
        assert len(find_checkpoints(tmp_path).complete) <= 5


def test_a_small_share_is_whole() -> None:
    deltas = Deltas()
    deltas.written("examples_000000000001", SavedFile("f", 1 << 20, 0), None)
    assert deltas.base("examples_000000000001") is None
    deltas.written("examples_000000000002", SavedFile("f", 1 << 30, 0), None)
    assert deltas.base("examples_000000000002") == Base("examples_000000000002", 1 << 30, 0)
    assert deltas.base("examples_000000000001") is None
    assert deltas.base("examples_000000000009") is None, "of a checkpoint that the role had no share in"
    deltas.refused()
    assert deltas.base("examples_000000000002") is None


OTHERS = {
    "gone": lambda path, file: path.unlink(),
    "longer": lambda path, file: path.write_bytes(path.read_bytes() + b"0"),
    "of other tensors": lambda path, file: save_role(path.parent, "sparse_ps:0", {"a": torch.zeros(5, 3)}),
    "no such format": lambda path, file: path.write_bytes(b"\xff" * file.num_bytes),
    "no JSON": lambda path, file: path.write_bytes((8).to_bytes(8, "little") + b"{" * (file.num_bytes - 8)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_base_that_is_another_is_not_built_on(tmp_path: Path, case: str) -> None:
    tensors = {"a": torch.zeros(6, 3)}
    saved = save_role(tmp_path, "sparse_ps:0", tensors)
    path = tmp_path / saved.name
    OTHERS[case](path, saved)
    assert changed_since(path, Base("x", saved.num_bytes, saved.digest), values_of(tensors), lambda part: None) is None


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
def test_what_is_compiled_before_is_all_that_is_needed_wherever_a_tensor_lies(tmp_path: Path, shift: int) -> None:
    """A process that was forked beside threads must not compile."""
    memory = torch.zeros(16 + 48 * 100, dtype=torch.uint8)
    tensor = memory[shift : shift + 48 * 100].reshape(100, 48)
    saved = save_role(tmp_path, "sparse_ps:0", {"t": tensor})
    tensor[7, 11] = 1
    warm_up([tensor])
    compiled = len(changes._keep_changed.signatures)
    found = changed_since(
        tmp_path / saved.name, Base("x", saved.num_bytes, saved.digest), values_of({"t": tensor}), lambda part: None
    )
    assert found
    assert len(changes._keep_changed.signatures) == compiled
    assert bytes(found.parts[-1]) == bytes(tensor[7].numpy())


def test_a_base_that_ends_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(6, 3)}
    saved = save_role(tmp_path, "sparse_ps:0", tensors)
    path = tmp_path / saved.name
    data = path.read_bytes()
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    path.write_bytes(header.replace(b"[0,72]", b"[9,72]") + data[len(header) :])
    with pytest.raises(OSError, match="ends before its time"):
        changed_since(path, Base("x", saved.num_bytes, saved.digest), values_of(tensors), lambda part: None)


def test_a_damaged_file_takes_one_checkpoint_away_at_most_once_there_were_two_whole_ones(tmp_path: Path) -> None:
    trainers = {"trainer:0:0": msgspec.to_builtins(TRAINER)}
    saves, deltas, last = Saves(tmp_path, IDENTITY, lambda told: None), Deltas(least_bytes=0), ""
    for number in range(12):
        folder = saves.open(trainers)
        base = deltas.base("" if number in (0, 4) else last)
        share = Share(folder, "sparse_ps:0", values_of(held(number)), base)
        saves.close(trainers, {"sparse_ps:0": share.told(deltas, *share.write())}, finished=False)
        last = folder.name
        newest, *before = [({f.name} | m.needs) for f, m in find_checkpoints(tmp_path).complete]
        assert len(before) <= 4
        assert number < 4 or any(not parts & newest for parts in before), number


def test_a_checkpoint_without_what_it_builds_on_says_so(tmp_path: Path) -> None:
    trainers = {"trainer:0:0": msgspec.to_builtins(TRAINER)}
    saves, deltas = Saves(tmp_path, IDENTITY, lambda told: None), Deltas(least_bytes=0)
    last = ""
    for _ in range(2):
        folder = saves.open(trainers)
        share = Share(folder, "sparse_ps:0", values_of(held(1)), deltas.base(last))
        saves.close(trainers, {"sparse_ps:0": share.told(deltas, *share.write())}, finished=False)
        before, last = last, folder.name
    copy = tmp_path / "elsewhere" / "checkpoints" / last
    shutil.copytree(tmp_path / "checkpoints" / last, copy)
    with pytest.raises(
        DamagedCheckpoint,
        match=rf"builds on '{before}/sparse_ps_0\.safetensors' beside its own folder, which is not there",
    ):
        read_manifest(copy)
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"version": 3', '"version": 6'))
    with pytest.raises(CheckpointError, match="version 6, this htrain reads versions 2 to 5"):
        read_manifest(copy)
