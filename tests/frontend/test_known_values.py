"""What forward() makes of values that it has before any batch, such as buffers, is captured by them, and trained as by PyTorch."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from taken_out import assert_trained_and_exported_alike
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(4, 5, dtype=torch.int64)}
Forward = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """rows[B,5,4] of a table, what a test makes of them, and the sum of that; with tensors of every kind that may say how."""

    def __init__(self, between: Forward) -> None:
        super().__init__()
        self.table, self.top, self.norm = nn.Embedding(30, 4), nn.Linear(4, 1), nn.BatchNorm1d(5)
        self.register_buffer("sizes", torch.tensor([2, 3]))
        self.register_buffer("places", torch.tensor([0, 2, 5]), persistent=False)
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("heat", torch.tensor(0.3))
        self.register_buffer("flags", torch.tensor([True, False, True, True, False]))
        self.plain, self.steps = torch.tensor([1, 2]), nn.Parameter(torch.tensor(3), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.between = between

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made = self.between(self, self.table(ids), ids)
        return self.top(torch.tanh(made.reshape(len(ids), -1, 4)).sum(1)).squeeze(1)


def by_parts(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As fields of some sizes are read one after another."""
    parts, begin = [], 0
    for size in m.sizes.tolist():
        parts.append(x[:, begin : begin + size].sum(1))
        begin += size
    return torch.stack(parts, 1).prod(1)


