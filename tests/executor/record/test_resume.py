"""A run goes on from the latest checkpoint that is whole, of its own plan and data, and from nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from htrain.data.identity import DataIdentity, FileIdentity
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import Manifest, ReaderPosition, TrainerState, TrainerTotals, write_manifest
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.kept import find_checkpoints, new_checkpoint
from htrain.executor.record.resume import resumed
from htrain.executor.record.role_file import save_role
from htrain.executor.settings import RunSettings
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

ROLE = "trainer:0:0"
FILE = FileIdentity("a.libfm", 100, 5, True, "digest")
DATA = DataIdentity(1, "libfm", {"rows": "50"}, (FILE,))


@pytest.fixture
def identity(plan: Plan) -> Identity:
    return Identity(PlanIdentity.of(plan), DATA)


def save(run: Path, identity: Identity, row: int) -> Path:
    folder, sequence = new_checkpoint(run, row)
    saved = save_role(folder, ROLE, {"w": torch.full((4,), float(row))})
    state = TrainerState(ReaderPosition(0, 0, row), TrainerTotals(row, 1, 0.5, 0.5))
    write_manifest(folder, Manifest(2, folder.name, sequence, identity, row, {ROLE: state}, {ROLE: saved}))
    return folder


def resume(run: Path, identity: Identity) -> tuple[RunSettings, list[str]]:
    said: list[str] = []
    settings = RunSettings(Path("plan"), "libfm:a.libfm", run)
    return resumed(settings, identity, find_checkpoints(run), said.append), said


def test_the_latest_is_taken_with_its_positions(tmp_path: Path, identity: Identity) -> None:
    save(tmp_path, identity, 1000)
    folder = save(tmp_path, identity, 7)
    settings, said = resume(tmp_path, identity)
    assert settings.restore == str(folder)
    assert settings.positions == {
        ROLE: {
            "position": {"epoch": 0, "chunk": 0, "row": 7},
            "totals": {"examples": 7, "steps": 1, "log_loss": 0.5, "positives": 0.5},
        }
    }
    assert said == []


def flip(name: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return spoil


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the manifest": flip("manifest.json"),
    "a bit of a tensor": flip("trainer_0_0.safetensors"),
    "a file that is gone": lambda folder: (folder / "trainer_0_0.safetensors").unlink(),
    "a file that is cut": lambda folder: (folder / "trainer_0_0.safetensors").write_bytes(b"1"),
    "a manifest that is cut": lambda folder: (folder / "manifest.json").write_bytes(b"{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_one_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, identity: Identity, damage: str
) -> None:
    older, newest = save(tmp_path, identity, 5), save(tmp_path, identity, 9)
    DAMAGES[damage](newest)
    settings, said = resume(tmp_path, identity)
    assert settings.restore == str(older)
    assert len(said) == 1
    assert said[0].startswith(str(newest))
    assert said[0].endswith(f"; going on from {older.name} instead")
    DAMAGES[damage](older)
    with pytest.raises(
        DamagedCheckpoint, match=r"; no other checkpoint is whole: start the run again with another --out$"
    ):
        resume(tmp_path, identity)


def test_one_without_a_manifest_was_never_made(tmp_path: Path, identity: Identity) -> None:
    (save(tmp_path, identity, 5) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        resume(tmp_path, identity)


OTHER_PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "trainers": (lambda p: replace(p, cluster=replace(p.cluster, trainers=3)), "trainers: 3 now, 1 then"),
    "groups": (lambda p: replace(p, cluster=replace(p.cluster, groups=1)), "groups: 1 now, 2 then"),
    "sparse PSs": (lambda p: replace(p, cluster=replace(p.cluster, sparse_ps=4)), "sparse ps: 4 now, 2 then"),
    "batch size": (lambda p: replace(p, options=replace(p.options, batch_size=9)), "batch size: 9 now, 8 then"),
    "a table's cache": (
        lambda p: replace(p, options=with_flags(p.options, cache="het", cache_capacity="1%")),
        "cache: het now, none then",
    ),
    "an optimizer's number": (
        lambda p: replace(p, options=with_flags(p.options, dense_eps=1e-3)),
        "dense eps: 0.001 now, 1e-10 then",
    ),
    "nets": (lambda p: replace(p, digest="0123456789abcdef"), "its nets have the digest 0123456789ab, they had "),
}


@pytest.mark.parametrize("what", OTHER_PLANS)
def test_another_plan_is_refused_by_what_is_another(tmp_path: Path, plan: Plan, identity: Identity, what: str) -> None:
    folder = save(tmp_path, identity, 5)
    change, wanted = OTHER_PLANS[what]
    other = Identity(PlanIdentity.of(change(plan)), DATA)
    with pytest.raises(CheckpointError) as seen:
        resume(tmp_path, other)
    assert str(seen.value).startswith(f"{folder}: was made by another plan ({wanted}")
    assert str(seen.value).endswith("): resume with the plan of the run, or start a new run with --out")


def test_what_hosts_are_like_may_change(tmp_path: Path, plan: Plan, identity: Identity) -> None:
    folder = save(tmp_path, identity, 5)
    faster = replace(
        plan, cluster=replace(plan.cluster, core_flops=7, trainer_memory=8, sparse_ps_bandwidth=9), predicted_eps=1.0
    )
    assert faster.cluster != Cluster()
    assert resume(tmp_path, Identity(PlanIdentity.of(faster), DATA))[0].restore == str(folder)


def test_other_data_is_refused_by_what_is_another(tmp_path: Path, identity: Identity) -> None:
    folder = save(tmp_path, identity, 5)
    shorter = DataIdentity(1, "libfm", {"rows": "50"}, (FileIdentity("a.libfm", 10, 5, True, "another"),))
    with pytest.raises(CheckpointError) as seen:
        resume(tmp_path, Identity(identity.plan, shorter))
    wanted = "was made on other data ('a.libfm' has 10 bytes, it had 100): resume with the data as it was, or start a new run with --out"
    assert str(seen.value) == f"{folder}: {wanted}"


@pytest.mark.parametrize(
    "flags",
    [
        {"activation_dtype": "bfloat16"},
        {"sparse_sync": "gmp", "partition": "p.parts"},
        {"cache": "lookahead", "cache_window": 9},
        {"fuse_tables": False, "net_replicas": 5},
    ],
)
def test_how_a_cluster_trains_is_no_difference_of_the_model(plan: Plan, flags: dict[str, object]) -> None:
    other = replace(plan, options=with_flags(plan.options, **flags), digest="0123456789abcdef")
    then, now = PlanIdentity.of(plan), PlanIdentity.of(other)
    assert then.difference(now)
    assert then.difference_of_model(now) == now.difference_of_model(then) == ""


def test_what_is_trained_otherwise_is_one_though_the_cluster_is_another_too(plan: Plan) -> None:
    flags = {"sparse_lr": 0.5, "cache": "het", "cache_capacity": "1%"}
    other = replace(plan, options=with_flags(plan.options, **flags), cluster=replace(plan.cluster, trainers=3))
    assert PlanIdentity.of(plan).difference_of_model(PlanIdentity.of(other)).startswith("sparse lr: 0.5 now, ")
