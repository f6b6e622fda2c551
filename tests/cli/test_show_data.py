"""`htrain show` of what is no plan: a partition as a page, and packed data; what cannot be read is one line."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from forked import Commands
from gmp_data import BATCH, Parts, divided, write_examples
from pages import Page

from htrain.cli.app import commands as htrain
from htrain.data.packed_contents import packed_contents
from htrain.data.partition_file import read_partition
from htrain.report.partition import partition_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition, `2.partition`, and data that was packed by it, `2.packed`."""
    folder = tmp_path_factory.mktemp("data")
    made: Parts = divided(write_examples(folder, "a", BATCH * 20), folder, 2)
    data = bytearray(made.partition.read_bytes())
    data[-3] ^= 1
    (folder / "damaged.partition").write_bytes(data)
    data = bytearray((folder / "2.packed").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "damaged.packed").write_bytes(data)
    (folder / "short.packed").write_bytes((folder / "2.packed").read_bytes()[:300])
    (folder / "words.packed").write_text("hello")
    os.mkfifo(folder / "pipe")
    return folder


def shown(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(htrain, ["show", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_partition_is_printed_and_drawn_on_a_page(folder: Path, tmp_path: Path) -> None:
    made = read_partition(folder / "2.partition")
    said = shown(folder, f"{folder}/2.partition", "--html", f"{tmp_path}/p.html")
    assert said.rstrip() == partition_text(made).rstrip()
    page = Page((tmp_path / "p.html").read_text())
    assert page.labels == ["By the partition", "Samples and rows anywhere"]
    assert page.table("fetched").texts[1][1] == f"{made.facts.rows_per_batch:,.2f}"
    document = json.loads(shown(folder, f"{folder}/2.partition", "--json", "--html", f"{tmp_path}/q.html"))
    assert msgspec.convert(document, type(made.facts)) == made.facts
    assert (tmp_path / "q.html").read_bytes() == (tmp_path / "p.html").read_bytes()


@pytest.mark.parametrize("prefix", ["", "packed:"])
def test_packed_data_is_printed_by_either_name(folder: Path, prefix: str) -> None:
    found = packed_contents(folder / "2.packed")
    lines = shown(folder, f"{prefix}{folder}/2.packed").splitlines()
    assert (
        lines[0]
        == f"{folder}/2.packed: 320 examples, {found.bytes:,} bytes in {found.blocks} blocks, all as they were written"
    )
    assert [line.split() for line in lines[-2:]] == [[str(w), f"{n:,}"] for w, n in enumerate(found.worker_examples)]
    document = json.loads(shown(folder, f"{prefix}{folder}/2.packed", "--json"))
    assert document["worker_examples"] == list(found.worker_examples)
    assert msgspec.convert(document, type(found)) == found


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["damaged.partition"], "damaged.partition: is damaged: its digest is another than when it was written; make it again", 1),
        (["2.partition", "--html", "nowhere/p.html"], "nowhere/p.html: cannot be written: ", 1),
        (["2.partition", "--html", "a.csv"], "a.csv: cannot be written: it holds something that htrain did not write there", 1),
        (["2.partition", "--net", "train"], "--net has no effect beside the partition 2.partition", 2),
        (["2.partition", "--run", "a"], "--run has no effect beside the partition 2.partition", 2),
        (["damaged.packed"], "damaged.packed: is no packed file, or a damaged one (block ", 1),
        (["packed:damaged.packed"], "damaged.packed: is no packed file, or a damaged one (block ", 1),
        (["short.packed"], "short.packed: is no packed file, or a damaged one (", 1),
        (["words.packed"], "words.packed: is no packed file, or a damaged one (", 1),
        (["packed:2.partition"], "2.partition: is no packed file, or a damaged one (", 1),
        (["packed:absent"], "absent: cannot be read: No such file or directory", 1),
        (["packed:pipe"], "pipe: cannot be read: is a pipe, want a file", 1),
        (["packed:."], ".: cannot be read: is a folder, want a file", 1),
        (["2.packed", "--html", "p.html"], "--html has no effect beside the packed data 2.packed", 2),
        (["2.packed", "--run", "a"], "--run has no effect beside the packed data 2.packed", 2),
        (["a.csv"], "a.csv: not a plan folder", 1),
        (["absent.packed"], "absent.packed: cannot be read: No such file or directory", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_line(
    commands: Commands, folder: Path, words: list[str], said: str, status: int
) -> None:
    found = commands.run(["show", *words], folder, timeout=60)
    assert (found.returncode, found.stdout) == (status, "")
    assert said in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert not (folder / "p.html").exists()
