"""`htrain serve` as users run it, and loops that import `htrain.client` alone: the page's own, DistributedDataParallel, Frappe (HET 3, 5.2)."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ddp_workers
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from forked import shared_commands
from harness import RowWiseAdagrad
from safetensors.torch import load_file
from torch import nn
from whole_runs import HTRAIN, ROOT, Process, wait_until

import htrain
from htrain.client.connecting import connect
from htrain.client.modules import HetEmbedding
from htrain.errors import CheckpointError, PeerLost, PlanError, RunError, UsageError
from htrain.exporting.tables_folder import FORMATS
from htrain.plan.plan import load_plan
from htrain.report.runs.folder import read_run
from htrain.spec.tree import with_flags

PAGE = ROOT / "docs" / "how-to" / "serve-tables.md"
TABLES = {"user": ddp_workers.USERS, "item": ddp_workers.ITEMS}
RATE = 0.2  # of the plan of the page

KILLED = """
import sys, time, torch, htrain.client
tables = htrain.client.connect(sys.argv[1], worker="killed")
tables.announce({"user": torch.arange(5)})
print("in", flush=True)
time.sleep(60)
"""


class Served:
    """An `htrain serve` that runs in a folder: forked (forked.py), or as a process that imports all for itself."""

    def __init__(self, plan: Path, folder: Path, *arguments: str, anew: bool = False) -> None:
        self.folder = folder
        folder.parent.mkdir(exist_ok=True)
        self._log = folder.with_suffix(".log").open("a+")
        before = folder / "serving.json"
        known = before.stat().st_mtime_ns if before.exists() else 0
        words = ["serve", str(plan), *(arguments or ("--out", str(folder)))]
        self.process: Process = (
            subprocess.Popen([HTRAIN, *words], stdout=subprocess.PIPE, stderr=self._log, text=True)
            if anew
            else shared_commands().start(words, log=self._log)
        )
        wait_until(lambda: before.exists() and before.stat().st_mtime_ns > known, self.process, "serving")

    def told(self) -> str:
        return self.folder.with_suffix(".log").read_text()

    def stop(self, number: int = signal.SIGINT) -> str:
        """What it printed at its end."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.told()
        return out


