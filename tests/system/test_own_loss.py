"""A loss of the model's own code is trained as PyTorch trains it: several heads, weights of examples, pairs within a batch."""

from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import batches_of, losses_of, own_losses, relative_differences
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.cli.evaluate import measures_of
from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.errors import ModelError, UsageError
from htrain.frontend.load import example_batch
from htrain.frontend.torch_model import capture
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from tests.system.test_equivalence import scatter

STEPS, BATCH, ROWS = 25, 16, 40
CLICKS = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}&communities=4"
EXAMPLE = {
    **{n: v for n, v in example_batch(click_schema(13, (ROWS,) * 26), 6).items() if n in ("dense", "sparse")},
    "label": torch.zeros(6),
}


class Heads(nn.Module):
    """Two numbers for each example, of one body."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(ROWS, 8), nn.Linear(21, 12)
        self.click, self.buy = nn.Linear(12, 1), nn.Linear(12, 1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0, 0.3)

    def logits(self, dense: torch.Tensor, sparse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.body(torch.cat([self.table(sparse[:, 0]), dense], 1)))
        return self.click(x).squeeze(1), self.buy(x).squeeze(1)


class Pairs(Heads):
    """Each example is to score higher than those of the batch without a click (BPR), and nearest to itself (in-batch softmax)."""

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        score, other = self.logits(dense, sparse)
        above = F.logsigmoid(score[:, None] - score[None, :]) * label[:, None] * (1 - label[None, :])
        nearest = torch.log_softmax(score[:, None] * other[None, :], 1).diagonal()
        return -above.mean() - 0.1 * nearest.mean(), score


class Views(Heads):
    """The head's two numbers of an example are nearer to each other than to those of others of the joined batch (NT-Xent)."""

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, count = self.table(torch.cat([sparse[:, 0], sparse[:, 1]])), len(dense)
        both = torch.relu(self.body(torch.cat([rows, dense.repeat(2, 1)], 1)))
        near = (both @ both.T).masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
        loss = F.cross_entropy(near, torch.cat([torch.arange(count) + count, torch.arange(count)]))
        first, second = self.click(both).squeeze(1).chunk(2)
        return loss + F.mse_loss(first, label) / (count - 1), first + second.detach()


class Plain(Heads):
    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logit, _ = self.logits(dense, sparse)
        return logit, F.binary_cross_entropy_with_logits(logit, label)


