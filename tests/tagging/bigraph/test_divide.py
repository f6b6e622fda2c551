"""From data to a partition on a disk, by the command and by the API: real formats, real files, and what goes wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from htrain.cli.app import commands
from htrain.data import Malformed, open_data
from htrain.data.partition_file import read_partition
from htrain.errors import DataError, UsageError
from htrain.tagging.bigraph.of_data import read_bigraph
from tests.support.bigraphs import planted_graph


def libfm_of_topics(path: Path) -> str:
    graph, _ = planted_graph(1500, topics=8, share=0.7, fields=4, vocabulary=80)
    rows = graph.rows.reshape(-1, 4)
    path.write_text("".join(f"{i % 2} " + " ".join(f"{row}:1" for row in mine) + "\n" for i, mine in enumerate(rows)))
    return f"libfm:{path}?rows={graph.num_rows + 5}"


def run(*words: str) -> Result:
    return CliRunner().invoke(commands, list(words))


def test_the_graph_of_data_has_its_examples_in_order_and_its_rows_by_table(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 7:1 3:1\n0 3:1 9:1\n1 7:1 7:1\n")
    dataset = open_data(f"libfm:{tmp_path}/a.libfm?rows=12")
    heard: list[int] = []
    graph, seen = read_bigraph(dataset, Malformed(0.0), on_examples=heard.append)
    mine = [graph.rows[graph.starts[s] : graph.starts[s + 1]].tolist() for s in range(graph.num_samples)]
    assert mine == [[0, 1], [0, 2], [1]], "rows 3, 7 and 9 are seen; one that comes twice counts once"
    assert [seen.key_of(row) for row in range(3)] == [3, 7, 9]
    assert seen.num_rows == 3
    assert heard[-1] == 3


def test_a_packed_file_has_the_graph_of_its_source(tmp_path: Path) -> None:
    uri = libfm_of_topics(tmp_path / "a.libfm")
    assert run("data", "pack", uri, "--out", str(tmp_path / "a.packed")).exit_code == 0
    (text, _), (packed, _) = (
        read_bigraph(open_data(each), Malformed(0.0)) for each in (uri, f"packed:{tmp_path}/a.packed")
    )
    assert text.starts.tolist() == packed.starts.tolist()
    assert text.rows.tolist() == packed.rows.tolist()


def test_the_command_writes_what_show_tells(tmp_path: Path) -> None:
    uri, out = libfm_of_topics(tmp_path / "a.libfm"), tmp_path / "a.partition"
    words = ("partition", uri, "--workers", "4", "--batch", "32", "--replicas", "0.05", "--out", str(out))
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "distinct rows of a batch, F_B" in result.output
    assert "replicas on a worker" in result.output
    found = read_partition(out)
    facts = found.facts
    assert facts.rows_per_batch < 0.6 * facts.scattered_rows
    assert len(found.samples) == facts.num_examples == 1500
    assert len(found.owners) == facts.num_seen == int(np.bitwise_count(found.seen).sum())
    assert all(len(rows) <= int(0.05 * facts.num_seen) for rows in found.secondaries)
    shown = run("show", str(out))
    assert shown.exit_code == 0
    assert shown.output.strip() in result.output
    document = json.loads(run("show", str(out), "--json").output)
    assert document["digest"] == facts.digest
    again = json.loads(run(*words, "--json").stdout)
    assert again["digest"] == facts.digest, "the same data and flags: the same partition"
    refused = run("show", str(out), "--net", "train")
    assert isinstance(refused.exception, UsageError)
    assert "--net has no effect beside the partition" in str(refused.exception)


def test_a_control_has_samples_and_rows_anywhere_and_replicas_like_any_other(tmp_path: Path) -> None:
    uri, out = libfm_of_topics(tmp_path / "a.libfm"), tmp_path / "a.partition"
    words = ("partition", uri, "--workers", "4", "--batch", "32", "--at-random", "--out", str(out))
    assert run(*words).exit_code == 0
    bare = read_partition(out)
    assert bare.facts.begun == "chance"
    assert bare.facts.rows_per_batch == pytest.approx(bare.facts.scattered_rows)
    for workers in (bare.samples, bare.owners):
        counts = np.bincount(workers, minlength=4)
        assert counts.max() - counts.min() <= 1
    assert run(*words, "--replicas", "0.05").exit_code == 0
    held = read_partition(out)
    assert held.samples.tolist() == bare.samples.tolist()
    assert held.facts.rows_per_batch < 0.95 * bare.facts.rows_per_batch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("libfm:{absent}", "--workers", "2", "--batch", "8"), "absent: no such file"),
        (("libfm:{few}?rows=9", "--workers", "4", "--batch", "8"), "has 2 examples, fewer than the 4 workers that would share them"),
        (("libfm:{bad}?rows=9", "--workers", "2", "--batch", "8"), "bad:1: the label is not a number"),
        (("csv:{dense}?schema={schema}", "--workers", "2", "--batch", "8"), "its examples look up no rows, so that there is nothing to partition"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_partitioned_is_one_error_and_nothing_is_written(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "few").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "bad").write_text("no label\n" * 30)
    (tmp_path / "dense").write_text("y,x\n" + "1,2\n" * 30)
    (tmp_path / "schema").write_text("label: y\ninputs: {d: {kind: dense, columns: [x]}}")
    names = {name: str(tmp_path / name) for name in ("absent", "few", "bad", "dense", "schema")}
    out = tmp_path / "a.partition"
    result = run("partition", *(word.format(**names) for word in words), "--out", str(out))
    assert isinstance(result.exception, DataError)
    assert said in str(result.exception)
    assert not out.exists()


def test_more_workers_than_a_partition_is_made_for_are_a_usage_error(tmp_path: Path) -> None:
    result = run("partition", "libfm:a", "--workers", "1025", "--batch", "8", "--out", str(tmp_path / "a.partition"))
    assert result.exit_code == 2
    assert "1025 is not in the range 2<=x<=1024" in result.output


def test_by_hosts_the_table_tells_what_crosses_them_and_the_matrix_keeps_them_apart(tmp_path: Path) -> None:
    uri, out = libfm_of_topics(tmp_path / "a.libfm"), tmp_path / "a.partition"
    result = run(
        "partition", uri, "--workers", "4", "--batch", "32", "--hosts", "2", "--replicas", "0.02", "--out", str(out)
    )
    assert result.exit_code == 0, result.output
    facts = read_partition(out).facts
    assert (facts.hosts, facts.link_cost) == ((2, 2), 10.0)
    rows = np.array(facts.rows) - np.array(facts.replicated)
    assert facts.rows_between_hosts == pytest.approx((rows[:2, 2:].sum() + rows[2:, :2].sum()) / 4)
    assert facts.rows_between_hosts < 0.6 * facts.scattered_between_hosts
    assert facts.scattered_between_hosts == pytest.approx(facts.scattered_rows * 2 / 3)
    lines = result.output.splitlines()
    (between,) = (line.split() for line in lines if line.startswith("  of other hosts"))
    assert between[3:5] == [f"{facts.rows_between_hosts:,.2f}", f"{facts.scattered_between_hosts:,.2f}"]
    assert any(line.startswith("  other hosts' taken 10 times") for line in lines)
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["0", "own"])
    assert [line[:1] for line in lines[first : first + 5]] == ["0", "1", "", "2", "3"]
    assert lines[first].index("|") == 6 + 2 * 9 + 1
    uneven = run(
        "partition",
        uri,
        "--workers",
        "4",
        "--batch",
        "32",
        "--hosts",
        "3,1",
        "--links",
        "2",
        "--out",
        str(out),
        "--json",
    )
    document = json.loads(uneven.stdout)
    assert (document["hosts"], document["link_cost"]) == ([3, 1], 2.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hosts", "3"), "--hosts 3: 4 workers do not stand evenly on them: say how many on each, such as 4,2,2"),
        (("--hosts", "3,2"), "--hosts 3,2 has 5 workers, --workers 4: they are to be the same"),
        (("--links", "5"), "--links has no effect while all workers stand on one host: say --hosts, too"),
    ],
)
def test_hosts_that_do_not_come_out_are_a_usage_error(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = run(
        "partition", "libfm:a", "--workers", "4", "--batch", "8", *words, "--out", str(tmp_path / "a.partition")
    )
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


@pytest.mark.parametrize("hosts", ["0", "2,", "a", "2,x", "99999", "\u0664"])
def test_hosts_are_numbers(tmp_path: Path, hosts: str) -> None:
    result = run(
        "partition", "libfm:a", "--workers", "4", "--batch", "8", "--hosts", hosts, "--out", str(tmp_path / "a")
    )
    assert result.exit_code == 2
    assert f"'{hosts}': want a number of hosts, or the workers of each, such as 4,2,2" in " ".join(
        result.output.split()
    )


def test_a_place_that_cannot_be_written_is_told_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = libfm_of_topics(tmp_path / "a.libfm")
    monkeypatch.setattr("htrain.tagging.bigraph.divide.read_bigraph", lambda *_, **__: pytest.fail("the data was read"))
    result = run("partition", uri, "--workers", "2", "--batch", "8", "--out", str(tmp_path / "absent" / "a"))
    assert f"cannot be written: {tmp_path / 'absent'} is not a folder" in str(result.exception)


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    uri, out = libfm_of_topics(tmp_path / "a.libfm"), tmp_path / "mine.txt"
    out.write_text("mine")
    result = run("partition", uri, "--workers", "2", "--batch", "8", "--out", str(out))
    assert "it holds something that htrain did not write there" in str(result.exception)
    assert out.read_text() == "mine"
