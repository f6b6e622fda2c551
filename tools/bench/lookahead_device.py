"""Examples per second on a CUDA device: out of look-ahead caches, against PyTorch with (a) all tables on the device, (b) tables on the host.

    python tools/bench/lookahead_device.py [--batches 2048,8192,32768] [--times 1,2,8] [--steps 48] [--warm 96] [--rows 500000] [--runs 3]
        [--zipf 1.05] [--locality 0.5] [--device cuda] [--optimizer rowwise_adagrad] [--trace] [--out FILE]

A DLRM with 26 tables of `--rows` x 64 (bottom 13-512-256-64, top 512-512-256-1), one trainer in this process, batches that are in memory
beforehand (cDLRM 7.1, Figure 3). The tables are `--times` as large as their caches; caches that are not as large as their tables look so far ahead that a
window's ids fill 6 of 16 ways. PyTorch trains eagerly with sparse gradients; in (b) the rows of each batch go to the device and their gradients
back; it steps with SGD, whatever `--optimizer` the tables of the caches have. The caches and (a) train `--warm` batches that do not count, then `--runs` times
`--steps` that do; (b), which is slower, a fifth of both. Medians, and of the cached ones the least and the most, since a window that is placed delays the steps
behind it. `hits` is the share of the distinct rows that steps found in the caches. `stayed` is that of all lookups of the counted runs for which no row
was brought, as a cache that does not look ahead counts its hits: `--zipf` and `--locality` of the ids set it. `--trace` counts in a further run what the
device was asked for, a step, and how often the host waited for it. With `--device cpu` the host stands in for the device: that the script runs. `--out`
appends a line of JSON with the machine. The last lines are a table for the docs.
"""

