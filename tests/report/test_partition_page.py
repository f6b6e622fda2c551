"""The page of a partition: its figures are those of the facts, as text and in a browser's parser, for few workers and for many."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page
from partitions import drawn_partition

from htrain.data.partition_file import PartitionFile, UsedRow, sealed
from htrain.errors import DataError
from htrain.report.names import printable
from htrain.report.partition import partition_text
from htrain.report.partition_page import partition_html, write_partition_page

HERE, ANYWHERE = "By the partition", "Samples and rows anywhere"


def made(workers: int, hosts: Sequence[int] = (), *, place: str = "t0[1]") -> PartitionFile:
    """A partition in which workers fetch different amounts of each other."""
    partition = drawn_partition(0, (900, 300), num_workers=workers, num_examples=500)
    random = np.random.default_rng(workers)
    rows, uses = (random.gamma(2.0, 30.0, (workers, workers)).tolist() for _ in range(2))
    replicated = [[amount / 4 for amount in line] for line in rows]
    facts = msgspec.structs.replace(
        partition.facts,
        **{name: tuple(map(tuple, m)) for name, m in (("rows", rows), ("replicated", replicated), ("uses", uses))},
        scattered_rows=80.0 * workers,
        scattered_uses=9.0,
        hosts=tuple(hosts),
        link_cost=10.0,
        most_used=(UsedRow(place, 400, 1), UsedRow("t1[7]", 50, 0)),
    )
    return sealed(replace(partition, facts=facts))


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix("%"))


@pytest.mark.parametrize(("workers", "hosts"), [(2, ()), (5, (3, 2)), (16, (8, 8)), (17, ()), (64, (16,) * 4)])
def test_each_cell_has_what_a_batch_fetches_and_random_stands_beside_on_the_same_scale(
    workers: int, hosts: Sequence[int]
) -> None:
    facts = (partition := made(workers, hosts)).facts
    page = Page(partition_html(partition))
    fetched = np.array(facts.rows) - np.array(facts.replicated)
    anywhere = facts.scattered_rows / (workers - 1)
    most = max(anywhere, fetched[~np.eye(workers, dtype=bool)].max())
    darkest = 0.6 if workers <= 16 else 1.0
    assert page.labels == [HERE, ANYWHERE]
    for name, amounts in ((HERE, fetched), (ANYWHERE, np.full((workers, workers), anywhere))):
        body = page.table(name).body
        assert [len(line) for line in body] == [workers] * workers
        for i, line in enumerate(body):
            for j, cell in enumerate(line):
                if i == j:
                    assert cell.attributes["title"] == f"worker {i}: its own"
                    assert cell.text == ("own" if workers <= 16 else "")
                else:
                    assert cell.attributes["title"] == f"worker {i} of worker {j}: {amounts[i, j]:,.2f}"
                    assert cell.shade == pytest.approx(darkest * amounts[i, j] / most, abs=6e-4)
                    assert (abs(number(cell.text) - amounts[i, j]) < 0.51) if workers <= 16 else cell.text == ""


def test_thick_lines_stand_between_hosts_and_nowhere_else() -> None:
    table = Page(partition_html(made(5, (3, 2)))).table(HERE)
    assert table.columns == ["", "", "", "", "further", ""]
    assert [name for name in table.rows if name] == ["further"]
    assert table.rows[-2] == "further"
    assert [(c.text, c.attributes["colspan"]) for c in table.lines[0][1:]] == [("host 0", "3"), ("host 1", "2")]
    alone = Page(partition_html(made(5))).table(HERE)
    assert {*alone.columns, *alone.rows} == {""}
    assert alone.texts[0] == ["", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("hosts", [(), (3, 2)])
def test_tables_have_the_figures_of_the_facts_and_of_the_text(hosts: Sequence[int]) -> None:
    facts = (partition := made(5, hosts)).facts
    page, text = Page(partition_html(partition)), partition_text(partition)
    fetched = page.table("fetched").texts[1:]
    assert len(fetched) == (5 if hosts else 2)
    assert [number(cell) for cell in fetched[0][1:3]] == pytest.approx(
        [facts.rows_per_batch, facts.scattered_rows], abs=0.006
    )
    assert number(fetched[0][3]) == pytest.approx(100 * (1 - facts.rows_per_batch / facts.scattered_rows), abs=0.06)
    assert [number(cell) for cell in fetched[-1][1:3]] == pytest.approx(
        [facts.uses_per_sample, facts.scattered_uses], abs=0.006
    )
    if hosts:
        parts = [number(line[1]) for line in fetched[1:3]]
        assert sum(parts) == pytest.approx(facts.rows_per_batch, abs=0.011)
        assert number(fetched[3][1]) == pytest.approx(10 * facts.rows_between_hosts + parts[1], abs=0.02)
    balance = {name: [number(cell) for cell in cells if cell] for name, *cells in page.table("balance").texts[1:]}
    counts = np.bincount(partition.owners, minlength=5)
    assert balance["rows of a worker"] == pytest.approx(
        [counts.min(), counts.max(), counts.max() * 5 / counts.sum()], abs=6e-4
    )
    assert balance["examples of a worker"] == [100, 100, 1]
    assert balance["replicas on a worker"] == [5, 5]
    for line in (*fetched, *page.table("balance").texts[1:]):
        assert all(cell in text for cell in line)


def test_the_rows_that_most_examples_use_stand_with_their_owners() -> None:
    lines = Page(partition_html(made(3))).table("most-used").texts
    assert lines == [
        ["row", "owner", "examples", "of all"],
        ["t0[1]", "worker 1", "400", "80.0%"],
        ["t1[7]", "worker 0", "50", "10.0%"],
    ]


def test_the_head_says_what_was_partitioned_and_what_is_saved() -> None:
    partition = made(5, (3, 2))
    text = Page(partition_html(partition)).text
    facts = partition.facts
    saved = f"{1 - facts.rows_per_batch / facts.scattered_rows:.1%} saved"
    for words in ("Partition of libfm:drawn", saved, "5 workers", "on 2 hosts", "500 examples", facts.digest[:12]):
        assert words in text
    assert "had seen" not in text
    older = sealed(replace(partition, facts=msgspec.structs.replace(facts, known_rows=7000, moved_rows=12)))
    assert "Of 7,000 rows that the old partition had seen, 12 have moved." in Page(partition_html(older)).text


def test_nothing_is_loaded_from_elsewhere_and_the_same_partition_gives_the_same_page() -> None:
    html = partition_html(made(4))
    assert Page(html).sources == ["data:,"]
    assert not [word for word in ("http:", "https:", "@import", "url(//", "<script") if word in html]
    assert partition_html(made(4)) == html


@settings(max_examples=30, deadline=None, derandomize=True)
@given(name=st.text(st.characters(exclude_categories=["Cs"], include_characters="<>&\"'{}%#\u202e"), max_size=30))
def test_a_name_is_seen_as_it_is_and_never_as_markup(name: str) -> None:
    partition = made(2, place=f"<b>{name}{{{{7*7}}}}")
    uri = f"csv:<script>{name}"
    page = Page(partition_html(replace(partition, facts=msgspec.structs.replace(partition.facts, uri=uri))))
    assert page.table("most-used").texts[1][0] == printable(f"<b>{name}{{{{7*7}}}}")
    assert f"Partition of {printable(uri)}" in page.text


def test_a_thousand_workers_make_a_page_that_a_browser_opens() -> None:
    html = partition_html(made(1024))
    assert len(html) < 2_000_000
    page = Page(html)
    assert len(page.table(HERE).body) == 64
    assert "a cell is the mean over pairs of 16 workers on a side" in page.text


def test_a_page_takes_the_place_of_an_older_one_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    write_partition_page(made(2), path)
    write_partition_page(made(3), path)
    assert "3 workers" in path.read_text()
    path.write_text("mine")
    with pytest.raises(DataError, match=r"p\.html: cannot be written: it holds something that htrain did not write"):
        write_partition_page(made(2), path)
    with pytest.raises(DataError, match=r"nowhere/p\.html: cannot be written"):
        write_partition_page(made(2), tmp_path / "nowhere" / "p.html")
