"""Convergence of HET's systems: test AUC by examples, and how long each takes to a threshold on links of a lab (HET 5.1, Table 1, Figure 6). Needs root.

    python tools/het_convergence.py [--models wdl,dfm,dcn,gnn] [--systems hybrid,s=10,s=100] [--rate 50mbit] [--part 100000] [--parts 10]

Eight workers in lockstep, batches of 128, SGD, the same rates for all systems. AUC is of a test set after each part of the training data, links or not. The
threshold is what the hybrid reaches at best, less 0.2 points; that many examples then take as long as tools/het_systems.py measures in a lab, caches warm.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from het_systems import BATCH, FOLDER, LABELS, MODELS, SYSTEMS, Case, cluster_of
from netlab import unwind_when_ended
from rich.console import Console

import htrain
from htrain.errors import Error
from htrain.spec.tree import with_flags

_LESS = 0.002


def aucs(
    model: str, system: str, train: str, test: str, *, workers: int, parts: int, rates: dict[str, float]
) -> list[float]:
    """After each pass over `train`."""
    options = with_flags(SYSTEMS[system], **rates)
    found = []
    with tempfile.TemporaryDirectory() as name:
        plan, run = Path(name, "plan"), Path(name, "run")
        cluster = cluster_of(system, workers)
        htrain.compile(f"{FOLDER}/{MODELS[model]}", data=train, cluster=cluster, options=options).save(plan)
        for part in range(1, parts + 1):
            where = {"resume": run} if part > 1 else {"out": run}
            htrain.run(plan, data=train, epochs=part, checkpoint_seconds="end", console=Console(quiet=True), **where)
            found.append(htrain.evaluate(run, data=test).auc)
    return found


def reached(curve: list[float], threshold: float) -> int | None:
    """The first part after which the threshold is reached."""
    return next((part for part, auc in enumerate(curve, 1) if auc >= threshold), None)


def table(model: str, systems: list[str], asked: argparse.Namespace) -> None:
    case = Case(
        model, asked.workers, asked.rate, asked.trainers_rate, asked.table_rows, asked.warm_steps, asked.seconds
    )
    rates = {"sparse_lr": asked.sparse_lr, "dense_lr": asked.dense_lr}
    with tempfile.TemporaryDirectory() as name:
        train, test = case.data(Path(name), asked.part), case.data(Path(name), asked.part // 5, part="test")
        curves = {
            s: aucs(model, s, train, test, workers=asked.workers, parts=asked.parts, rates=rates) for s in systems
        }
    threshold = max(curves[systems[0]]) - _LESS
    print(f"{model}, {asked.rate}: AUC after each {asked.part:,} examples; {threshold:.4f} is to be reached")
    for system in systems:
        part = reached(curves[system], threshold)
        line = f"{LABELS[system]:<24}" + " ".join(f"{auc:.4f}" for auc in curves[system])
        if part is None:
            print(f"{line}   not reached", flush=True)
            continue
        seconds = case.measured(system).seconds * part * asked.part
        print(f"{line}   {part * asked.part:,} examples, {seconds / 60:.1f} min", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--systems", default="hybrid,s=10,s=100", help="the first says what is to be reached")
    parser.add_argument("--rate", default="50mbit")
    parser.add_argument("--trainers-rate", default="2.5gbit")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--table-rows", type=int, default=1_000)
    parser.add_argument("--part", type=int, default=100 * 8 * BATCH)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--warm-steps", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--sparse-lr", type=float, default=1.0)
    parser.add_argument("--dense-lr", type=float, default=0.1)
    asked = parser.parse_args()
    unwind_when_ended()
    try:
        for model in asked.models.split(","):
            table(model, asked.systems.split(","), asked)
    except Error as error:
        print(f"het_convergence: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
