"""Throughput with more workers: measured with few, simulated with many, and the simulation's error (HET-GMP 7.4, Figure 10). Needs root.

    htrain calibrate --out here.yaml
    python tools/gmp_scale.py --cluster here.yaml [--measured 1,2,3,4] [--simulated 8,16,24] [--rate 1gbit] [--batch 128] [--locality 0.7]

Wide & deep with rows of 128 on synthetic logs, by HET-GMP with s = 100 and deferred writes; a worker alone has all tables. Beside it the same with samples and
rows at random and no replicas (HET-MP, what the paper's HugeCTR does, too), and a sparse PS. Measured are runs in a lab (tools/netlab.py), whose workers share
this machine's cores; the first of all, of two workers, corrects the rates of the cluster file, as `htrain calibrate --from` does, and is not in the table.
The simulation is told of the shared cores where a run is beside it, and of `--cores` for each worker alone where there is none. It is told what rows travel by
playing the workers over the data (`htrain simulate --trace`).
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from gmp_lab import MODELS, Links, System, Where
from netlab import bits_per_second, unwind_when_ended

import htrain
from htrain.calibration.correct import correct, factors_text
from htrain.errors import Error
from htrain.executor.record.measured import Measured
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster, is_rate, load_cluster, this_machine
from htrain.spec.tree import with_flags

MODEL = f"{MODELS / 'wide_deep.py'}:build_linear"
GMP: dict[str, object] = {"gmp_staleness": 100, "gmp_write": "deferred"}
SYSTEMS = (
    System("HET-GMP, s = 100", Where("flat"), GMP),
    System("random, no replicas", Where("random", 0.0), GMP),
    System("sparse PS"),
)
OTHER = {"rows": 40_000, "table_rows": 3_000, "locality": 0.5}  # of the run that corrects the rates
PAPER = "paper, Figure 10: from 4 to 24 GPUs HugeCTR's throughput falls with every host more, HET-GMP is up to 27.5 times as fast; bars without numbers"


def uri(**settings: object) -> str:
    return "synthetic:?" + "&".join(f"{name}={value}" for name, value in settings.items())


class Scale:
    """Plans of one kind of cluster, whose roles have the rates of `given`."""

    def __init__(self, given: Cluster, asked: argparse.Namespace) -> None:
        self.rates = {name: value for name, value in vars(given).items() if is_rate(name)}
        self._asked = asked

    def planned(self, system: System, workers: int, data: str, folder: Path, *, alone: bool) -> tuple[Plan, str]:
        """The plan of so many workers, in `folder`; `alone` where each has cores of its own."""
        asked = self._asked
        bandwidth = bits_per_second(asked.rate) // 8
        links = {f"{role}_bandwidth": bandwidth for role in ("trainer", "sparse_ps")}
        cores = {"trainer_cores": asked.cores, "sparse_ps_cores": asked.cores, "host_cores": "own"} if alone else {}
        options = with_flags(batch_size=asked.batch, net_replicas=1)
        if workers == 1:
            cluster = replace(
                this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0, dense_ps=0), **links, **self.rates, **cores
            )
            plan = htrain.compile(MODEL, data=data, cluster=cluster, options=options)
            plan.save(folder / "plan")
            return plan, data
        return system.planned(
            MODEL, data, folder, workers=workers, options=options, changes={**links, **self.rates, **cores}
        )

    def measured(self, plan: Plan, data: str, folder: Path, examples: int) -> Measured:
        links = Links(self._asked.rate)
        first = links.run(plan, data, folder, epochs=1, name="first").measured
        epochs = max(2, round(self._asked.seconds * first.eps / examples))
        return links.run(plan, data, folder, epochs=epochs).measured


def simulated(plan: Plan, data: str) -> float:
    traced = plan.options.holder.holds_rows
    return htrain.simulate(
        plan, steps=30, trace=data if traced else "", **({"trace_batches": 300} if traced else {})
    ).eps  # type: ignore[arg-type]


def corrected(given: Cluster, asked: argparse.Namespace) -> Cluster:
    """By a run of two workers on other data."""
    scale = Scale(given, asked)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan, data = scale.planned(SYSTEMS[0], 2, uri(**OTHER), folder, alone=False)
        seen = scale.measured(plan, data, folder, int(OTHER["rows"]))
    found, correction = correct(plan.cluster, seen, plan.options.holder)
    print(f"corrected by two workers on other data: {factors_text(correction)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, required=True)
    for name, default in (
        ("measured", "1,2,3,4"), ("simulated", "8,16,24"), ("rate", "1gbit"), ("batch", 128), ("locality", 0.7), ("examples", 120_000),
        ("table-rows", 5_000), ("cores", 2), ("seconds", 12.0), ("only", ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    unwind_when_ended()
    counts = [[int(n) for n in text.split(",") if n] for text in (asked.measured, asked.simulated)]
    data = uri(rows=asked.examples, table_rows=asked.table_rows, locality=asked.locality)
    try:
        scale = Scale(corrected(load_cluster(asked.cluster, {}), asked), asked)
        print(f"{PAPER}\n{data}, batches of {asked.batch}, links of {asked.rate}")
        print(
            f"{'system':<22}{'workers':>8}{'simulated':>11}{'measured':>10}{'error':>8}{f'simulated, {asked.cores} cores each':>28}"
        )
        for system in SYSTEMS:
            for workers in sorted({*counts[0], *counts[1]}):
                if asked.only in system.name:
                    print(line(scale, system, workers, data, asked.examples, measures=workers in counts[0]), flush=True)
    except Error as error:
        print(f"gmp_scale: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def line(scale: Scale, system: System, workers: int, data: str, examples: int, *, measures: bool) -> str:
    text = f"{system.name:<22}{workers:>8}"
    with tempfile.TemporaryDirectory() as name:
        for alone in (False, True) if measures else (True,):
            folder = Path(name) / str(alone)
            folder.mkdir()
            plan, given = scale.planned(system, workers, data, folder, alone=alone)
            expected = simulated(plan, given)
            if alone:
                return f"{text if measures else f'{text:<59}'}{expected:>28,.0f}"
            seen = scale.measured(plan, given, folder, examples).eps
            text += f"{expected:>11,.0f}{seen:>10,.0f}{expected / seen - 1:>+8.1%}"
    return text


if __name__ == "__main__":
    main()
