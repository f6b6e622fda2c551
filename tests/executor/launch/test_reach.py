"""What roles need to reach: folders that are the launcher's own, and data that is the launcher's."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from checkpoints import cleared, save
from small_wide_deep import small_plan

from htrain.data.identity import identity_of
from htrain.errors import CheckpointError, DataError, ModelError, PlanError, RunError
from htrain.executor.launch.reach import Needed, Probes, Task, require_needed, require_reach, task_of
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.record.layout import Layout, keep_layout
from htrain.executor.settings import RunSettings
from htrain.plan.folder import header_digest
from htrain.spec.tree import with_flags


def task(data: str, probes: Probes, **more: object) -> Task:
    return Task((), "", data, identity_of(data), probes.places, probes.name, probes.content, **more)  # type: ignore[arg-type]


@pytest.fixture
def probes(tmp_path: Path) -> Probes:
    (tmp_path / "run").mkdir()
    made = Probes((str(tmp_path / "run"), str(tmp_path / "versions")), "probe-1", "of this run")
    made.put()
    return made


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "a.libfm").write_text("1 0:1\n" * 50)
    return f"libfm:{tmp_path / 'a.libfm'}?rows=5"


def test_what_is_reached_is_left_as_it_was(probes: Probes, data: str, tmp_path: Path) -> None:
    require_reach(task(data, probes), ["trainer:0:0", "sparse_ps:0"], "a")
    for place in probes.places:
        assert os.listdir(place) == ["probe-1"]
        assert os.listdir(Path(place) / "probe-1") == ["launcher"]
    probes.remove()
    for place in probes.places:
        assert os.listdir(place) == []


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("content", [None, b"of another run"])
def test_a_folder_that_is_not_the_launchers_is_named(
    probes: Probes, data: str, place: int, content: bytes | None
) -> None:
    folder = Path(probes.places[place])
    path = folder / "probe-1" / "launcher"
    path.unlink()
    if content:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"^{folder}: is not here what it is at the launcher .*a folder that"):
        require_reach(task(data, probes), ["sparse_ps:0"], "a")
    assert os.listdir(path.parent) == ([path.name] if content else []), "nothing is written to what is somebody else's"


@pytest.mark.skipif(os.getuid() != 0, reason="plays another user")
def test_whoever_cannot_write_into_folders_that_the_launcher_makes_can_save_nothing() -> None:
    data = "synthetic:?rows=10"
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        before = os.umask(0o022)
        try:
            (made := Probes((folder,), "probe-1", "of this run")).put()
            os.seteuid(65534)
            with pytest.raises(
                CheckpointError, match=rf"^{folder}: nothing can be saved here \(.*Permission denied\): "
            ):
                require_reach(task(data, made), ["sparse_ps:0"], "a")
            os.seteuid(0)
            made.remove()
            os.umask(0o000)
            made.put()
            os.seteuid(65534)
            require_reach(task(data, made), ["sparse_ps:0"], "a")
        finally:
            os.seteuid(0)
            os.umask(before)
        made.remove()
        assert not os.listdir(folder)


def test_data_that_is_missing_or_other_data_is_said_by_who_reads_it(probes: Probes, data: str, tmp_path: Path) -> None:
    wanted = task(data, probes)
    file = tmp_path / "a.libfm"
    file.write_text("1 1:1\n" * 50)
    with pytest.raises(DataError, match=r"is other data here than at the launcher: 'a\.libfm' has 300 bytes as before"):
        require_reach(wanted, ["trainer:0:0"], "a")
    file.unlink()
    with pytest.raises(DataError, match=rf"a\.libfm: .*\(looked for in {Path.cwd()}\); data, run folder"):
        require_reach(wanted, ["sparse_ps:0", "trainer:0:0"], "a")
    require_reach(wanted, ["sparse_ps:0"], "a")


def test_data_that_has_grown_since_the_launcher_looked_is_reached(probes: Probes, data: str, tmp_path: Path) -> None:
    wanted = task(data, probes)
    file = tmp_path / "a.libfm"
    file.write_text("1 0:1\n" * 60)
    require_reach(wanted, ["trainer:0:0"], "a")
    file.write_text("1 0:1\n" * 40)
    with pytest.raises(DataError, match=r"other data here than at the launcher: 'a\.libfm' has 240 bytes, there 300$"):
        require_reach(wanted, ["trainer:0:0"], "a")


def test_data_that_is_called_otherwise_here_is_said_by_the_name_that_is_looked_for(
    probes: Probes, data: str, tmp_path: Path
) -> None:
    folder = f"libfm:{tmp_path}/*.libfm?rows=5"
    wanted = task(folder, probes)
    (tmp_path / "0.libfm").write_text("1 0:1\n")
    require_reach(wanted, ["trainer:0:0"], "a")
    (tmp_path / "a.libfm").rename(tmp_path / "b.libfm")
    with pytest.raises(DataError, match=r"is other data here than at the launcher: there is no file 'a\.libfm'$"):
        require_reach(wanted, ["trainer:0:0"], "a")


def test_a_copy_of_data_with_another_time_is_the_same_data(
    probes: Probes, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "htrain.data.identity.WHOLE_BYTES", 10
    )  # larger files count by some of their blocks, and the time
    monkeypatch.setattr("htrain.data.identity._BLOCK_BYTES", 1)
    monkeypatch.setattr("htrain.data.identity._BLOCKS", 4)
    wanted = task(data, probes)
    assert not wanted.identity.files[0].whole
    os.utime(tmp_path / "a.libfm", (1, 1))
    require_reach(wanted, ["trainer:0:0"], "a")


def test_ops_networks_and_an_earlier_run_are_looked_for(probes: Probes, data: str) -> None:
    with pytest.raises(ModelError, match=r"/none/own\.py"):
        require_reach(task(data, probes, ops=("/none/own.py",)), ["sparse_ps:0"], "a")
    with pytest.raises(RunError, match=r"--trainer-network 203\.0\.113\.0/24"):
        require_reach(task(data, probes, trainer_network="203.0.113.0/24"), ["sparse_ps:0"], "a")
    with pytest.raises(CheckpointError, match=r"^/none: is not here, and the run begins with it"):
        require_reach(task(data, probes, begin_with=("/plan", "/none")), ["sparse_ps:0"], "a")


def test_another_checkpoint_of_the_same_name_is_not_what_the_run_begins_with(
    probes: Probes, data: str, tmp_path: Path
) -> None:
    """As where each host has trained the same plan in a folder of its own: the rows of one would stand beside the weights of the other."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    checkpoint, other = save(tmp_path / "here", 64), save(tmp_path / "there", 64, cleared())
    assert checkpoint.name == other.name
    keep_layout(tmp_path / "here", layout := Layout(read_manifest(checkpoint).identity.plan.digest, "", 1, {}, {}))
    keep_layout(tmp_path / "there", layout)
    settings = RunSettings(Path("plan"), data, tmp_path / "run", begin_with=("plan", str(checkpoint)))
    wanted = task_of(settings, identity_of(data), probes, files=(), header_digest="")
    require_reach(wanted, ["sparse_ps:0"], "a")
    (tmp_path / "here").rename(tmp_path / "away")
    (tmp_path / "there").rename(tmp_path / "here")
    with pytest.raises(
        CheckpointError, match=f"^{checkpoint}: is another checkpoint here than at the launcher, and the run begins"
    ):
        require_reach(wanted, ["sparse_ps:0"], "a")


def test_a_rank_that_has_no_plan_or_another_one_says_so_and_not_that_one_is_to_be_made(
    probes: Probes, data: str, tmp_path: Path
) -> None:
    options = with_flags(batch_size=16, dense_sync="allreduce")
    small_plan(options)[1].save(tmp_path / "plan")
    settings = RunSettings(tmp_path / "plan", data, tmp_path / "run")
    header = header_digest(tmp_path / "plan")
    wanted = task_of(settings, identity_of(data), probes, files=(), header_digest=header)
    needed = Needed(wanted, (("trainer:0:0",), ("sparse_ps:0",)), str(tmp_path / "plan"))
    require_needed(needed, ["sparse_ps:0"], "rank-2")
    small_plan(options, sparse_ps=2)[1].save(tmp_path / "plan")
    said = f"^{tmp_path / 'plan'}: is not here what it is at the launcher .*: under mpiexec a plan lies where all"
    with pytest.raises(PlanError, match=said):
        require_needed(needed, ["sparse_ps:0"], "rank-2")
    (tmp_path / "plan").rename(tmp_path / "away")
    with pytest.raises(PlanError, match=said):
        require_needed(needed, ["sparse_ps:0"], "rank-2")
