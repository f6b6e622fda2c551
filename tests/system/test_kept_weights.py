"""Group PSs that are killed, and are begun again with the weights that they had (docs/decisions/recovery.md)."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from forked import Started
from ledger import DATA, Ledger, counted, owed
from safetensors.torch import load_file
from whole_runs import (
    ENDLESS,
    another_checkpoint,
    follow,
    follow_alone,
    runs,
    stopped,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
)

import htrain
from htrain.publishing.keeping import whole_versions
from htrain.publishing.storage import storage_of
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

BATCH = 32
IDS_OF_A_BATCH = BATCH * 26
AGAIN = re.compile(r"batches that it had begun, and trains again: (\d+)")
VICTIM = "group_ps:1:0"
AS_IT_WAS = "with it: other roles go on, and its weights are as it left them"


class Counting(Ledger):
    """Its bias is less by 1 for each example that a step has trained, by SGD at rate 1."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.nn.Linear(1, 1)
        torch.nn.init.zeros_(self.count.bias)

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logit, loss = super().forward(dense, sparse, label)
        return logit, loss + self.count(dense[:, :1] * 0).sum()


def made(folder: Path, cluster: Cluster, **flags: object) -> Path:
    """The folder of a plan that counts."""
    counts = {"sparse_schedule": "steps", "sparse_schedule_gamma": 1.0}  # so that steps of rows run one after another
    said = {
        "batch_size": BATCH,
        "sparse_optimizer": "sgd",
        "sparse_lr": 1.0,
        "dense_optimizer": "sgd",
        "dense_lr": 1.0,
        "loss": "own",
    }
    example = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.long), "label": torch.zeros(4)}
    options = with_flags(**said, **counts, **flags)
    htrain.compile(Counting(), data=DATA, cluster=cluster, options=options, example_inputs=example).save(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with runs("--out", str(tmp_path / "run"), "--retries", "3") as begin:
        yield begin


def test_a_group_ps_that_is_killed_goes_on_with_its_weights(run: Callable[..., Started], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = made(tmp_path / "plan", this_machine(groups=1, trainers=2, group_ps=2, sparse_ps=1), net_replicas=2)
    process = run(plan, DATA, *ENDLESS, "--checkpoint-seconds", "end")
    wait_for_examples(folder, process, 1000)
    for victim in ("group_ps:0:0", "group_ps:0:1"):
        follow(victim, folder, process, along="trainer:0:")
        wait_for_examples(folder, process, examples_of(folder) + 1000)
    said = stopped(process)
    assert said.count(AS_IT_WAS) == 2, said
    assert "the run goes on" not in said
    begun = sum(map(int, AGAIN.findall(said)))
    assert len(AGAIN.findall(said)) == 4
    off, rows = counted(plan, folder) - owed(folder), owed(folder).sum()
    assert (off >= 0).all(), "nothing is lost"
    assert off.sum() <= begun * IDS_OF_A_BATCH
    examples = -load_file(folder.with_name("run.safetensors"))["count.bias"].double().item()
    assert rows / 26 <= examples <= rows / 26 + begun * BATCH


def examples_of(folder: Path) -> int:
    """So many have been trained, as was reported last."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return max(line["examples"] for line in lines if line["role"] == "run")


@pytest.mark.parametrize("dense_sync", ["easgd", "bmuf", "model_averaging"])
def test_its_group_goes_on_in_rounds_with_others(run: Callable[..., Started], tmp_path: Path, dense_sync: str) -> None:
    folder = tmp_path / "run"
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1)
    plan = made(tmp_path / "plan", cluster, dense_sync=dense_sync, sync_period=50)
    process = run(plan, DATA, *ENDLESS, "--checkpoint-seconds", "3")
    wait_for_a_checkpoint(folder, process)
    for _ in range(3):  # one that is killed in a round takes all back
        follow(VICTIM, folder, process)
        wait_for_examples(folder, process, examples_of(folder) + 500)
    another_checkpoint(folder, process)
    said = stopped(process)
    assert said.count(AS_IT_WAS) >= 1, said
    off = counted(plan, folder) - owed(folder)
    assert (off >= 0).all()
    assert off.sum() <= sum(map(int, AGAIN.findall(said))) * IDS_OF_A_BATCH


def test_versions_are_published_behind_it(run: Callable[..., Started], tmp_path: Path) -> None:
    folder, storage = tmp_path / "run", storage_of(str(tmp_path / "store"))
    plan = made(tmp_path / "plan", this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1))
    versions = "--publish", str(tmp_path / "store"), "--publish-every", "2"
    process = run(plan, DATA, *ENDLESS, "--checkpoint-seconds", "end", *versions)

    def await_version(number: int) -> None:
        wait_until(lambda: len(whole_versions(storage)) >= number, process, f"version {number}")

    def just_published() -> None:  # it takes all back where it owes a version
        await_version(len(whole_versions(storage)) + 1)

    follow_alone("group_ps:0:0", folder, process, along="trainer:0:", at=just_published)
    await_version(len(whole_versions(storage)) + 2)  # the next may have been begun before
    said = stopped(process)
    assert said.count(AS_IT_WAS) == 1
    assert "not published" not in said, said
