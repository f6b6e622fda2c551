"""The page of a plan whose tables are held by a partition: what that predicts, what a run measured, and a sentence where the partition is not there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gmp_data import BATCH, FieldNet, Parts, divided, drawn, examples_of, write_examples
from pages import Cell, Page
from recorded import Reports, reports_at, write_run

import htrain
from htrain.data.partition_file import Facts, read_partition, sealed, write_partition
from htrain.executor.record.measured import save_measured
from htrain.net.names import TRAINER, role_of
from htrain.plan.plan import Plan
from htrain.report.page import report_html
from htrain.report.runs.beside import beside
from htrain.report.runs.folder import read_run
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

WORKERS = 3
HERE, ANYWHERE, PREDICTED, MEASURED = "By the partition", "Samples and rows anywhere", "As predicted", "As measured"
NEEDED = np.array([[0.0, 31.5, 2.25], [7.0, 0.0, 11.0], [3.5, 1.0, 0.0]])  # of a batch


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("gmp")
    return divided(write_examples(folder, "a", BATCH * 40), folder, WORKERS)


@pytest.fixture(scope="module")
def held(parts: Parts) -> Plan:
    """A plan that holds its tables by the partition."""
    arguments = ("sparse", "seen", "seen_length")
    inputs = {name: value for name, value in examples_of(parts.source).items() if name in arguments}
    options = with_flags(
        dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), batch_size=BATCH, gmp_staleness=0
    )
    cluster = this_machine(groups=WORKERS, trainers=1, group_ps=0)
    return htrain.compile(
        drawn(FieldNet), example_inputs=inputs, cluster=cluster, options=options, self_check=False, solver="rules"
    )


def facts_of(parts: Parts) -> Facts:
    return read_partition(parts.partition).facts


def named(plan: Plan, partition: Path) -> Plan:
    """The same plan with its partition under another name."""
    section = replace(plan.options.sparse_sync, partition=str(partition))  # type: ignore[call-arg]
    return replace(plan, options=replace(plan.options, sparse_sync=section))


def amount(cell: Cell) -> float:
    """The figure under the pointer; 0 of a worker itself."""
    return 0.0 if "class" in cell.attributes else float(cell.attributes["title"].rpartition(": ")[2].replace(",", ""))


def amounts(page: Page, name: str) -> np.ndarray:
    return np.array([[amount(cell) for cell in line] for line in page.table(name).body])


def off_diagonal(matrix: object) -> np.ndarray:
    found = np.array(matrix)
    return found * (1 - np.eye(len(found)))


def test_the_page_of_a_plan_has_the_matrix_of_its_partition(held: Plan, parts: Parts) -> None:
    page, facts = Page(report_html(held)), facts_of(parts)
    assert page.labels == [HERE, ANYWHERE]
    fetched = off_diagonal(facts.rows) - off_diagonal(facts.replicated)
    np.testing.assert_allclose(amounts(page, HERE), fetched, atol=0.006)
    even = np.full((WORKERS, WORKERS), facts.scattered_rows / (WORKERS - 1))
    np.testing.assert_allclose(amounts(page, ANYWHERE), off_diagonal(even), atol=0.006)
    assert page.table("fetched").texts[1][1] == f"{facts.rows_per_batch:,.2f}"
    assert page.table("most-used").texts[1][0] == facts.most_used[0].place


def test_a_plan_without_a_partition_has_no_such_section(plan: Plan) -> None:
    page = Page(report_html(plan))
    assert page.labels == []
    assert "fetches" not in page.ids


def needed_at(plan: Plan, seconds: float, needed: np.ndarray = NEEDED) -> Reports:
    """What roles report where a batch of worker i needs needed[i] rows of the others."""
    found = reports_at(plan, seconds, eps=WORKERS * 8.0 * 100)
    trainers = [role for role in found if role_of(role) == TRAINER]
    for role, row in zip(trainers, needed, strict=True):
        found[role]["caches"] = {"needed": [round(amount * found[role]["steps"]) for amount in row.tolist()]}
    return found


def test_a_run_has_what_was_measured_beside_what_was_predicted(held: Plan, parts: Parts, tmp_path: Path) -> None:
    write_run(tmp_path / "run", held, [(float(t), needed_at(held, t)) for t in range(1, 30)])
    run = read_run(held, tmp_path / "run")
    page, facts = Page(report_html(held, run)), facts_of(parts)
    assert page.labels == [HERE, ANYWHERE, PREDICTED, MEASURED]
    np.testing.assert_allclose(beside(held, run).document()["rows"], NEEDED, atol=0.006)
    np.testing.assert_allclose(amounts(page, PREDICTED), off_diagonal(facts.rows), atol=0.006)
    np.testing.assert_allclose(amounts(page, MEASURED), NEEDED, atol=0.006)
    assert page.captions[-1].endswith(f"As measured {NEEDED.sum() / WORKERS:,.1f} rows needed")


def test_one_scale_is_for_what_was_predicted_and_measured(held: Plan, tmp_path: Path) -> None:
    write_run(tmp_path / "run", held, [(float(t), needed_at(held, t, 100 * NEEDED)) for t in range(1, 30)])
    page = Page(report_html(held, read_run(held, tmp_path / "run")))
    shades = {
        cell.shade / amount(cell)
        for name in (PREDICTED, MEASURED)
        for line in page.table(name).body
        for cell in line
        if cell.shade > 0.01
    }
    assert max(shades) == pytest.approx(min(shades), rel=0.05)
    assert max(cell.shade for line in page.table(MEASURED).body for cell in line) == 0.6


def test_a_run_without_metrics_has_the_matrix_that_it_left_at_its_end(held: Plan, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", held, [(float(t), needed_at(held, t)) for t in range(1, 30)])
    measured = read_run(held, folder).measured
    assert measured
    (folder / "metrics.jsonl").unlink()
    assert MEASURED not in Page(report_html(held, read_run(held, folder))).labels
    save_measured(folder, measured)
    np.testing.assert_allclose(amounts(Page(report_html(held, read_run(held, folder))), MEASURED), NEEDED, atol=0.006)


@pytest.mark.parametrize("damage", ["another_length", "text", "one_worker_less", "grown_shorter"])
def test_damaged_figures_of_a_run_are_left_out(held: Plan, tmp_path: Path, damage: str) -> None:
    def reports(seconds: int) -> Reports:
        found = needed_at(held, seconds)
        first = found[next(role for role in found if role_of(role) == TRAINER)]
        if damage == "another_length":
            first["caches"]["needed"] = [1, 2]
        elif damage == "text":
            first["caches"]["needed"] = "many"
        elif damage == "one_worker_less":
            del first["caches"]
        elif seconds > 15:
            first["caches"]["needed"] = [1, 2]
        return found

    write_run(tmp_path / "run", held, [(float(t), reports(t)) for t in range(1, 30)])
    assert Page(report_html(held, read_run(held, tmp_path / "run"))).labels == [HERE, ANYWHERE]


def copied(parts: Parts, path: Path, change: Callable[[bytearray], None] = lambda data: None) -> Path:
    data = bytearray(parts.partition.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def flip(data: bytearray) -> None:
    data[-3] ^= 1


def test_a_partition_that_cannot_be_read_is_a_sentence_and_the_rest_of_the_page_is_there(
    held: Plan, parts: Parts, tmp_path: Path
) -> None:
    other = read_partition(parts.partition)
    write_partition(
        tmp_path / "other",
        sealed(replace(other, facts=msgspec.structs.replace(other.facts, seed=other.facts.seed + 1))),
    )
    (tmp_path / "words").write_text("hello")
    copied(parts, tmp_path / "damaged", flip)
    for name, said in (
        ("absent", "absent: cannot be read: No such file or directory."),
        (".", "is a folder, want a file."),
        ("words", "words: is no partition of htrain's"),
        ("damaged", "damaged: is damaged: its digest is another than when it was written; make it again."),
        ("other", "other: is another partition than the plan was compiled with (digest "),
    ):
        page = Page(report_html(named(held, tmp_path / name)))
        assert "What the partition predicts is not here: " in page.text
        assert said in page.text
        assert page.labels == []
        assert "Cluster and options" in page.text
        assert facts_of(parts).digest[:12] in page.text
    assert Page(report_html(named(held, copied(parts, tmp_path / "moved")))).labels == [HERE, ANYWHERE]


def test_what_was_measured_is_there_though_the_partition_is_not(held: Plan, tmp_path: Path) -> None:
    elsewhere = named(held, tmp_path / "absent")
    write_run(tmp_path / "run", elsewhere, [(float(t), needed_at(held, t)) for t in range(1, 30)])
    page = Page(report_html(elsewhere, read_run(elsewhere, tmp_path / "run")))
    assert page.labels == [MEASURED]
    np.testing.assert_allclose(amounts(page, MEASURED), NEEDED, atol=0.006)
