"""One process, one trainer, no PS, against plain PyTorch eager: the same model, batches, optimizer and threads.

    python tools/bench/single_process.py [--batch 2048 --batch 128] [--dtype bfloat16]

A DLRM with 26 tables of 10^5 rows x 64 (bottom 13-512-256-64, top 512-256-1). Prints, per batch size,
the ratio of examples per second (htrain / eager) of alternating runs: median, minimum and maximum.
With bfloat16, also against autocast. Each side has a process of its own.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from history import append, summary

sys.path.insert(0, str(Path(__file__).parents[1]))

from baseline import build_model, optimizers, train_step

from htrain.compiler.pipeline import compile_net
from htrain.costs.memory import largest_made
from htrain.data import START, Batch, Malformed, Schema, open_data
from htrain.executor.host.memory import heaps_for, keep_large, keep_pages
from htrain.executor.host.threads import share_gil
from htrain.executor.launch.role import RunningRole
from htrain.executor.loops.feed import Feed
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags


@dataclass(frozen=True)
class Work:
    """What is trained: a model as `htrain compile` is told of it, on a synthetic log of 26 columns of `table_rows` ids each."""

    model: str
    table_rows: int


DLRM = Work(str(Path(__file__).parents[2] / "models" / "dlrm.py:build_bench"), 100_000)


def read(batch_size: int, num_batches: int, work: Work = DLRM) -> list[Batch]:
    """Batches in memory, so that neither side pays for reading."""
    data = open_data(f"synthetic:?rows={batch_size * num_batches}&table_rows={work.table_rows}")
    return list(
        data.batches(batch_size=batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed())
    )


def schema_of(work: Work) -> Schema:
    """The schema of what `read` gives."""
    return open_data(f"synthetic:?table_rows={work.table_rows}").schema


def make_plan(options: Options, folder: Path, work: Work = DLRM) -> Plan:
    """The plan of one trainer alone; also in `folder`."""
    loaded = load_model(work.model, schema_of(work))
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    plan = compile_net(
        captured, this_machine(group_ps=0, sparse_ps=0, dense_ps=0), options, name=work.model.rpartition(":")[2]
    )
    plan.save(folder)
    return plan


class Htrain:
    """One trainer, in a process as roles have it."""

    said = ""

    def __init__(self, options: Options, batches: list[Batch], folder: Path, work: Work = DLRM) -> None:
        self.plan, self._folder, self._batches = make_plan(options, folder, work), folder, batches
        self._largest = largest_made(self.plan.net_of("trainer"), options.batch_size)
        keep_pages(heaps_for(options.net_replicas, self._largest))
        share_gil(options.net_replicas)
        self.train(4)  # compiles the loops

    def train(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of training the first `steps` batches. Raises what the role raised."""
        settings = RunSettings(self._folder, "synthetic:", self._folder / "run")
        network = Network("inproc")
        role = RunningRole("trainer:0:0", self.plan, settings, network)
        role.fill()
        keep_large(self._largest)
        assert role.trainer
        wall, cpu = time.perf_counter(), time.process_time()
        role.start({}, Feed(iter(self._batches[:steps]), START, steps, role.watch.activity("reader")))
        for thread in role.trainer.threads:
            thread.join()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        if role.error:
            raise role.error
        if role.trainer.totals.steps != steps:
            raise SystemExit(
                f"{role.trainer.totals.steps} steps were trained, not {steps}: what is printed would be wrong"
            )
        role.stop()
        network.close()
        return spent


