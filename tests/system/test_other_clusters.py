"""A run that goes on with other clusters: what they have trained in the end is every example once an epoch, by a table that counts (docs/guarantees.md)."""

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import Started
from ledger import DATA, ROWS, counted, last_begun, ledger_plan
from safetensors.torch import load_file
from whole_runs import ENDLESS, start, wait_for_examples

import htrain
from htrain.data import START, Malformed, open_data
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine

CLUSTERS = {
    "alone": {"group_ps": 0, "sparse_ps": 0},
    "1 + 1 + 1": {"trainers": 1, "group_ps": 1, "sparse_ps": 1},
    "2 trainers": {"trainers": 2, "group_ps": 1, "sparse_ps": 1},
    "3 servers": {"trainers": 1, "group_ps": 1, "sparse_ps": 3},
    "4 trainers": {"trainers": 4, "group_ps": 1, "sparse_ps": 1},
    "2 groups": {"groups": 2, "trainers": 1, "group_ps": 1, "sparse_ps": 2, "dense_ps": 1},
    "2 groups of 2": {"groups": 2, "trainers": 2, "group_ps": 1, "sparse_ps": 1, "dense_ps": 1},
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("clusters"), dict[str, Path]()

    def plan(cluster: str) -> Path:
        if cluster not in made:
            made[cluster] = folder / cluster.replace(" ", "_")
            ledger_plan(this_machine(**CLUSTERS[cluster])).save(made[cluster])
        return made[cluster]

    return plan


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(plan: Path, *arguments: str) -> Started:
        started.append(process := start(plan, DATA, *arguments))
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def whole() -> np.ndarray:
    """How often each row is trained in an epoch."""
    batches = open_data(DATA).batches(
        batch_size=500, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
    )
    return sum(np.bincount(batch.columns["sparse"].reshape(-1), minlength=ROWS) for batch in batches)


@pytest.mark.parametrize("seed", range(3))
def test_every_example_is_trained_once_an_epoch_whatever_clusters_a_run_goes_on_with(
    run: Callable[..., Started], plans: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    folder, clusters = tmp_path / "run", random.Random(seed).sample(sorted(CLUSTERS), 4)
    epochs = 1
    for number, cluster in enumerate(clusters):
        is_last = number == len(clusters) - 1
        where = ("--resume", str(folder)) if number else ("--out", str(folder))
        until = ("--epochs", str(epochs), "--checkpoint-seconds", "end")
        process = run(plans(cluster), *where, *(until if is_last else (*ENDLESS, "--checkpoint-seconds", "0.2")))
        if not is_last:
            wait_for_examples(folder, process, trained(folder) + 1000)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
        assert process.returncode == (0 if is_last else 130), said
        assert ("was made by another cluster" in said) == (number > 0)
        if not is_last:  # it is to go on to the end of what was begun, and for one more
            epochs = max(epochs, last_begun(folder) + 2)
    assert find_checkpoints(folder).complete[0][1].finished
    assert (counted(plans(clusters[-1]), folder) == epochs * whole()).all(), clusters
    last = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if '"role": "run"' in line
    ][-1]
    assert last["examples"] == epochs * 3000


def test_a_run_that_has_ended_is_the_same_model_with_another_cluster(
    run: Callable[..., Started], plans: Callable[[str], Path], tmp_path: Path
) -> None:
    """It has nothing left to train: tables, and weights of the centre, go through the files of each cluster unchanged."""
    folder, found = tmp_path / "run", []
    for number, cluster in enumerate(("2 groups", "3 servers", "alone", "2 groups of 2")):
        process = run(
            plans(cluster), *(("--resume", str(folder)) if number else ("--out", str(folder))), "--epochs", "1"
        )
        _, said = process.communicate(timeout=100)
        assert process.returncode == 0, said
        out = tmp_path / f"{number}.safetensors"
        htrain.export(folder, to="torch", out=out, plan=plans(cluster))
        found.append(load_file(out))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[name], found[0][name]) for name in other)


def trained(folder: Path) -> int:
    """Examples, as the last checkpoint says."""
    complete = find_checkpoints(folder).complete if folder.is_dir() else ()
    return complete[0][1].examples if complete else 0
