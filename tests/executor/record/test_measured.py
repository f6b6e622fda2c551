"""Predicted against measured: figures counted by hand, and those of a real run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import htrain
from htrain.errors import CheckpointError
from htrain.executor.record.measured import (
    NOTHING_MEASURED,
    Edge,
    load_measured,
    measure,
    measured_text,
    save_measured,
)
from htrain.executor.record.sent import packed, sent_in
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

ROWS = "synthetic:?rows=640&table_rows=40&communities=4"


def reports(plan: Plan, *, examples: int, cpu: float, sent: int) -> dict[str, dict[str, object]]:
    trainers = [role for role in plan.cluster.roles if role.startswith("trainer")]
    return {
        role: {
            "cpu_seconds": cpu,
            "memory_bytes": 2**20,
            "sent_to": packed({"group_ps:0:1": sent} if role in trainers else {}),
            **({"examples": examples} if role in trainers else {}),
        }
        for role in plan.cluster.roles
    }


def test_figures_are_those_between_two_reports(plan: Plan) -> None:
    before = reports(plan, examples=100, cpu=1.0, sent=1000)
    after = reports(plan, examples=350, cpu=2.0, sent=6000)
    found = measure(plan, before, after, 4.0)
    devices = {device.name: device for device in found.devices}
    assert (found.examples, found.eps, found.seconds) == (500, 125.0, 4.0)  # 2 groups of one trainer
    assert devices["trainer"].eps == 62.5
    assert devices["group_ps:0"].cores == 0.25
    assert devices["group_ps:0"].cpu_seconds == pytest.approx(2 / 500)
    assert devices["sparse_ps:1"].eps == 125.0
    assert devices["sparse_ps:1"].cores == 0.25
    assert devices["trainer"].memory == 2**20
    edge = next(e for e in found.edges if (e.source, e.target) == ("trainer", "group_ps:1"))
    assert edge.measured_bytes == 10_000 / 500


def test_an_edge_that_nobody_predicted_is_in_the_table(plan: Plan) -> None:
    after = {"sparse_ps:0": {"sent_to": packed({"sparse_ps:1": 7})}, "trainer:0:0": {"examples": 1}}
    assert Edge("sparse_ps:0", "sparse_ps:1", 0.0, 7.0) in measure(plan, {}, after, 1.0).edges


def test_a_run_that_was_too_short_to_measure_divides_by_nothing(plan: Plan) -> None:
    found = measure(plan, {}, {}, 0.0)
    assert found.eps == 0.0
    assert "measured 0" in measured_text(found)


def test_bytes_of_a_real_run_are_those_predicted_but_for_deduplicated_rows(tmp_path: Path) -> None:
    cluster = this_machine(trainers=2, group_ps=2, sparse_ps=1)
    model = str(Path(__file__).parents[3] / "models" / "dlrm.py")
    htrain.compile(model, data=ROWS, cluster=cluster, options=Options(batch_size=32), solver="rules").save(
        tmp_path / "plan"
    )
    result = htrain.run(
        tmp_path / "plan", data=ROWS, out=tmp_path / "run", hosting="threads", console=Console(quiet=True)
    )
    assert load_measured(tmp_path / "run") == result.measured
    for edge in result.measured.edges:
        if "sparse_ps:0" in (edge.source, edge.target):
            assert 0 < edge.measured_bytes <= edge.predicted_bytes
        else:
            assert edge.measured_bytes == pytest.approx(edge.predicted_bytes, rel=1e-6)


def test_a_run_of_a_moment_has_figures_and_one_that_goes_on_counts_its_own_examples_alone(tmp_path: Path) -> None:
    """Roles can be through before they have reported twice; a resumed trainer's counts begin where its checkpoint was."""
    model = str(Path(__file__).parents[3] / "models" / "dlrm.py")
    cluster = this_machine(trainers=2, group_ps=2, sparse_ps=1)
    htrain.compile(model, data=ROWS, cluster=cluster, options=Options(batch_size=32), solver="rules").save(
        tmp_path / "plan"
    )
    begun = htrain.run(
        tmp_path / "plan", data=ROWS, out=tmp_path / "run", hosting="threads", console=Console(quiet=True)
    )
    rows = begun.totals.examples
    goes_on = htrain.run(
        tmp_path / "plan", data=ROWS, resume=tmp_path / "run", epochs=2, hosting="threads", console=Console(quiet=True)
    )
    assert goes_on.totals.examples == 2 * rows
    assert (begun.train_examples, goes_on.train_examples) == (rows, rows)
    for result in (begun, goes_on):
        assert result.eps == rows / result.train_seconds
        assert result.totals.eps * result.totals.seconds > 0
        assert 0 < result.measured.examples <= rows
        assert result.measured.eps * result.measured.seconds == pytest.approx(result.measured.examples)
        assert result.totals.eps <= 1.001 * rows / min(result.totals.seconds, result.measured.seconds)
    over = htrain.run(
        tmp_path / "plan", data=ROWS, resume=tmp_path / "run", epochs=2, hosting="threads", console=Console(quiet=True)
    )
    assert (over.train_examples, over.eps, over.measured) == (0, 0.0, NOTHING_MEASURED)
    assert load_measured(tmp_path / "run") == goes_on.measured


def test_measured_is_read_back_and_damage_is_named(plan: Plan, tmp_path: Path) -> None:
    found = measure(plan, {}, reports(plan, examples=10, cpu=0.5, sent=3), 2.0)
    save_measured(tmp_path, found)
    assert load_measured(tmp_path) == found
    (tmp_path / "measured.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"measured\.json: damaged"):
        load_measured(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no measured\.json"):
        load_measured(tmp_path / "elsewhere")


@given(st.dictionaries(st.text(), st.integers(0, 2**63)))
def test_what_was_sent_is_read_as_it_was_packed(sent: dict[str, int]) -> None:
    assert sent_in({"sent_to": packed(sent)}) == sent
    assert sent_in({}) == {}


@pytest.mark.parametrize("damaged", [b"", b"\xff", packed({"a": 1})[:-1], packed({"a": 1}) + b"x", 3, None])
def test_damaged_lists_of_what_was_sent_say_nothing(damaged: object) -> None:
    assert sent_in({"sent_to": damaged}) == {}