class Eager:
    """Plain PyTorch; embeddings have sparse gradients."""

    said = ""

    def __init__(self, options: Options, batches: list[Batch], folder: Path, work: Work = DLRM) -> None:
        self._model = build_model(work.model, schema_of(work), 0)
        self._steps = optimizers(self._model, options)
        self._batches = [{name: torch.from_numpy(column) for name, column in b.columns.items()} for b in batches]
        self.train(4)

    def train(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of training the first `steps` batches."""
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in self._batches[:steps]:
            train_step(self._model, self._steps, batch)
        return time.perf_counter() - wall, time.process_time() - cpu


Spent = tuple[float, float]  # wall and CPU seconds


class Trains(Protocol):
    """A side in its own process; what it says of itself."""

    said: str

    def train(self, steps: int) -> Spent:
        """Train the first `steps` batches."""


@dataclass(frozen=True)
class Side:
    """What is timed: `kind` makes it of options, batches, a folder of its own, and its work."""

    kind: Callable[[Options, list[Batch], Path, Work], Trains]
    options: Options
    work: Work = DLRM


class Running:
    """A side in a process of its own: neither has the other's memory, nor its settings."""

    def __init__(self, side: Side, steps: int, threads: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._line, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(side, steps, threads, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of a process that failed is noticed
        self.said: str = self._line.recv()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def train(self) -> Spent:
        """Of one run over all batches."""
        self.begin()
        return self.end()

    def begin(self) -> None:
        self._line.send(True)

    def end(self) -> Spent:
        spent: Spent = self._line.recv()
        return spent

    def stop(self) -> None:
        self._line.send(False)
        self._process.join()


class Compiled(Eager):
    """The same under torch.compile, forward and backward; optimizers as they are. It wants a C++ compiler."""

    def __init__(self, options: Options, batches: list[Batch], folder: Path, work: Work = DLRM) -> None:
        super().__init__(options, batches, folder, work)
        self._model = torch.compile(self._model)  # type: ignore[assignment]
        self.train(4)


class Autocast(Eager):
    """Plain PyTorch under bfloat16 autocast."""

    def train(self, steps: int) -> tuple[float, float]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().train(steps)


class TorchRec(Eager):
    """The same model whose tables are TorchRec's, with its fused SGD."""

    def __init__(self, options: Options, batches: list[Batch], folder: Path, work: Work = DLRM) -> None:
        self._model = build_model(work.model, schema_of(work), 0)
        tables = self._model.embeddings.tables  # type: ignore[union-attr]
        self._model.embeddings = import_module("torchrec_fields").Fields(
            dict(tables.items()), options.sparse_optimizer.lr
        )  # type: ignore[operator,union-attr]
        self._steps = [
            torch.optim.SGD(
                [*self._model.bottom.parameters(), *self._model.top.parameters()], lr=options.dense_optimizer.lr
            )
        ]  # type: ignore[union-attr]
        self._batches = [{name: torch.from_numpy(column) for name, column in b.columns.items()} for b in batches]
        self.train(4)


def _serve(side: Side, steps: int, threads: int, line: Connection) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        ready = side.kind(side.options, read(side.options.batch_size, steps, side.work), Path(folder), side.work)
        line.send(ready.said)
        while line.recv():
            line.send(ready.train(steps))


@contextmanager
def sides_of(sides: Sequence[Side], steps: int, threads: int) -> Iterator[list[Running]]:
    """All sides, ready."""
    running = [Running(side, steps, threads) for side in sides]
    yield running
    for side in running:
        side.stop()


def compare(options: Options, others: Sequence[type[Eager]], runs: int, threads: int) -> dict[str, Any]:
    """Alternating runs of htrain and the others; prints a line for each, and returns its figures."""
    steps = max(12, 25_000 // options.batch_size)
    kinds: list[type[Htrain | Eager]] = [Htrain, *others]
    with sides_of([Side(kind, options) for kind in kinds], steps, threads) as sides:
        rounds = [[side.train() for side in sides] for _ in range(runs)]
    eps = [[steps * options.batch_size / side[0] for side in each] for each in rounds]
    figures: dict[str, Any] = {"htrain EPS": summary([each[0] for each in eps])}
    for place, other in enumerate(others, 1):
        name = other.__name__.lower()
        figures[f"{name} EPS"] = summary([each[place] for each in eps])
        figures[f"over {name}"] = ratio = summary([each[place][0] / each[0][0] for each in rounds])
        figures[f"CPU over {name}"] = cpu = summary([each[place][1] / each[0][1] for each in rounds])
        print(
            f"dlrm batch {options.batch_size:5d} {options.dense_optimizer.kind} {options.numerics.fc_dtype}  "
            f"htrain {figures['htrain EPS']['median']:,.0f} EPS  "
            f"{name} {figures[f'{name} EPS']['median']:,.0f} EPS  ratio {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, n={runs})  "
            f"CPU ratio {cpu['median']:.2f}  {threads} threads of {os.cpu_count()}",
            flush=True,
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of htrain's FCs")
    parser.add_argument("--compile", action="store_true", help="against torch.compile, too: wants a C++ compiler")
    parser.add_argument(
        "--torchrec", action="store_true", help="against TorchRec, too: pip install torchrec fbgemm-gpu-cpu"
    )
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    options = with_flags(net_replicas=1, dense_optimizer=asked.optimizer, sparse_optimizer=asked.optimizer)
    options = with_flags(options, fc_dtype=asked.dtype, fc_gradient_dtype=asked.dtype)
    others: list[type[Eager]] = [Eager] if asked.dtype == "float32" else [Eager, Autocast]
    others += [Compiled] if asked.compile else []
    others += [TorchRec] if asked.torchrec else []
    for batch_size in asked.batch or [2048, 128]:
        figures = compare(replace(options, batch_size=batch_size), others, asked.runs, asked.threads)
        if asked.history:
            append(asked.history, "single_process", {**vars(asked), "batch": batch_size}, figures)


if __name__ == "__main__":
    main()
