"""How far placements are from the best possible: rules, greedy refinement, and what is proven in the end (HT 3.2.1, 5.3).

    python tools/placement_gap.py --solve-seconds 20

Every model of the zoo on clusters of 2 to 12 group PSs, with fast and slow networks, with plenty of memory and just enough of it, and DLRM for 5
groups of 6 trainers and 6 group PSs, all else default. FCs are split as `htrain compile` splits them. EPS is that of the busiest device, as the cost
model predicts it; `greedy` and `proven` are how far greedy's placement, and the one that `--solver ilp` ends with, may be from the best.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from htrain.compiler.fc_search import choose_splits
from htrain.compiler.lowering import lowered
from htrain.data import click_schema
from htrain.errors import PlacementError
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Split
from htrain.spec.cluster import Cluster
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.tagging.greedy import refine
from htrain.tagging.place import by_rules, place_units, places_of
from htrain.tagging.workload import Workload, workload_of

MODELS = Path(__file__).parents[1] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2")
FAST, SLOW = 3_125_000_000, 125_000_000


def cases() -> Iterator[tuple[str, int, int, int, bool]]:
    """Model, groups, group PSs, bandwidth, whether memory is tight."""
    clusters = [
        (2, FAST, False),
        (2, SLOW, True),
        (4, FAST, True),
        (6, SLOW, False),
        (8, FAST, False),
        (12, SLOW, True),
        (12, FAST, False),
    ]
    for model, (group_ps, bandwidth, tight) in product(ZOO, clusters):
        yield model, 2, group_ps, bandwidth, tight
    yield "dlrm.py", 5, 6, FAST, False


@dataclass(frozen=True)
class Case:
    """A captured model on a cluster, with its splits."""

    captured: Captured
    cluster: Cluster
    options: Options
    splits: Mapping[str, Split]

    @cached_property
    def problem(self) -> tuple[Net, Workload]:
        net, units, fixed, _ = lowered(self.captured, self.cluster, self.options, fc_splits=self.splits)
        return net, workload_of(net, units, fixed, self.cluster, self.options)

    def refined(self) -> float:
        """Seconds per example after rules and greedy refinement alone; infinite where that does not fit."""
        net, workload = self.problem
        found = refine(workload, places_of(by_rules(net, workload), workload))
        return found.seconds if workload.fits(found.places) else float("inf")

    def just_enough(self) -> "Case":
        """The case with group PSs that hold an even share of the dense part and half as much again, or its largest unit, with what comes to it."""
        _, workload = self.problem
        needs = workload.unit_memory[:, -1].copy()
        np.add.at(needs, workload.reader_of, workload.value_memory[workload.read, workload.num_places - 1])
        share = max(1.5 * float(needs.sum()) / self.cluster.group_ps, 1.05 * float(needs.max()))
        return replace(self, cluster=replace(self.cluster, group_ps_memory=ROLE_BYTES + int(share)))


def case_of(model: str, groups: int, group_ps: int, bandwidth: int, *, python_lock: bool) -> Case:
    loaded = load_model(str(MODELS / model), click_schema(13, (100_000,) * 26))
    captured = capture(loaded.module, loaded.example_inputs)
    cluster = Cluster(groups=groups, trainers=group_ps, group_ps=group_ps, python_lock=python_lock)
    options = Options()
    if groups == 2:
        cluster = replace(cluster, sparse_ps=8, trainer_bandwidth=bandwidth, group_ps_bandwidth=bandwidth)
        options = Options(batch_size=512)
    return Case(captured, cluster, options, choose_splits(captured, cluster, options, table_splits={}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solve-seconds", type=float, default=20.0)
    parser.add_argument("--python-lock", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    gaps = []
    print(
        f"{'model':<17}{'groups':>7}{'group PSs':>10}{'network':>8}{'memory':>7}{'rules':>11}{'EPS':>11}{'greedy':>8}{'proven':>8}{'seconds':>8}  splits"
    )
    for model, groups, group_ps, bandwidth, tight in cases():
        case = case_of(model, groups, group_ps, bandwidth, python_lock=arguments.python_lock)
        case = case.just_enough() if tight else case
        label = f"{model:<17}{groups:>7}{group_ps:>10}{'fast' if bandwidth == FAST else 'slow':>8}{'tight' if tight else 'loose':>7}"
        net, workload = case.problem
        greedy, began = case.refined(), time.monotonic()
        try:
            _, search = place_units(net, workload, by_rules, "ilp", time_limit_seconds=arguments.solve_seconds)
        except PlacementError as error:
            print(f"{label}  {error}")
            continue
        gaps.append(search.gap)
        splits = " ".join(f"{fc}={split.kind}:{split.parts}" for fc, split in case.splits.items())
        print(
            f"{label}{1 / search.start_seconds:>11,.0f}{1 / search.seconds:>11,.0f}{greedy / search.bound_seconds - 1:>8.1%}{search.gap:>8.1%}"
            f"{time.monotonic() - began:>8.1f}  {splits}",
            flush=True,
        )
    print(f"{len(gaps)} cases: proven within {statistics.median(gaps):.1%} in the median, {max(gaps):.1%} at worst")


if __name__ == "__main__":
    main()
