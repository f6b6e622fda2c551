"""How near a plan's loss curve is to PyTorch's (docs/guarantees.md), and whether the comparison would have seen it if it were not.

    python tools/equivalence.py                   # every model of the zoo with every pair of optimizers, on a random placement each
    python tools/equivalence.py --only dlrm.py

`htrain` is the largest relative difference of a step's loss between the plan and PyTorch. Two other trainings by PyTorch say what that number is worth:
`one ulp` begins with every weight moved to a neighbouring number, up or down: where this is large, the training amplifies rounding (a ReLU at
its kink, an optimizer that divides by a tiny gradient), and only equal arithmetic keeps two curves together. `control` is trained wrongly, a
little: learning rates are 1 % off, or one dense weight of the model is not stepped; the smaller of both differences is shown. A plan must stay within
1e-4, or within twice what an ulp does where that is more; every control must exceed it. The exit status is 1 where one does not.
"""

import argparse
import copy
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.workload import Workload

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
from harness import losses_of, relative_differences, torch_losses  # noqa: E402  the tests' own reference

ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2")
OPTIMIZERS = tuple(product(("sgd", "adagrad", "adam"), ("sgd", "adagrad", "rowwise_adagrad")))
BATCH, TABLE_ROWS = 16, 40
BOUND = 1e-4  # what tests/system/test_equivalence.py allows


def random_tagger(draw: random.Random):
    """A tagger that puts every unit on the trainer or any group PS."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        places = ["trainer", *(f"group_ps:{k}" for k in range(workload.num_places - 1))]
        return [Decision(u.name, draw.choice(places), "random", "drawn") for u in workload.units]

    return tagger


def nudged(model: nn.Module, seed: int) -> nn.Module:
    """A copy with every weight moved to the next float32 above or below it, at random."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            towards = torch.where(torch.rand_like(parameter) < 0.5, -torch.inf, torch.inf)
            moved = torch.nextafter(parameter, towards)
            assert (moved != parameter).all(), "a nudge that moves nothing controls nothing"
            parameter.copy_(moved)
    return other


def least_noticed_fault(model: nn.Module, data: str, options: Options, alone: Sequence[float]) -> float:
    """The smaller difference of two trainings that are wrong: rates 1 % off, and the largest dense weight kept as it began."""
    off = with_flags(options, dense_lr=options.dense_optimizer.lr * 1.01, sparse_lr=options.sparse_optimizer.lr * 1.01)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    kept = copy.deepcopy(model)
    weights = [(p, q) for p, q in zip(kept.parameters(), model.parameters(), strict=True) if id(q) not in tables]
    largest, _ = max(weights, key=lambda pair: pair[0].numel())
    largest.requires_grad_(False)
    faults = (torch_losses(model, data, off), torch_losses(kept, data, options))
    return min(max(relative_differences(losses, alone)) for losses in faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=1, help="placements of each model and pair of optimizers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=ZOO)
    arguments = parser.parse_args()
    draw, worst, least = random.Random(arguments.seed), 0.0, math.inf
    data = f"synthetic:?rows={arguments.steps * BATCH}&table_rows={TABLE_ROWS}&communities=4"
    print(f"{'model':<18}{'dense':<9}{'sparse':<17}{'loss':<6}{'htrain':>10}{'one ulp':>10}{'control':>10}", flush=True)
    for name in arguments.only or ZOO:
        torch.manual_seed(0)
        loaded = load_model(str(ROOT / "models" / name), click_schema(13, (TABLE_ROWS,) * 26))
        model = loaded.module.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.normal_(parameter, 0.0, 0.08)
        captured = capture(model, loaded.example_inputs)
        tables = [n for n, p in captured.net.parameters.items() if p.kind == "table"]
        for (dense, sparse), loss in product(OPTIMIZERS, ("bce", "mse")):
            options = with_flags(
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
            itself = max(
                d
                for seed in (1, 2)
                for d in relative_differences(torch_losses(nudged(model, seed), data, options), alone)
            )
            wrong = least_noticed_fault(model, data, options, alone)
            allowed = max(BOUND, 2 * itself)
            worst, least = max(worst, off / allowed), min(least, wrong / allowed)
            print(f"{name:<18}{dense:<9}{sparse:<17}{loss:<6}{off:10.1e}{itself:10.1e}{wrong:10.1e}", flush=True)
    print(f"of what is allowed, htrain takes at most {worst:.3f}, and every control at least {least:.1f}")
    sys.exit(not worst < 1 < least)


if __name__ == "__main__":
    main()
