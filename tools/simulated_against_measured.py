"""The simulation against runs on hosts with limited links (acceptance of issue 3, line 6). Needs root.

    htrain calibrate --out here.yaml
    python tools/simulated_against_measured.py --cluster here.yaml

The configurations were chosen before anything was tuned. First one more run, which is in none of them (DLRM, batch 384, 500 Mbit/s), corrects
the rates of the cluster file, as `htrain calibrate --from` does, and behind caches another, with such a cache, corrects them further; then every configuration
is simulated, run in namespaces, and compared.
All roles share this machine's cores; every role has a link of its own.
"""

import argparse
import math
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from netlab import BIN, Lab, unwind_when_ended

import htrain
from htrain.calibration.correct import correct, factors_text
from htrain.executor.record.measured import Measured, load_measured
from htrain.plan.plan import Plan
from htrain.spec.cache import Cache, HetCache, LookAheadCache, NoCache
from htrain.spec.cluster import Cluster, is_rate, load_cluster, this_machine
from htrain.spec.dense_sync import AllReduce
from htrain.spec.options import Options
from htrain.spec.sparse_sync import AllGather, SparseSync, TableServers

MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Configuration:
    """A plan on links of `rate` megabits per second each way."""

    model: str
    batch_size: int
    groups: int
    trainers: int
    group_ps: int
    rate: int
    net_replicas: int = 2
    sync: str = ""
    cache: Cache | None = None

    @property
    def options(self) -> Options:
        together = AllReduce() if self.sync else DENSE_SYNC
        tables: SparseSync = AllGather() if self.sync == "allgather" else TableServers()
        return Options(
            batch_size=self.batch_size,
            net_replicas=self.net_replicas,
            dense_sync=together,
            sparse_sync=tables,
            cache=self.cache or NoCache(),
        )

    def simulated(self, plan: Plan, data: str) -> float:
        """The EPS of the plan in simulation; a cache asks for the rows that the data's own ids make it ask for."""
        return htrain.simulate(plan, steps=30, trace=data if self.cache else "").eps


DENSE_SYNC = Options().dense_sync


def in_step(model: str, batch_size: int, workers: int, rate: int, *, rows: str) -> Configuration:
    """Workers that step together by AllReduce: rows from a sparse PS, or of tables that each has, by AllGather."""
    return Configuration(
        model, batch_size, workers, 1, 0, rate, net_replicas=1, sync="allgather" if rows == "own" else "allreduce"
    )


def cached(model: str, batch_size: int, workers: int, rate: int, *, capacity: str, staleness: int) -> Configuration:
    """Workers that step together by AllReduce, each behind a HET cache."""
    cache = HetCache(capacity=capacity, staleness=staleness)
    return Configuration(model, batch_size, workers, 1, 0, rate, net_replicas=1, sync="het", cache=cache)


def ahead(model: str, batch_size: int, workers: int, rate: int) -> Configuration:
    """Workers that step together by AllReduce, each out of a look-ahead cache."""
    return Configuration(
        model, batch_size, workers, 1, 0, rate, net_replicas=1, sync="lookahead", cache=LookAheadCache()
    )


CONFIGURATIONS = (
    Configuration("dlrm.py", 256, 1, 1, 1, 100),
    Configuration("dlrm.py", 512, 1, 2, 2, 200),
    Configuration("dlrm.py", 1024, 1, 1, 1, 20),
    Configuration("dlrm.py", 256, 2, 1, 1, 100),
    Configuration("wide_deep.py", 256, 1, 1, 1, 50),
    Configuration("wide_deep.py", 512, 1, 2, 1, 1000),
    Configuration("deepfm.py", 256, 1, 1, 2, 100),
    Configuration("deepfm.py", 256, 2, 2, 1, 1000),
    Configuration("dcn.py:build_v1", 512, 1, 1, 1, 200),
    Configuration("dcn.py:build_v2", 256, 1, 2, 2, 1000),
    in_step("dlrm.py", 256, 2, 100, rows="PS"),
    in_step("dlrm.py", 512, 2, 500, rows="PS"),
    in_step("wide_deep.py", 256, 2, 200, rows="PS"),
    in_step("deepfm.py", 256, 3, 300, rows="PS"),
    in_step("dlrm.py", 256, 2, 200, rows="own"),
    in_step("wide_deep.py", 512, 3, 1000, rows="own"),
    in_step("deepfm.py", 1024, 2, 200, rows="own"),
    in_step("dcn.py:build_v2", 512, 2, 500, rows="own"),
    cached("dlrm.py", 256, 2, 100, capacity="10%", staleness=100),
    cached("dlrm.py", 512, 2, 500, capacity="5%", staleness=10),
    cached("dlrm.py", 256, 1, 100, capacity="10%", staleness=100),
    cached("wide_deep.py", 256, 2, 200, capacity="10%", staleness=100),
    cached("wide_deep.py", 512, 2, 1000, capacity="20%", staleness=0),
    cached("deepfm.py", 256, 3, 300, capacity="20%", staleness=100),
    cached("deepfm.py", 1024, 2, 200, capacity="2%", staleness=100),
    cached("dcn.py:build_v2", 512, 2, 500, capacity="10%", staleness=10),
    ahead("dlrm.py", 256, 1, 100),
    ahead("wide_deep.py", 256, 1, 200),
    ahead("dlrm.py", 512, 2, 500),
)
LEAST_SECONDS = 12
CALIBRATION = Configuration("dlrm.py", 384, 1, 1, 1, 500)
OF_CACHES = {
    "het": cached("dlrm.py", 384, 2, 500, capacity="10%", staleness=100),
    "lookahead": ahead("dlrm.py", 384, 1, 500),
}


