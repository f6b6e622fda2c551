"""What `htrain advise` says of caches against what real runs report: hit rates, rows fetched again, and bytes of an example.

    python tools/advise_against_runs.py --frappe ../shared/data/frappe.libfm.gz [--gowalla ../shared/data/gowalla.txt.gz]
                                        [--epochs 2]

Twelve settings, those of `tools/cache_rates.py` and one more, of Wide & Deep on Frappe and GraphSAGE on Gowalla, batches of
128. Data is read once by `htrain advise`; each setting is a run in threads of this process, whose hit rates are those of
its second half. Bytes are those of an example between its trainer and sparse PSs as the run's links counted them in its
steady part, as the plan predicts them with the rates of `htrain advise`, and with the cluster's constants.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from cache_rates import BATCH, HET, MODELS, Setting
from rich.console import Console

import htrain
from htrain.advising.advice import Advice, Candidate, Grid
from htrain.advising.advice import Setting as Tried
from htrain.executor.record.measured import Edge
from htrain.net.names import SPARSE_PS, role_of
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

USUAL = {"capacity": "10%", "staleness": 100, "policy": "light-lfu", "window": 64}
GOWALLA = [
    (1, {"capacity": "2%", "staleness": 100, "policy": "light-lfu"}),
    (1, {"capacity": "20%", "staleness": 100, "policy": "lru"}),
    (2, {"capacity": "10%", "staleness": 10, "policy": "lfu", "window": 8}),
]


@dataclass(frozen=True)
class Run:
    """Hit rate and share of rows that were fetched again, of a run's second half; bytes of an example of its steady part, and as its plan predicts them."""

    hit_rate: float
    invalid: float
    num_bytes: float
    predicted: float


def settings(frappe: Path | None, gowalla: Path | None) -> Iterator[Setting]:
    if frappe:
        uri = f"libfm:{frappe}?rows=5382"
        yield from (Setting("Frappe", "het", "wide_deep.py", uri, trainers, cache) for trainers, cache in HET)
    if gowalla:
        uri = f"graph:{gowalla}?fanout=3,2"
        yield from (Setting("Gowalla", "het", "graphsage.py", uri, trainers, cache) for trainers, cache in GOWALLA)


def tried(setting: Setting) -> Tried:
    return Tried(**{**USUAL, **setting.cache})


def advised(alike: Sequence[Setting], epochs: int) -> Advice:
    """Advice for settings of the same model, data and trainers."""
    first, all_tried = alike[0], [tried(setting) for setting in alike]
    grid = Grid(*(tuple(dict.fromkeys(getattr(t, n) for t in all_tried)) for n in ("capacity", "policy", "window", "staleness")))  # fmt: skip
    cluster = this_machine(groups=first.trainers, trainers=1, group_ps=0, sparse_ps=1)
    options = with_flags(dense_sync="allreduce", batch_size=BATCH)
    return htrain.advise(
        first.data, model=MODELS / first.model, cluster=cluster, options=options, grid=grid, epochs=epochs
    )


def ran(setting: Setting, plan: Plan, epochs: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan")
        out = Path(folder) / "run"
        result = htrain.run(
            Path(folder) / "plan", data=setting.data, out=out, epochs=epochs, hosting="threads", console=Console(quiet=True),
        )  # fmt: skip
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["role"] == "run"]
    steps = reports[-1]["steps"]
    begin = next(r for r in reports if r["steps"] >= steps / 2)
    end = [r for r in reports if r["steps"] < steps][-1]
    hits, misses, run_out, stale = (
        end["caches"].get(name, 0) - begin["caches"].get(name, 0) for name in ("hits", "misses", "run_out", "stale")
    )
    asked = hits + misses
    edges = [edge for edge in result.measured.edges if of_rows(edge)]
    return Run(
        hits / asked,
        (run_out + stale) / asked,
        sum(edge.measured_bytes for edge in edges),
        sum(edge.predicted_bytes for edge in edges),
    )


def of_rows(edge: Edge) -> bool:
    return SPARSE_PS in (role_of(edge.source), role_of(edge.target))


def line(setting: Setting, said: Candidate, epochs: int) -> tuple[str, float, float]:
    """A line of the table; the points of hit rate and the share of bytes by which the advice is off."""
    plan = setting.plan()
    run = ran(setting, plan, epochs)
    told = said.traffic.bytes_per_example
    points, share = 100 * (said.share.hit_rate - run.hit_rate), told / run.num_bytes - 1
    words = " ".join(f"{name} {value}" for name, value in setting.cache.items())
    rates = f"{said.share.hit_rate:.2%}, {run.hit_rate:.2%} | {said.share.invalid:.2%}, {run.invalid:.2%}"
    of_bytes = f"{told:,.1f} ({share:+.1%}) | {run.predicted:,.1f} ({run.predicted / run.num_bytes:.2f} x)"
    text = f"| {setting.name} | {setting.trainers} | {words} | {rates} | {run.num_bytes:,.1f} | {of_bytes} |"
    return text, points, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--gowalla", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    heads = (
        "data",
        "trainers",
        "setting",
        "hit rate: advised, run",
        "invalid: advised, run",
        "bytes",
        "by advice",
        "by constants",
    )
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    off: list[tuple[float, float]] = []
    for _, group in groupby(settings(asked.frappe, asked.gowalla), lambda each: (each.data, each.trainers)):
        alike = list(group)
        advice = advised(alike, asked.epochs)
        for setting in alike:
            text, points, share = line(setting, advice.at(tried(setting)), asked.epochs)
            off.append((abs(points), abs(share)))
            print(text, flush=True)
    points, shares = zip(*off, strict=True)
    print(f"{len(off)} settings: {max(points):.2f} points of hit rate off at most, {max(shares):.1%} of bytes")


if __name__ == "__main__":
    main()
