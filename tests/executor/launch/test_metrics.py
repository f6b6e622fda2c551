"""What a run measures and leaves to read: totals against single examples, the JSON lines, the TensorBoard files."""

import itertools
import json
import math
import random
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

from htrain.errors import UsageError
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.totals import RunTotals, summarise
from htrain.executor.record.validations import Validation

Reports = dict[str, dict[str, Any]]


def report(**values: Any) -> dict[str, Any]:
    return {"cpu_seconds": 0.0, "memory_bytes": 0, "bytes_sent": 0, "staleness": {}, "sync_rounds": 0, **values}


def of_examples(examples: list[tuple[int, float]]) -> dict[str, Any]:
    """A trainer's report after these examples, each a label and the predicted probability of 1."""
    losses = [-math.log(p if label else 1 - p) for label, p in examples]
    return report(
        examples=len(examples),
        steps=len(examples),
        log_loss=sum(losses),
        positives=float(sum(label for label, _ in examples)),
        malformed=0,
    )


def brute_ne(examples: list[tuple[int, float]]) -> float:
    """Mean log loss over that of the best constant prediction, example by example."""
    rate = sum(label for label, _ in examples) / len(examples)
    mean = sum(math.log(p if label else 1 - p) for label, p in examples)
    return mean / sum(math.log(rate if label else 1 - rate) for label, _ in examples)


def totals_of(now: Reports, before: Reports, *, window_seconds: float = 2.0) -> RunTotals:
    return summarise(now, before, seconds=10.0, window_seconds=window_seconds)


def drawn(seed: int, count: int) -> list[tuple[int, float]]:
    draw = random.Random(seed)
    return [(i % 3 == 0, draw.uniform(0.05, 0.95)) for i in range(count)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(3, 30), st.integers(3, 30)), min_size=1, max_size=4))
def test_loss_ne_and_eps_over_trainers_are_those_of_their_examples(trainers: list[tuple[int, int, int]]) -> None:
    old = [drawn(seed, first) for seed, first, _ in trainers]
    new = [drawn(seed + 10, more) for seed, _, more in trainers]
    before = {f"trainer:0:{i}": of_examples(o) for i, o in enumerate(old)}
    now = {f"trainer:0:{i}": of_examples(o + n) for i, (o, n) in enumerate(zip(old, new, strict=True))}
    window = [example for part in new for example in part]
    lifetime = [example for part in old for example in part] + window
    totals = totals_of(now, before, window_seconds=4.0)
    assert (totals.examples, totals.eps) == (len(lifetime), len(window) / 4.0)
    assert math.isclose(totals.ne, brute_ne(lifetime), rel_tol=1e-9)
    assert math.isclose(totals.window_ne, brute_ne(window), rel_tol=1e-9)
    assert math.isclose(totals.loss, of_examples(lifetime)["log_loss"] / len(lifetime), rel_tol=1e-9)
    assert math.isclose(totals.window_loss, of_examples(window)["log_loss"] / len(window), rel_tol=1e-9)


def test_predicting_the_base_rate_has_an_ne_of_one() -> None:
    totals = totals_of({"trainer:0:0": of_examples([(1, 0.25), (0, 0.25), (0, 0.25), (0, 0.25)])}, {})
    assert math.isclose(totals.ne, 1.0)


def test_nothing_reported_yet_is_no_division_by_zero() -> None:
    totals = summarise({}, {}, seconds=0.0, window_seconds=0.0)
    assert (totals.examples, totals.eps, totals.max_staleness, totals.mean_staleness) == (0, 0.0, 0, 0.0)
    assert all(math.isnan(v) for v in (totals.loss, totals.ne, totals.window_loss, totals.window_ne))


def test_window_without_examples_has_no_loss_but_the_lifetime_has() -> None:
    reports = {"trainer:0:0": of_examples(drawn(0, 9))}
    totals = totals_of(reports, reports)
    assert (totals.eps, math.isnan(totals.window_loss), math.isnan(totals.window_ne)) == (0.0, True, True)
    assert math.isclose(totals.ne, brute_ne(drawn(0, 9)))


def test_labels_of_one_kind_have_a_loss_but_no_ne() -> None:
    totals = totals_of({"trainer:0:0": of_examples([(1, 0.5), (1, 0.25)])}, {})
    assert math.isnan(totals.ne)
    assert math.isclose(totals.loss, (math.log(2) + math.log(4)) / 2)


def test_cpu_memory_and_bytes_are_sums_by_kind_of_role() -> None:
    before = {"group_ps:0:0": report(cpu_seconds=1.0), "group_ps:1:0": report(cpu_seconds=2.0)}
    now = {
        "group_ps:0:0": report(cpu_seconds=2.0, memory_bytes=10, bytes_sent=100, sync_rounds=2),
        "group_ps:1:0": report(cpu_seconds=4.0, memory_bytes=20, bytes_sent=50, sync_rounds=3),
        "sparse_ps:0": report(cpu_seconds=1.0, memory_bytes=5, bytes_sent=7),
    }
    totals = totals_of(now, before)
    assert totals.cpu_share == {"group_ps": 1.5, "sparse_ps": 0.5}
    assert totals.memory_bytes == {"group_ps": 30, "sparse_ps": 5}
    assert totals.bytes_sent == {"group_ps": 150, "sparse_ps": 7}
    assert totals.sync_rounds == 5


