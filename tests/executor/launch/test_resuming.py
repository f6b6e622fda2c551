"""A run goes on from a checkpoint of another cluster, with parameters and what is left of the data; with nothing else that is another."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from checkpoints import part_of, whole_role
from earlier_runs import checkpoint_of, planned, wholes_of

from htrain.data import Position
from htrain.data.growth import Cut, Extent, FilePart, FileSize
from htrain.data.identity import DataIdentity, identity_of
from htrain.data.left import Left
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.launch.resuming import gone_on
from htrain.executor.record.checkpoint import (
    MANIFEST,
    Manifest,
    ReaderPosition,
    TrainerState,
    TrainerTotals,
    write_manifest,
)
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.kept import find_checkpoints, latest_checkpoint
from htrain.executor.record.layout import Layout, keep_layout
from htrain.executor.record.run_folder import RunRecord, start_record
from htrain.executor.settings import RunSettings
from htrain.plan.plan import Plan
from htrain.spec.tree import with_flags

OPTIONS = with_flags(batch_size=8, dense_optimizer="adagrad")
TWO = {"groups": 2, "trainers": 1, "group_ps": 1, "sparse_ps": 1, "dense_ps": 1}
THREE = {"groups": 1, "trainers": 3, "group_ps": 2, "sparse_ps": 2}
DATA = DataIdentity(1, "synthetic", {}, ())


def went_on(plan: Plan, run: Path, data: DataIdentity = DATA) -> tuple[RunSettings, list[str]]:
    told: list[str] = []
    settings = RunSettings(run / "plan", "synthetic:", run)
    return gone_on(plan, settings, Identity(PlanIdentity.of(plan), data), find_checkpoints(run), told.append), told


def begun(plan: Plan, run: Path, *positions: tuple[int, int, int]) -> None:
    """A run of a plan whose trainers stand at these positions."""
    checkpoint_of(plan, wholes_of(plan), run)
    folder, manifest = latest_checkpoint(run)
    trainers = {
        f"trainer:{group}:0": TrainerState(ReaderPosition(*at), TrainerTotals(10 * (group + 1), 2, 1.5, 4.0))
        for group, at in enumerate(positions)
    }
    write_manifest(
        folder,
        Manifest(**{name: getattr(manifest, name) for name in Manifest.__struct_fields__} | {"trainers": trainers}),
    )


def test_what_is_left_is_shared_out_and_counts_go_on(tmp_path: Path) -> None:
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (1, 4, 7), (2, 0, 0))
    settings, told = went_on(planned(OPTIONS, **THREE), tmp_path / "run")
    assert settings.left == (Left(2, 1, (Position(1, 4, 7), Position(2, 0, 0))),)
    assert settings.positions == {
        "trainer:0:0": {"position": {"epoch": 1, "chunk": 0, "row": 0}, "totals": {"examples": 30, "steps": 4, "log_loss": 3.0, "positives": 8.0}},
        "trainer:0:1": {"position": {"epoch": 1, "chunk": 0, "row": 0}, "totals": {"examples": 0, "steps": 0, "log_loss": 0.0, "positives": 0.0}},
        "trainer:0:2": {"position": {"epoch": 1, "chunk": 0, "row": 0}, "totals": {"examples": 0, "steps": 0, "log_loss": 0.0, "positives": 0.0}},
    }  # fmt: skip
    assert settings.restore == settings.begin_with[1] == str(latest_checkpoint(tmp_path / "run")[0])
    (news,) = told
    assert " was made by another cluster (groups: 1 now, 2 then; trainers: 3 now, 1 then" in news


def test_its_own_cluster_goes_on_where_it_was(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    begun(plan, tmp_path / "run", (1, 4, 7), (2, 0, 0))
    settings, told = went_on(plan, tmp_path / "run")
    assert (settings.left, settings.begin_with, told) == ((), ("", ""), [])
    assert settings.positions["trainer:1:0"]["position"] == {"epoch": 2, "chunk": 0, "row": 0}


@pytest.mark.parametrize("by_parts", [True, msgspec.UNSET])
@pytest.mark.parametrize("cluster", [TWO, THREE])
def test_data_is_shared_out_as_it_was(
    tmp_path: Path, by_parts: bool | msgspec.UnsetType, cluster: dict[str, int]
) -> None:
    """An older htrain's checkpoint says nothing of parts: its positions are of chunks."""
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (1, 4, 7), (2, 0, 0))
    folder, manifest = latest_checkpoint(tmp_path / "run")
    write_manifest(folder, msgspec.structs.replace(manifest, by_parts=by_parts))
    settings, _ = went_on(planned(OPTIONS, **cluster), tmp_path / "run")
    assert settings.extent.by_parts is (by_parts is True)


