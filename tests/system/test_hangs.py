"""A thread of a role that gets no further, in a run of threads: it is named with what it was at, and the process ends as ever (docs/guarantees.md).

Each run is a process of its own: threads that hang stay until their process ends, and libzmq would end a process whose sockets are closed under a thread.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_runs import WIDE_DEEP, libfm

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

SUPPORT = str(Path(__file__).parents[1] / "support")
HANGING = """
import sys, threading
from itertools import islice
import htrain
from htrain.executor.loops.feed import Feed
from htrain.executor.record import share
from htrain.executor.loops.sync import SyncLoop
from htrain.executor.roles.coordinator import CoordinatorMachine

support, place, plan, data, out = sys.argv[1:]
sys.path.append(support)
from paced import pace_trainers

pace_trainers(endless_alone=False)

def hang(*_, **__):
    threading.Event().wait()

if place == "reader":
    make = Feed.__init__

    def batches_until(batches, count):
        yield from islice(batches, count)
        hang()

    Feed.__init__ = lambda self, batches, *rest, **kept: make(self, batches_until(batches, 50), *rest, **kept)
elif place == "save":
    write = share.write_role
    share.write_role = lambda folder, name, file: (hang if name == "sparse_ps:0" else write)(folder, name, file)
    CoordinatorMachine._most_save_seconds = 2.0
elif place == "sync":
    run = SyncLoop._run

    def run_or_hang(self, state, stage, outbox):
        if state.context.step > 2:
            with self._activity.at(f"synchronising, round {state.context.step}"):
                hang()
        return run(self, state, stage, outbox)

    SyncLoop._run = run_or_hang

try:
    epochs = 1 if place == "save" else 1_000_000_000
    htrain.run(plan, data=data, out=out, epochs=epochs, hosting="threads", deadline_seconds=2.0, checkpoint_seconds=1.0 if place == "save" else "end")
except htrain.Error as error:
    print(error)
"""


NAMED = {
    "reader": "its thread 'reader' hangs: reading for ",
    "save": "sparse_ps:0 has not written its share of the checkpoint examples_",  # trained to the end of the data, and waited for
    "sync": "its thread 'sync' hangs: synchronising, round ",
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("hangs")
    data = libfm(folder / "train.libfm", 8_000)
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=32)).save(folder / "plan")
    return folder / "plan", data


@pytest.fixture(scope="module")
def runs(
    plan: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A run for each place, all at once: they wait most of the time."""
    out = tmp_path_factory.mktemp("runs")
    commands = {
        place: [sys.executable, "-c", HANGING, SUPPORT, place, str(plan[0]), plan[1], str(out / place)]
        for place in NAMED
    }
    started = {
        place: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for place, command in commands.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("place", NAMED)
def test_who_hangs_is_named_and_the_process_ends_by_itself(runs: dict[str, subprocess.Popen[str]], place: str) -> None:
    said, told = runs[place].communicate(timeout=100)
    assert NAMED[place] in said, (said, told)
    assert len(said.splitlines()) == 1
    assert runs[place].returncode == 0, "it was not ended by libzmq, nor by a signal"
