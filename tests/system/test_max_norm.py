"""Tables with max_norm are trained as by PyTorch: rows are brought within it as they are read, and before they are stepped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import losses_of, relative_differences, torch_losses
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO
from htrain.errors import ClusterError, ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.ops import OPS
from htrain.self_check.capture import capture_model
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

STEPS, BATCH, ROWS = 50, 16, 20
DATA = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}"
EXAMPLE = {"dense": torch.rand(2, 13), "sparse": torch.randint(0, ROWS, (2, 26))}


class Bounded(nn.Module):
    """Tables with one bound or another, one of them read twice, and one without."""

    def __init__(self, **second: Any) -> None:
        super().__init__()
        self.first = nn.Embedding(ROWS, 4, max_norm=1.0)
        self.second = nn.EmbeddingBag(ROWS, 4, **{"mode": "mean", "max_norm": 0.5, **second})
        self.plain, self.top = nn.Embedding(ROWS, 4), nn.Linear(13 + 16, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        own = [
            self.first(sparse[:, 0]),
            self.first(sparse[:, 1]),
            self.second(sparse[:, 2:5]),
            self.plain(sparse[:, 5]),
        ]
        return self.top(torch.cat([dense, *own], 1)).squeeze(1)


def bounded() -> tuple[nn.Module, Captured]:
    torch.manual_seed(0)
    model = Bounded()
    return model, capture(model, EXAMPLE)


ALONE, SERVED = {"group_ps": 0, "sparse_ps": 0}, {"group_ps": 1, "sparse_ps": 2}
RUNS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "sgd in the trainer": (ALONE, {"sparse_optimizer": "sgd"}),
    "sgd of tables that are served together": ({**SERVED, "sparse_ps": 1}, {"sparse_optimizer": "sgd"}),
    "adagrad of tables in shards": (SERVED, {"sparse_optimizer": "adagrad"}),
    "tables on every trainer": ({**ALONE, "dense_ps": 0}, {"sparse_sync": "allgather", "dense_sync": "allreduce", "sparse_optimizer": "sgd"}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_one_trainer_has_the_losses_of_pytorch(name: str, tmp_path: Path) -> None:
    cluster, flags = RUNS[name]
    model, captured = bounded()
    options = with_flags(batch_size=BATCH, net_replicas=1, fc_dtype="float32", dense_lr=0.05, sparse_lr=2.0, **flags)
    splits = {"first.weight": 2} if cluster.get("sparse_ps") == 2 else {}
    plan = compile_net(captured, this_machine(**cluster), options, name="bounded", table_splits=splits)
    wanted = torch_losses(model, DATA, options)
    assert max(relative_differences(losses_of(plan, tmp_path / "plan", DATA), wanted)) <= 1e-5
    nn.Module.__setattr__(model.first, "max_norm", None)
    assert max(relative_differences(torch_losses(model, DATA, options), wanted)) > 1e-2, "bounds matter here"


def test_the_self_check_finds_loss_and_gradients_of_pytorch() -> None:
    found = capture_model(Bounded(), schema=CRITEO, example_inputs=EXAMPLE, logit="", label="")
    assert found.compare(Options()).notes == ()


@pytest.mark.parametrize(
    ("cluster", "flags"),
    [
        (SERVED, {"cache": "het"}),
        (SERVED, {"cache": "lookahead"}),
        ({**SERVED, "sparse_ps_processes": 2}, {}),
    ],
)
def test_what_steps_rows_as_they_are_is_refused(cluster: dict[str, int], flags: dict[str, Any]) -> None:
    with pytest.raises(
        ClusterError, match=r"^table 'first.weight' has max_norm 1, and .* would step its rows as they are"
    ):
        compile_net(bounded()[1], this_machine(**cluster), with_flags(**flags), name="bounded")


def test_lazy_decay_of_bounded_rows_is_refused() -> None:
    options = with_flags(sparse_lazy_weight_decay=0.1)
    with pytest.raises(
        ModelError, match=r"^lazy_weight_decay would decay rows as they are, and a table's max_norm bounds"
    ):
        compile_net(bounded()[1], this_machine(**ALONE), options, name="bounded")


@pytest.mark.parametrize(
    ("given", "forward", "message"),
    [
        ({}, lambda m, ids: m.second(ids.reshape(-1), torch.arange(len(ids)) * 2), "with max_norm and offsets, weights or padding_idx"),
        ({"padding_idx": 0}, lambda m, ids: m.second(ids), "with max_norm and offsets, weights or padding_idx"),
        ({"norm_type": 1.0}, lambda m, ids: m.second(ids), "norm_type=1 cannot be compiled"),
    ],
)  # fmt: skip
def test_bags_that_are_bounded_otherwise_are_refused(given: dict[str, Any], forward: Any, message: str) -> None:
    class Other(Bounded):
        def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
            return forward(self, sparse[:, :2]).sum(1) + dense[:, 0]

    with pytest.raises(ModelError, match=message):
        capture(Other(**given), EXAMPLE)


def test_a_table_with_two_bounds_is_refused() -> None:
    model = Bounded()
    model.plain.weight = model.first.weight
    with pytest.raises(ModelError, match=r"^table 'first.weight' is read with several max_norm \(none, 1\)"):
        compile_net(capture(model, EXAMPLE), this_machine(**ALONE), with_flags(), name="bounded")


def test_rows_of_a_shard_are_those_that_pytorch_bounds() -> None:
    table, ids = torch.randn(6, 4), torch.tensor([9, 7, 12])
    wanted = table.clone()
    torch.embedding_renorm_(wanted, ids - 7, 1.2, 2.0)
    OPS["BoundTable"].kernel(table, ids, max_norm=1.2, first_row=7)
    torch.testing.assert_close(table, wanted, rtol=1e-6, atol=0)
