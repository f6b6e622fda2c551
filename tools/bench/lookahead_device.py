"""Examples per second on a CUDA device: out of look-ahead caches, against PyTorch with (a) all tables on the device, (b) tables on the host.

    python tools/bench/lookahead_device.py [--batches 2048,4096,8192,16384,32768] [--steps 40] [--warm 100] [--rows 500000] [--runs 3]
        [--device cuda] [--optimizer rowwise_adagrad] [--trace] [--out FILE]

A DLRM with 26 tables of `--rows` x 64 (bottom 13-512-256-64, top 512-512-256-1), one trainer in this process, batches that are in memory
beforehand (cDLRM 7.1, Figure 3). PyTorch trains eagerly with sparse gradients; in (b) the rows of each batch go to the device and their gradients
back; it steps with SGD, whatever `--optimizer` the tables of the caches have. Each of the three trains `--warm` batches that do not count, then `--runs` times
`--steps` that do: medians, and of the cached ones the least and the most, since a window that is placed delays the steps behind it. `hits` is the share of
the distinct rows that steps found in the caches. `--trace` counts in a further run what the device was asked for, a step. With `--device cpu` the host stands
in for the device: that the script runs. `--out` appends a line of JSON with the machine.
"""

import argparse
import itertools
import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import htrain
from htrain.data import START, Batch, Malformed, open_data
from htrain.executor.launch.role import RunningRole
from htrain.executor.loops.feed import Feed
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.frontend.load import load_model
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_64")
TRAINER = "trainer:0:0"


class OnHost(nn.Module):
    """A table on the host: rows travel to the device, gradients back."""

    def __init__(self, table: nn.Embedding, device: str) -> None:
        super().__init__()
        self.table, self._device = [table], device  # in a list: not moved with the module

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table[0](ids)
        return rows.to(self._device)


