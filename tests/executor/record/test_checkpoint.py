"""A checkpoint: exact round trips, and no damage or strange manifest that goes unnoticed."""

import json
import os
import re
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

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import VERSION, SavedFile, read_manifest, write_manifest
from htrain.executor.record.role_file import load_role_into, verified_role, verify
from tests.support.checkpoints import ROLE, cleared, equal, load, manifest_of, save, tensors


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
    assert verified_role(folder, manifest, ROLE) == file


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
    wanted = r"group_ps_0_1\.safetensors: cannot be read: No such file or directory"
    with pytest.raises(DamagedCheckpoint, match=wanted):
        verify(folder, manifest)
    with pytest.raises(DamagedCheckpoint, match=wanted):
        load_role_into(folder, ROLE, manifest, cleared())


def test_a_file_that_is_damaged_after_it_was_verified_is_not_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    manifest = read_manifest(folder)
    verify(folder, manifest)
    file = folder / "group_ps_0_1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    target = cleared()
    with pytest.raises(
        DamagedCheckpoint, match=r"group_ps_0_1\.safetensors: damaged: checksum \w{8}, the manifest says"
    ):
        load_role_into(folder, ROLE, manifest, target)
    assert equal(target, cleared())


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
    "unknown version": (spoiled(lambda d: d.update(version=9)), f"manifest.json: version 9, this htrain reads versions {VERSION} to {VERSION + 3}"),
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


def test_file_made_by_another_program_with_the_same_tensors_is_refused_by_its_checksum(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    file = folder / "group_ps_0_1.safetensors"
    save_file({**tensors(), "w": tensors()["w"] + 1}, file)
    with pytest.raises(CheckpointError, match="damaged: checksum"):
        load(folder, cleared())
