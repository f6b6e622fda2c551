"""A run that begins with what another model has trained, and a plan that was compiled anew under a run: each is told of."""

from pathlib import Path

import pytest
import torch
from torch import nn
from whole_runs import start

import htrain
from htrain.errors import CheckpointError, PublishError
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

DATA = "synthetic:?rows=640&table_rows=20"


class Towers(nn.Module):
    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.deep = nn.Linear(13, 1)
        self.wide = nn.Sequential(nn.Linear(13, 2), nn.Linear(2, 1)) if wide else None

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        logit: torch.Tensor = self.deep(dense)
        return (logit + self.wide(dense) if self.wide else logit).squeeze(1)


def planned(folder: Path, *, wide: bool, **flags: object) -> Path:
    cluster = this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0)
    options = with_flags(batch_size=64, **flags)
    plan = htrain.compile(
        Towers(wide=wide), data=DATA, cluster=cluster, options=options, example_inputs={"dense": torch.zeros(4, 13)}
    )
    plan.save(folder)
    return folder


def said_by(plan: Path, *words: str) -> str:
    process = start(plan, DATA, *words)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def test_a_run_says_what_it_begins_with_and_what_it_has_no_place_for(tmp_path: Path) -> None:
    wide, narrow = planned(tmp_path / "wide", wide=True), planned(tmp_path / "narrow", wide=False)
    htrain.run(wide, data=DATA, out=tmp_path / "a", hosting="threads")
    begin = ("--begin-with", str(tmp_path / "a"))
    said = said_by(narrow, "--out", str(tmp_path / "b"), *begin)
    assert "examples_000000000640: 'wide.0.weight' and 3 more of its model are not in the plan, and left out\n" in said
    said = said_by(wide, "--out", str(tmp_path / "c"), *begin)
    assert f"begins with {tmp_path / 'a'}/checkpoints/examples_000000000640\n" in said


def test_a_plan_that_was_compiled_anew_is_said_to_be(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", wide=False, dense_lr=0.01)
    htrain.run(plan, data=DATA, out=tmp_path / "a", hosting="threads")
    planned(tmp_path / "plan", wide=False, dense_lr=0.02)
    with pytest.raises(
        CheckpointError, match=r"plan was compiled anew since \(dense lr: 0\.02 now, 0\.01 then\): compile it as it was"
    ):
        htrain.evaluate(tmp_path / "a", data=DATA)


def test_versions_of_another_model_are_not_published_behind_those_that_somebody_follows(tmp_path: Path) -> None:
    wide, narrow = planned(tmp_path / "wide", wide=True), planned(tmp_path / "narrow", wide=False)
    said = {"data": DATA, "hosting": "threads", "publish": str(tmp_path / "pub")}
    for name in ("a", "b"):  # a new run of the same model goes on with the numbers
        htrain.run(narrow, out=tmp_path / name, **said)  # type: ignore[arg-type]
    with pytest.raises(
        PublishError, match=r"of another model, Towers, whose 'wide\.0\.bias' is not there, here weight"
    ):
        htrain.run(wide, out=tmp_path / "c", **said)  # type: ignore[arg-type]
    assert len(list((tmp_path / "pub").rglob("manifest.json"))) == 2


def test_a_plan_that_has_moved_is_asked_for(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", wide=False)
    wanted = htrain.run(plan, data=DATA, out=tmp_path / "a", hosting="threads").totals.examples
    plan.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"its plan is not at .*plan any more: say where it is now \(--plan\)"):
        htrain.evaluate(tmp_path / "a", data=DATA)
    assert htrain.evaluate(tmp_path / "a", data=DATA, plan=tmp_path / "moved").examples == wanted
