"""Everything that is read, spoilt at random: one clear line, no traceback, no hang, nothing half-written, no control byte on a terminal.

`pytest tests/system/test_fuzz.py --fuzz 20` tries twenty times as much, other things each time.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from forked import Commands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import NASTY, rewritten, spoilt, words

import htrain
from htrain.cli.app import commands as htrain_commands
from htrain.data import open_data
from htrain.data.layout import load_layout
from htrain.errors import Error
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.measured import load_measured
from htrain.executor.record.run_folder import read_record
from htrain.onnx_format.files import read_net
from htrain.plan.check import check_plan
from htrain.plan.plan import load_plan
from htrain.plan.text import plan_text
from htrain.spec.cache import capacity_rows
from htrain.spec.cluster import load_cluster, parse_field, this_machine
from htrain.spec.cluster_file import load_options
from htrain.spec.options import Options

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.top = nn.Linear(16, 1)
    def forward(self, sparse):
        return self.top(self.table(sparse).flatten(1))
def build():
    return Model()
"""
CLUSTER = """groups: 2
trainers: 1
group_ps: 1
sparse_ps: 2
dense_ps: 1
sparse_ps_memory: 4GiB
trainer_bandwidth: 25Gbit/s
pin: {top: "group_ps:0", "table*": "sparse_ps:1"}
together: [[top, "join*"]]
dense: {sync: easgd}
sparse:
  cache: het
  capacity: 12.5%
  staleness: unbounded
  policy: lru
  window: 8
  tables: {table.weight: 50%}
"""
SCHEMA = """label: click
inputs:
  dense: {kind: dense, columns: [I1, I2], transform: log1p}
  sparse: {kind: ids, columns: [C1, C2], rows: [1000, 5000]}
  history: {kind: padded, column: items, length: 50, rows: 100000}
  tags: {kind: bag, column: tags, rows: 1000, width: 5}
"""
DATA = "libfm:a.libfm?rows=50"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, a plan, a run and the files that describe them, all good."""
    folder = tmp_path_factory.mktemp("good")
    draw = random.Random(0)
    rows = [f"{draw.choice((1, -1))} " + " ".join(f"{draw.randrange(50)}:1" for _ in range(4)) for _ in range(300)]
    (folder / "a.libfm").write_text("\n".join(rows) + "\n")
    (folder / "model.py").write_text(MODEL)
    (folder / "c.yaml").write_text(CLUSTER)
    (folder / "s.yaml").write_text(SCHEMA)
    data = f"libfm:{folder}/a.libfm?rows=50"
    plan = htrain.compile(str(folder / "model.py"), data=data, cluster=this_machine(), options=Options(batch_size=64))
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=data, out=folder / "run", hosting="threads")
    return folder


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Hypothesis with as many examples, times --fuzz; a reader that takes longer than ten seconds hangs."""
    times = int(os.environ.get("HTRAIN_FUZZ", "1"))
    return settings(
        max_examples=examples * times, deadline=10_000, derandomize=times == 1, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def refused_in_words(read: Callable[[], object]) -> None:
    """`read` gives something, or an error of htrain's with words in it."""
    try:
        read()
    except Error as error:
        assert str(error).strip()  # noqa: PT017


# -- readers ---------------------------------------------------------------------------------------------------------


@fuzz(400)
@given(data=st.data())
def test_cluster_files(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-cluster.yaml"
    path.write_bytes(_document(data, CLUSTER))
    refused_in_words(lambda: load_cluster(path, {}))
    refused_in_words(lambda: load_options(path))


@fuzz(300)
@given(data=st.data())
def test_schema_files(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-schema.yaml"
    path.write_bytes(_document(data, SCHEMA))
    refused_in_words(lambda: load_layout(path))


def _document(data: st.DataObject, text: str) -> bytes:
    """The YAML document with other bytes, or with other values."""
    if data.draw(st.booleans()):
        return data.draw(spoilt(text.encode()))
    return yaml.safe_dump(data.draw(rewritten(yaml.safe_load(text))), allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )


@fuzz(150)
@given(data=st.data())
def test_plan_headers(data: st.DataObject, good: Path) -> None:
    path, text = good / "plan" / "plan.yaml", (good / "plan" / "plan.yaml").read_text()
    path.write_bytes(_document(data, text))
    try:
        refused_in_words(lambda: plan_text(check_plan(load_plan(good / "plan"))))
    finally:
        path.write_text(text)


@fuzz(200)
@given(data=st.data())
def test_nets(data: st.DataObject, good: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    net = data.draw(st.sampled_from(sorted((good / "plan" / "nets").iterdir())))
    path = tmp_path_factory.getbasetemp() / "fuzz.onnx"
    path.write_bytes(data.draw(spoilt(net.read_bytes())))
    refused_in_words(lambda: read_net(path))


@fuzz(200)
@given(data=st.data())
def test_run_records_and_manifests(data: st.DataObject, good: Path) -> None:
    checkpoint, _ = latest_checkpoint(good / "run")

    def read() -> None:
        refused_in_words(lambda: read_record(good / "run"))
        refused_in_words(lambda: read_manifest(checkpoint))
        refused_in_words(lambda: latest_checkpoint(good / "run"))

    documents = [good / "run" / "run.json", checkpoint / "manifest.json"]
    path = data.draw(st.sampled_from(documents))
    before = path.read_bytes()
    if data.draw(st.booleans()):
        changed = data.draw(spoilt(before))
    else:
        changed = json.dumps(data.draw(rewritten(json.loads(before)))).encode()
    path.write_bytes(changed)
    try:
        read()
    finally:
        path.write_bytes(before)


def test_every_byte_that_is_not_text(good: Path) -> None:
    """In a document of the house, a byte that is not UTF-8 at any place (a key, a value, between them) is an error in words."""
    checkpoint, _ = latest_checkpoint(good / "run")
    documents: list[tuple[Path, Callable[[], object]]] = [
        (good / "run" / "run.json", lambda: read_record(good / "run")),
        (good / "run" / "measured.json", lambda: load_measured(good / "run")),
        (checkpoint / "manifest.json", lambda: read_manifest(checkpoint)),
    ]
    for path, read in documents:
        before = path.read_bytes()
        try:
            for position in range(len(before)):
                path.write_bytes(before[:position] + b"\xf0" + before[position + 1 :])
                with pytest.raises(Error):
                    read()
        finally:
            path.write_bytes(before)


FORMATS = st.sampled_from(("criteo", "libfm", "csv", "parquet", "graph", "packed", "synthetic"))


@fuzz(300)
@given(
    uri=st.text(max_size=30),
    format=FORMATS,
    place=words(),
    key=st.sampled_from(("rows", "schema", "seed", "part", "x")),
    value=words(),
)
def test_data_uris(uri: str, format: str, place: str, key: str, value: str) -> None:
    refused_in_words(lambda: open_data(uri))
    refused_in_words(lambda: open_data(f"{format}:{place}?{key}={value}"))


@fuzz(400)
@given(field=st.sampled_from(("groups", "sparse_ps_memory", "host_cores", "distinct_percent", "x")), text=words())
def test_words_of_flags(field: str, text: str) -> None:
    refused_in_words(lambda: parse_field(field, text, where="--x"))
    refused_in_words(lambda: capacity_rows(text, 10, where="--x"))


# -- commands --------------------------------------------------------------------------------------------------------

SOUND = {
    "model": ["model.py"], "plan": ["plan"], "old": ["plan"], "new": ["plan"], "name": ["top"], "run_folder": ["run"], "source": [DATA], "data": [DATA],
    "cluster_file": ["c.yaml"], "out": ["out"], "html": ["out.html"], "resume": ["run"], "eps": ["1000"], "rules": ["model.py:build"], "seconds": ["0.5"],
    "rows": ["10"], "table_rows": ["10"],
}  # fmt: skip
FOLDERS = (
    "plan",
    "run",
    ".",
    "a.libfm",
    "pipe",
    "/dev/null",
    "/dev/full",
    "nowhere/x",
    "plan/plan.yaml",
    "locked/x",
    "a" * 300,
)
DRAWN = re.compile(r"\x1b\[(\?25[lh]|[0-9;]*[AKm]|[0-9]*G)")  # where the cursor goes, and colours
SLOW = {"htrain size": 0.05, "htrain calibrate": 0.05, "htrain run": 0.4}


def leaves(group: click.Group, path: str = "htrain") -> list[tuple[str, click.Command]]:
    """Every command that does something, with its words."""
    found = []
    for name, command in group.commands.items():
        inner = leaves(command, f"{path} {name}") if isinstance(command, click.Group) else [(f"{path} {name}", command)]
        found.extend(inner)
    return found


def drawn_words(draw: random.Random, path: str, command: click.Command) -> list[str]:
    """A command line: what must be there is there most of the time, and mostly sound; a few flags beside it."""
    line = path.split()[1:]
    for parameter in command.params:
        needed = isinstance(parameter, click.Argument) or parameter.required
        if draw.random() > (0.97 if needed else 1.5 / len(command.params)):
            continue
        if isinstance(parameter, click.Option):
            line.append(draw.choice([*parameter.opts, *parameter.secondary_opts]))
            if parameter.is_flag:
                continue
        line.append(drawn_word(draw, parameter))
    return line


def drawn_word(draw: random.Random, parameter: click.Parameter) -> str:
    chance = draw.random()
    if chance < 0.65 and parameter.name in SOUND:
        return draw.choice(SOUND[parameter.name])
    if chance < 0.75:
        return draw.choice(FOLDERS)
    if chance < 0.85 and isinstance(parameter.type, click.Choice):
        return draw.choice([str(choice) for choice in parameter.type.choices])
    return draw.choice([str(draw.randrange(10)), *[word.replace("\x00", "") for word in NASTY if len(word) < 500]])


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_command_lines(good: Path, commands: Commands, tmp_path: Path) -> None:
    times = int(os.environ.get("HTRAIN_FUZZ", "1"))
    draw = random.Random(0 if times == 1 else None)
    every = leaves(htrain_commands)
    weights = [SLOW.get(path, 1.0) for path, _ in every]
    shutil.copytree(good, tmp_path / "work")
    for number in range(70 * times):
        words = drawn_words(draw, *draw.choices(every, weights)[0])
        folder = tmp_path / "work"
        os.mkfifo(folder / "pipe")
        (folder / "locked").mkdir(0o500)
        (folder / "plan" / "mine").write_text(str(number))
        before = everything_in(folder)
        shown = commands.on_terminal(words, folder, timeout=60)
        said = shown.stdout
        assert shown.returncode in (0, 1, 2), (words, said)
        assert "Traceback" not in said, (words, said)
        assert "bug of htrain" not in said, (words, said)
        told = said if shown.returncode else DRAWN.sub("", said)  # a run that goes well draws its progress
        assert not [c for c in told if not c.isprintable() and c not in "\r\n\t"], (words, said)
        if shown.returncode and words[0] != "diff":
            assert said.count("htrain: ") == 1, (words, said)
        check_left(folder, before, words)
        shutil.rmtree(folder)
        shutil.copytree(good, folder)


def check_left(folder: Path, before: dict[str, bytes], words: list[str]) -> None:
    """Nothing that was there is lost, nothing half-written is left, and a plan that is there is whole."""
    after = everything_in(folder)
    assert not [name for name in after if ".partial" in name], (words, sorted(after))
    lost = [name for name, content in before.items() if after.get(name) != content]
    assert all(name.startswith(("run/", "plan/")) for name in lost), (words, lost)
    assert (folder / "plan" / "mine").read_bytes() == before["plan/mine"], words
    for header in folder.glob("**/plan.yaml"):
        load_plan(header.parent)
