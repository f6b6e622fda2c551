"""How long placing and compiling take as nets grow (acceptance of issue 3, line 3).

    python tools/bench/placement_speed.py --towers 160 --group-ps 12

A net of many towers of FCs beside each other, as large ranking models have. `capture` is torch.export's; `tag` is rules and greedy
refinement; `compile` is the whole way from the captured net to a checked plan.
"""

import argparse
import time

import torch
from torch import nn

from htrain.compiler.lowering import lowered
from htrain.compiler.pipeline import compile_net
from htrain.frontend.torch_model import capture
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.tagging.place import by_rules, place_units
from htrain.tagging.workload import workload_of


class Towers(nn.Module):
    """Dense features through many towers, whose outputs are mixed and summed to a logit."""

    def __init__(self, towers: int, depth: int) -> None:
        super().__init__()
        sizes = [64 + 32 * (t % 9) for t in range(towers)]
        self.first = nn.Linear(128, 256)
        self.towers = nn.ModuleList(
            nn.Sequential(*(layer for d in range(depth) for layer in (nn.Linear(256 if d == 0 else n, n), nn.ReLU())))
            for n in sizes
        )
        self.heads = nn.ModuleList(nn.Linear(n, 16) for n in sizes)
        self.last = nn.Linear(16, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(dense))
        mixed = [head(tower(x)) for tower, head in zip(self.towers, self.heads, strict=True)]
        while len(mixed) > 1:
            mixed = [a + b for a, b in zip(mixed[::2], mixed[1::2], strict=False)] + mixed[len(mixed) & ~1 :]
        return self.last(mixed[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towers", type=int, default=160)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--group-ps", type=int, default=12)
    arguments = parser.parse_args()
    started = time.monotonic()
    captured = capture(Towers(arguments.towers, arguments.depth), {"dense": torch.zeros(4, 128)})
    exported = time.monotonic() - started
    cluster, options = Cluster(groups=2, trainers=6, group_ps=arguments.group_ps), Options(batch_size=512)
    net, units, fixed, _ = lowered(captured, cluster, options)
    workload = workload_of(net, units, fixed, cluster, options)
    started = time.monotonic()
    _, search = place_units(net, workload, by_rules, "greedy")
    tagged = time.monotonic() - started
    started = time.monotonic()
    plan = compile_net(captured, cluster, options, name="towers")
    compiled = time.monotonic() - started
    print(
        f"{len(net.ops):,} ops, {len(units):,} units, {arguments.group_ps} group PSs: capture {exported:.1f} s, tag {tagged:.1f} s, "
        f"compile {compiled:.1f} s; {plan.predicted_eps:,.0f} EPS, within {search.gap:.1%} of the best possible ({search.note})"
    )


if __name__ == "__main__":
    main()
