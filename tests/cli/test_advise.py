"""`htrain advise` as a command: what it prints and writes, what compiles with it, and what it refuses in a line."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pages import Page
from small_libfm import BATCH, MODEL, ROWS, write_libfm

from htrain.cli.app import commands
from htrain.plan.plan import load_plan

GRAPH = str(Path(MODEL).with_name("graphsage.py"))
FLAGS = (
    *("--batch-size", str(BATCH), "--groups", "1", "--trainers", "1", "--group-ps", "0", "--dense-sync", "allreduce"),
    *("--capacities", "10%,40%", "--policies", "lru,lfu", "--windows", "1,4", "--bounds", "3,100"),
)

NO_TABLE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)

    def forward(self, sparse):
        return self.fc(sparse.float())

def build():
    return Model()
"""


def invoked(*words: str) -> Result:
    return CliRunner().invoke(commands, words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and what the command has made of it: advised.yaml, advised.rates, advice.html and out.txt."""
    folder = tmp_path_factory.mktemp("advise")
    data = write_libfm(folder)
    (folder / "words.libfm").write_text("what is this\n" * 50)
    (folder / "empty.libfm").touch()
    (folder / "no_table.py").write_text(NO_TABLE)
    written = [word for name in ("out", "rates", "html") for word in (f"--{name}", str(place_of(folder, name)))]
    result = invoked("advise", data, "--model", MODEL, *FLAGS, *written)
    assert result.exit_code == 0, result.output
    (folder / "out.txt").write_text(result.stdout)
    return folder


def place_of(folder: Path, name: str) -> Path:
    return folder / {"out": "advised.yaml", "rates": "advised.rates", "html": "advice.html"}[name]


def data_of(folder: Path) -> str:
    return f"libfm:{folder / 'small.libfm'}?rows={ROWS}"


def test_every_figure_is_printed_once(folder: Path) -> None:
    text = (folder / "out.txt").read_text()
    assert re.search(r"^10% +(\d+\.\d% +){5}\d+ B +(lru|lfu) window [14]$", text, re.MULTILINE)
    assert re.search(r"^100 +\d+\.\d% +\d+\.\d% +\d+ B( +[\d,]+){3}$", text, re.MULTILINE)
    assert re.search(r"^embeddings\.tables\.ids\.weight +120 +\d+ +\d+\.\d +\d+\.\d% +\d+\.\d%$", text, re.MULTILINE)
    assert "recommended, at the knee: capacity" in text
    assert f"htrain compile {MODEL} --data {data_of(folder)} --cluster {folder / 'advised.yaml'}" in text


def test_where_no_cache_saves_bytes_none_is_recommended(folder: Path, tmp_path: Path) -> None:
    """As without staleness: every row is fetched again, and cached for nothing."""
    out = tmp_path / "none.yaml"
    result = invoked(
        "advise",
        data_of(folder),
        "--model",
        MODEL,
        *FLAGS,
        "--cache",
        "het",
        "--cache-staleness",
        "0",
        "--out",
        str(out),
    )
    assert result.exit_code == 0, result.output
    assert "recommended: no cache, for none that was tried saves bytes. The best of them, capacity" in result.stdout
    assert "no cache that was tried saves bytes" in out.read_text()
    plan = ("--cluster", str(out), "--no-self-check", "--out", str(tmp_path / "plan"))
    assert invoked("compile", MODEL, "--data", data_of(folder), *plan).exit_code == 0
    assert load_plan(tmp_path / "plan").options.cache.kind == "none"


def test_the_section_compiles_as_it_is_and_rates_become_the_plans(folder: Path) -> None:
    flags = ("--cluster", str(folder / "advised.yaml"), "--rates", str(folder / "advised.rates"), "--no-self-check")
    result = invoked("compile", MODEL, "--data", data_of(folder), *flags, "--out", str(folder / "plan"))
    assert result.exit_code == 0, result.output
    plan = load_plan(folder / "plan")
    assert plan.options.cache.kind == "het"
    assert plan.rates.caches.keys() == {"cache_16", "cache_1"}
    assert plan.rates.source == data_of(folder)
    assert invoked("check", str(folder / "plan")).exit_code == 0
    simulated = invoked("simulate", str(folder / "plan"), "--steps", "4")
    assert "cache_16" in simulated.stderr
    other = invoked("simulate", str(folder / "plan"), "--steps", "4", "--batch", "32")
    assert "cache_16" not in other.stderr
    header = folder / "plan" / "plan.yaml"
    header.write_text(header.read_text().replace("cache_16:\n", "cache_17:\n", 1))
    assert "rates of cache_17, cache_1, the plan has" in str(invoked("check", str(folder / "plan")).exception)


def test_the_page_has_curves_and_tables(folder: Path) -> None:
    page = (folder / "advice.html").read_text()
    assert page.count("<svg") == 5
    assert "NaN" not in page
    lines = [len(table.lines) for table in Page(page).tables]
    assert lines == [1 + 2, 1 + 2 * 2 * 2 * 2]


def test_json_has_every_candidate(folder: Path) -> None:
    result = invoked("advise", data_of(folder), "--model", MODEL, *FLAGS, "--json", "--exact")
    document = json.loads(result.stdout)
    assert len(document["candidates"]) == 2 * 2 * 2 * 2
    assert document["recommended"] in document["candidates"]
    assert document["basis"]["rate"] == 1
    assert [table["name"] for table in document["tables"]] == ["embeddings.tables.ids.weight", "wide.tables.ids.weight"]


@pytest.mark.parametrize(
    ("data", "flags", "says"),
    [
        ("libfm:nowhere.libfm?rows=9", (), "nowhere.libfm: no such file"),
        ("{data}", ("--capacities", "0"), "advise: capacities: '0' is not a capacity"),
        ("{data}", ("--policies", "best"), "'best' is not one of those that can be played: light-lfu, lfu, lru"),
        ("{data}", ("--windows", "two"), "'two': want numbers with commas between them"),
        ("{data}", ("--cache", "lookahead"), "the lookahead cache cannot be advised on"),
        ("{data}", ("--out", "{folder}"), "{folder}: cannot be written: it is a folder, want a file"),
        ("{data}", ("--out", "{folder}/small.libfm"), "it holds something that htrain did not write there"),
        ("{data}", ("--rates", "{folder}/small.libfm"), "it holds something that htrain did not write there"),
        ("{data}", ("--html", "{folder}/none/a.html"), "cannot be written: {folder}/none is not a folder"),
        ("libfm:{folder}/words.libfm?rows=120", (), "words.libfm:1: the label is not a number"),
        ("libfm:{folder}/empty.libfm?rows=120", (), "empty.libfm: is empty"),
        ("{data}", ("--model", GRAPH), "nodes"),
        ("{data}", ("--model", "models/none.py"), "models/none.py"),
        (
            "{data}",
            ("--model", "{folder}/no_table.py"),
            "no_table has no trained table that a cache would hold rows of",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    data: str, flags: tuple[str, ...], says: str, folder: Path, tmp_path: Path
) -> None:
    def filled(text: str) -> str:
        return text.format(data=data_of(folder), folder=folder)

    words = ["--model", MODEL, *map(filled, flags)]
    places = [] if {"--out", "--rates", "--html"} & set(flags) else ["--out", str(tmp_path / "a.yaml")]
    result = invoked("advise", filled(data), *words, *places)
    assert result.exit_code != 0
    shown = result.stderr + str(result.exception)
    assert filled(says) in shown
    assert not isinstance(result.exception, KeyError | TypeError | AttributeError | IndexError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--batch-size", "8"), "is of 1 trainers and batches of 16, the plan has 1 and 8"),
        (("--cache-capacity", "7%"), "has none for a cache of capacity 7%"),
        (("--sparse-ps", "3"), "run htrain advise again with this cluster"),
    ],
)
def test_rates_of_something_else_are_refused(flags: tuple[str, ...], says: str, folder: Path) -> None:
    known = ("--cluster", str(folder / "advised.yaml"), "--rates", str(folder / "advised.rates"), "--no-self-check")
    result = invoked("compile", MODEL, "--data", data_of(folder), *known, *flags, "--out", str(folder / "other"))
    assert says in result.stderr + str(result.exception)
    assert not (folder / "other").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no file of rates"),
        ('{"htrain.rates": 9, "trainers": 1, "batch_size": 16, "entries": []}', "of version 9"),
    ],
)
def test_a_file_of_rates_that_is_none_is_named(text: str, says: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.rates").write_text(text)
    flags = ("--cluster", str(folder / "advised.yaml"), "--rates", str(tmp_path / "a.rates"))
    result = invoked("compile", MODEL, "--data", data_of(folder), *flags, "--out", str(tmp_path / "plan"))
    assert f"{tmp_path / 'a.rates'}: is" in result.stderr + str(result.exception)
    assert says in result.stderr + str(result.exception)
