"""Checkpoints that hold what has changed alone, of real runs with tables that are large enough for them (docs/decisions/checkpoints.md)."""

import random
import time
from functools import partial
from pathlib import Path

from forked import Commands
from whole_runs import start

import htrain
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from tests.support.cycles import Start, differing, kill_one

DLRM = str(Path(__file__).parents[2] / "models" / "dlrm.py")
DATA = "synthetic:?rows=20000&table_rows=8000&zipf=1.3"
TIMES = 2


def killed_on_top(begin: Start, run: Path, draw: random.Random) -> bool:
    """A run, or what is left of it, that is killed once its newest checkpoint builds on another, and is not that of before. False where it ended sooner."""
    before = newest(run)[0]
    process = begin("--out", str(run), "--or-resume", "--checkpoint-seconds", "0.2")
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        name, needs = newest(run)
        if needs and name != before:
            kill_one(process, run, draw)
            return True
        time.sleep(0.02)
    process.communicate(timeout=60)
    return False


def newest(run: Path) -> tuple[str, set[str]]:
    """The name of the newest checkpoint, and of what it builds on."""
    complete = find_checkpoints(run).complete if run.is_dir() else ()
    return (complete[0][0].name, complete[0][1].needs) if complete else ("", set())


def test_a_run_that_goes_on_from_what_has_changed_is_the_run_that_nobody_has_disturbed(
    tmp_path: Path, commands: Commands
) -> None:
    cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
    htrain.compile(DLRM, data=DATA, cluster=cluster, options=Options(batch_size=256)).save(tmp_path / "plan")
    begin = partial(start, tmp_path / "plan", DATA, "--deterministic", "--epochs", "10")
    run, draw = tmp_path / "run", random.Random(7)
    assert all(killed_on_top(begin, run, draw) for _ in range(TIMES))
    shares = [manifest for _, manifest in find_checkpoints(run).complete if manifest.needs]
    sizes = [
        (each.files["sparse_ps:0"].num_bytes, base.num_bytes)
        for each in shares
        if (base := each.base_of("sparse_ps:0"))
    ]
    assert sizes
    assert all(size < whole for size, whole in sizes)
    told = commands.run(
        ["eval", str(run), "--data", "synthetic:?rows=2000&table_rows=8000&zipf=1.3"], tmp_path, timeout=120
    )
    assert told.returncode == 0, told.stderr
    process = begin("--out", str(run), "--or-resume", "--checkpoint-seconds", "0.5")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert newest(run)[1] == set(), "that of the end is whole"
    undisturbed = begin("--out", str(tmp_path / "undisturbed"), "--checkpoint-seconds", "end")
    _, said = undisturbed.communicate(timeout=200)
    assert undisturbed.returncode == 0, said
    assert differing(run, tmp_path / "undisturbed") == []
