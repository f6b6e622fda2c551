"""HET's systems on a cluster of network namespaces: what a step takes, and what its bytes allow (HET 5.1, Table 1, Figures 6 and 7). Needs root.

    python tools/het_systems.py [--rates 50mbit,500mbit] [--trainers-rate 2.5gbit] [--models wdl,dfm,dcn,gnn] [--systems ps,allreduce,...] [--seconds 40]

Wide & deep, DeepFM and DCN on a Criteo-like log whose top 10 % of ids take 90 % of the accesses, GraphSAGE on a graph whose nodes it tells apart; rows of 128,
batches of 128, eight workers and one server, as in the paper; caches of 10 % of the rows. Every role has a host of its own with a link of the given rate to
the others, and workers have a second network among themselves, for AllReduce and AllGather, as GPUs have PCIe. The first is free until caches are warm.

Cores are shared by all roles, so that links are slower than the paper's in proportion: `cores` is what a step of all workers takes while links are free,
`links` what the bytes of the busiest link take at its rate; no system is faster than the slower of them. `of the bytes` is the speedup over the hybrid beside
what bytes allow, `of both` the slower of cores and links beside what was measured. A line is the median of --runs.
"""

import argparse
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from het_traffic import stream_uri
from lab_window import DEVICES, EnoughError, Window
from netlab import Lab, bits_per_second, unwind_when_ended
from node_classes import written

import htrain
from htrain.data.formats.synthetic import TEST_BLOCK
from htrain.errors import Error, RunError
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

MODELS = {
    "wdl": "wide_deep.py:build_dense_mlp",
    "dfm": "deepfm.py:build_128",
    "dcn": "dcn.py:build_v1_128",
    "gnn": "graphsage.py:build_classes",
}
FOLDER = Path(__file__).parents[1] / "models"
BATCH = 128
LEAST_STEPS = 12
QUEUE = "4s"  # as much slower as links are than the paper's, so much longer may bytes wait: TCP's timeouts do not grow with them
BASE = with_flags(
    batch_size=BATCH, sparse_optimizer="sgd", dense_optimizer="sgd", net_replicas=1, sparse_lr=0.05, dense_lr=0.01
)
HYBRID = with_flags(BASE, dense_sync="allreduce")
SYSTEMS = {
    "ps": with_flags(BASE, dense_sync="ps", bounded_staleness=False),
    "allreduce": with_flags(HYBRID, sparse_sync="allgather"),
    "hybrid": HYBRID,
    "s=10": with_flags(HYBRID, cache="het", cache_staleness=10),
    "s=100": with_flags(HYBRID, cache="het", cache_staleness=100),
}
LABELS = {
    "ps": "PS, asynchronous",
    "allreduce": "AllReduce + AllGather",
    "hybrid": "hybrid, no cache",
    "s=10": "cache, s = 10",
    "s=100": "cache, s = 100",
}


@dataclass(frozen=True)
class Measured:
    """For each example: seconds; those with free links; those that the busiest link's bytes take; CPU seconds; bytes of the server's link, both ways."""

    seconds: float
    cores: float
    links: float
    cpu_seconds: float
    sparse_bytes: float

    @property
    def bound(self) -> float:
        return max(self.cores, self.links)