import argparse
import itertools
import json
import platform
import statistics
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import htrain
from htrain.data import START, Batch, Malformed, open_data
from htrain.executor.host.memory import keep_pages
from htrain.executor.launch.role import RunningRole
from htrain.executor.loops.feed import Feed
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.frontend.load import load_model
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py:build_64")
TRAINER = "trainer:0:0"
_WAYS, _TABLES = 16, 26


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
        model = load_model(MODEL, open_data(_log(asked)).schema).module
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
    batches: list[Batch], asked: argparse.Namespace, batch_size: int, times: int, traced: "Traced"
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each counted run of a trainer with look-ahead caches, and what they say in the end."""
    sets: dict[str, Any] = {}
    if times > 1:
        slots = asked.rows // times
        sets = {"cache_sets": slots // _WAYS, "cache_ways": _WAYS, "cache_window": window_of(batches, slots)}
    options = with_flags(
        batch_size=batch_size, sparse_optimizer=asked.optimizer, dense_optimizer="sgd", sparse_lr=0.05, dense_lr=0.01,
        cache="lookahead", cache_device=asked.device, **sets,
    )  # fmt: skip
    keep_pages()  # as every role does
    cluster = replace(this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0), trainer_memory=64 << 30)
    with tempfile.TemporaryDirectory() as folder:
        data = _log(asked)
        plan = htrain.compile(MODEL, data=data, cluster=cluster, options=options, self_check=False)
        plan.save(Path(folder) / "plan")
        network = Network("inproc")
        role = RunningRole(TRAINER, plan, RunSettings(Path(folder) / "plan", data, Path(folder) / "run"), network)
        role.fill()
        trainer = role.trainer
        assert trainer
        role.start({}, Feed(iter(batches), START, 64, role.watch.activity("reader")))
        ends, brought = [], []
        for run in range(asked.runs + 1 + asked.trace):
            with traced(lambda: trainer.totals.steps) if run > asked.runs else nullcontext():
                while trainer.totals.steps < _ends(asked)[run + 1]:
                    if role.error:
                        raise role.error
                    time.sleep(0.0002)
                ends.append(time.monotonic())
                brought.append(role.metrics()["caches"]["loaded"])
        while not trainer.finished:
            time.sleep(0.01)
        counts = role.metrics()["caches"]
        lookups = _TABLES * batch_size * (_ends(asked)[asked.runs + 1] - _ends(asked)[1])
        counts["stayed"] = 1 - (brought[asked.runs] - brought[0]) / lookups
        role.stop()
        network.close()
    return [end - began for began, end in itertools.pairwise(ends[: asked.runs + 1])], counts


def window_of(batches: list[Batch], slots: int) -> int:
    """How many batches have so many distinct ids, of the first table, as fill 6 of 16 ways of a cache."""
    seen: set[int] = set()
    for count, batch in enumerate(batches):
        seen.update(batch.columns["sparse"][:, 0].tolist())
        if len(seen) > slots * 6 // 16:
            return max(1, count)
    return len(batches)


def main() -> None:
    asked = _arguments()
    machine = (
        torch.cuda.get_device_name()
        if asked.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{machine}, torch {torch.__version__}, 26 tables of {asked.rows:,} rows x 64, ids by Zipf's law ({asked.zipf}, locality {asked.locality}), "
        f"{asked.optimizer}, EPS, medians of {asked.runs} runs"
    )
    lines = []
    for size in map(int, asked.batches.split(",")):
        batches = _batches(size, asked)
        fewer = argparse.Namespace(**{**vars(asked), "warm": asked.warm // 5, "steps": asked.steps // 5})
        steps = {"host": fewer.steps}
        took = {
            place: Eager(asked, on_host=place == "host").seconds(
                batches, fewer if place == "host" else asked, Traced(asked, place)
            )
            for place in ("device", "host")
        }
        for times in map(int, asked.times.split(",")):
            took["cached"], counts = cached(batches, asked, size, times, Traced(asked, "cached"))
            found = {name: [size * steps.get(name, asked.steps) / s for s in each] for name, each in took.items()}
            mid = {name: statistics.median(values) for name, values in found.items()}
            hits = counts["hits"] / max(1, counts["hits"] + counts["misses"])
            own = f"{mid['cached']:,.0f} | {min(found['cached']):,.0f}, {max(found['cached']):,.0f} | {hits:.2%} | {counts['stayed']:.1%}"
            others = f"{mid['device']:,.0f} | {mid['host']:,.0f} | {mid['cached'] / mid['device']:.2f} | {mid['cached'] / mid['host']:.2f}"
            lines.append(f"| {size:,} | {times} | {own} | {others} |")
            print(lines[-1], flush=True)
            if asked.out:
                line = {"machine": machine, "torch": torch.__version__, "batch": size, "rows": asked.rows, "eps": found}
                with asked.out.open("a") as file:
                    more = {"optimizer": asked.optimizer, "caches": counts, "times": times}
                    file.write(json.dumps({**line, **more}) + "\n")
    print(
        "\n| batch | tables over cache | out of caches | least, most | hits | stayed | tables on the device | on the host | to the device | to the host |"
    )
    print("|" + 10 * "---|", *lines, sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="2048,8192,32768")
    parser.add_argument("--times", default="1,2,8")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--warm", type=int, default=96)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--locality", type=float, default=0.5)
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
        self._waits: Counter[tuple[str, str]] = Counter()
        self._counting = ExitStack()
        self._counting.enter_context(waits(self._waits, self._device))
        self._profile.__enter__()
        self._began = self._steps()

    def __exit__(self, *failed: Any) -> None:
        self._counting.close()
        finish(self._device)
        steps = self._steps() - self._began
        self._profile.__exit__(*failed)
        counts: Counter[str] = Counter()
        micros: Counter[str] = Counter()
        for event in self._profile.events() or ():
            counts[event.name] += 1
            micros[event.name] += event.device_time_total if event.device_time_total else event.cpu_time_total
        busy = sum(time for name, time in micros.items() if not name.startswith("cu"))
        print(f"  {self._name}: a step, of {steps}; the device is busy for {busy / max(1, steps):,.0f} us of each")
        for (thread, where), count in self._waits.most_common(12):
            print(f"  {count / max(1, steps):8.2f} waits a step of {thread} in {where}")
        for name, count in counts.most_common(28):
            print(f"  {count / steps:8.1f} x {micros[name] / count:9.1f} us  {name[:110]}")


@contextmanager
def waits(counted: Counter[tuple[str, str]], device: str) -> Iterator[None]:
    """Count, by thread and function, where the host waits for the device: in calls that PyTorch knows to wait, and for events."""
    if device != "cuda":
        yield
        return

    def note(*_: Any, **__: Any) -> None:
        stack = [f for f in traceback.extract_stack() if "htrain" in f.filename and "tools" not in f.filename]
        counted[threading.current_thread().name, stack[-1].name if stack else "the benchmark"] += 1

    def synchronize(event: torch.cuda.Event) -> None:
        if not event.query():
            note()
        plain(event)

    plain, shown = torch.cuda.Event.synchronize, warnings.showwarning
    torch.cuda.set_sync_debug_mode("warn")
    torch.cuda.Event.synchronize = synchronize  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.Event.synchronize, warnings.showwarning = plain, shown  # type: ignore[method-assign]


def _batches(batch: int, asked: argparse.Namespace) -> list[Batch]:
    data = open_data(f"{_log(asked)}&rows={batch * _ends(asked)[-1]}")
    return list(data.batches(batch_size=batch, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()))


def _log(asked: argparse.Namespace) -> str:
    return f"synthetic:?table_rows={asked.rows}&zipf={asked.zipf}&locality={asked.locality}"


def _ends(asked: argparse.Namespace) -> list[int]:
    """Batches before and after each run, the first of which does not count."""
    return [0, *(asked.warm + run * asked.steps for run in range(asked.runs + 1 + asked.trace))]


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