def test_every_number_is_where_the_new_cluster_has_it_though_the_plan_is_gone(tmp_path: Path) -> None:
    before, after = planned(OPTIONS, **TWO), planned(OPTIONS, tables=2, **THREE)
    begun(before, tmp_path / "run", (0, 1, 0), (0, 1, 0))
    keep_layout(tmp_path / "run", Layout.of(before))
    (tmp_path / "saved" / "plan.yaml").unlink()
    settings, _ = went_on(after, tmp_path / "run")
    earlier, wholes = Earlier(Beginning(*settings.begin_with)), wholes_of(before)
    after.save(tmp_path / "after")
    for role in after.cluster.roles:
        parts = whole_role(after, role)
        parts.fill(tmp_path / "after")
        parts.copy_from(earlier)
        for name, parameter in after.train.parameters.items():
            if name in parts.store and parameter.kind in ("table", "weight"):
                owned = {n: w for n, w in wholes.items() if n in before.train.parameters}
                assert torch.equal(parts.store[name], part_of(after, parameter, owned)), (role, name)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"batch_size": 16}, "batch size: 16 now, 8 then"),
        ({"sparse_lr": 0.5}, "sparse lr: 0.5 now, "),
        ({"dense_optimizer": "adam"}, "dense optimizer: adam now, adagrad then"),
        ({"seed": 3}, "seed: 3 now, "),
    ],
)
def test_what_is_trained_otherwise_is_refused_by_its_flag(
    tmp_path: Path, flags: dict[str, object], wanted: str
) -> None:
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (0, 1, 0), (0, 1, 0))
    with pytest.raises(CheckpointError, match=rf"was made by another plan \({wanted}.*only its cluster may be another"):
        went_on(planned(with_flags(OPTIONS, **flags), **THREE), tmp_path / "run")


@pytest.mark.parametrize("flags", [{"net_replicas": 3}, {"cache": "het", "cache_capacity": "20%"}, {"sync_period": 9}])
def test_how_a_cluster_trains_may_be_another(tmp_path: Path, flags: dict[str, object]) -> None:
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (0, 1, 0), (0, 1, 0))
    settings, told = went_on(planned(with_flags(OPTIONS, **flags), **TWO), tmp_path / "run")
    assert settings.left
    assert " was made by another cluster (" in told[0]


def test_another_model_is_refused_by_the_first_weight_that_is_another(tmp_path: Path) -> None:
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (0, 1, 0), (0, 1, 0))
    plan = planned(OPTIONS, **THREE)
    name = min(n for n, p in plan.train.parameters.items() if p.kind == "weight")
    parameter = plan.train.parameters[name]
    larger = replace(parameter, shape=(parameter.shape[0] + 1, *parameter.shape[1:]))
    train = replace(plan.train, parameters={**plan.train.parameters, name: larger})
    other = replace(plan, nets={**plan.nets, "train": train})
    with pytest.raises(
        CheckpointError, match=rf"is of another model: '{name}' is of shape \[.*\] now, it was of shape"
    ):
        went_on(other, tmp_path / "run")


def test_other_nets_of_the_same_cluster_are_another_model(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    begun(plan, tmp_path / "run", (0, 1, 0), (0, 1, 0))
    with pytest.raises(
        CheckpointError, match=r"was made by another plan \(its nets have the digest 0123456789ab, they had"
    ):
        went_on(replace(plan, digest="0123456789abcdef"), tmp_path / "run")


def test_a_run_of_before_layouts_were_kept_goes_on_again_though_run_json_names_the_new_plan(tmp_path: Path) -> None:
    """A role dies, or the launcher is killed, before the new cluster has made a checkpoint."""
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (0, 1, 0), (0, 1, 0))
    after = planned(OPTIONS, **THREE)
    first, _ = went_on(after, tmp_path / "run")
    start_record(tmp_path / "run", RunRecord(str(tmp_path / "after"), "synthetic:", 1, False), resume=True)
    again, _ = went_on(after, tmp_path / "run")
    assert (again.positions, again.left) == (first.positions, first.left)
    assert Earlier(Beginning(*again.begin_with)).layout == Earlier(Beginning(*first.begin_with)).layout


