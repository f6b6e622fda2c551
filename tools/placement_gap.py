"""How far placements are from the best possible: rules and greedy refinement against the integer program (HT 3.2.1, 5.3).

    python tools/placement_gap.py --solve-seconds 30

Every model of the zoo on clusters of 2 to 12 group PSs, with fast and slow networks, with plenty of memory and just enough of it. EPS
is that of a group's busiest device, as the cost model predicts it. Where the program met its time limit, `gap` is to its bound.
"""

import argparse
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

from htrain.cluster import Cluster
from htrain.data import click_schema
from htrain.errors import PlacementError
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.lowering import lowered
from htrain.options import Options
from htrain.tagging.greedy import refine
from htrain.tagging.place import Solver, by_rules, place_units, places_of
from htrain.tagging.workload import workload_of

MODELS = Path(__file__).parents[1] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2")
FAST, SLOW = 3_125_000_000, 125_000_000


def cases() -> list[tuple[int, int, bool]]:
    """Group PSs, bandwidth, whether memory is tight."""
    return [
        (2, FAST, False),
        (2, SLOW, True),
        (4, FAST, True),
        (6, SLOW, False),
        (8, FAST, False),
        (12, SLOW, True),
        (12, FAST, False),
    ]


def place(
    captured: Captured, cluster: Cluster, options: Options, solver: Solver, seconds: float
) -> tuple[float, float, str]:
    """Seconds per example, the bound on it, and the note of one search."""
    net, units, fixed, _ = lowered(captured, cluster, options)
    workload = workload_of(net, units, fixed, cluster, options)
    _, search = place_units(net, workload, by_rules, solver, time_limit_seconds=seconds)
    return search.seconds, search.bound_seconds, search.note


def refined(captured: Captured, cluster: Cluster, options: Options) -> float:
    """Seconds per example after rules and greedy refinement alone; infinite where that does not fit."""
    net, units, fixed, _ = lowered(captured, cluster, options)
    workload = workload_of(net, units, fixed, cluster, options)
    found = refine(workload, places_of(by_rules(net, workload), workload))
    return found.seconds if workload.fits(found.places) else float("inf")


def just_enough(captured: Captured, cluster: Cluster, options: Options) -> Cluster:
    """The cluster with group PSs that hold an even share of the dense part and half as much again, or its largest unit."""
    net, units, fixed, _ = lowered(captured, cluster, options)
    needs = workload_of(net, units, fixed, cluster, options).unit_memory[:, -1]
    share = max(1.5 * float(needs.sum()) / cluster.group_ps, 1.05 * float(needs.max()))
    return replace(cluster, group_ps_memory=int(share))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solve-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    gaps = []
    print(
        f"{'model':<17}{'group PSs':>9}{'network':>9}{'memory':>8}{'rules':>11}{'greedy':>11}{'ILP':>11}{'gap':>8}  EPS of a group"
    )
    for name, (group_ps, bandwidth, tight) in product(ZOO, cases()):
        loaded = load_model(str(MODELS / name), click_schema(13, (100_000,) * 26))
        captured, options = capture(loaded.module, loaded.example_inputs), Options(batch_size=512)
        cluster = Cluster(
            groups=2, trainers=group_ps, group_ps=group_ps, sparse_ps=8, dense_ps=1, trainer_bandwidth=bandwidth, group_ps_bandwidth=bandwidth
        )  # fmt: skip
        cluster = just_enough(captured, cluster, options) if tight else cluster
        label = f"{name:<17}{group_ps:>9}{'fast' if bandwidth == FAST else 'slow':>9}{'tight' if tight else 'loose':>8}"
        try:
            rules, _, _ = place(captured, cluster, options, "rules", 1.0)
            greedy = refined(captured, cluster, options)
            exact, bound, note = place(captured, cluster, options, "ilp", arguments.solve_seconds)
        except PlacementError as error:
            print(f"{label}  {error}")
            continue
        best = exact if "optimal" in note or "nothing better" in note else bound
        gaps.append(greedy / best - 1)
        said = "" if best == exact else f"  ({note})"
        print(f"{label}{1 / rules:>11,.0f}{1 / greedy:>11,.0f}{1 / exact:>11,.0f}{gaps[-1]:>8.1%}{said}", flush=True)
    print(f"{len(gaps)} cases: median gap {statistics.median(gaps):.1%}, worst {max(gaps):.1%}")


if __name__ == "__main__":
    main()