def test_staleness_histograms_of_dense_holders_are_added_and_those_of_others_left_out() -> None:
    now = {
        "trainer:0:0": report(staleness={"0": 4, "1": 2}),
        "group_ps:0:0": report(staleness={"1": 3, "5": 1}),
        "sparse_ps:0": report(staleness={"9": 9}),
    }
    totals = totals_of(now, {})
    assert totals.staleness == {0: 4, 1: 5, 5: 1}
    assert (totals.max_staleness, totals.mean_staleness) == (5, 1.0)


def test_totals_as_a_document_hold_no_number_that_json_lacks() -> None:
    text = json.dumps(summarise({}, {}, seconds=0.0, window_seconds=0.0).to_dict(), allow_nan=False)
    assert json.loads(text)["window_ne"] is None


# The run's log


def records(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(text, parse_constant=refuse) for text in lines]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of the TensorBoard files: by name, its steps and values. The record format is read by hand."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


LATER = SimpleNamespace(time=lambda: time.time() + 60)


def log_once(folder: Path, reports: Reports) -> RunTotals:
    totals = totals_of(reports, {})
    log = RunLog(folder, pytest.fail)
    log.write(totals, reports)
    log.close()
    return totals


def test_each_report_is_a_line_for_the_run_and_one_for_each_role(tmp_path: Path) -> None:
    reports = {"trainer:0:0": of_examples(drawn(1, 30)), "sparse_ps:0": report(bytes_sent=7)}
    totals = log_once(tmp_path, reports)
    lines = records(tmp_path)
    assert [r["role"] for r in lines] == ["run", "trainer:0:0", "sparse_ps:0"]
    assert len({r["time"] for r in lines}) == 1
    assert (lines[0]["ne"], lines[0]["eps"], lines[0]["examples"]) == (totals.ne, 15.0, 30)
    assert lines[2]["bytes_sent"] == 7


def test_what_is_not_finite_becomes_null_and_is_not_charted(tmp_path: Path) -> None:
    log_once(tmp_path, {"trainer:0:0": report(examples=4, log_loss=math.nan, positives=math.inf)})
    run, trainer = records(tmp_path)
    assert (run["loss"], run["ne"], trainer["log_loss"], trainer["positives"]) == (None, None, None, None)
    charted = scalars(tmp_path)
    assert "run/eps" in charted
    assert "run/ne" not in charted


def test_lines_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    log = RunLog(tmp_path, pytest.fail)
    reports = {"trainer:0:0": of_examples(drawn(1, 30))}
    log.write(totals_of(reports, {}), reports)
    assert len(records(tmp_path)) == 2
    log.close()


def test_resumed_run_appends_to_both_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_once(tmp_path, {"trainer:0:0": of_examples(drawn(1, 30))})
    monkeypatch.setattr("tensorboardX.event_file_writer.time", LATER)  # a file is named after the second it is opened
    log_once(tmp_path, {"trainer:0:0": of_examples(drawn(1, 50))})
    assert [r["examples"] for r in records(tmp_path) if r["role"] == "run"] == [30, 50]
    assert sorted(scalars(tmp_path)["run/eps"]) == [(30, 15.0), (50, 25.0)]


def test_charts_hold_the_runs_figures_over_examples(tmp_path: Path) -> None:
    totals = log_once(
        tmp_path, {"trainer:0:0": {**of_examples(drawn(1, 30)), "staleness": {"2": 3}, "cpu_seconds": 1.0}}
    )
    charted = scalars(tmp_path)
    [(step, ne)] = charted["run/ne"]
    assert (step, ne) == (30, pytest.approx(totals.ne, rel=1e-6))
    assert charted["run/max_staleness"] == [(30, 2.0)]
    assert charted["cpu_share/trainer"] == [(30, 0.5)]