def test_who_wants_some_parameters_reads_no_other_files(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    begun(plan, tmp_path / "run", (0, 1, 0), (0, 1, 0))
    folder, manifest = latest_checkpoint(tmp_path / "run")
    beginning = Beginning(str(tmp_path / "saved"), str(folder))
    table = next(name for name, p in plan.train.parameters.items() if p.kind == "table")
    other = folder / manifest.files["dense_ps:0"].name
    other.write_bytes(other.read_bytes()[:-1] + b"?")
    Earlier(beginning, wholes={plan.train.parameters[table].whole})
    with pytest.raises(DamagedCheckpoint, match="dense_ps_0"):
        Earlier(beginning)


def test_other_data_is_refused(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    begun(plan, tmp_path / "run", (0, 1, 0), (0, 1, 0))
    with pytest.raises(CheckpointError, match=r"was made on other data \(its option rows is 9 now, it was not given\)"):
        went_on(planned(OPTIONS, **THREE), tmp_path / "run", DataIdentity(1, "synthetic", {"rows": "9"}, ()))


def test_a_layout_that_is_damaged_is_an_error_with_its_file(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    begun(plan, tmp_path / "run", (0, 1, 0), (0, 1, 0))
    keep_layout(tmp_path / "run", Layout.of(plan))
    (file,) = (tmp_path / "run" / "parameters").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"parameters/[0-9a-f]{16}\.json: damaged: "):
        went_on(planned(OPTIONS, **THREE), tmp_path / "run")


def test_a_manifest_of_a_run_that_had_one_cluster_is_as_it_always_was(tmp_path: Path) -> None:
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (0, 1, 0), (0, 1, 0))
    folder, manifest = latest_checkpoint(tmp_path / "run")
    assert b'"left"' not in (folder / MANIFEST).read_bytes()
    left = (Left(2, 1, (Position(0, 3, 1), Position(1, 0, 0))),)
    write_manifest(folder, msgspec.structs.replace(manifest, left=left))
    assert latest_checkpoint(tmp_path / "run")[1].left == left


# -- data that has grown


def log_of(folder: Path, *rows: int) -> str:
    """Files of so many rows; their URI."""
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(rows):
        (folder / f"{number}.libfm").write_text("1 3:1\n" * count)
    return f"libfm:{folder}/*.libfm?rows=9"


def grew(plan: Plan, run: Path, uri: str, then: DataIdentity) -> tuple[RunSettings, list[str]]:
    """How a run whose last checkpoint is of `then` goes on with a URI's data as it is now."""
    folder, manifest = latest_checkpoint(run)
    write_manifest(folder, msgspec.structs.replace(manifest, identity=Identity(manifest.identity.plan, then)))
    told: list[str] = []
    identity = Identity(PlanIdentity.of(plan), identity_of(uri))
    return gone_on(plan, RunSettings(run / "plan", uri, run), identity, find_checkpoints(run), told.append), told


def test_what_has_come_is_read_in_the_epoch_that_was_begun_last(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    then = identity_of(log_of(tmp_path / "log", 10, 20))
    begun(plan, tmp_path / "run", (1, 4, 7), (2, 0, 0))
    settings, told = grew(plan, tmp_path / "run", log_of(tmp_path / "log", 10, 25, 2, 3), then)
    begins = [settings.positions[f"trainer:{group}:0"]["position"] for group in range(2)]
    assert begins == [{"epoch": 1, "chunk": 4, "row": 7}, {"epoch": 1, "chunk": 2 << 32, "row": 0}]
    assert settings.extent == Extent(
        (FileSize("0.libfm", 60), FileSize("1.libfm", 150), FileSize("2.libfm", 12), FileSize("3.libfm", 18)),
        (
            Cut(0, ((FilePart(0, 0, 60), FilePart(1, 0, 120)),)),
            Cut(
                1,
                (
                    (FilePart(0, 0, 60), FilePart(1, 0, 120)),
                    (FilePart(1, 120, 150), FilePart(2, 0, 12), FilePart(3, 0, 18)),
                ),
            ),
        ),
    )
    assert [line.partition(": ")[2] for line in told] == [
        "its data has grown ('1.libfm' has 150 bytes, it had 120, 2 more files are there): what has come is read behind the rest, in the epoch that was "
        "begun last and in later ones"
    ]


def test_a_last_line_that_goes_on_is_read_anew_and_is_news(tmp_path: Path) -> None:
    plan, file = planned(OPTIONS, **TWO), tmp_path / "log" / "0.libfm"
    log_of(tmp_path / "log", 10)
    file.write_text("1 3:1\n" * 9 + "1 3")
    then = identity_of(f"libfm:{tmp_path}/log/*.libfm?rows=9")
    begun(plan, tmp_path / "run", (1, 0, 0), (1, 0, 0))
    settings, told = grew(plan, tmp_path / "run", log_of(tmp_path / "log", 11), then)
    assert settings.extent.cuts == (Cut(0, ((FilePart(0, 0, 57),), (FilePart(0, 54, 66),))),)
    assert told[0].endswith("; the last line of '0.libfm' had no end and goes on: it is read anew")


def test_an_empty_new_file_is_gone_on_with_and_its_rows_when_they_have_come(tmp_path: Path) -> None:
    plan = planned(OPTIONS, **TWO)
    then = identity_of(log_of(tmp_path / "log", 10))
    begun(plan, tmp_path / "run", (1, 0, 0), (1, 0, 0))
    uri = log_of(tmp_path / "log", 10, 0)
    settings, _ = grew(plan, tmp_path / "run", uri, then)
    assert settings.extent == Extent((FileSize("0.libfm", 60), FileSize("1.libfm", 0)))
    then = identity_of(uri)
    settings, _ = grew(plan, tmp_path / "run", log_of(tmp_path / "log", 10, 5), then)
    assert settings.extent.cuts == (Cut(0, ((FilePart(0, 0, 60), FilePart(1, 0, 0)), (FilePart(1, 0, 30),))),)


def test_another_cluster_goes_on_with_what_has_come(tmp_path: Path) -> None:
    then = identity_of(log_of(tmp_path / "log", 10))
    begun(planned(OPTIONS, **TWO), tmp_path / "run", (1, 4, 7), (2, 0, 0))
    settings, told = grew(planned(OPTIONS, **THREE), tmp_path / "run", log_of(tmp_path / "log", 15), then)
    assert settings.left == (Left(2, 1, (Position(1, 4, 7), Position(1, 1 << 32, 0))),)
    assert {str(state["position"]) for state in settings.positions.values()} == {str(Position(1, 0, 0).to_dict())}
    assert len(told) == 2


def test_data_that_is_as_it_was_is_no_news(tmp_path: Path) -> None:
    plan, uri = planned(OPTIONS, **TWO), log_of(tmp_path / "log", 10)
    begun(plan, tmp_path / "run", (1, 4, 7), (2, 0, 0))
    settings, told = grew(plan, tmp_path / "run", uri, identity_of(uri))
    assert (settings.extent, told) == (Extent((FileSize("0.libfm", 60),)), [])


def test_cuts_of_other_files_are_an_error(tmp_path: Path) -> None:
    plan, uri = planned(OPTIONS, **TWO), log_of(tmp_path / "log", 10)
    begun(plan, tmp_path / "run", (1, 4, 7), (2, 0, 0))
    folder, manifest = latest_checkpoint(tmp_path / "run")
    cuts = (Cut(1, ((FilePart(3, 0, 60),),)),)
    write_manifest(folder, msgspec.structs.replace(manifest, cuts=cuts))
    with pytest.raises(CheckpointError, match=r"has parts of other files .*no file has the bytes 0 to 60 of file 3"):
        grew(plan, tmp_path / "run", uri, identity_of(uri))
