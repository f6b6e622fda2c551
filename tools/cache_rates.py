"""What caches ask for, as it is counted from a trace and as real runs report it: hit rate, rows fetched and evicted, bytes.

    python tools/cache_rates.py --frappe ../shared/data/frappe.libfm.gz [--gowalla ../shared/data/gowalla.txt.gz] [--epochs 4] [--only het]

Each setting is a plan of Wide & Deep, or of GraphSAGE for Gowalla, run in threads of this process; batches of 128. The run's figures are those of its
second half, without its last report, in which caches are emptied. Counted is over the same data: until the counts are steady, and not more than
the run's batches. Rows are per batch of a trainer, the sum over all caches; of a look-ahead cache, fetched are those that are put into
it. Bytes are those between trainers and sparse PSs per batch, by the shapes that the cost model expects, and as HET's caches count them.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import htrain
from htrain.costs.expected import expected_blobs
from htrain.ops.cache_rates import Rates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.id_sources import Trace
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[1] / "models"
BATCH = 128
HET = [
    (1, {"capacity": "2%", "staleness": 100, "policy": "light-lfu"}),
    (1, {"capacity": "10%", "staleness": 10, "policy": "light-lfu"}),
    (1, {"capacity": "20%", "staleness": 100, "policy": "lru"}),
    (1, {"capacity": "10%", "staleness": 100, "policy": "lfu", "window": 1}),
    (1, {"capacity": "10%", "staleness": 0, "policy": "lru"}),
    (2, {"capacity": "5%", "staleness": 10, "policy": "lfu"}),
    (2, {"capacity": "20%", "staleness": 100, "policy": "light-lfu"}),
    (2, {"capacity": "20%", "staleness": 10, "policy": "lru", "window": 1}),
    (2, {"capacity": "10%", "staleness": 0, "policy": "light-lfu"}),
]
LOOKAHEAD = [
    (1, {"window": 1, "sets": 17, "ways": 16}),
    (1, {"window": 4, "sets": 61, "ways": 16}),
    (1, {"window": 8, "sets": 61, "ways": 16}),
    (2, {"window": 2, "sets": 61, "ways": 16}),
]


@dataclass(frozen=True)
class Setting:
    """A plan to be compiled, and the data to run it on."""

    name: str
    kind: str
    model: str
    data: str
    trainers: int
    cache: Mapping[str, Any]

    def plan(self) -> Plan:
        flags = {f"cache_{name}": value for name, value in self.cache.items()}
        options = with_flags(dense_sync="allreduce", batch_size=BATCH, cache=self.kind, **flags)
        cluster = this_machine(groups=self.trainers, trainers=1, group_ps=0, sparse_ps=1)
        return htrain.compile(
            MODELS / self.model, data=self.data, cluster=cluster, options=options, fc_splits={}, self_check=False
        )


@dataclass(frozen=True)
class Found:
    """The share of hits, rows fetched and evicted per batch of a trainer, and bytes to and from sparse PSs per batch."""

    hit_rate: float
    fetched: float
    evicted: float
    num_bytes: float


def settings(frappe: Path | None, gowalla: Path | None) -> Iterator[Setting]:
    if frappe:
        uri = f"libfm:{frappe}?rows=5382"
        for kind, known in (("het", HET), ("lookahead", LOOKAHEAD)):
            yield from (Setting("Frappe", kind, "wide_deep.py", uri, trainers, cache) for trainers, cache in known)
    if gowalla:
        uri = f"graph:{gowalla}?fanout=3,2"
        for kind, cache in (
            ("het", HET[0][1]),
            ("het", HET[2][1]),
            ("lookahead", {"window": 4, "sets": 499, "ways": 16}),
        ):
            yield Setting("Gowalla", kind, "graphsage.py", uri, 1, cache)


def counted(plan: Plan, rates: Rates) -> Found:
    caches = rates.caches.values()
    asked, hits = sum(cache.asked for cache in caches), sum(cache.hits for cache in caches)
    blobs = expected_blobs(plan.nets["train"], plan.cluster, BATCH, rates)
    travels = [name for op in plan.nets["train"].ops if op.type in ("HetAsk", "HetPull") for name in op.outputs]
    at_home = {op.outputs[0] for op in plan.nets["train"].ops if op.type == "HetAsk"}
    counts = [name for name in travels if name not in at_home and blobs[name].dtype != "int64"]
    fetched = sum(cache.fetched if plan.options.cache.kind == "het" else cache.loaded for cache in caches)
    return Found(
        hits / asked, fetched, sum(cache.evicted for cache in caches), sum(blobs[n].num_bytes(BATCH) for n in counts)
    )


def measured(folder: Path, plan: Plan) -> Found:
    """What all trainers' reports say of the second half of a run, in the mean."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["role"] == "run"]
    steps = reports[-1]["steps"]
    begin = next(r for r in reports if r["steps"] >= steps / 2)
    end = [r for r in reports if r["steps"] < steps][-1]
    count = end["steps"] - begin["steps"]
    since = {n: (end["caches"].get(n, 0) - begin["caches"].get(n, 0)) / count for n in COUNTS}
    bytes_of = [sum(r["caches"]["bytes"].values()) for r in (begin, end)]
    fetched = (
        since["misses"] + since["run_out"] + since["stale"] if plan.options.cache.kind == "het" else since["loaded"]
    )
    return Found(
        since["hits"] / (since["hits"] + since["misses"]),
        fetched,
        since["evicted"],
        (bytes_of[1] - bytes_of[0]) / count,
    )


COUNTS = ("hits", "misses", "run_out", "stale", "loaded", "evicted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--gowalla", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", default="", help="settings with this word")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| data | cache | trainers | setting | hit rate | fetched | evicted | bytes |\n|---|---|---|---|---|---|---|---|"
    )
    for setting in settings(asked.frappe, asked.gowalla):
        said = " ".join(f"{name} {value}" for name, value in setting.cache.items())
        if asked.only in f"{setting.name} {setting.kind} {said}":
            print(_line(setting, said, asked.epochs), flush=True)


def _line(setting: Setting, said: str, epochs: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        plan = setting.plan()
        plan.save(Path(folder) / "plan")
        run = Path(folder) / "run"
        htrain.run(
            Path(folder) / "plan",
            data=setting.data,
            out=run,
            epochs=epochs,
            hosting="threads",
            console=Console(quiet=True),
        )
        real = measured(run, plan)
    mine = counted(plan, rates_of(plan, Trace(setting.data, epochs), most_batches=10**6))
    shown = [f"{mine.hit_rate:.2%}, {real.hit_rate:.2%}"]
    for name in ("fetched", "evicted", "num_bytes") if setting.kind == "het" else ("fetched", "evicted"):
        a, b = getattr(mine, name), getattr(real, name)
        shown.append(f"{a:,.1f}, {b:,.1f} ({a / b - 1:+.1%})" if b else f"{a:,.1f}, {b:,.1f}")
    shown += [""] * (4 - len(shown))
    return f"| {setting.name} | {setting.kind} | {setting.trainers} | {said} | {' | '.join(shown)} |"


if __name__ == "__main__":
    main()
