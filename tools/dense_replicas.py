"""Quality by the number of dense replicas and the way they are kept alike, beside PyTorch and the paper (HT 2.3 and 5.1: Figures 3b, 4 and 7; ShadowSync).

    python tools/dense_replicas.py --rows 100000 --out replicas.jsonl

Systems with R dense replicas: `easgd`, `model_averaging` and `bmuf` are R groups of one trainer without group PSs, `ht` is R groups of 2 trainers and a
group PS under EASGD. Every system and R, and PyTorch, has its dense and sparse rates from the same grid, by the loss on a part of the log that is in
neither training nor test; then it is trained with `--seeds` seeds, of data and of first values, and tested. NE is relative to PyTorch's of the same seed:
the mean, and the least and the most. All roles are threads of this process. `--out` keeps each run as a line; runs that it has are not done again.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from baseline import train_and_evaluate
from rich.console import Console
from rich.table import Table

import htrain
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")
PLAIN = "PyTorch"
SYSTEMS: dict[str, dict[str, Any]] = {
    "ht": {"dense_sync": "easgd"},
    "easgd": {"dense_sync": "easgd"},
    "easgd, alpha 0.2": {"dense_sync": "easgd", "sync_alpha": 0.2},
    "easgd, alpha 0.5": {"dense_sync": "easgd", "sync_alpha": 0.5},
    "model_averaging": {"dense_sync": "model_averaging"},
    "ht, model_averaging": {"dense_sync": "model_averaging"},
    "bmuf": {"dense_sync": "bmuf"},
    "bmuf, momentum 0.5": {"dense_sync": "bmuf", "sync_momentum": 0.5},
    "bmuf, Nesterov, momentum 0.5": {"dense_sync": "bmuf", "sync_momentum": 0.5, "sync_nesterov": True},
}
OF_THE_PAPERS = ("ht", "easgd", "model_averaging", "bmuf")
RATES = ((0.005, 0.02), (0.01, 0.04), (0.02, 0.08), (0.04, 0.16))
TUNING_SEED = 100
VALIDATION_BLOCK, TEST_BLOCK = 500_000, 1_000_000
PAPER = {
    "easgd": "+0.25 % of 40 against 10 trainers (3b)",
    "ht": "5 groups of 6 + 6 more than 0.2 % below EASGD of 40 (7)",
}


@dataclass(frozen=True)
class Case:
    """One run: `replicas` dense ones of `nets` net replicas a trainer."""

    system: str
    replicas: int
    nets: int
    period: int
    dense_lr: float
    sparse_lr: float
    seed: int
    rows: int
    tuning: bool


def cluster_of(case: Case) -> Cluster:
    if case.system.startswith("ht"):
        return this_machine(groups=case.replicas, trainers=2, group_ps=1)
    return this_machine(groups=case.replicas, trainers=1, group_ps=0)


def run(case: Case, console: Console) -> float:
    """NE on the part of the log that the case is about."""
    log = f"table_rows=2000&rows={case.rows}&seed={case.seed}"
    block = VALIDATION_BLOCK if case.tuning else TEST_BLOCK
    train, test = f"synthetic:?{log}", f"synthetic:?{log}&first_block={block}"
    options = with_flags(net_replicas=case.nets, dense_lr=case.dense_lr, sparse_lr=case.sparse_lr, seed=case.seed)
    if case.system == PLAIN:
        return train_and_evaluate(MODEL, train, test, options).ne
    options = with_flags(options, sync_period=case.period, **SYSTEMS[case.system])
    with tempfile.TemporaryDirectory() as folder:
        htrain.compile(MODEL, data=train, cluster=cluster_of(case), options=options, self_check=False).save(
            Path(folder) / "plan"
        )
        htrain.run(
            Path(folder) / "plan", data=train, out=Path(folder) / "run", hosting="threads", workers=1, console=console, deadline_seconds=300,
        )  # fmt: skip
        return htrain.evaluate(Path(folder) / "run", data=test).ne


class Runs:
    """What has been run, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._known = {Case(**entry["case"]): entry["ne"] for entry in map(json.loads, lines)}
        self._quiet = Console(quiet=True)

    def ne(self, case: Case) -> float:
        if case not in self._known:
            began = time.monotonic()
            self._known[case] = run(case, self._quiet)
            if self._path:
                with self._path.open("a") as file:
                    file.write(
                        json.dumps(
                            {
                                "case": asdict(case),
                                "ne": self._known[case],
                                "seconds": round(time.monotonic() - began, 1),
                            }
                        )
                        + "\n"
                    )
        return self._known[case]


@dataclass(frozen=True)
class Row:
    """A system as it was tuned, and its NE by seed."""

    system: str
    replicas: int
    nets: int
    rates: tuple[float, float]
    nes: tuple[float, ...]


def row_of(runs: Runs, system: str, replicas: int, nets: int, arguments: argparse.Namespace) -> Row:
    def case(rates: tuple[float, float], seed: int, *, tuning: bool) -> Case:
        return Case(system, replicas, nets, arguments.sync_period, *rates, seed, arguments.rows, tuning)

    rates = min(RATES, key=lambda rates: runs.ne(case(rates, TUNING_SEED, tuning=True)))
    return Row(
        system,
        replicas,
        nets,
        rates,
        tuple(runs.ne(case(rates, seed, tuning=False)) for seed in range(arguments.seeds)),
    )


def rows_of(runs: Runs, arguments: argparse.Namespace) -> Iterator[Row]:
    yield row_of(runs, PLAIN, 1, 1, arguments)
    for replicas in arguments.replicas:
        for system in arguments.systems:
            yield row_of(runs, system, replicas, 1, arguments)
    for nets in arguments.nets:
        yield row_of(runs, "easgd", arguments.replicas[0], nets, arguments)


def shown(rows: Sequence[Row]) -> Table:
    plain = rows[0]
    table = Table(
        "system",
        "dense replicas",
        "net replicas",
        "rates (dense, sparse)",
        "NE",
        "over PyTorch, mean (least to most)",
        "the paper",
    )
    for row in rows:
        over = [ne / base - 1 for ne, base in zip(row.nes, plain.nes, strict=True)]
        spread = "" if row is plain else f"{statistics.mean(over):+.2%} ({min(over):+.2%} to {max(over):+.2%})"
        table.add_row(
            row.system, str(row.replicas), str(row.nets), f"{row.rates[0]:g}, {row.rates[1]:g}", f"{statistics.mean(row.nes):.4f}", spread,
            PAPER.get(row.system, "") if row.nets == 1 else "+0.02 % of 96 nets against 12 (4)",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument(
        "--nets",
        type=int,
        nargs="*",
        default=[4],
        help="net replicas a trainer, tried with EASGD and the fewest dense replicas",
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=OF_THE_PAPERS)
    parser.add_argument("--sync-period", type=int, default=8)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for row in rows_of(Runs(arguments.out), arguments):
        rows.append(row)
        Console(stderr=True).print(f"{row.system}, {row.replicas} dense replicas: NE {statistics.mean(row.nes):.4f}")
    Console(width=150).print(shown(rows))


if __name__ == "__main__":
    main()
