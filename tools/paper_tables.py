"""The tables of HT's Figures 3a, 8, 10 and 11, simulated for 18-core hosts with 25 Gbit/s, beside what the paper says.

    python tools/paper_tables.py                                  # all of them, on the rates of htrain's stock cluster
    python tools/paper_tables.py --cluster here.yaml --figure 8   # on the rates that `htrain calibrate` measured

The paper's models are not public: "hundreds of sparse features, a dense part of several hundred megabytes". Here it is a DLRM with 200
tables of 10^6 rows x 64 and an MLP of 20,164 x 2,048 x 1,024 x 512 on top: 175 MB of dense weights. Model-B computes FCs forward in
int8. Net replicas are as many as a trainer has cores; threads of a role do not wait for each other's Python, as in the paper's system.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import nn

from htrain.compiler.fc_search import choose_splits
from htrain.compiler.lowering import NO_SPLITS
from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.plan.plan import Plan
from htrain.simulation.counts import with_counts
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster, is_rate, load_cluster
from htrain.spec.tree import with_flags
from htrain.tagging.place import Tagger, by_rules
from htrain.tagging.workload import Workload

ROOT = Path(__file__).parents[1]
CORES = 18
SHORT = {
    "activation_dtype": "bfloat16",
    "gradient_dtype": "bfloat16",
}  # where the cost model alone finds that it pays: `htrain compile` simulates both
MODELS: Mapping[str, dict[str, str]] = {"A": {"fc_dtype": "float32"}, "B": {"fc_dtype": "int8"}}


def build() -> nn.Module:
    """The stand-in for the paper's model."""
    sys.path.insert(0, str(ROOT / "models"))
    from dlrm import DLRM  # noqa: PLC0415  a model file, not a package

    return DLRM(click_schema(13, (1_000_000,) * 200), 64, bottom=[1024, 512], top=[2048, 1024, 512])


@cache
def captured() -> Captured:
    loaded = load_model(f"{Path(__file__)}:build", click_schema(13, (1_000_000,) * 200))
    return loaded.initialised(capture(loaded.module, loaded.example_inputs))


def in_turn(net: Net, workload: Workload) -> list[Decision]:
    """Neither rules nor refinement: units on the group PSs in turn, as they come; those without weights, too."""
    places = workload.devices[1 : workload.num_places]
    return [Decision(u.name, places[i % len(places)], "in turn", "no rule") for i, u in enumerate(workload.units)]


class Bench:
    """Plans and simulations on hosts with the rates of one cluster."""

    def __init__(self, hosts: Cluster, steps: int) -> None:
        self.hosts, self.steps = hosts, steps
        self.plan = cache(self._plan)

    def _plan(
        self, trainers: int, group_ps: int, model: str, *, tagger: Tagger = by_rules, solver: str = "greedy", split: bool = True, short: bool = True
    ) -> Plan:  # fmt: skip
        options = with_flags(
            batch_size=512, dense_sync="easgd", net_replicas=CORES, **MODELS[model], **(SHORT if short else {})
        )
        cluster = replace(self.hosts, groups=2, trainers=trainers, group_ps=group_ps, sparse_ps=16, dense_ps=2)
        splits = choose_splits(captured(), cluster, options, table_splits=NO_SPLITS) if split else {}
        return compile_net(captured(), cluster, options, name="paper", tagger=tagger, solver=solver, fc_splits=splits)

    def eps(self, plan: Plan, groups: int) -> float:
        enough = replace(
            plan, cluster=replace(plan.cluster, sparse_ps_cores=10**4, sparse_ps_bandwidth=10**13)
        )  # as in the paper
        return simulate(with_counts(enough, groups=groups), steps=self.steps, workers=CORES, python_lock=False).eps

    def figure_3a(self) -> None:
        print("\nFigure 3a: EASGD, EPS relative to 10 trainers (paper: linear in the trainers)")
        plan = self.plan(1, 0, "A")
        found = {n: self.eps(plan, n) for n in (10, 20, 30, 40)}
        for n, eps in found.items():
            print(f"  {n} trainers {eps:>12,.0f} EPS {eps / found[10]:>6.2f} x   linear {n / 10:.0f} x")

    def figure_8(self) -> None:
        print("\nFigure 8: HT of 6 trainers + 6 group PSs a group against EASGD with 40 trainers")
        for model, paper in (("A", 1.6), ("B", 1.9)):
            base = self.eps(self.plan(1, 0, model), 40)
            print(f"  Model-{model}  EASGD 40 trainers {base:>12,.0f} EPS")
            for groups in (5, 8, 10):
                eps = self.eps(self.plan(6, 6, model), groups)
                said = f"   paper {paper} x" if groups == 10 else ""
                print(
                    f"  Model-{model}  HT {groups:>2} groups {eps:>17,.0f} EPS {eps / base:>6.2f} x{said}", flush=True
                )

    def figure_10(self) -> None:
        print("\nFigure 10a: HT, EPS relative to 2 groups of 6 + 6 (paper: linear)")
        found = {g: self.eps(self.plan(6, 6, "A"), g) for g in (2, 4, 6, 8, 10)}
        for groups, eps in found.items():
            print(
                f"  {groups:>2} groups {eps:>12,.0f} EPS {eps / found[2]:>6.2f} x   linear {groups / 2:.0f} x",
                flush=True,
            )
        print("\nFigure 10b: 8 groups, EPS relative to 2 + 2 (paper: sublinear)")
        first = 0.0
        for n in (2, 4, 6, 8, 10):
            eps = self.eps(self.plan(n, n, "A"), 8)
            first = first or eps
            print(f"  {n:>2} + {n:<2} {eps:>12,.0f} EPS {eps / first:>6.2f} x   linear {n / 2:.0f} x", flush=True)

    def figure_11(self) -> None:
        print("\nFigure 11: 5 groups of 6 + 6, one technique off at a time, EPS relative to all on")
        paper = {
            "no greedy refinement": "less for A, little for B",
            "no rules, no refinement": "more than 40 % less",
            "no FC splits": "less",
            "no compression": "not always less: A gains",
        }
        for model in MODELS:
            whole = self.eps(self.plan(6, 6, model), 5)
            print(f"  Model-{model}  all on                  {whole:>12,.0f} EPS", flush=True)
            for label, plan in (
                ("no greedy refinement", self.plan(6, 6, model, solver="rules")),
                ("no rules, no refinement", self.plan(6, 6, model, tagger=in_turn, solver="rules")),
                ("no FC splits", self.plan(6, 6, model, split=False)),
                ("no compression", self.plan(6, 6, model, short=False)),
            ):
                eps = self.eps(plan, 5)
                print(
                    f"  Model-{model}  {label:<24}{eps:>12,.0f} EPS {eps / whole - 1:>+7.0%}   paper: {paper[label]}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, help="a cluster file whose rates to take")
    parser.add_argument("--figure", choices=["3a", "8", "10", "11"], action="append")
    parser.add_argument("--steps", type=int, default=8, help="of each net replica")
    arguments = parser.parse_args()
    hosts = Cluster()
    if arguments.cluster:
        given = load_cluster(arguments.cluster, {})
        hosts = replace(hosts, **{name: value for name, value in vars(given).items() if is_rate(name)})
    bench = Bench(hosts, arguments.steps)
    for figure in arguments.figure or ("3a", "8", "10", "11"):
        getattr(bench, f"figure_{figure}")()


if __name__ == "__main__":
    main()
