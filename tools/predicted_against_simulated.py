"""What plans are predicted to reach against what the simulation of all their roles finds: EPS.

    python tools/predicted_against_simulated.py

DLRM and wide & deep with 1, 4 and 100 groups, of several groups with a round of the background sync every step and every eighth. `busiest` is what
the busiest device alone would allow, `rounds` the steps between two rounds of a group, which may be more than were asked for.
"""

import argparse
import statistics
from itertools import product
from pathlib import Path

import htrain
from htrain.costs.predict import demands_of, rounds_at, seconds_of
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[1] / "models"
COUNTS = ((1, 8), (4, 1), (4, 8), (100, 1), (100, 8))  # groups, and steps between rounds, which one group has none of
CASES = tuple(product(("dlrm.py", "wide_deep.py"), COUNTS))


def compiled(model: str, groups: int, sync_period: int) -> htrain.Plan:
    cluster = Cluster(groups=groups, trainers=2, group_ps=2, sparse_ps=4)
    sync = {"sync_period": sync_period} if groups > 1 else {}
    return htrain.compile(
        str(MODELS / model), cluster=cluster, options=with_flags(batch_size=512, net_replicas=4, **sync)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16, help="simulated, of each net replica")
    arguments = parser.parse_args()
    print(
        f"{'model':<17}{'groups':>7}{'period':>7}{'rounds':>8}{'busiest':>12}{'predicted':>12}{'simulated':>12}{'off':>8}"
    )
    off = []
    for model, (groups, period) in CASES:
        plan = compiled(model, groups, period)
        found = simulate(plan, steps=arguments.steps).eps
        off.append(plan.predicted_eps / found - 1)
        demands = demands_of(plan.nets, plan.cluster, plan.options)
        busiest = 1 / seconds_of(demands, plan.cluster, plan.options, plan.options.dense_sync.round_steps)
        rounds = rounds_at(demands, plan.cluster, plan.options, plan.predicted_eps).steps
        print(
            f"{model:<17}{groups:>7}{period:>7}{rounds:>8.1f}{busiest:>12,.0f}{plan.predicted_eps:>12,.0f}{found:>12,.0f}{off[-1]:>+8.1%}",
            flush=True,
        )
    sizes = [abs(share) for share in off]
    print(f"{len(off)} plans: {statistics.median(sizes):.1%} off in the median, {max(sizes):.1%} at worst")


if __name__ == "__main__":
    main()
