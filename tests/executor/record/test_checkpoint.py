"""Checkpoints: exact round trips, and no damage, kill or strange manifest that goes unnoticed."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from htrain.data.identity import DataIdentity
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import (
    VERSION,
    Manifest,
    ReaderPosition,
    SavedFile,
    TrainerState,
    TrainerTotals,
    find_checkpoints,
    latest_checkpoint,
    load_role_into,
    new_checkpoint,
    prune,
    read_manifest,
    save_role,
    verified_path,
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


def test_parameters_of_every_dtype_and_shape_come_back_bit_for_bit(tmp_path: Path) -> None:
    target = cleared()
    load(save(tmp_path, 5), target)
    assert equal(target, tensors())


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool]),
    seed=st.integers(0, 1000),
)
def test_any_tensor_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: torch.dtype, seed: int
) -> None:
    value = torch.randint(-50, 50, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    target = {"x": torch.zeros(shape, dtype=dtype)}
    load(save(tmp_path_factory.mktemp("run"), 1, {"x": value}), target)
    assert torch.equal(target["x"], value)


def test_loading_fills_the_memory_that_is_there(tmp_path: Path) -> None:
    target = cleared()
    places = {name: value.data_ptr() for name, value in target.items()}
    load(save(tmp_path, 5), target)
    assert {name: value.data_ptr() for name, value in target.items()} == places


def test_role_file_is_plain_safetensors_named_after_the_role(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    assert sorted(p.name for p in folder.iterdir()) == ["group_ps_0_1.safetensors", "manifest.json"]
    assert equal(load_file(folder / "group_ps_0_1.safetensors"), tensors())


def test_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    manifest = read_manifest(folder)
    file = folder / "group_ps_0_1.safetensors"
    assert manifest == msgspec.structs.replace(manifest_of(folder, 5), files=manifest.files, checksum=manifest.checksum)
    assert manifest.files[ROLE].num_bytes == file.stat().st_size
    assert verified_path(folder, manifest.files[ROLE]) == file


def test_role_without_parameters_needs_no_file(tmp_path: Path) -> None:
    load_role_into(tmp_path, "trainer:0:0", read_manifest(save(tmp_path, 5)), {})


# Damage


def test_truncated_file_is_refused_when_the_manifest_is_read(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    file = folder / "group_ps_0_1.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 3)
    wanted = f"{file}: damaged: {size - 3} bytes, the manifest says {size}"
    with pytest.raises(DamagedCheckpoint, match=f"^{re.escape(wanted)}$"):
        read_manifest(folder)


@pytest.mark.parametrize("where", [0, 8, 60, -1])
def test_flipped_bit_anywhere_is_refused_and_changes_nothing(tmp_path: Path, where: int) -> None:
    folder = save(tmp_path, 5)
    file = folder / "group_ps_0_1.safetensors"
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)
    target = cleared()
    with pytest.raises(CheckpointError, match=r"group_ps_0_1\.safetensors: damaged: checksum \w{8}, the manifest says"):
        load(folder, target)
    assert equal(target, cleared())


def test_file_that_vanished_after_the_manifest_was_read_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    manifest = read_manifest(folder)
    (folder / "group_ps_0_1.safetensors").unlink()
    with pytest.raises(
        DamagedCheckpoint, match=r"group_ps_0_1\.safetensors: cannot be read: No such file or directory"
    ):
        verify(folder, manifest)
    with pytest.raises(
        CheckpointError, match=r"group_ps_0_1\.safetensors: not a safetensors file: .*No such file or directory"
    ):
        load_role_into(folder, ROLE, manifest, cleared())


MISFITS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing tensor": (lambda t: t.pop("w"), "lacks 'w', which group_ps:0:1 has"),
    "extra tensor": (lambda t: t.update(x=torch.ones(1)), "holds 'x', which group_ps:0:1 does not have"),
    "renamed tensor": (lambda t: t.update(v=t.pop("w")), "lacks 'w', which group_ps:0:1 has"),
    "wrong shape": (
        lambda t: t.update(w=torch.ones(4, 3)),
        "'w' is float32[4,3], group_ps:0:1 wants float32[3,4]",
    ),
    "wrong dtype": (
        lambda t: t.update(w=torch.ones(3, 4, dtype=torch.float64)),
        "'w' is float64[3,4], group_ps:0:1 wants float32[3,4]",
    ),
    "shape that would broadcast": (
        lambda t: t.update(scalar=torch.ones(1)),
        "'scalar' is float32[1], group_ps:0:1 wants float32[]",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_tensor_that_does_not_fit_is_named_and_nothing_is_loaded(tmp_path: Path, case: str) -> None:
    spoil, wanted = MISFITS[case]
    values = tensors()
    spoil(values)
    folder = save(tmp_path, 5, values)
    target = cleared()
    message = f"{folder / 'group_ps_0_1.safetensors'}: {wanted}"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load(folder, target)
    assert equal(target, cleared())


def test_file_of_another_format_is_refused_though_its_checksum_is_right(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    data = b"\x80\x04pickle"
    (folder / "group_ps_0_1.safetensors").write_bytes(data)
    saved = SavedFile("group_ps_0_1.safetensors", len(data), zlib.crc32(data))
    manifest = manifest_of(folder, 5, saved)
    with pytest.raises(CheckpointError, match=r"group_ps_0_1\.safetensors: not a safetensors file: "):
        load_role_into(folder, ROLE, manifest, cleared())


def test_checkpoint_of_a_plan_with_other_roles_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    message = f"{folder}: holds nothing for sparse_ps:3: it was made by a plan with other roles"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_role_into(folder, "sparse_ps:3", read_manifest(folder), tensors())


# The manifest


def spoiled(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def spoil(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return spoil


def in_trainer(part: str, **values: object) -> Callable[[str], str]:
    return spoiled(lambda d: d["trainers"]["trainer:0:0"][part].update(values))


MANIFESTS: dict[str, tuple[Callable[[str], str], str]] = {
    "no JSON": (lambda text: text[:-5], "manifest.json: damaged: "),
    "empty": (lambda text: "", "manifest.json: damaged: "),
    "no object": (lambda text: "[]", "manifest.json: damaged: Expected `object`, got `array`"),
    "thousands of brackets": (lambda text: "[" * 100_000, "manifest.json: damaged: "),
    "unknown version": (spoiled(lambda d: d.update(version=9)), f"manifest.json: version 9, this htrain reads version {VERSION}"),
    "missing key": (spoiled(lambda d: d.pop("identity")), "missing required field `identity`"),
    "extra key": (spoiled(lambda d: d.update(surprise=1)), "contains unknown field `surprise`"),
    "wrong type": (spoiled(lambda d: d.update(name=3)), "Expected `str`, got `int` - at `$.name`"),
    "negative count": (spoiled(lambda d: d.update(examples=-1)), "Expected `int` >= 0 - at `$.examples`"),
    "negative position": (in_trainer("position", row=-1), "Expected `int` >= 0 - at `$.trainers[...].position.row`"),
    "unknown part of a position": (in_trainer("position", line=1), "unknown field `line` - at `$.trainers[...].position`"),
    "unknown total": (in_trainer("totals", speed=1), "unknown field `speed` - at `$.trainers[...].totals`"),
    "loss that was not a number": (in_trainer("totals", log_loss=None), "Expected `float`, got `null` - at `$.trainers[...].totals.log_loss`"),
    "trainer without a position": (
        spoiled(lambda d: d["trainers"]["trainer:0:0"].pop("position")), "missing required field `position` - at `$.trainers[...]`",
    ),
    "another count": (spoiled(lambda d: d.update(examples=6)), "manifest.json: damaged: it is not as it was written"),
    "another position": (in_trainer("position", row=18), "manifest.json: damaged: it is not as it was written"),
    "other spaces": (lambda text: text.replace(": 5,", ":  5,"), "manifest.json: damaged: it is not as it was written"),
    "short file entry": (spoiled(lambda d: d["files"].update({ROLE: ["x"]})), "Expected `array` of at least length 3, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", MANIFESTS)
def test_manifest_that_is_not_understood_is_refused_by_name(tmp_path: Path, case: str) -> None:
    spoil, wanted = MANIFESTS[case]
    path = save(tmp_path, 5) / "manifest.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(CheckpointError, match=re.escape(wanted)) as seen:
        read_manifest(path.parent)
    assert str(seen.value).startswith(str(path))
    assert "\n" not in str(seen.value)


FILES = {
    "elsewhere": (
        ROLE, SavedFile("../group_ps_0_1.safetensors", 1, 1),
        "group_ps:0:1 names the file '../group_ps_0_1.safetensors', want 'group_ps_0_1.safetensors' in the same folder",
    ),
    "of a role that climbs": ("../x", SavedFile("../x.safetensors", 1, 1), "../x names the file '../x.safetensors'"),
    "of another role": ("dense_ps:0", SavedFile("group_ps_0_1.safetensors", 1, 1), "dense_ps:0 names the file 'group_ps_0_1.safetensors'"),
    "missing": ("dense_ps:0", SavedFile("dense_ps_0.safetensors", 1, 1), "names the file 'dense_ps_0.safetensors', which is not there"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_manifest_that_names_a_strange_file_is_refused_though_its_checksum_is_right(tmp_path: Path, case: str) -> None:
    role, file, wanted = FILES[case]
    folder = save(tmp_path, 5)
    write_manifest(folder, msgspec.structs.replace(manifest_of(folder, 5), files={role: file}))
    with pytest.raises(DamagedCheckpoint, match=re.escape(wanted)):
        read_manifest(folder)


def test_manifest_with_any_one_byte_changed_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "manifest.json"
    good = path.read_bytes()
    read_manifest(path.parent)
    for place in range(len(good)):
        for change in (1, 0x10, 0x80):
            path.write_bytes(good[:place] + bytes([good[place] ^ change]) + good[place + 1 :])
            with pytest.raises(CheckpointError, match=r"manifest\.json: (damaged: |version )"):
                read_manifest(path.parent)
    for other in (good + b" ", good[:-1], good[1:], good + good):
        path.write_bytes(other)
        with pytest.raises(CheckpointError, match="damaged"):
            read_manifest(path.parent)


def test_manifest_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"abc", b"\xff\xfe\xfd"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged: "):
        read_manifest(path.parent)


# Killed in the middle of a write


def crash_while_saving(run: Path, examples: int, *, manifest: str) -> Path:
    """What a kill leaves: some roles written, one half written, no manifest."""
    folder, _ = new_checkpoint(run, examples)
    save_role(folder, "sparse_ps:0", tensors())
    (folder / "group_ps_0_1.partial").write_bytes(b"half")
    if manifest:
        (folder / manifest).write_text('{"version": 1, "plan_')
    return folder


@pytest.mark.parametrize("manifest", ["", "manifest.partial"])
def test_interrupted_write_is_never_the_latest_checkpoint(tmp_path: Path, manifest: str) -> None:
    good = save(tmp_path, 5)
    crash_while_saving(tmp_path, 9, manifest=manifest)
    assert latest(tmp_path) == good
    target = cleared()
    load(good, target)
    assert equal(target, tensors())


def test_interrupted_write_alone_is_no_checkpoint(tmp_path: Path) -> None:
    folder = crash_while_saving(tmp_path, 9, manifest="manifest.partial")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint: the run ended before its first; start it"):
        latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint \(No such file or directory: manifest\.json\)"):
        read_manifest(folder)


def test_saving_again_after_no_more_examples_does_not_touch_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    good = save(tmp_path, 5)
    broken = crash_while_saving(tmp_path, 5, manifest="")
    assert broken != good
    assert latest(tmp_path) == good
    load(good, cleared())
    newer = save(tmp_path, 5)
    assert latest(tmp_path) == newer


def test_process_killed_while_it_writes_a_role_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    good = save(tmp_path, 5)
    script = (
        "import os, signal, sys, torch; from pathlib import Path; import htrain.executor.record.checkpoint as c\n"
        "c.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run = Path(sys.argv[1]); folder, _ = c.new_checkpoint(run, 9)\n"
        "c.save_role(folder, 'group_ps:0:1', {'w': torch.ones(4)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [p.name for p in (tmp_path / "checkpoints" / "examples_000000000009").iterdir()] == ["group_ps_0_1.partial"]
    assert latest(tmp_path) == good
    load(good, cleared())


def test_full_disk_is_an_error_that_names_the_file_and_leaves_no_partial_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"sparse_ps_0\.safetensors: cannot be written: .*File too large"):
            save_role(folder, "sparse_ps:0", {"t": torch.zeros(100_000)})
        long = msgspec.structs.replace(manifest_of(folder, 0), name="abc" * 10_000)
        with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be written: File too large"):
            write_manifest(folder, long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(folder.iterdir()) == []


def test_file_that_cannot_get_its_name_leaves_no_partial_file(tmp_path: Path) -> None:
    for name in ("dense_ps_0.safetensors", "manifest.json"):
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=r"dense_ps_0\.safetensors: cannot be written: .*Is a directory"):
        save_role(tmp_path, "dense_ps:0", tensors())
    with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be written: Is a directory"):
        write_manifest(tmp_path, manifest_of(tmp_path, 0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense_ps_0.safetensors", "manifest.json"]


def test_folder_that_is_not_there_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone/dense_ps_0\.safetensors: cannot be written: "):
        save_role(tmp_path / "gone", "dense_ps:0", tensors())
    with pytest.raises(CheckpointError, match=r"gone/manifest\.json: cannot be written: No such file or directory"):
        write_manifest(tmp_path / "gone", manifest_of(tmp_path, 0))


# Several checkpoints


@pytest.mark.parametrize("counts", [(90, 1000, 7), (5, 10**12 - 1, 10**12, 10**13), (10**13, 10**12, 1), (3, 3, 3)])
def test_latest_checkpoint_is_the_one_that_was_made_last_whatever_its_name_says(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    for examples in counts:
        folder = save(tmp_path, examples)
        assert latest(tmp_path) == folder
        prune(tmp_path)
        assert latest(tmp_path) == folder
    assert [manifest.examples for _, manifest in find_checkpoints(tmp_path).complete] == list(counts[:-3:-1])


def test_a_checkpoint_under_another_name_is_its_owners(tmp_path: Path) -> None:
    """Somebody has put one aside, in the manner of ours: it is neither the latest, nor pruned."""
    aside = tmp_path / "checkpoints" / "examples_000000000009-007"
    shutil.copytree(save(tmp_path, 9), aside)
    for examples in (1, 2, 3):
        newest = save(tmp_path, examples)
    prune(tmp_path, keep=1)
    assert latest(tmp_path) == newest
    assert sorted((tmp_path / "checkpoints").iterdir()) == [newest, aside]
    assert read_manifest(aside).examples == 9


@pytest.mark.parametrize(
    "spoil", [lambda f: (f / "manifest.json").write_text("{"), lambda f: os.truncate(f / "group_ps_0_1.safetensors", 3)]
)
def test_a_damaged_checkpoint_is_told_of_while_it_is_the_newest_and_never_removed(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    old, broken = save(tmp_path, 1), save(tmp_path, 2)
    spoil(broken)
    found = find_checkpoints(tmp_path)
    assert [folder for folder, _ in found.complete] == [old]
    assert len(found.damaged) == 1
    with pytest.raises(DamagedCheckpoint, match=f"damaged: .*: remove its folder to use {old.name}$"):
        latest_checkpoint(tmp_path)
    newer = save(tmp_path, 3)
    prune(tmp_path, keep=1)
    assert find_checkpoints(tmp_path).damaged == ()
    assert latest(tmp_path) == newer
    assert broken.is_dir()
    assert not old.exists()


def test_run_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: no such run folder$"):
        latest_checkpoint(tmp_path / "nowhere")


def test_pruning_keeps_the_newest_and_removes_what_kills_left(tmp_path: Path) -> None:
    kept = [save(tmp_path, examples) for examples in (1, 2, 3)][1:]
    crash_while_saving(tmp_path, 2, manifest="manifest.partial")
    crash_while_saving(tmp_path, 8, manifest="")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    prune(tmp_path)
    assert sorted((tmp_path / "checkpoints").iterdir()) == [*kept, tmp_path / "checkpoints" / "notes.txt"]
    prune(tmp_path, keep=1)
    assert latest(tmp_path) == kept[-1]
    load(kept[-1], cleared())


def test_pruning_leaves_what_others_put_into_a_checkpoint(tmp_path: Path) -> None:
    old, broken = save(tmp_path, 1), crash_while_saving(tmp_path, 2, manifest="")
    for folder in (old, broken):
        (folder / "notes.txt").write_text("mine")
        (folder / "mine.safetensors").write_text("mine")
    save(tmp_path, 3)
    prune(tmp_path, keep=1)
    for folder in (old, broken):
        assert sorted(p.name for p in folder.iterdir()) == ["mine.safetensors", "notes.txt"]


def test_a_folder_that_takes_no_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(
        CheckpointError, match=r"checkpoints: no checkpoint can be written: (File exists|Not a directory)$"
    ):
        new_checkpoint(tmp_path, 5)


def test_pruning_a_run_without_checkpoints_does_nothing(tmp_path: Path) -> None:
    prune(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_made_by_another_program_with_the_same_tensors_is_refused_by_its_checksum(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    file = folder / "group_ps_0_1.safetensors"
    save_file({**tensors(), "w": tensors()["w"] + 1}, file)
    with pytest.raises(CheckpointError, match="damaged: checksum"):
        load(folder, cleared())