def test_validations_are_charted_over_the_examples_that_were_trained(tmp_path: Path) -> None:
    log = RunLog(tmp_path, pytest.fail)
    for examples, auc in ((100, 0.7), (200, math.nan)):
        log.chart(
            Validation(
                examples, ne=0.75, auc=auc, log_loss=0.5, seconds=1.0, checkpoint="examples_1", data="synthetic:"
            )
        )
    log.close()
    charted = scalars(tmp_path)
    assert charted["validation/log_loss"] == [(100, 0.5), (200, 0.5)]
    assert charted["validation/ne"] == [(100, 0.75), (200, 0.75)]
    assert charted["validation/auc"] == [(100, pytest.approx(0.7))]
    assert records(tmp_path) == []


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path, pytest.fail)
    log.close()
    log.close()
    assert records(tmp_path) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_a_log_that_cannot_be_begun_names_what_stands_in_its_way(tmp_path: Path, name: str) -> None:
    """The folder itself may be one that can be written, as where a run was begun by another user."""
    (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    with pytest.raises(
        UsageError, match=rf"/{name}: cannot be written: (No such file or directory|.* is a link to .*)"
    ):
        RunLog(tmp_path, pytest.fail)


def test_every_role_has_charts_and_rates_of_its_own(tmp_path: Path) -> None:
    log = RunLog(tmp_path, pytest.fail)
    for seconds, old in ((1.0, 100), (3.0, 300)):
        reports = {
            "trainer:0:0": {
                **of_examples(drawn(0, old)),
                "cpu_seconds": seconds,
                "bytes_sent": old,
                "seconds_waited": seconds / 4,
                "memory_bytes": 2**21,
            },
            "group_ps:0:1": report(cpu_seconds=seconds / 2, staleness={"0": 5, "3": 1}),
        }
        log.write(summarise(reports, reports, seconds=seconds, window_seconds=2.0), reports)
    log.close()
    charts = scalars(tmp_path)
    assert charts["trainer_0_0/eps"] == [(300, 100.0)]
    assert charts["trainer_0_0/cpu_share"] == [(300, 1.0)]
    assert charts["trainer_0_0/wait_share"] == [(300, 0.25)]
    assert charts["group_ps_0_1/cpu_share"] == [(300, 0.5)]
    assert [value for _, value in charts["group_ps_0_1/max_staleness"]] == [3.0, 3.0]
    assert [value for _, value in charts["trainer_0_0/memory_mib"]] == [2.0, 2.0]
    window = drawn(0, 300)[100:]
    assert math.isclose(charts["trainer_0_0/window_ne"][0][1], brute_ne(window), rel_tol=1e-6)
    last = [r for r in records(tmp_path) if r["role"] == "trainer:0:0"][-1]
    assert (last["eps"], last["examples"]) == (100.0, 300)


def test_lines_are_the_more_seldom_the_longer_a_run_lasts_and_sums_of_all_that_was_done(tmp_path: Path) -> None:
    log, week, moment, every = RunLog(tmp_path, pytest.fail), 7 * 86_400.0, 0.0, 0.5
    while moment < week:
        moment += every if moment < 3000 else 20.3
        done = int(100 * moment)
        reports = {
            "trainer:0:0": report(examples=done, log_loss=0.5 * done, positives=done / 3, cpu_seconds=0.5 * moment)
        }
        log.write(summarise(reports, {}, seconds=moment, window_seconds=moment), reports)
    log.close()
    lines = records(tmp_path)
    own, run = ([line for line in lines if (line["role"] == "run") is is_run] for is_run in (False, True))
    assert [line["examples"] for line in own] == [
        line["examples"] for line in run
    ]  # a run's line and its role's, always both
    assert run[-1]["examples"] == int(100 * moment)
    seconds = [line["seconds"] for line in run]
    gaps = [after - before for before, after in itertools.pairwise(seconds)]
    assert max(gaps) <= 30 + 20.3
    assert all(
        gap <= every + before / 2000 + 20.3 * (before + gap > 3000) for before, gap in zip(seconds, gaps, strict=False)
    )
    assert len([s for s in seconds if s <= 1000]) == 2000  # as ever
    assert (
        len([s for s in seconds if s <= 3000]) < 2000 * (1 + math.log(3)) + 10
    )  # one more than twice as many for each doubling
    assert {round(line["eps"]) for line in own[1:]} == {100}


def test_roles_that_are_many_have_lines_the_more_seldom_and_the_last_of_each_is_there(tmp_path: Path) -> None:
    log, roles, seconds = RunLog(tmp_path, pytest.fail), [f"trainer:{n}:0" for n in range(200)], 20.25
    moments = [seconds * k / 40 for k in range(1, 41)]
    for moment in moments:
        done = int(100 * moment)
        of_each = {**report(examples=done, log_loss=0.5 * done, positives=done / 3), "cpu_seconds": 0.5 * moment}
        reports = dict.fromkeys(roles, of_each)
        log.write(summarise(reports, {}, seconds=moment, window_seconds=moment), reports)
    log.close()
    lines = [record for record in records(tmp_path) if record["role"] != "run"]
    assert len(records(tmp_path)) - len(lines) == len(moments)
    assert len(lines) <= 40 * seconds + 2 * len(roles), "the first, and the last"
    assert {role: sum(line["role"] == role for line in lines) for role in roles} == dict.fromkeys(
        roles, len(lines) // 200
    )
    assert {line["examples"] for line in lines[-200:]} == {int(100 * seconds)}
    assert all(line["eps"] == pytest.approx(100, rel=0.02) for line in lines[200:]), (
        "over the time since its line before"
    )
