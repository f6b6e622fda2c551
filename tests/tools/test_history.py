"""What a benchmark found is a line of JSON that says where and of what."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import history
from bench.history import append, commit, cpu_model, summary

ROOT = Path(__file__).parents[2]


def test_each_run_appends_a_line_that_says_when_where_and_of_what(tmp_path):
    file = tmp_path / "history.jsonl"
    file.write_text('{"kept": 1}\n')
    for megabytes in (1, 2):
        append(file, "reader", {"megabytes": megabytes, "plan": Path("a/b")}, {"tsv": summary([3.0, 1.0, 2.0])})
    kept, *lines = map(json.loads, file.read_text().splitlines())
    assert kept == {"kept": 1}
    assert [line["arguments"] for line in lines] == [{"megabytes": m, "plan": "a/b"} for m in (1, 2)]
    for line in lines:
        assert set(line) == {"time", "machine", "commit", "benchmark", "arguments", "figures"}
        assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(line["time"]) < timedelta(minutes=5)
        assert line["machine"]["cpu"] == cpu_model() != ""
        assert line["machine"]["cores"] >= 1
        assert line["benchmark"] == "reader"
        assert line["figures"] == {"tsv": {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}}


def test_without_git_and_cpuinfo_a_line_is_still_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(history, "_CPUS", tmp_path / "absent")
    append(tmp_path / "h", "x", {}, {})
    line = json.loads((tmp_path / "h").read_text())
    assert line["commit"] == commit() == ""
    assert line["machine"]["cpu"]


def test_the_benchmark_of_the_reader_prints_and_keeps_what_it_found(tmp_path):
    command = [
        sys.executable,
        ROOT / "tools" / "bench" / "reader.py",
        "--megabytes",
        "1",
        "--runs",
        "2",
        "--history",
        tmp_path / "h",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    assert [text.split()[0] for text in run.stdout.splitlines()] == ["tsv", "tsv.gz", "decompressing:", "packed"]
    (line,) = map(json.loads, (tmp_path / "h").read_text().splitlines())
    assert (line["benchmark"], line["arguments"]) == ("reader", {"megabytes": 1, "batch": 2048})
    for figures in line["figures"].values():
        assert 0 < figures["megabytes_per_cpu_second"]["min"] <= figures["megabytes_per_cpu_second"]["median"]
