"""`htrain show` with a run: the same comparison as text, as JSON and on a page, by either name."""

import json
from pathlib import Path

import pytest
from forked import Commands
from recorded import reports_at, write_run
from small_dlrm import small_plan

from htrain.executor.record.validations import Validation, write_validations
from htrain.plan.plan import Plan


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    """A plan, `plan`, and a run of it, `run`, in a folder."""
    plan.save(tmp_path / "plan")
    moments = [(float(t), reports_at(plan, t)) for t in range(1, 30)]
    write_run(tmp_path / "run", plan, moments, plan_folder=tmp_path / "plan")
    return tmp_path


def test_a_run_is_shown_by_its_plan_or_by_its_folder(commands: Commands, folder: Path) -> None:
    by_plan = commands.run(["show", "plan", "--run", "run"], folder, timeout=60)
    assert by_plan.returncode == 0, by_plan.stderr
    assert "predicted | measured" in by_plan.stdout
    assert commands.run(["show", "run"], folder, timeout=60).stdout == by_plan.stdout


def test_a_page_and_json_have_the_run(commands: Commands, folder: Path) -> None:
    found = commands.run(["show", "run", "--html", "r.html", "--json"], folder, timeout=60)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert set(document["run"]["gaps"]) == set(document["devices"])
    assert document["run"]["comparison"]["seconds"] == 27
    assert "The run beside the plan" in (folder / "r.html").read_text()


def test_a_run_tells_its_last_validations_and_the_best_checkpoint(commands: Commands, folder: Path) -> None:
    names = [f"examples_{examples:012d}" for examples in range(100, 1101, 100)]
    found = [
        Validation(100 * k, 0.9, 0.7, 0.5 - 0.01 * k, 1.0, name, "d", is_best=k < 3, kept=k == 2)
        for k, name in enumerate(names, 1)
    ]
    write_validations(folder / "run", found)
    said = commands.run(["show", "run", "--html", "r.html"], folder, timeout=60).stdout.splitlines()
    assert said[1] == "3 earlier validations: run/validations.jsonl"
    assert said[2] == "validation at 400 examples: NE 0.9000, AUC 0.7000, loss 0.4600 (1.0 s)"
    assert said[9] == "validation at 1,100 examples: NE 0.9000, AUC 0.7000, loss 0.3900 (1.0 s)"
    assert said[10] == f"the best checkpoint is kept: run/checkpoints/{names[1]}"
    assert said[10] in (folder / "r.html").read_text()
    document = json.loads(commands.run(["show", "run", "--json"], folder, timeout=60).stdout)["run"]
    assert [each["examples"] for each in document["validations"]] == list(range(100, 1101, 100))
    assert document["kept"] == names[1]


def test_a_run_whose_plan_has_moved_says_how_it_is_shown(commands: Commands, folder: Path) -> None:
    (folder / "plan").rename(folder / "moved")
    found = commands.run(["show", "run"], folder, timeout=60)
    assert found.returncode == 1
    assert "plan any more: htrain show PLAN --run run" in found.stderr
    assert commands.run(["show", "moved", "--run", "run"], folder, timeout=60).returncode == 0


def test_a_run_is_not_taken_for_a_plan(commands: Commands, folder: Path) -> None:
    found = commands.run(["check", "run"], folder, timeout=60)
    assert found.returncode == 1
    assert "it is the folder of a run: name the plan that this was started with" in found.stderr


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["plan", "--run", "nowhere"], "nowhere: not a run folder (run.json: No such file or directory)", 1),
        (["plan", "--run", "run", "--net", "train"], "--net has no effect beside --run", 2),
        (["run", "--run", "run"], "--run has no effect beside the run folder run", 2),
        (
            ["plan", "--run", "plan"],
            "(run.json: No such file or directory); it is a plan: name the folder that 'htrain run PLAN --out' was given",
            1,
        ),
        (
            ["."],
            ".: not a plan folder (plan.yaml: No such file or directory); make one with 'htrain compile ... --out FOLDER'",
            1,
        ),
        (["other", "--run", "run"], "run: is a run of another plan (sparse ps: 1 now, 2 then)", 1),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    commands: Commands, folder: Path, words: list[str], said: str, status: int
) -> None:
    small_plan(sparse_ps=1).save(folder / "other")
    found = commands.run(["show", *words], folder, timeout=60)
    assert (found.returncode, found.stdout) == (status, "")
    assert said in found.stderr
    assert len(found.stderr.splitlines()) == 1
