"""How far sparse PSs let a run grow: EPS simulated with 10 and with 100 groups, by the number of sparse PSs and of their processes.

    python tools/groups_scale.py [--message-ns 20000 --tensor-ns 1000] [--batch 128] [--servers 16,32] [--processes 1,4,8] [--dense-ps 4]

The plan is DLRM (models/dlrm.py:build_bench, 26 tables), in groups of 6 trainers and 6 group PSs. Each device has 18 cores and 25 Gbit/s, as by default;
without --message-ns and --tensor-ns the costs of messages are the default, too. `binds` is what is busiest with 100 groups.
"""

import argparse
from pathlib import Path

import htrain
from htrain.simulation.result import Simulated
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

MODEL = str(Path(__file__).parents[1] / "models" / "dlrm.py:build_bench")
STEPS = 24


def simulated(groups: int, servers: int, processes: int, given: argparse.Namespace) -> Simulated:
    costs = {"message_nanoseconds": given.message_ns, "message_tensor_nanoseconds": given.tensor_ns}
    counts = {"groups": groups, "trainers": 6, "group_ps": 6, "sparse_ps": servers, "sparse_ps_processes": processes,
              "dense_ps": given.dense_ps}  # fmt: skip
    cluster = Cluster(**counts, **{name: value for name, value in costs.items() if value})
    plan = htrain.compile(MODEL, cluster=cluster, options=Options(batch_size=given.batch), self_check=False)
    return htrain.simulate(plan, steps=STEPS)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--message-ns", type=int, default=0)
    parser.add_argument("--tensor-ns", type=int, default=0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dense-ps", type=int, default=1)
    parser.add_argument("--servers", type=numbers, default=[16, 32])
    parser.add_argument("--processes", type=numbers, default=[1, 4, 8])
    given = parser.parse_args()
    print(f"{'sparse PSs':>10}{'processes':>10}{'EPS of 10 groups':>18}{'of 100':>14}{'times':>7}  binds")
    for servers in given.servers:
        for processes in given.processes:
            few, many = (simulated(groups, servers, processes, given) for groups in (10, 100))
            device, what, share = many.bottleneck
            print(
                f"{servers:>10}{processes:>10}{few.eps:>18,.0f}{many.eps:>14,.0f}{many.eps / few.eps:>7.2f}  {what} of {device}, {share:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
