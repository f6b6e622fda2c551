"""Predicted against measured: the sentences that a run's figures give, and none that they do not."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import reports_at, write_run

from htrain.plan.plan import Plan
from htrain.report.runs.beside import Beside, beside
from htrain.report.runs.comparison import Pair
from htrain.report.runs.folder import read_run
from htrain.report.runs.text import run_text
from htrain.spec.cache import HetCache


def shown(plan: Plan, folder: Path, *, seconds: float = 60.0, **given: object) -> Beside:
    moments = [(t, reports_at(plan, t, **given)) for t in (1.0, seconds, seconds + 1)]  # type: ignore[arg-type]
    return beside(plan, read_run(plan, write_run(folder, plan, moments)))


def with_links(plan: Plan, bandwidth: Mapping[str, int]) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, **bandwidth))


def test_a_run_as_predicted_has_no_gaps(plan: Plan, tmp_path: Path) -> None:
    found = shown(plan, tmp_path / "a")
    assert found.verdict[0].startswith(
        f"{plan.predicted_eps:,.0f} EPS measured, {plan.predicted_eps:,.0f} predicted (1.00x, within 10%), over 59.0 s"
    )
    assert not any(found.gaps.values())


def test_a_full_link_is_what_limited_a_run(plan: Plan, tmp_path: Path) -> None:
    edges = ("sparse_ps:0", "trainer"), ("trainer", "sparse_ps:0")
    half = {"eps": plan.predicted_eps / 2, "sent": dict.fromkeys(edges, 3.0), "waited": 0.41}
    slow = shown(plan, tmp_path / "a", **half)
    (link,) = (d for d in slow.comparison.devices if d.name == "sparse_ps:0") if slow.comparison else ()
    narrow = plan.cluster.sparse_ps_bandwidth * link.network.measured / 0.93
    found = shown(with_links(plan, {"sparse_ps_bandwidth": int(narrow)}), tmp_path / "b", **half)
    assert found.verdict[1] == "Trainers waited 41% of the time for others."
    assert found.verdict[2] == (
        "What limited it: the link of sparse_ps:0 was 93% used, predicted 62%; an example took 3.00x the bytes predicted."
    )
    assert any("batches had more distinct ids than the plan counts with" in gap for gap in found.gaps["sparse_ps:0"])


def test_where_nothing_was_full_no_cause_is_named(plan: Plan, tmp_path: Path) -> None:
    found = shown(plan, tmp_path / "a", eps=plan.predicted_eps / 10, waited=0.8)
    assert found.verdict[1] == "Trainers waited 80% of the time for others."
    assert found.verdict[2].startswith("No CPU and no link was full (the fullest was ")
    assert "so what limited it cannot be told" in found.verdict[2]
    assert found.verdict[2].endswith("Python's lock was full in no role.")


def test_more_cpu_of_a_device_is_put_down_to_its_bytes_or_to_nothing(plan: Plan, tmp_path: Path) -> None:
    found = shown(plan, tmp_path / "a", cpu={"group_ps:0": 2.0})
    (sentence,) = found.gaps["group_ps:0"]
    assert "(2.00x): whether its ops or its messages" in sentence
    edges = dict.fromkeys((("group_ps:0", "trainer"), ("trainer", "group_ps:0")), 2.0)
    found = shown(plan, tmp_path / "b", cpu={"group_ps:0": 2.0}, sent=edges)
    assert "the bytes, and messages are" in found.gaps["group_ps:0"][0]


def test_less_traffic_behind_a_cache_is_put_down_to_its_hits(plan: Plan, tmp_path: Path) -> None:
    cached = replace(plan, options=replace(plan.options, cache=HetCache()))
    edges = dict.fromkeys((("sparse_ps:0", "trainer"), ("trainer", "sparse_ps:0")), 0.3)
    narrow = with_links(cached, {"sparse_ps_bandwidth": 10 << 20})
    found = shown(narrow, tmp_path / "a", sent=edges, caches={"hits": 90, "misses": 10})
    assert any(
        "caches had 90% of the rows that steps asked for, the plan counts with" in gap
        for gap in found.gaps["sparse_ps:0"]
    )


def test_memory_above_the_most_that_was_predicted_is_said(plan: Plan, tmp_path: Path) -> None:
    found = shown(plan, tmp_path / "a", memory=1 << 34)
    assert all(
        any(gap.startswith("memory 16.0 GiB, predicted at most") for gap in gaps) for gaps in found.gaps.values()
    )


def test_a_short_run_is_called_rough(plan: Plan, tmp_path: Path) -> None:
    assert shown(plan, tmp_path / "a", seconds=5.0).verdict[1] == "Over so short a time, figures are rough."


def test_cores_that_all_roles_share_are_looked_at_together(plan: Plan, tmp_path: Path) -> None:
    shared = with_links(plan, {"host_cores": 1})
    seconds = sum(load.cpu_seconds_per_example for load in plan.loads.values())
    found = shown(shared, tmp_path / "a", eps=0.95 / seconds)
    assert "What limited it: the 1 cores that all roles share were 95% used" in " ".join(found.verdict)


def test_text_has_a_row_for_each_device(plan: Plan, tmp_path: Path) -> None:
    found = shown(plan, tmp_path / "a")
    rows = [line.split()[0] for line in run_text(found).splitlines() if "|" in line][1:]
    assert rows == list(plan.loads)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_ratio_is_never_a_division_by_zero(predicted: float, measured: float) -> None:
    ratio = Pair(predicted, measured).ratio
    assert ratio >= 0
    assert not math.isnan(ratio)


@pytest.mark.parametrize("eps", [1e-9, 1e12])
def test_absurd_figures_are_sentences_still(plan: Plan, tmp_path: Path, eps: float) -> None:
    assert run_text(shown(plan, tmp_path / "a", eps=eps))
