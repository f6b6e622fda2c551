"""Write plan folders of this version, and of a run of each, into tests/plans: to be done once, before the version changes.

    python tools/plan_of_version.py

Tests of every later version load them and go on with the run.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

import htrain
from htrain.spec.cluster import Cluster
from htrain.spec.migrations import NEWEST
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

EXAMPLE = {"dense": torch.rand(2, 13), "sparse": torch.randint(0, 20, (2, 26))}
FOLDER = Path(__file__).parent.parent / "tests" / "plans" / str(NEWEST)
DATA = "synthetic:?rows=640&table_rows=20"
HOSTS: dict[str, Any] = {"trainer_cores": 2, "group_ps_cores": 2, "sparse_ps_cores": 2, "dense_ps_cores": 2}
NARROW: dict[str, Any] = {"batch_size": 16, "fc_dtype": "float32", "fc_gradient_dtype": "float32"}
PLANS: dict[str, tuple[Cluster, Options]] = {
    "easgd": (
        Cluster(groups=2, host_cores=2, **HOSTS),
        with_flags(**NARROW, dense_optimizer="adam", beta1=0.8, sparse_eps=1e-9, gradient_dtype="bfloat16", dense_sync="easgd", sync_period=3),
    ),
    "het": (
        Cluster(groups=2, group_ps=0, dense_ps=0, python_lock=False, **HOSTS),
        with_flags(
            **NARROW, net_replicas=1, dense_sync="allreduce", sparse_optimizer="rowwise_adagrad", cache="het", cache_capacity="50%",
            cache_staleness="unbounded", cache_table=(("second.weight", "none"),),
        ),
    ),
    "lookahead": (
        Cluster(group_ps=0, pin=(("first.weight", "sparse_ps:0"),), **HOSTS),
        with_flags(
            **NARROW, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd", dense_sync="easgd", cache="lookahead", cache_patch=False, cache_ways=4
        ),
    ),
}  # fmt: skip


class Small(nn.Module):
    """A model with every kind of parameter: two tables, weights with a value of their own, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.EmbeddingBag(20, 4, mode="sum"), nn.EmbeddingBag(20, 4, mode="sum")
        self.top = nn.Linear(13 + 8, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        rows = [self.first(sparse[:, :1]), self.second(sparse[:, 1:2])]
        return self.top(torch.cat([dense, *rows], 1))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    for name, (cluster, options) in PLANS.items():
        folder, run = FOLDER / name, FOLDER / f"{name}.run"
        htrain.compile(Small(), example_inputs=EXAMPLE, cluster=cluster, options=options).save(folder)
        htrain.run(folder, data=DATA, out=run, hosting="threads", deterministic=True)
        for path in [p for p in run.iterdir() if p.name != "checkpoints"]:
            path.unlink() if path.is_file() else shutil.rmtree(path)
        print(f"{folder}, {run}")


if __name__ == "__main__":
    main()