@contextmanager
def serving(plan: Path, folder: Path, *arguments: str, anew: bool = False) -> Iterator[Served]:
    served = Served(plan, folder, *arguments, anew=anew)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def tables_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tables of the last checkpoint, whole."""
    last = max((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    shards: dict[str, torch.Tensor] = {}
    for path in sorted(last.glob("*.safetensors")):
        shards |= load_file(path)
    names = {
        re.sub(r"/\d+$", "", name) for name in shards if name.endswith("weight") or re.search(r"weight/\d+$", name)
    }
    return {
        name: torch.cat([shards[key] for key in sorted(shards) if re.fullmatch(f"{re.escape(name)}(/\\d+)?", key)])
        for name in names
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and its plan."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)
    module_of(folder, "make_plan")
    return folder


def module_of(folder: Path, name: str, *words: str) -> str:
    """What `python -m NAME WORDS...` prints in a folder."""
    run = shared_commands().run_module(name, words, folder, timeout=200)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_the_loops_of_the_page_run(page: Path) -> None:
    """One after another at the same servers: what one has trained, the next begins with."""
    with serving(page / "plan", page / "runs" / "tables", anew=True) as served:
        found = re.match(r"(\S+) right; (.*)", module_of(page, "loop"))
        assert found
        assert float(found[1]) > 0.8  # half of all are liked
        assert "'steps': 300" in found[2]
        said = module_of(page, "torch.distributed.run", "--nproc-per-node", "2", "ddp.py")
        assert sorted(re.findall(r"rank (\d): loss \S+, 200 steps", said)) == ["0", "1"]
        assert "100 steps" in module_of(page, "lightning_loop")
        wait_until(lambda: served.told().count("has left") == 4, served.process, "all have left")
        out = served.stop(signal.SIGTERM)
    assert re.match(r"served for \d+ s; checkpoint ", out)
    told = served.told()
    assert "serving user.weight, item.weight at tcp://127.0.0.1:" in told
    assert "worker rank 1 has joined (process " in told
    rows = [json.loads(line) for line in (served.folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["role"] == "sparse_ps:0"][-1]["members"]
    assert (last["joined"], last["left"], last["vanished"], last["workers"]) == (4, 4, 0, [])


def test_a_killed_worker_and_servers_that_are_started_again(page: Path) -> None:
    """What has been acknowledged and saved is there afterwards; a request is not carried out twice; who comes back goes on."""
    folder = page / "runs" / "again"
    ids = torch.arange(20)
    with serving(page / "plan", folder, "--out", str(folder), "--lease-seconds", "2") as served:
        other = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)
        assert other.stdout
        assert other.stdout.readline() == "in\n"
        other.kill()
        other.communicate()
        tables = connect(folder, worker="stays", deadline_seconds=20)
        embedding = HetEmbedding(tables, "user")
        before = tables.look("user", ids)
        embedding(ids).sum().backward()
        tables.step()
        tables.flush()
        after = tables.look("user", ids)
        torch.testing.assert_close(after, before - RATE)  # of Adagrad: the first step, whatever the gradient
        wait_until(
            lambda: "worker killed" in served.told() and "was not heard for 2 s" in served.told(),
            served.process,
            "noticed",
        )
        served.stop()
    torch.testing.assert_close(tables_of(folder)["user.weight"][:20], after)
    with serving(page / "plan", folder, "--resume", str(folder)) as served:
        with pytest.raises(PeerLost, match=r"the server was started anew; tables.rejoin\(\) begins anew with its rows"):
            embedding(ids).sum().backward()
        assert tables.rejoin() == 0
        torch.testing.assert_close(tables.look("user", ids), after)
        embedding(ids).sum().backward()
        tables.step()
        tables.close()
        served.stop()
    torch.testing.assert_close(tables_of(folder)["user.weight"][:20], after - RATE / 2**0.5)
    another = page / "runs" / "another"
    with serving(page / "plan", another, "--out", str(another), "--begin-with", str(folder)) as served:
        with connect(another) as tables:
            torch.testing.assert_close(tables.look("user", ids), after - RATE / 2**0.5)
        served.stop()
    with pytest.raises(
        CheckpointError, match=r"its tables were served, without a model around them: go on with htrain serve"
    ):
        htrain.evaluate(another, data="synthetic:?rows=10")
    assert read_run(load_plan(page / "plan"), another).state.startswith("has served its tables to workers of their own")


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """The tables of a folder that `htrain export --to tables` has written, in whatever files."""
    readers = {
        "safetensors": lambda path: load_file(path)["rows"],
        "npy": lambda path: torch.from_numpy(np.load(path)),
        "parquet": lambda path: torch.tensor(pq.read_table(path)["values"].to_pylist()),
    }
    index = json.loads((folder / "index.json").read_text())
    return {
        table["name"]: torch.cat([readers[index["format"]](folder / piece["file"]) for piece in table["pieces"]])
        for table in index["tables"]
    }


def test_served_tables_are_exported_and_no_model_is_looked_for_around_them(page: Path, tmp_path: Path) -> None:
    plan, folder = page / "plan", page / "runs" / "a b"
    with serving(plan, folder) as served:
        with connect(folder) as tables:
            HetEmbedding(tables, "user")(torch.arange(20)).sum().backward()
            tables.step()
            tables.flush()
            looked = {
                f"{name}.weight": tables.look(name, torch.arange(tables.place_of(name)[1].rows))
                for name in ("user", "item")
            }
        who = f"process {served.process.pid} on .* serves its tables: wait for its end, or stop it first"
        with pytest.raises(CheckpointError, match=who):
            htrain.serve(plan, resume=folder)
        served.stop()
    for form in FORMATS:
        htrain.export(folder, to="tables", out=tmp_path / form, format=form, piece_rows=7)  # type: ignore[arg-type]
        found = exported(tmp_path / form)
        assert found.keys() == looked.keys()
        for name, values in looked.items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=0)
    cure = re.escape(f"or take them out: htrain export '{folder}' --to tables --out FOLDER") + "$"
    said = rf"its tables were served, without a model around them: .* --begin-with '{folder}', {cure}"
    for kind in ("torch", "onnx"):
        for of in ("", plan):  # the plan has a model, its checkpoint has not
            with pytest.raises(CheckpointError, match=said):
                htrain.export(folder, to=kind, out=tmp_path / "model", plan=of)  # type: ignore[arg-type]
    data = clicks(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        htrain.run(plan, data=data, out=tmp_path / "run", begin_with=folder)
    assert not (tmp_path / "run").exists()
    ids = {name: torch.zeros(4, dtype=torch.int64) for name in ("users", "items")}
    options = htrain.Options(sparse_optimizer=htrain.Adagrad(lr=RATE))
    alone = htrain.compile(TablesAlone(), example_inputs=ids, options=options)
    htrain.run(alone, data=data, out=tmp_path / "alone", begin_with=folder)
    htrain.export(tmp_path / "alone", to="tables", out=tmp_path / "trained")
    for name, values in exported(tmp_path / "trained").items():
        changed = (values != looked[name]).any(1).nonzero().flatten().tolist()
        assert changed == {"user.weight": [2, 3], "item.weight": [4, 5]}[name]


class TablesAlone(nn.Module):
    """The tables of the page's model, and no weight beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(5000, 16), nn.Embedding(5000, 16)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """users[B], items[B]: score[B]."""
        return (self.user(users) * self.item(items)).sum(1)