@pytest.mark.parametrize(("kind", "logit"), [(Pairs, ""), (Plain, ""), (Views, "")])
@pytest.mark.parametrize(("group_ps", "sparse_ps", "seed"), [(0, 0, 0), (2, 1, 3), (1, 2, 5)])
def test_a_loss_of_the_models_own_follows_pytorch(
    kind: type[nn.Module], logit: str, group_ps: int, sparse_ps: int, seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = kind()
    options = with_flags(
        batch_size=BATCH, net_replicas=1, loss="own", dense_optimizer="adam", sparse_optimizer="sgd", dense_lr=0.01, sparse_lr=0.05
    )  # fmt: skip
    captured = capture(model, EXAMPLE, logit=logit, own_loss=True)
    assert check(captured, TorchReference(model, captured, logit), EXAMPLE, options).notes == ()
    plan = compile_net(
        captured, this_machine(group_ps=group_ps, sparse_ps=sparse_ps), options, name="own", solver="rules",
        tagger=scatter(seed, trainer_may_hold_weights=True),
    )  # fmt: skip
    assert (
        max(relative_differences(losses_of(plan, tmp_path / "plan", CLICKS), own_losses(model, CLICKS, options)))
        <= 1e-4
    )


FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.click, self.buy = nn.Embedding(40, 8), nn.Linear(21, 1), nn.Linear(21, 1)

    def forward(self, dense, sparse, label):
        x = torch.cat([self.table(sparse[:, 0]), dense], 1)
        click, both = self.click(x).squeeze(1), self.click(x).squeeze(1).sigmoid() * self.buy(x).squeeze(1).sigmoid()
        weight = 1 + 2 * label
        loss = (F.binary_cross_entropy_with_logits(click, label, reduction="none") * weight).sum() / weight.sum()
        loss = loss + 0.3 * F.binary_cross_entropy(both, label * (dense[:, 0] > 0.5))
        return {RETURNED}

def build():
    return Heads()
"""


def loss_in_batches(folder: Path, data: str, size: int) -> float:
    """The mean loss of the module with the weights that were trained, over batches of a size."""
    htrain.export(folder / "run", to="torch", out=folder / "weights.safetensors")
    module = SourceFileLoader("heads", str(folder / "heads.py")).load_module().build().eval()
    module.load_state_dict(load_file(folder / "weights.safetensors"), strict=False)
    with torch.no_grad():
        batches = [{k: v for k, v in b.items() if k in ("dense", "sparse", "label")} for b in batches_of(data, size)]
        losses = [(len(b["label"]), float(module(**b)["loss"])) for b in batches]
    return sum(n * loss for n, loss in losses) / sum(n for n, _ in losses)


def test_heads_with_weights_are_trained_evaluated_and_scored(tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text(FILE.replace("RETURNED", '"click": click, "loss": loss, "both": both'))
    data, cluster = "synthetic:?rows=2000&table_rows=40", this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=1)
    plan = htrain.compile(
        tmp_path / "heads.py", data=data, logit="both", cluster=cluster, options=Options(loss="own"), solver="rules"
    )
    plan.save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    assert np.isnan(result.totals.ne), "a loss of its own over the entropy of clicks is no NE"
    assert result.totals.loss > 0
    found = htrain.evaluate(tmp_path / "run", data=data)
    assert 0.5 < found.log_loss < 2
    assert np.isnan(found.ne)
    assert found.log_loss == pytest.approx(loss_in_batches(tmp_path, data, plan.options.batch_size), rel=1e-5)
    assert measures_of(found) == f"AUC {found.auc:.4f}, loss {found.log_loss:.4f}, mean label {found.positive_rate:.4f}"
    htrain.predict(tmp_path / "run", data=data, out=tmp_path / "scores.npy")
    written = np.load(tmp_path / "scores.npy")
    scores, clicks = written["score"], written["label"] == 1
    above = (scores[clicks][:, None] > scores[~clicks]).mean() + 0.5 * (
        scores[clicks][:, None] == scores[~clicks]
    ).mean()
    assert found.auc == pytest.approx(above)
    assert 0 < scores.min() < scores.max() < 1


@pytest.mark.parametrize(
    ("returned", "logit", "message"),
    [
        ('"click": click, "both": both', "", "^forward\\(\\) returns no loss, a number without dimensions"),
        ('"loss": loss', "", "beside its loss, the model returns nothing: return what is scored, too"),
        ('"loss": loss, "click": click, "both": both', "", r"the model returns click, both: .* \(--logit\)"),
        ('"loss": loss, "x": x', "", r"what is scored, cat: float32\[B,21\], must be float32\[B\]"),
    ],
)
def test_what_forward_has_to_return_is_said(returned: str, logit: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text(FILE.replace("RETURNED", returned))
    with pytest.raises(ModelError, match=message):
        htrain.compile(
            tmp_path / "heads.py", data="synthetic:?rows=200&table_rows=40", logit=logit, options=Options(loss="own"), solver="rules"
        )  # fmt: skip


def test_a_model_that_takes_the_label_and_no_onnx_file_has_a_loss_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "heads.py").write_text(FILE.replace("RETURNED", '"loss": loss, "click": click'))
    with pytest.raises(ModelError, match=r"has an input called 'label'.* or return the loss and train with --loss own"):
        htrain.compile(tmp_path / "heads.py", data="synthetic:?rows=200&table_rows=40", logit="click", solver="rules")
    with pytest.raises(UsageError, match="--loss own has no effect on an ONNX model"):
        htrain.compile(tmp_path / "m.onnx", data="synthetic:?rows=200", options=Options(loss="own"))
