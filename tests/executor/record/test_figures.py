"""A run's figures at the times at which they are asked for."""

from typing import Any

import pytest

from htrain.executor.record.figures import Figures
from htrain.executor.record.sent import SENT_TO, packed, sent_in
from htrain.plan.plan import Plan


def tell(figures: Figures, plan: Plan, steps: int) -> None:
    """Every role reports; trainers have done so many steps of 10 examples, each of which cost them a tenth of a CPU second."""
    for role in plan.cluster.roles:
        own: dict[str, Any] = {"steps": steps, "examples": 10 * steps} if role.startswith("trainer") else {}
        figures.report(role, {"cpu_seconds": steps / 10, "memory_bytes": 1, **own})


def test_rates_are_those_of_the_last_seconds(plan: Plan) -> None:
    figures = Figures(plan)
    tell(figures, plan, 0)
    figures.begin(100.0)
    for second in range(1, 21):
        tell(figures, plan, second if second <= 10 else 10 + 3 * (second - 10))
        totals = figures.totals(100.0 + second, ends=False)
        assert totals.seconds == second
    assert totals.examples == 2 * 10 * 40  # 2 groups of one trainer
    assert totals.eps == pytest.approx(2 * 10 * 3)


def test_measured_is_from_the_first_report_in_which_all_have_trained_to_the_last_before_one_was_at_its_end(
    plan: Plan,
) -> None:
    figures = Figures(plan)
    tell(figures, plan, 7)  # a resumed run
    figures.begin(0.0)
    figures.totals(5.0, ends=False)
    assert not figures.is_warm
    for now, steps, ends in ((20.0, 8, False), (25.0, 18, False), (30.0, 38, False), (90.0, 39, True)):
        tell(figures, plan, steps)
        figures.totals(now, ends=ends)
        assert figures.is_warm
    measured = figures.measured(100.0)
    assert (measured.seconds, measured.examples) == (10.0, 2 * 10 * 30)


def test_of_a_run_that_is_too_short_for_a_steady_part_all_is_measured(plan: Plan) -> None:
    figures = Figures(plan)
    tell(figures, plan, 0)
    figures.begin(1.0)
    tell(figures, plan, 3)
    figures.totals(2.0, ends=True)
    measured = figures.measured(3.0)
    assert (measured.seconds, measured.examples) == (2.0, 60)


def test_a_steady_part_of_a_few_reports_is_none(plan: Plan) -> None:
    """A server that told of its bytes just before trainers did half their steps would seem to have sent half of what it did."""
    figures = Figures(plan)
    tell(figures, plan, 0)
    figures.begin(1.0)
    for now, steps in ((2.0, 1), (2.5, 9), (3.0, 20)):
        tell(figures, plan, steps)
        figures.totals(now, ends=now == 3.0)
    measured = figures.measured(3.0)
    assert (measured.seconds, measured.examples) == (2.0, 400)


def test_an_error_names_the_last_step_that_a_role_has_told_of(plan: Plan) -> None:
    figures = Figures(plan)
    figures.report("trainer:0:0", {"steps": 12})
    assert figures.last_step("trainer:0:0") == "12"
    assert figures.last_step("sparse_ps:0") == "not known"


def test_a_trainer_that_was_begun_again_counts_on(plan: Plan) -> None:
    """Its examples it knows itself; what its process counts, the launcher adds up."""
    figures = Figures(plan)
    report = {"steps": 9, "examples": 90, "cpu_seconds": 2.0, "bytes_sent": 100, "staleness": {"1": 4}}
    for role in plan.cluster.roles:
        figures.report(role, {**report, SENT_TO: packed({"sparse_ps:0": 100}), "malformed_example": "a.tsv:7: why"})
    before = figures.examples
    for cpu_seconds in (0.5, 0.75):
        figures.begins_again("trainer:0:0")
        again = {
            "steps": 10,
            "examples": 100,
            "cpu_seconds": cpu_seconds,
            "bytes_sent": 7,
            "staleness": {"1": 1, "2": 5},
        }
        figures.report("trainer:0:0", {**again, SENT_TO: packed({"sparse_ps:0": 4, "group_ps:0:0": 3})})
    found = figures.reports["trainer:0:0"]
    assert figures.examples == before + 10
    assert (found["steps"], found["cpu_seconds"], found["bytes_sent"]) == (10, 3.25, 114)
    assert found["staleness"] == {"1": 6, "2": 10}
    assert sent_in(found) == {"sparse_ps:0": 108, "group_ps:0:0": 6}
    assert found["malformed_example"] == "a.tsv:7: why"


def test_the_rounds_of_a_group_ps_that_was_begun_again_are_those_of_all_its_processes(plan: Plan) -> None:
    figures = Figures(plan)
    tell(figures, plan, 1)
    figures.begin(0.0)
    figures.report("group_ps:0:0", {"passes": 90, "sync_rounds": 9})
    figures.begins_again("group_ps:0:0")
    figures.report("group_ps:0:0", {"passes": 20, "sync_rounds": 2})
    assert figures.totals(1.0, ends=False).sync_rounds == 11
