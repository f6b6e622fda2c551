"""Checkpoints: exact round trips, and no damage, kill or strange manifest that goes unnoticed."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from htrain.errors import CheckpointError
from htrain.executor.checkpoint import (
    VERSION,
    Manifest,
    SavedFile,
    checkpoint_folder,
    latest_checkpoint,
    load_role_into,
    prune,
    read_manifest,
    save_role,
    verified_path,
    write_manifest,
)
from htrain.executor.run import check_belongs

ROLE = "group_ps:0:1"
TRAINER = {
    "position": {"epoch": 1, "chunk": 4, "row": 17},
    "totals": {"examples": 100, "steps": 10, "log_loss": 65.5, "positives": 31.0},
}


def tensors() -> dict[str, torch.Tensor]:
    return {
        "w": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7,
        "ids": torch.tensor([1, -(2**62), 2**62]),
        "half": torch.tensor([1.5, -2.25, 3e38]).to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
    }


def save(run: Path, examples: int, values: dict[str, torch.Tensor] | None = None) -> Path:
    """A complete checkpoint of one role."""
    folder = checkpoint_folder(run, examples)
    folder.mkdir(parents=True)
    saved = save_role(folder, ROLE, values if values is not None else tensors())
    write_manifest(folder, Manifest(VERSION, "abc", examples, {"trainer:0:0": TRAINER}, {ROLE: saved}))
    return folder


def load(folder: Path, target: dict[str, torch.Tensor]) -> None:
    load_role_into(folder, ROLE, read_manifest(folder), target)


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
    assert manifest == Manifest(VERSION, "abc", 5, {"trainer:0:0": TRAINER}, manifest.files, False)
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
    wanted = f"{file}: damaged: {size - 3} bytes, the manifest says {size}: remove the folder examples_000000000005 to go on from an older checkpoint"
    with pytest.raises(CheckpointError, match=f"^{re.escape(wanted)}$"):
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
    with pytest.raises(CheckpointError, match=r"group_ps_0_1\.safetensors: cannot be read: No such file or directory"):
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
    manifest = Manifest(VERSION, "abc", 5, {}, {ROLE: saved})
    with pytest.raises(CheckpointError, match=r"group_ps_0_1\.safetensors: not a safetensors file: "):
        load_role_into(folder, ROLE, manifest, cleared())


def test_checkpoint_of_a_plan_with_other_roles_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    message = f"{folder}: holds nothing for sparse_ps:3: it was made by a plan with other roles"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_role_into(folder, "sparse_ps:3", read_manifest(folder), tensors())


def test_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    plan: Any = SimpleNamespace(digest="def")
    with pytest.raises(CheckpointError, match=r"belongs to another plan \(digest abc, this one has def\): resume with"):
        check_belongs(read_manifest(folder), plan, folder)


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
    "unknown version": (spoiled(lambda d: d.update(version=9)), "manifest.json: version 9, this htrain reads version 1"),
    "missing key": (spoiled(lambda d: d.pop("plan_digest")), "missing required field `plan_digest`"),
    "extra key": (spoiled(lambda d: d.update(surprise=1)), "contains unknown field `surprise`"),
    "wrong type": (spoiled(lambda d: d.update(plan_digest=3)), "Expected `str`, got `int` - at `$.plan_digest`"),
    "negative count": (spoiled(lambda d: d.update(examples=-1)), "Expected `int` >= 0 - at `$.examples`"),
    "negative position": (in_trainer("position", row=-1), "trainer:0:0: damaged: Expected `int` >= 0 - at `$.position.row`"),
    "unknown part of a position": (in_trainer("position", line=1), "unknown field `line` - at `$.position`"),
    "unknown total": (in_trainer("totals", speed=1), "trainer:0:0: damaged: Object contains unknown field `speed`"),
    "loss that was not a number": (in_trainer("totals", log_loss=None), "Expected `float`, got `null` - at `$.totals.log_loss`"),
    "trainer without a position": (
        spoiled(lambda d: d["trainers"]["trainer:0:0"].pop("position")), "trainer:0:0: damaged: Object missing required field `position`",
    ),
    "file elsewhere": (
        spoiled(lambda d: d["files"].update({ROLE: ["../group_ps_0_1.safetensors", 1, 1]})),
        "group_ps:0:1 names the file '../group_ps_0_1.safetensors', want 'group_ps_0_1.safetensors' in the same folder",
    ),
    "role that climbs": (
        spoiled(lambda d: d["files"].update({"../x": ["../x.safetensors", 1, 1]})), "../x names the file '../x.safetensors'",
    ),
    "another role's file": (
        spoiled(lambda d: d["files"].update({"dense_ps:0": d["files"][ROLE]})), "dense_ps:0 names the file 'group_ps_0_1.safetensors'",
    ),
    "missing file": (
        spoiled(lambda d: d["files"].update({"dense_ps:0": ["dense_ps_0.safetensors", 1, 1]})), "names the file 'dense_ps_0.safetensors', which is not there",
    ),
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


def test_manifest_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"abc", b"\xff\xfe\xfd"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged: "):
        read_manifest(path.parent)


# Killed in the middle of a write


def crash_while_saving(run: Path, examples: int, *, manifest: str) -> Path:
    """What a kill leaves: some roles written, one half written, no manifest."""
    folder = checkpoint_folder(run, examples)
    folder.mkdir(parents=True)
    save_role(folder, "sparse_ps:0", tensors())
    (folder / "group_ps_0_1.partial").write_bytes(b"half")
    if manifest:
        (folder / manifest).write_text('{"version": 1, "plan_')
    return folder


@pytest.mark.parametrize("manifest", ["", "manifest.partial"])
def test_interrupted_write_is_never_the_latest_checkpoint(tmp_path: Path, manifest: str) -> None:
    good = save(tmp_path, 5)
    crash_while_saving(tmp_path, 9, manifest=manifest)
    assert latest_checkpoint(tmp_path) == good
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
    assert latest_checkpoint(tmp_path) == good
    load(good, cleared())
    newer = save(tmp_path, 5)
    assert latest_checkpoint(tmp_path) == newer


def test_process_killed_while_it_writes_a_role_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    good = save(tmp_path, 5)
    script = (
        "import os, signal, sys, torch; from pathlib import Path; import htrain.executor.checkpoint as c\n"
        "c.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run = Path(sys.argv[1]); folder = c.checkpoint_folder(run, 9); folder.mkdir()\n"
        "c.save_role(folder, 'group_ps:0:1', {'w': torch.ones(4)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [p.name for p in (tmp_path / "checkpoints" / "examples_000000000009").iterdir()] == ["group_ps_0_1.partial"]
    assert latest_checkpoint(tmp_path) == good
    load(good, cleared())


def test_full_disk_is_an_error_that_names_the_file_and_leaves_no_partial_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"sparse_ps_0\.safetensors: cannot be written: .*File too large"):
            save_role(folder, "sparse_ps:0", {"t": torch.zeros(100_000)})
        long = Manifest(VERSION, "abc" * 10_000, 0, {}, {})
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
        write_manifest(tmp_path, Manifest(VERSION, "abc", 0, {}, {}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense_ps_0.safetensors", "manifest.json"]


def test_folder_that_is_not_there_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone/dense_ps_0\.safetensors: cannot be written: "):
        save_role(tmp_path / "gone", "dense_ps:0", tensors())
    with pytest.raises(CheckpointError, match=r"gone/manifest\.json: cannot be written: No such file or directory"):
        write_manifest(tmp_path / "gone", Manifest(VERSION, "abc", 0, {}, {}))


# Several checkpoints


def test_latest_checkpoint_is_the_one_with_most_examples(tmp_path: Path) -> None:
    for examples in (90, 1000, 7):
        save(tmp_path, examples)
    assert read_manifest(latest_checkpoint(tmp_path)).examples == 1000


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
    assert latest_checkpoint(tmp_path) == kept[-1]
    load(kept[-1], cleared())


def test_checkpoint_that_pruning_could_not_remove_whole_no_longer_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save(tmp_path, 1)
    save(tmp_path, 2)
    monkeypatch.setattr("htrain.executor.checkpoint.shutil.rmtree", lambda *_, **__: None)
    prune(tmp_path, keep=1)
    assert [p.name for p in old.iterdir()] == ["group_ps_0_1.safetensors"]


def test_pruning_a_run_without_checkpoints_does_nothing(tmp_path: Path) -> None:
    prune(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_made_by_another_program_with_the_same_tensors_is_refused_by_its_checksum(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    file = folder / "group_ps_0_1.safetensors"
    save_file({**tensors(), "w": tensors()["w"] + 1}, file)
    with pytest.raises(CheckpointError, match="damaged: checksum"):
        load(folder, cleared())
