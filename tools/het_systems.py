"""HET's four systems on a cluster of network namespaces: time per epoch, and what crossed the wire (HET 5.1, Table 1). Needs root.

    python tools/het_systems.py [--rates 1gbit,100mbit] [--workers 8] [--table-rows 10000] [--steps 40] [--systems ps,allreduce,hybrid,cache]

Wide & deep, D = 128, batch 128, on a Criteo-like log whose top 10 % of ids take 90 % of the accesses; a parameter server, where trainers fetch
the dense weights; AllReduce with AllGather of sparse gradients; the hybrid of AllReduce and a sparse PS, without and with a HET cache.

`waited` is the time for which a worker, in the mean, had nothing to compute before something came from elsewhere, `worked` the rest: the cores
are shared, so the work of eight takes four times as long as it would on a core each, and part of the waiting is for the work of others.

`bound` is the time that the bytes of the busiest link take at the link's rate: no system that sends them is faster. `of the bytes` compares
the speedup over the hybrid with what these bounds allow. All roles share this machine's cores; CPU seconds are those of all roles.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from het_traffic import stream_uri
from netlab import Lab, LabRun, unwind_when_ended

import htrain
from htrain.errors import Error
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py:build_128")
BATCH = 128
BASE = with_flags(
    batch_size=BATCH, sparse_optimizer="sgd", dense_optimizer="sgd", net_replicas=1, sparse_lr=0.05, dense_lr=0.01
)
HYBRID = with_flags(BASE, dense_sync="allreduce")
SYSTEMS = {
    "ps": with_flags(BASE, dense_sync="ps", bounded_staleness=False),
    "allreduce": with_flags(HYBRID, sparse_sync="allgather"),
    "hybrid": HYBRID,
    "cache s=10": with_flags(HYBRID, cache="het", cache_staleness=10),
    "cache s=100": with_flags(HYBRID, cache="het", cache_staleness=100),
}
LABELS = {"ps": "PS, asynchronous", "allreduce": "AllReduce + AllGather", "hybrid": "hybrid, no cache"}


@dataclass(frozen=True)
class Measured:
    """One run, for each example: wall seconds, those that workers waited, CPU seconds, bytes of the busiest link in its busier direction,
    embedding bytes."""

    seconds: float
    waited_seconds: float
    cpu_seconds: float
    busiest_bytes: float
    sparse_bytes: float


def cluster_of(system: str, workers: int) -> Cluster:
    """The devices of a system; every role has a host of its own."""
    if system == "ps":
        return Cluster(groups=1, trainers=workers, group_ps=1, sparse_ps=1)
    return Cluster(groups=workers, trainers=1, group_ps=0, sparse_ps=1)


def measure(system: str, workers: int, rate: str, data: str, folder: Path) -> Measured:
    plan = htrain.compile(MODEL, data=data, cluster=cluster_of(system, workers), options=SYSTEMS[system])
    plan.save(folder / "plan")
    with Lab(len(plan.cluster.roles) + 1, rate=rate) as lab:
        run = lab.run_plan(folder / "plan", data, folder / "run", timeout=3000)
    return _of(run, folder / "run", plan.cluster.roles)


def _of(run: LabRun, folder: Path, roles: tuple[str, ...]) -> Measured:
    """From the first examples to the last; start-up is not training."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    totals = [r for r in records if r["role"] == "run"]
    last = {r["role"]: r for r in records}
    examples = totals[-1]["examples"]
    moving = [(r["seconds"], r["examples"]) for r in totals if r["examples"]]
    (began, done), (ended, all_done) = moving[0], next(m for m in moving if m[1] == examples)
    seconds = (ended - began) / (all_done - done) if all_done > done else totals[-1]["seconds"] / examples
    links = [max(run.roles[role].received, run.roles[role].sent) for role in roles]
    servers = [run.roles[role] for role in roles if role.startswith("sparse_ps")]
    return Measured(
        seconds,
        seconds * _waited_share([r for r in records if r["role"].startswith("trainer") and r["examples"]]),
        sum(last[role]["cpu_seconds"] for role in roles) / examples,
        max(links) / examples,
        sum(s.received + s.sent for s in servers) / examples,
    )


def _waited_share(reports: list[dict[str, Any]]) -> float:
    """The share of its time that a worker has waited, in the mean, between its first examples and its last."""
    waited = passed = 0.0
    for role in {r["role"] for r in reports}:
        own = [r for r in reports if r["role"] == role]
        first, last = own[0], next(r for r in own if r["examples"] == own[-1]["examples"])
        waited += last["seconds_waited"] - first["seconds_waited"]
        passed += last["time"] - first["time"]
    return waited / passed if passed else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--table-rows", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=40, help="of each worker")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    asked = parser.parse_args()
    unwind_when_ended()
    examples = asked.steps * asked.workers * BATCH
    data = stream_uri(asked.table_rows, examples)
    try:
        for rate in asked.rates.split(","):
            print(f"{asked.workers} workers on links of {rate}, an epoch of {examples:,} examples, {data}", flush=True)
            table(asked.systems.split(","), asked.workers, rate, data, examples, asked.runs)
    except Error as error:
        print(f"het_systems: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def table(systems: list[str], workers: int, rate: str, data: str, examples: int, runs: int) -> None:
    print(
        f"{'system':<24}{'epoch s':>9}{'worked':>8}{'waited':>8}{'bound s':>9}{'CPU s':>8}{'sparse kB/ex':>14}{'speedup':>9}{'allowed':>9}{'of the bytes':>14}"
    )
    bits = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[rate[-4:]] * float(rate[:-4])
    hybrid: Measured | None = None
    for system in systems:
        found = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(system, workers, rate, data, Path(folder)))
        seen = sorted(found, key=lambda m: m.seconds)[len(found) // 2]
        hybrid = seen if system == "hybrid" else hybrid
        bound = 8 * seen.busiest_bytes / bits
        line = f"{LABELS.get(system, system):<24}{seen.seconds * examples:>9.1f}"
        line += f"{(seen.seconds - seen.waited_seconds) * examples:>8.1f}{seen.waited_seconds * examples:>8.1f}{bound * examples:>9.1f}"
        line += f"{seen.cpu_seconds * examples:>8.1f}{seen.sparse_bytes / 1e3:>14.2f}"
        if hybrid:
            speedup, allowed = hybrid.seconds / seen.seconds, hybrid.busiest_bytes / seen.busiest_bytes
            line += f"{speedup:>8.2f}x{allowed:>8.2f}x{speedup / allowed:>14.0%}"
        print(line, flush=True)
        if hybrid and system.startswith("cache"):
            saved = 1 - seen.sparse_bytes / hybrid.sparse_bytes
            print(f"  embedding bytes on the wire: {saved:.1%} fewer than the hybrid's", flush=True)


if __name__ == "__main__":
    main()
