"""Rows of docs/numbers.md, of what benchmarks have kept."""

import json
from pathlib import Path

import numbers_rows
from bench.history import append, summary


def test_a_row_has_the_benchmark_the_figure_with_its_range_the_processor_the_commit_and_the_date(
    tmp_path: Path,
) -> None:
    file = tmp_path / "history.jsonl"
    arguments = {"batch": 2048, "compile": False, "optimizer": "sgd", "threads": None, "history": file}
    append(file, "single_process", arguments, {"over eager": summary([2.5, 2.61, 2.7]), "EPS": {"median": 31234.5}})
    line = json.loads(file.read_text())
    where = f"{line['machine']['cpu']} | {line['commit']} | {line['time'][:10]} |"
    command = "| `python tools/bench/single_process.py`, batch 2048, optimizer sgd"
    assert list(numbers_rows.rows(line)) == [
        f"{command} | over eager | 2.61 (2.5 to 2.7, n=3) | {where}",
        f"{command} | EPS | 31,234 | {where}",
    ]
    assert list(numbers_rows.rows(line, "EPS")) == [f"{command} | EPS | 31,234 | {where}"]


def test_figures_of_a_side_have_its_name_before_them(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    append(file, "reader", {}, {"tsv": {"CPU": summary([3.0, 1.0])}, "packed": {"share": 0.66}})
    line = json.loads(file.read_text())
    assert [row.split(" | ")[1:3] for row in numbers_rows.rows(line)] == [
        ["tsv, CPU", "2 (1 to 3, n=2)"],
        ["packed, share", "0.66"],
    ]
