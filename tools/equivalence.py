"""How near a plan's loss curve is to PyTorch's, and how near PyTorch's own is to itself after a change in the last bit (DESIGN 6.1).

    python tools/equivalence.py                   # every model of the zoo with every pair of optimizers, on a random placement each

`htrain` is the largest relative difference of a step's loss between the plan and PyTorch; `PyTorch` that between PyTorch and PyTorch
with every initial weight changed by a relative 1e-8. Where the second is large, the training amplifies rounding (a ReLU that is at
its kink, an optimizer that divides by a tiny gradient), and only equal arithmetic keeps two curves together.
"""

import argparse
import copy
import random
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch
from torch import nn

from htrain.cluster import this_machine
from htrain.compiler import compile_net
from htrain.data import click_schema
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net import Net
from htrain.options import Options
from htrain.placement import Decision
from htrain.tagging.workload import Workload

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
from harness import losses_of, relative_differences, torch_losses  # noqa: E402  the tests' own reference

ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2")
OPTIMIZERS = tuple(product(("sgd", "adagrad", "adam"), ("sgd", "adagrad", "rowwise_adagrad")))
BATCH, TABLE_ROWS = 16, 40


def random_tagger(draw: random.Random):
    """A tagger that puts every unit on the trainer or any group PS."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        places = ["trainer", *(f"group_ps:{k}" for k in range(workload.num_places - 1))]
        return [Decision(u.name, draw.choice(places), "random", "drawn") for u in workload.units]

    return tagger


def nudged(model: nn.Module) -> nn.Module:
    """A copy with every weight changed by a relative 1e-8 times a standard normal."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(
                (parameter.double() * (1 + 1e-8 * torch.randn_like(parameter, dtype=torch.float64))).float()
            )
    return other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=1, help="placements of each model and pair of optimizers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, worst = random.Random(arguments.seed), 0.0
    data = f"synthetic:?rows={arguments.steps * BATCH}&table_rows={TABLE_ROWS}&communities=4"
    print(f"{'model':<18}{'dense':<9}{'sparse':<17}{'loss':<6}{'htrain':>10}{'PyTorch':>10}")
    for name in ZOO:
        torch.manual_seed(0)
        loaded = load_model(str(ROOT / "models" / name), click_schema(13, (TABLE_ROWS,) * 26))
        model = loaded.module.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.normal_(parameter, 0.0, 0.08)
        captured = capture(model, loaded.example_inputs)
        tables = [n for n, p in captured.net.parameters.items() if p.kind == "table"]
        for (dense, sparse), loss in product(OPTIMIZERS, ("bce", "mse")):
            options = Options(
                batch_size=BATCH, net_replicas=1, dense_optimizer=dense, sparse_optimizer=sparse, sparse_lr=0.05, dense_lr=0.01, loss=loss
            )  # fmt: skip
            alone = torch_losses(model, data, options)
            off = 0.0
            for _ in range(arguments.repeats):
                cluster = this_machine(group_ps=draw.randint(0, 3), sparse_ps=draw.randint(0, 3))
                cut = draw.sample(tables, len(tables) // 2) if cluster.sparse_ps else []
                plan = compile_net(
                    captured, cluster, options, name=name, tagger=random_tagger(draw), solver="rules", table_splits=dict.fromkeys(cut, draw.randint(1, 4))
                )  # fmt: skip
                with tempfile.TemporaryDirectory() as folder:
                    off = max(off, *relative_differences(losses_of(plan, Path(folder) / "plan", data), alone))
            itself = max(relative_differences(torch_losses(nudged(model), data, options), alone))
            worst = max(worst, off)
            print(f"{name:<18}{dense:<9}{sparse:<17}{loss:<6}{off:10.1e}{itself:10.1e}", flush=True)
    print(f"worst of htrain: {worst:.1e}")


if __name__ == "__main__":
    main()