@dataclass(frozen=True)
class Case:
    """What is trained, by how many workers, over which links, and for how long: steps of each worker before links are limited, seconds from then on."""

    model: str
    workers: int
    rate: str
    trainers_rate: str
    table_rows: int
    warm_steps: int
    seconds: float

    def data(self, folder: Path, examples: int, part: str = "train") -> str:
        """A click log; a graph's nodes and their neighbours, in a file, where nodes are told apart."""
        if self.model == "gnn":
            nodes = self.table_rows * 10
            return written(folder, part, nodes=nodes, examples=examples, fanout=5, alike=0.7, seed=0)
        log = stream_uri(self.table_rows, examples)
        return log if part == "train" else f"{log}&first_block={TEST_BLOCK}"

    def measured(self, system: str) -> Measured:
        """A run that is ended when it has been measured. Raises RunError where it ended by itself."""
        a_step = self.workers * BATCH
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data = self.data(folder, a_step * 2 * self.warm_steps)
            model = f"{FOLDER}/{MODELS[self.model]}"
            cluster = cluster_of(system, self.workers)
            plan = htrain.compile(model, data=data, cluster=cluster, options=SYSTEMS[system])
            plan.save(folder / "plan")
            with Lab(len(plan.processes) + 1, rate=self.rate, trainers_rate=self.trainers_rate, queue=QUEUE) as lab:
                lab.free()
                metrics, warm = folder / "run" / "metrics.jsonl", a_step * self.warm_steps
                window = Window(lab, metrics, warm, self.seconds, LEAST_STEPS * a_step)
                with suppress(EnoughError):
                    lab.run_plan(folder / "plan", data, folder / "run", epochs=1000, timeout=1200, meanwhile=window)
                    raise RunError(f"{system}: the run was over before it was measured")
                at = {role: host for roles, host in zip(plan.processes, lab.hosts[1:], strict=True) for role in roles}
        return self._of(window, at)

    def _of(self, window: Window, at: dict[str, str]) -> Measured:
        seconds = [
            8 * max(seen.received, seen.sent) / bits_per_second(rate)
            for device, rate in zip(DEVICES, (self.rate, self.trainers_rate), strict=True)
            for seen in (window.carried(host, device) for host in at.values())
        ]
        servers = [window.carried(host) for role, host in at.items() if role.startswith("sparse_ps")]
        return Measured(
            window.seconds_passed / window.examples,
            window.free_seconds,
            max(seconds) / window.examples,
            window.grown("cpu_seconds") / window.examples,
            sum(seen.received + seen.sent for seen in servers) / window.examples,
        )


def cluster_of(system: str, workers: int) -> Cluster:
    """The devices of a system; every role has a host of its own."""
    if system == "ps":
        return Cluster(groups=1, trainers=workers, group_ps=1, sparse_ps=1)
    return Cluster(groups=workers, trainers=1, group_ps=0, sparse_ps=1)


def table(case: Case, systems: list[str], runs: int) -> None:
    heads = ("ms a step", "cores", "links", "CPU ms", "kB/example", "speedup", "allowed", "of the bytes", "of both")
    print(f"{case.model + ', ' + case.rate:<24}" + "".join(f"{head:>14}" for head in heads), flush=True)
    hybrid: Measured | None = None
    a_step = 1e3 * case.workers * BATCH
    for system in systems:
        found = sorted((case.measured(system) for _ in range(runs)), key=lambda m: m.seconds)
        seen = found[len(found) // 2]
        hybrid = seen if system == "hybrid" else hybrid
        cells = [f"{value * a_step:,.0f}" for value in (seen.seconds, seen.cores, seen.links, seen.cpu_seconds)]
        cells.append(f"{seen.sparse_bytes / 1e3:.2f}")
        if hybrid:
            speedup = hybrid.seconds / seen.seconds
            allowed = hybrid.links / seen.links
            cells += [f"{speedup:.2f}x", f"{allowed:.2f}x", f"{speedup / allowed:.0%}"]
        else:
            cells += ["", "", ""]
        cells.append(f"{seen.bound / seen.seconds:.0%}")
        print(f"{LABELS[system]:<24}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="50mbit,500mbit")
    parser.add_argument("--trainers-rate", default="2.5gbit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--workers", default="8")
    parser.add_argument("--table-rows", type=int, default=10_000)
    parser.add_argument("--warm-steps", type=int, default=150, help="of each worker")
    parser.add_argument("--seconds", type=float, default=40.0, help="from then on, and twelve steps at least")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--systems", default="hybrid,ps,allreduce,s=10,s=100")
    asked = parser.parse_args()
    unwind_when_ended()
    try:
        for model in asked.models.split(","):
            for workers in map(int, asked.workers.split(",")):
                for rate in asked.rates.split(","):
                    timing = (asked.table_rows, asked.warm_steps, asked.seconds)
                    case = Case(model, workers, rate, asked.trainers_rate, *timing)
                    table(case, asked.systems.split(","), asked.runs)
    except Error as error:
        print(f"het_systems: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