def compiled(configuration: Configuration, rates: Cluster, data: str) -> Plan:
    c = configuration
    counts = {
        "groups": c.groups,
        "trainers": c.trainers,
        "group_ps": c.group_ps,
        "sparse_ps": int(c.sync != "allgather"),
    }
    links = {f"{role}_bandwidth": c.rate * 125_000 for role in ("trainer", "group_ps", "sparse_ps", "dense_ps")}
    own = {name: value for name, value in vars(rates).items() if is_rate(name)}
    return htrain.compile(
        str(MODELS / c.model), data=data, cluster=replace(this_machine(**counts), **links, **own), options=c.options
    )


def measured_in_lab(plan: Plan, configuration: Configuration, data: str, rows: int, folder: Path) -> Measured:
    """What a run in namespaces measured in its steady part, of some LEAST_SECONDS; of a run that is in `folder` already, what it did then."""
    if not (folder / "run" / "measured.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan")
        with Lab(len(plan.cluster.roles) + 1, rate=f"{configuration.rate}mbit") as lab:
            epochs = math.ceil(LEAST_SECONDS * plan.predicted_eps / rows)
            lab.run_plan(folder / "plan", data, folder / "run", epochs=epochs, timeout=400)
    return load_measured(folder / "run")


def corrected_by(by: Configuration, rates: Cluster, data: str, rows: int, folder: Path) -> Cluster:
    """The rates, corrected by a run, whose finding is printed."""
    plan = compiled(by, rates, data)
    found, correction = correct(
        plan.cluster, measured_in_lab(plan, by, data, rows, folder), holder=by.cache or NoCache()
    )
    print(f"{by.model}, batch {by.batch_size}, {by.sync or DENSE_SYNC.kind}: {factors_text(correction)}", flush=True)
    return found


def compare(folder: Path, rates: Cluster, rows: int, only: list[str]) -> None:
    """Print the table, of configurations with these syncs only if there are any."""
    data = f"criteo:{folder / 'train.tsv'}"
    if not (folder / "train.tsv").exists():
        words = ["data", "synth", "criteo", "--rows", str(rows), "--table-rows", "10000"]
        subprocess.run([str(BIN / "htrain"), *words, "--out", str(folder / "train.tsv")], check=True)
    corrected = {"": corrected_by(CALIBRATION, rates, data, rows, folder / "calibration")}
    print(
        f"{'model':<17}{'sync':<11}{'batch':>6}{'groups':>7}{'trainers':>9}{'group PSs':>10}{'Mbit/s':>7}"
        f"{'predicted':>11}{'simulated':>11}{'measured':>10}{'error':>8}"
    )
    errors = []
    for number, c in enumerate(CONFIGURATIONS):
        if only and (c.sync or DENSE_SYNC.kind) not in only:
            continue
        kind = c.sync if c.sync in OF_CACHES else ""
        if kind not in corrected:
            corrected[kind] = corrected_by(OF_CACHES[kind], corrected[""], data, rows, folder / f"calibration {kind}")
        plan = compiled(c, corrected[kind], data)
        found = c.simulated(plan, data)
        seen = measured_in_lab(plan, c, data, rows, folder / str(number)).eps
        errors.append(abs(found / seen - 1))
        print(
            f"{c.model:<17}{c.sync or DENSE_SYNC.kind:<11}{c.batch_size:>6}{c.groups:>7}{c.trainers:>9}{c.group_ps:>10}{c.rate:>7}"
            f"{plan.predicted_eps:>11,.0f}{found:>11,.0f}{seen:>10,.0f}{found / seen - 1:>+8.1%}",
            flush=True,
        )
    within, middle = sum(error <= 0.15 for error in errors), statistics.median(errors)
    print(
        f"{len(errors)} configurations: error {middle:.1%} in the median, {max(errors):.1%} at most; {within} within 15 %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=80_000)
    parser.add_argument("--runs", type=Path, help="keep the runs there; those that are there are not run again")
    parser.add_argument("--only", nargs="*", default=[], help="configurations with these syncs, such as allreduce")
    arguments = parser.parse_args()
    unwind_when_ended()
    rates = load_cluster(arguments.cluster, {})
    with tempfile.TemporaryDirectory() as name:
        folder = (arguments.runs or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        compare(folder, rates, arguments.rows, arguments.only)


if __name__ == "__main__":
    main()
