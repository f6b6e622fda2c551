"""FCs are split where that makes a group faster, and only there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import htrain
from htrain.errors import PlacementError
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.tagging.place import Solver

DLRM = str(Path(__file__).parents[2] / "models" / "dlrm.py")
SHARED = Cluster(groups=1, trainers=6, group_ps=6, sparse_ps=8)  # as in the paper: 18 cores, 25 Gbit/s


def compiled(cluster: Cluster, fc_splits: object = "auto") -> Plan:
    return check_plan(htrain.compile(DLRM, cluster=cluster, options=Options(batch_size=512), fc_splits=fc_splits))


def modules(plan: Plan) -> set[str]:
    return {op.module for op in plan.nets["train"].ops}


@pytest.fixture(scope="module")
def split() -> Plan:
    return compiled(SHARED)


def test_splits_make_a_group_faster_and_are_told(split: Plan) -> None:
    whole = compiled(SHARED, {})
    assert whole.search.seconds > 1.2 * split.search.seconds  # of the busiest device
    assert split.predicted_eps > whole.predicted_eps
    cut = {note.split("'")[1] for note in split.notes if note.startswith("FC ")}
    assert cut
    for module in cut:
        assert {f"{module}/0", f"{module}/1"} <= modules(split)


def test_the_same_input_is_split_in_the_same_way(split: Plan) -> None:
    assert compiled(SHARED).digest == split.digest


def test_nothing_is_split_where_group_pss_share_the_cores_or_there_is_one(split: Plan) -> None:
    for cluster in (this_machine(trainers=2, group_ps=2), Cluster(trainers=2, group_ps=1)):
        assert not [note for note in compiled(cluster).notes if note.startswith("FC ")]


def test_pinned_fc_stays_whole(split: Plan) -> None:
    first = next(note.split("'")[1] for note in split.notes if note.startswith("FC "))
    pinned = compiled(Cluster(groups=1, trainers=6, group_ps=6, sparse_ps=8, pin=((first, "group_ps:1"),)))
    assert first in modules(pinned)
    assert f"{first}/0" not in modules(pinned)


class Wide(nn.Module):
    """One FC is far heavier than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100, 16)
        self.grow, self.wide, self.last = nn.Linear(16, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 1)

    def forward(self, ids: torch.Tensor, ids_offsets: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.wide(torch.relu(self.grow(self.table(ids, ids_offsets))))))


HOSTS = Cluster(groups=2, trainers=2, group_ps=4)


@pytest.mark.parametrize(
    ("cluster", "solver"),
    [(HOSTS, "ilp"), (this_machine(groups=2, trainers=2, group_ps=4), "greedy"), (Cluster(), "rules")],
)
def test_an_fc_that_fits_on_no_device_is_split_where_that_is_allowed(cluster: Cluster, solver: Solver) -> None:
    inputs = {"ids": torch.randint(100, (6,)), "ids_offsets": torch.arange(6)}

    def compiled(cluster: Cluster, **more: Any) -> Plan:
        return htrain.compile(
            Wide(),
            example_inputs=inputs,
            cluster=cluster,
            options=Options(batch_size=8),
            solver=solver,
            self_check=False,
            **more,
        )

    whole = compiled(replace(cluster, python_lock=False), fc_splits={})
    needed = (
        max(load.holds.total for device, load in whole.loads.items() if device.startswith(("group_ps", "trainer")))
        - ROLE_BYTES
    )
    small = ROLE_BYTES + int(0.75 * needed)
    narrow = replace(cluster, group_ps_memory=small, trainer_memory=small)
    with pytest.raises(PlacementError, match="'wide' alone is too large"):
        compiled(narrow, fc_splits={})
    split = check_plan(compiled(narrow))
    assert any(note.startswith("FC 'wide' is cut") for note in split.notes)