def clicks(folder: Path) -> str:
    """Data of two users and two items."""
    path, schema = folder / "clicks.csv", folder / "schema.yaml"
    path.write_text("y,u,i\n" + "1,3,4\n0,2,5\n" * 20)
    ids = "{{kind: ids, columns: [{}], rows: 20}}"
    schema.write_text(f"label: y\ninputs: {{users: {ids.format('u')}, items: {ids.format('i')}}}\n")
    return f"csv:{path}?schema={schema}"


def test_serving_ends_well_though_nobody_reads_what_it_prints(page: Path) -> None:
    """As behind `| head -1`."""
    with serving(page / "plan", page / "runs" / "unread") as served:
        assert served.process.stdout
        served.process.stdout.close()
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(60) == 0, served.told()
    assert list(served.folder.glob("checkpoints/*/manifest.json"))


@pytest.mark.parametrize(("optimizer", "workers"), [("sgd", 8), ("adagrad", 4)])
def test_without_staleness_workers_of_ddp_follow_their_joint_batch(
    optimizer: str, workers: int, tmp_path: Path
) -> None:
    """The reference is one model in PyTorch, whose loss is the mean over all shares."""
    steps = 25
    torch.manual_seed(0)
    reference = ddp_workers.Model(*(nn.Embedding(rows, ddp_workers.DIM) for rows in TABLES.values()))
    ddp_workers.weights_alike(reference)
    inputs = {name: torch.zeros(4, dtype=torch.int64) for name in ("users", "items")}
    options = with_flags(sparse_optimizer=optimizer, sparse_lr=0.1, cache="het", cache_staleness=0)  # type: ignore[arg-type]
    cluster = htrain.Cluster(groups=1, trainers=1, group_ps=0, sparse_ps=2)
    htrain.compile(reference, example_inputs=inputs, options=options, cluster=cluster).save(tmp_path / "plan")
    with serving(tmp_path / "plan", tmp_path / "run") as served:
        with connect(served.folder) as tables:
            begun = [tables.look(name, torch.arange(rows)) for name, rows in TABLES.items()]
        words = [str(served.folder), str(workers), str(steps), str(tmp_path / "meeting")]
        said = module_of(ROOT / "tests" / "support", "ddp_workers", *words)
        served.stop()
    weights = [reference.user.weight, reference.item.weight]
    for weight, values in zip(weights, begun, strict=True):
        weight.data.copy_(values)
    kinds = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "rowwise_adagrad": partial(RowWiseAdagrad, eps=1e-10),
    }
    dense, sparse = torch.optim.SGD(reference.scores.parameters(), 0.1), kinds[optimizer](weights, lr=0.1)
    wanted = []
    for shares in zip(*(ddp_workers.batches(rank, steps) for rank in range(workers)), strict=True):
        losses = [nn.functional.binary_cross_entropy_with_logits(reference(*ids), label) for *ids, label in shares]
        for each in (dense, sparse):
            each.zero_grad()
        torch.stack(losses).mean().backward()
        for each in (dense, sparse):
            each.step()
        wanted.append([float(loss.detach()) for loss in losses])
    torch.testing.assert_close(torch.tensor(json.loads(said)).T, torch.tensor(wanted), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_served_is_said(page: Path, tmp_path: Path) -> None:
    for arguments, error, said in (
        ({"out": tmp_path / "a", "listen": "no host"}, UsageError, "'no host' is no address of this host"),
        (
            {"out": tmp_path / "a", "resume": tmp_path / "a"},
            UsageError,
            "give either out=, a new run folder, or resume=",
        ),
        ({"out": page}, UsageError, "holds something that is no run"),
        ({"out": tmp_path / "a", "listen": "nosuch"}, UsageError, "--listen nosuch: is no address, no interface"),
        (
            {"out": tmp_path / "a", "listen": "127.0.0.1:65535"},
            UsageError,
            "take the ports 65535 to 65536, the last of all",
        ),
        (
            {"out": tmp_path / "a", "listen": "192.0.2.1"},
            RunError,
            r"^cannot listen on tcp://192.0.2.1:\*: Cannot assign .*; choose an address of this host with --listen$",
        ),
    ):
        with pytest.raises(error, match=said):
            htrain.serve(page / "plan", **arguments)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(8, 1), nn.Flatten(0))
    htrain.compile(model, example_inputs={"input": torch.zeros(3, 2, dtype=torch.int64)}).save(tmp_path / "plain")
    with pytest.raises(PlanError, match=r"the plan has nothing to serve: .* compile it with --cache het"):
        htrain.serve(tmp_path / "plain", out=tmp_path / "b")
    options = with_flags(cache="het", sparse_lazy_weight_decay=0.1)
    htrain.compile(
        model,
        example_inputs={"input": torch.zeros(3, 2, dtype=torch.int64)},
        cluster=htrain.Cluster(group_ps=0),
        options=options,
    ).save(tmp_path / "decays")
    with pytest.raises(
        PlanError, match=r"lazy_weight_decay is 0.1: .* have 0.05 times the squares of a batch's rows in your loss"
    ):
        htrain.serve(tmp_path / "decays", out=tmp_path / "b")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    with pytest.raises(
        UsageError, match=r"holds no serving.json: serve it first: htrain serve .* --out RUN, and connect to RUN"
    ):
        connect(page / "plan")


def test_a_port_that_is_taken_is_said(page: Path, tmp_path: Path) -> None:
    folder = page / "runs" / "taken"
    with serving(page / "plan", page / "runs" / "first") as served:
        port = json.loads((served.folder / "serving.json").read_text())["address"].rpartition(":")[2]
        words = ["serve", str(page / "plan"), "--out", str(folder), "--listen", f"127.0.0.1:{port}"]
        run = shared_commands().run(words, tmp_path, timeout=60)
        assert run.returncode == 1
        assert run.stderr == (
            f"htrain: cannot listen on tcp://127.0.0.1:{port}: Address already in use; choose another port with --listen\n"
        )
        assert not folder.exists(), "the same --out with another --listen is no folder of a run"
        began = time.monotonic()
        served.stop()
        assert time.monotonic() - began < 20
