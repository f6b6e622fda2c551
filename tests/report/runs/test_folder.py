"""Run folders in every state that they can be in: what is read from them, and what is refused."""

import json
import math
import os
from pathlib import Path

import pytest
from recorded import reports_at, write_checkpoint, write_run
from small_dlrm import small_plan

from htrain.errors import CheckpointError
from htrain.executor.record.measured import measure, save_measured
from htrain.plan.plan import Plan
from htrain.report.runs.beside import beside
from htrain.report.runs.folder import read_run
from htrain.report.runs.text import run_text

TIMES = (1, 2, 3, 10, 19, 20)


def trained(folder: Path, plan: Plan) -> Path:
    return write_run(folder, plan, [(t, reports_at(plan, t, eps=1000.0)) for t in TIMES])


def test_a_finished_run_is_measured_between_its_first_steps_and_its_end(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    write_checkpoint(folder, plan, examples=20_000, finished=True)
    run = read_run(plan, folder)
    assert run.state == "came to its end after 20,000 examples"
    assert run.notes == ()
    assert run.measured == measure(plan, reports_at(plan, 1, eps=1000.0), reports_at(plan, 19, eps=1000.0), 18)


def test_points_of_a_history_are_those_that_were_logged(plan: Plan, tmp_path: Path) -> None:
    history = read_run(plan, trained(tmp_path / "a", plan)).history
    assert history
    assert [p.seconds for p in history.points] == list(TIMES)
    assert history.points[-1].eps == pytest.approx(1000.0)
    assert history.points[-1].mean_staleness == pytest.approx(0.75)
    assert history.points[-1].max_staleness == 1
    assert history.points[-1].sync_rounds == len(plan.cluster.roles) * 20
    assert all(math.isnan(p.hit_rate) for p in history.points)


@pytest.mark.parametrize(
    ("saved", "state"),
    [
        (0, "ended after 20,000 examples, before its first checkpoint"),
        (20_000, "was stopped after 20,000 examples; it can go on with --resume"),
        (
            12_000,
            "was stopped after 20,000 examples, of which 12,000 are in its last checkpoint; it can go on with --resume",
        ),
    ],
)
def test_an_unfinished_run_says_how_far_it_came(plan: Plan, tmp_path: Path, saved: int, state: str) -> None:
    folder = trained(tmp_path / "a", plan)
    if saved:
        write_checkpoint(folder, plan, examples=saved, finished=False)
    plan.save(tmp_path / "plan")
    run = read_run(plan, folder)
    assert run.state == state
    assert run.measured


def test_a_resumed_run_goes_on_in_time_and_is_compared_by_its_last_part(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    faster = [(t, reports_at(plan, t, eps=3000.0)) for t in TIMES]
    run = read_run(plan, write_run(folder, plan, faster))
    assert run.history
    assert run.history.resumed_at == (20.0,)
    assert [p.seconds for p in run.history.points] == [*TIMES, *(20 + t for t in TIMES)]
    assert run.measured
    assert run.measured.eps == pytest.approx(3000.0, rel=1e-2)
    assert run.notes == ("It was resumed once: what is compared with the plan is its last part.",)


def test_a_run_that_went_on_with_fewer_roles_is_shown_beside_the_plan_that_it_has_now(
    plan: Plan, tmp_path: Path
) -> None:
    folder, fewer = trained(tmp_path / "a", plan), small_plan(group_ps=1)
    assert set(plan.cluster.roles) - set(fewer.cluster.roles)
    trained(folder, fewer)
    write_checkpoint(folder, fewer, examples=40_000, finished=True)
    run = read_run(fewer, folder)
    assert run.measured
    assert run.history
    assert run.history.roles == set(fewer.cluster.roles)


def test_a_run_that_went_on_with_nothing_left_is_compared_by_what_it_trained_before(plan: Plan, tmp_path: Path) -> None:
    """As `--or-resume` does, started again by a service manager."""
    folder = trained(tmp_path / "a", plan)
    before = read_run(plan, folder)
    for _ in range(2):
        write_run(folder, plan, [(t, reports_at(plan, 20, eps=1000.0)) for t in (1, 2)])
    run = read_run(plan, folder)
    assert run.measured == before.measured
    assert run.notes == (
        "It was resumed 2 times: what is compared with the plan is its last part that trained something.",
    )


def test_half_a_line_at_the_end_is_left_out_and_said(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    whole = read_run(plan, folder)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 1.0, "role": "run", "sec')
    run = read_run(plan, folder)
    assert run.notes == ("The last line of its metrics is cut off, and left out.",)
    assert run.measured == whole.measured


def test_half_a_line_before_a_resume_spoils_one_line(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 1.0, "role": "trai')
    run = read_run(plan, trained(folder, plan))
    assert run.notes[1] == "1 line of its metrics cannot be read, and is left out."
    assert run.measured


@pytest.mark.parametrize(
    "content", [None, b"", b"\n\n", b"nothing", b'{"role": 3}\n[]\n{"role": "run", "seconds": -1}\n', b"\xff\xfe\n"]
)
def test_a_run_without_metrics_says_so_in_a_line(plan: Plan, tmp_path: Path, content: bytes | None) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "metrics.jsonl").unlink()
    if content is not None:
        (folder / "metrics.jsonl").write_bytes(content)
    run = read_run(plan, folder)
    assert run.notes == (f"{folder} has no metrics that can be read: there is nothing to compare with the plan.",)
    assert run_text(beside(plan, run)).splitlines()[1:] == list(run.notes)


def test_what_a_run_measured_at_its_end_serves_where_metrics_are_gone(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "metrics.jsonl").unlink()
    measured = measure(plan, reports_at(plan, 1), reports_at(plan, 20), 19)
    save_measured(folder, measured)
    run = read_run(plan, folder)
    assert run.measured == measured
    assert "Trainers waited" not in run_text(beside(plan, run))


def test_a_run_of_a_few_reports_is_measured_over_all_of_them(plan: Plan, tmp_path: Path) -> None:
    """Roles report at times of their own: a part of a second between its first steps and its end says little, as for the run itself."""
    moments = [(float(t), reports_at(plan, t, eps=1000.0)) for t in (0, 1, 2, 3)]
    run = read_run(plan, write_run(tmp_path / "a", plan, moments))
    assert run.measured == measure(plan, moments[0][1], moments[-1][1], 3)


def test_a_run_that_reported_once_has_nothing_to_compare(plan: Plan, tmp_path: Path) -> None:
    run = read_run(plan, write_run(tmp_path / "a", plan, [(1, reports_at(plan, 1))]))
    assert run.measured is None
    assert run.notes == (
        f"{run.folder} ended before all roles had reported twice: there is nothing to compare with the plan.",
    )


def test_a_run_of_another_plan_is_refused_by_name(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    write_checkpoint(folder, plan, examples=20_000, finished=True)
    with pytest.raises(
        CheckpointError, match=r"a: is a run of another plan \(group ps: 1 now, 2 then\): show it beside plan$"
    ):
        read_run(small_plan(group_ps=1), folder)


def test_before_a_checkpoint_the_plan_that_a_run_was_started_with_says_whose_it_is(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    moments = [(t, reports_at(plan, t)) for t in TIMES]
    folder = write_run(tmp_path / "a", plan, moments, plan_folder=tmp_path / "plan")
    with pytest.raises(CheckpointError, match="is a run of another plan"):
        read_run(small_plan(sparse_ps=1), folder)


def test_roles_that_a_plan_has_not_are_of_another_plan(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    with pytest.raises(CheckpointError, match=r"its metrics have the role 'group_ps:0:1', which the plan has not"):
        read_run(small_plan(group_ps=1), folder)


def test_what_is_no_run_folder_is_named(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a run folder \(run\.json: No such file or directory\)"):
        read_run(plan, tmp_path)


def test_metrics_that_are_a_pipe_are_not_waited_for(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be read: is a pipe, want a file"):
        read_run(plan, folder)


def test_a_long_run_keeps_some_of_its_points(plan: Plan, tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", plan)
    line = json.dumps({"role": "run", "seconds": 21, "examples": 1, "eps": 7.0}) + "\n"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line * 9000)
    history = read_run(plan, folder).history
    assert history
    assert 1000 < len(history.points) <= 2049


@pytest.mark.parametrize(("pids", "threads"), [((7, 7), True), ((7, 8), False)])
def test_roles_of_one_process_are_known_as_threads(
    plan: Plan, tmp_path: Path, pids: tuple[int, int], threads: bool
) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "roles.json").write_text(
        json.dumps({f"sparse_ps:{k}": {"host": "h", "pid": pid} for k, pid in enumerate(pids)})
    )
    run = read_run(plan, folder)
    assert run.is_one_process == threads
    assert (
        "Its roles were threads of one process: the memory of each is that of its parameters." in run.notes
    ) == threads


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "\ud83d"])
def test_a_damaged_list_of_roles_is_passed_over(plan: Plan, tmp_path: Path, content: str) -> None:
    folder = trained(tmp_path / "a", plan)
    (folder / "roles.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert not read_run(plan, folder).is_one_process