def by_layers(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    for layer in range(int(m.count)):
        x = torch.tanh(x) * (layer + 1) / float(m.heat)
    for layer in range(m.steps):
        x = x + layer
    return x if m.flags.all().item() else 2 * x if m.flags.any() and m.heat > 0.1 and not torch.isnan(m.heat) else -x


def set_before(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """What is done in place to a tensor, or to a view of it, is done to its value."""
    mask = torch.zeros(5, dtype=torch.int64)
    mask[1:].add_(1)
    mask[int(m.count)] += 3
    view = mask.view(5, 1)
    view.mul_(2)
    return sum(x[:, place] * number for place, number in enumerate(mask.tolist()) if number)


def changed_by_batch(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A tensor of a batch that began as one of none is of that batch."""
    kept = torch.zeros(5)
    seen = kept[1:]
    seen.add_((ids > 3).float().mean())
    return x * kept[2].item() + x * (kept[1:].clone() + 1).mean()


ACCEPTED: dict[str, Forward] = {
    "parts": by_parts,
    "layers": by_layers,
    "in place": set_before,
    "in place by a batch": changed_by_batch,
    "slices": lambda m, x, ids: torch.cat([x[:, m.places[i] : m.places[i + 1]].sum(1, keepdim=True) for i in range(2)], 1),
    "splits": lambda m, x, ids: torch.stack([p.mean(1) for p in x.split(m.sizes.tolist(), 1)], 1),
    "split by a tensor": lambda m, x, ids: torch.stack([p.mean(1) for p in torch.tensor_split(x, m.sizes, 1)], 1),
    "masks": lambda m, x, ids: x[:, m.flags].reshape(len(x), -1, 4) * torch.arange(3)[m.flags[:3]].sum(),
    "numpy": lambda m, x, ids: x * float(m.sizes.cpu().numpy().sum()) + torch.from_numpy(np.where(m.flags.numpy(), 1.0, 0.5)).float().sum(),
    "sizes": lambda m, x, ids: x.view(-1, 5, m.count, 2).transpose(2, 3).reshape(-1, 5, int(m.count) * 2) + x.topk(m.count, 1)[0].sum(1, keepdim=True),
    "walked": lambda m, x, ids: sum(x[:, int(i)] * i for i in m.sizes) + sum(x[:, i] for i in m.flags.nonzero().flatten().tolist()),
    "names": lambda m, x, ids: x * {"f2": 3}[f"f{m.count}"] * [1, 2, 3][m.count] * len(set(m.sizes.tolist())),
    "of attributes": lambda m, x, ids: sum(x[:, i] for i in m.plain.tolist()) if m.plain.sum() == 3 else x,
    "of numbers": lambda m, x, ids: 2 * x if torch.linspace(0, 1, 3)[1] > 0.2 and torch.equal(torch.eye(2), torch.eye(2)) else x,
    "item": lambda m, x, ids: x * m.heat.item() + torch.softmax(torch.tensor([1.0, 2.0]), 0)[0].item(),
    "repeated": lambda m, x, ids: torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1, 3]), dim=1) * torch.arange(7)[:, None],
    "repeated ids": lambda m, x, ids: x[:, torch.repeat_interleave(m.sizes)] * torch.arange(5)[:, None],
    "pairs": lambda m, x, ids: x[:, torch.combinations(torch.arange(5), 2)].prod(2),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_known_before_a_batch_says_what_is_captured(name: str) -> None:
    model = capture_model(Model(ACCEPTED[name]), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert not any("mask" in note for note in model.captured.notes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_that_torch_jit_has_traced_is_captured() -> None:
    traced = Model(lambda m, x, ids: m.traced(x) * int(m.count))
    traced.traced = torch.jit.trace(nn.Linear(4, 4), torch.zeros(2, 4))
    model = capture_model(traced, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()


def test_what_is_taken_along_a_dimension_holds_for_any_batch() -> None:
    taken = Model(lambda m, x, ids: torch.take_along_dim(x, (ids % 5)[:, :, None], 1) * torch.arange(5)[:, None])
    model = capture_model(taken, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()


def count(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return 2 * x if m.count > 3 else x


def caught(m: Model, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    try:
        return x if m.scale > 0 else -x
    except Exception:
        return 3 * x


CHANGES = r"asks for the value of buffer '{}', which every batch changes \(\S+test_known_values.py:\d+\): a net goes one way for all"
OF_PARAMETER = r"asks for the value of parameter '{}' \(\S+test_known_values.py:\d+\), which training or a checkpoint changes: .* self.register_buffer"
OF_BATCH = r"goes another way by the values of a batch: .* \(.*\S+test_known_values.py:\d+\)$"
REFUSED: dict[str, tuple[Forward, str]] = {
    "a count": (count, CHANGES.format("count")),
    "batches": (lambda m, x, ids: m.norm(x) * int(m.norm.num_batches_tracked), CHANGES.format("norm.num_batches_tracked")),
    "a statistic": (lambda m, x, ids: m.norm(x) if m.norm.running_mean.sum() > 0 else x + m.norm(x), CHANGES.format("norm.running_mean")),
    "a weight": (lambda m, x, ids: x * m.scale if m.scale > 0 else x, OF_PARAMETER.format("scale")),
    "made of a weight": (lambda m, x, ids: x * int((m.top.weight * m.heat).sum()), OF_PARAMETER.format("top.weight")),
    "caught": (caught, OF_BATCH),
    "a batch": (lambda m, x, ids: x if (ids + m.count).sum() > 0 else -x, OF_BATCH),
    "a draw": (lambda m, x, ids: x if torch.rand(1) > 0.5 else -x, OF_BATCH),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_training_changes_is_refused_by_its_name_and_line(name: str) -> None:
    between, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        capture(Model(between), IDS)


def test_a_buffer_is_as_it_was_afterwards() -> None:
    model = Model(set_before)
    capture(model, IDS)
    assert (model.count.item(), model.places.tolist(), model.plain.tolist()) == (2, [0, 2, 5], [1, 2])


FILE = """
import torch
from torch import nn

class Fields(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(100, 4), nn.Linear(4, 1)
        self.register_buffer("sizes", torch.tensor([10, 16]))
        self.register_buffer("scaled", torch.zeros(()))
        self.scaled.fill_(1)

    def forward(self, sparse):
        parts = self.table(sparse % 100).split(self.sizes.tolist(), 1)
        x = torch.stack([part.sum(1) for part in parts], 1).prod(1)
        return self.top(2 * x if self.scaled else x).squeeze(1)

def build():
    return Fields()
"""


def test_buffers_of_a_model_that_is_built_without_memory_have_their_values(tmp_path: Path) -> None:
    (tmp_path / "fields.py").write_text(FILE)
    model = capture_model(f"{tmp_path}/fields.py", schema=CRITEO, example_inputs={}, logit="", label="")
    assert model.compare(Options()).notes == ()


STEPS, BATCH, ROWS = 6, 16, 30
CLICKS = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}"


class Fields(nn.Module):
    """Fields of some sizes, a number of layers and a switch, all kept in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cross, self.top = nn.Embedding(26 * ROWS, 4), nn.Linear(4, 4), nn.Linear(17, 1)
        self.register_buffer("offsets", torch.arange(26) * ROWS)
        self.register_buffer("sizes", torch.tensor([10, 16]))
        self.register_buffer("depth", torch.tensor(2))
        self.register_buffer("switch", torch.tensor(True))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.table(sparse + self.offsets)
        first, second = (part.sum(1) for part in torch.split(x, self.sizes.tolist(), dim=1))
        for _ in range(int(self.depth)):
            first = first + torch.tanh(self.cross(second)) if self.switch.item() else first
        return self.top(torch.cat([first * second, dense], 1)).squeeze(1)


@pytest.mark.parametrize(
    "counts", [{"group_ps": 0, "sparse_ps": 0}, {"group_ps": 1, "sparse_ps": 2}], ids=["one trainer", "PSs"]
)
def test_it_is_trained_and_exported_as_by_pytorch(counts: dict[str, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.int64)}
    assert_trained_and_exported_alike(Fields(), inputs, CLICKS, tmp_path, batch_size=BATCH, **counts)


def test_the_line_that_asks_is_the_one_that_is_told() -> None:
    line = inspect.getsourcelines(count)[1] + 2
    with pytest.raises(ModelError, match=rf"{re.escape(__file__)}:{line}\)"):
        capture(Model(count), IDS)