class Eager:
    """PyTorch, with its tables on the device or on the host."""

    def __init__(self, asked: argparse.Namespace, *, on_host: bool) -> None:
        self._device, self._ids = asked.device, "cpu" if on_host else asked.device
        model = load_model(MODEL, open_data(f"synthetic:?table_rows={asked.rows}").schema).module
        tables: list[nn.Parameter] = []
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Embedding):
                    child.sparse = True
                    if on_host:
                        child.to_empty(device="cpu")
                        tables.append(child.weight)
                        setattr(parent, name, OnHost(child, asked.device))
        self._model = model.to_empty(device=asked.device)
        for parameter in (*model.parameters(), *tables):
            parameter.data.fill_(0.01)  # what values are does not change what a step costs
        groups = [{"params": model.parameters(), "lr": 0.01}, *([{"params": tables, "lr": 0.05}] if tables else [])]
        self._step = torch.optim.SGD(groups)
        self._loss, self._steps = nn.BCEWithLogitsLoss(), 0

    def train(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            columns = {
                name: torch.from_numpy(c).to(self._ids if c.dtype == "int64" else self._device, non_blocking=True)
                for name, c in batch.columns.items()
            }
            label = columns.pop("label")
            self._step.zero_grad()
            self._loss(self._model(**columns).reshape(-1), label).backward()
            self._step.step()
            self._steps += 1

    def seconds(self, batches: list[Batch], asked: argparse.Namespace, traced: "Traced") -> list[float]:
        """Of each counted run."""
        spent = []
        for run in range(asked.runs + 1 + asked.trace):
            with traced(lambda: self._steps) if run > asked.runs else nullcontext():
                began = time.monotonic()
                self.train(batches[slice(*_ends(asked)[run : run + 2])])
                finish(self._device)
                spent.append(time.monotonic() - began)
        return spent[1 : asked.runs + 1]


def cached(
    batches: list[Batch], asked: argparse.Namespace, batch_size: int, traced: "Traced"
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each counted run of a trainer with look-ahead caches, and what they say in the end."""
    options = with_flags(
        batch_size=batch_size, sparse_optimizer=asked.optimizer, dense_optimizer="sgd", sparse_lr=0.05, dense_lr=0.01,
        cache="lookahead", cache_device=asked.device,
    )  # fmt: skip
    cluster = replace(this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0), trainer_memory=64 << 30)
    with tempfile.TemporaryDirectory() as folder:
        data = f"synthetic:?table_rows={asked.rows}"
        plan = htrain.compile(MODEL, data=data, cluster=cluster, options=options, self_check=False)
        plan.save(Path(folder) / "plan")
        network = Network("inproc")
        role = RunningRole(TRAINER, plan, RunSettings(Path(folder) / "plan", data, Path(folder) / "run"), network)
        role.fill()
        trainer = role.trainer
        assert trainer
        role.start({}, Feed(iter(batches), START, 64, role.watch.activity("reader")))
        ends = []
        for run in range(asked.runs + 1 + asked.trace):
            with traced(lambda: trainer.totals.steps) if run > asked.runs else nullcontext():
                while trainer.totals.steps < _ends(asked)[run + 1]:
                    if role.error:
                        raise role.error
                    time.sleep(0.0002)
                ends.append(time.monotonic())
        while not trainer.finished:
            time.sleep(0.01)
        counts = role.metrics()["caches"]
        role.stop()
        network.close()
    return [end - began for began, end in itertools.pairwise(ends[: asked.runs + 1])], counts


def main() -> None:
    asked = _arguments()
    machine = (
        torch.cuda.get_device_name()
        if asked.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{machine}, torch {torch.__version__}, 26 tables of {asked.rows:,} rows x 64, {asked.optimizer}, EPS, medians of {asked.runs} runs"
    )
    print(
        f"{'batch':>6}{'cached':>12}{'least':>12}{'most':>12}{'hits':>9}{'(a) device':>12}{'(b) host':>12}{'to (a)':>9}{'to (b)':>9}",
        flush=True,
    )
    eager = {place: Eager(asked, on_host=place == "host") for place in ("device", "host")}
    for size in map(int, asked.batches.split(",")):
        batches = _batches(size, asked)
        took: dict[str, list[float]] = {}
        took["cached"], counts = cached(batches, asked, size, Traced(asked, "cached"))
        for place, one in eager.items():
            took[place] = one.seconds(batches, asked, Traced(asked, place))
        found = {name: [size * asked.steps / seconds for seconds in each] for name, each in took.items()}
        mid = {name: statistics.median(values) for name, values in found.items()}
        ratios = f"{mid['cached'] / mid['device']:>8.2f}x{mid['cached'] / mid['host']:>8.2f}x"
        own = f"{mid['cached']:>12,.0f}{min(found['cached']):>12,.0f}{max(found['cached']):>12,.0f}"
        hits = counts["hits"] / max(1, counts["hits"] + counts["misses"])
        print(f"{size:>6}{own}{hits:>9.2%}{mid['device']:>12,.0f}{mid['host']:>12,.0f}{ratios}", flush=True)
        if asked.out:
            line = {"machine": machine, "torch": torch.__version__, "batch": size, "rows": asked.rows, "eps": found}
            with asked.out.open("a") as file:
                file.write(json.dumps({**line, "optimizer": asked.optimizer, "caches": counts}) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="2048,4096,8192,16384,32768")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "rowwise_adagrad", "adagrad"])
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Traced:
    """A context that counts what the device does within it, and prints that by `steps`, as many as were done within."""

    def __init__(self, asked: argparse.Namespace, name: str) -> None:
        of = torch.profiler.ProfilerActivity
        self._device, self._name = asked.device, name
        self._profile = torch.profiler.profile(
            activities=[of.CUDA if asked.device == "cuda" else of.CPU], acc_events=True
        )
        self._steps: Callable[[], int] = lambda: 0
        self._began = 0

    def __call__(self, steps: Callable[[], int]) -> "Traced":
        self._steps = steps
        return self

    def __enter__(self) -> None:
        self._profile.__enter__()
        self._began = self._steps()

    def __exit__(self, *failed: Any) -> None:
        finish(self._device)
        steps = self._steps() - self._began
        self._profile.__exit__(*failed)
        counts: Counter[str] = Counter()
        micros: Counter[str] = Counter()
        for event in self._profile.events() or ():
            counts[event.name] += 1
            micros[event.name] += event.device_time_total if event.device_time_total else event.cpu_time_total
        print(f"  {self._name}: a step, of {steps}")
        for name, count in counts.most_common(28):
            print(f"  {count / steps:8.1f} x {micros[name] / count:9.1f} us  {name[:110]}")


def _batches(batch: int, asked: argparse.Namespace) -> list[Batch]:
    data = open_data(f"synthetic:?rows={batch * _ends(asked)[-1]}&table_rows={asked.rows}")
    return list(data.batches(batch_size=batch, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))


def _ends(asked: argparse.Namespace) -> list[int]:
    """Batches before and after each run, the first of which does not count."""
    return [0, *(asked.warm + run * asked.steps for run in range(asked.runs + 1 + asked.trace))]


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
