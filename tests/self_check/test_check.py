"""The self-check passes on what is captured right, whatever the module, and leaves it as it was."""

import copy
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import din
import pytest
import torch
from random_modules import _residual, drawn_module, example
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO, Schema, click_schema
from htrain.data.formats.graph import graph_schema
from htrain.errors import ModelError
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.ops import OPS
from htrain.self_check.capture import capture_model
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODELS = Path(__file__).parents[2] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2", "graphsage.py")
IDS = {"ids": torch.zeros(4, 2, dtype=torch.int64)}
DEFAULTS = Options()
MATRIX = {"x": torch.zeros(4, 3)}


def notes(
    model: nn.Module, inputs: dict[str, torch.Tensor], *, logit: str = "", options: Options = DEFAULTS
) -> tuple[str, ...]:
    captured = capture(model, inputs, logit=logit)
    return check(captured, TorchReference(model, captured, logit), inputs, options).notes


@pytest.mark.parametrize(("name", "rows"), [(name, 10**9) for name in ZOO] + [("dlrm.py", 3)])
def test_the_zoo_passes(name: str, rows: int) -> None:
    schema: Schema = graph_schema(rows, (4, 3)) if name == "graphsage.py" else click_schema(13, (rows,) * 26)
    loaded = load_model(str(MODELS / name), schema)
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check(captured, TorchReference(loaded.module, captured, ""), loaded.example_inputs, Options()).notes == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB: no table is allocated
    assert all(p.is_meta for p in loaded.module.parameters())


@pytest.mark.parametrize(
    "options",
    [
        with_flags(fc_dtype="int8"),
        with_flags(fc_dtype="bfloat16", fc_gradient_dtype="bfloat16"),
        with_flags(compress="always"),
    ],
)
def test_what_is_asked_to_be_less_exact_is_no_difference(options: Options) -> None:
    loaded = load_model(str(MODELS / "dlrm.py"), click_schema(13, (1000,) * 26))
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    assert check(captured, TorchReference(loaded.module, captured, ""), loaded.example_inputs, options).notes == ()


@pytest.mark.parametrize("seed", range(30))
def test_a_drawn_module_passes(seed: int) -> None:
    model = drawn_module(seed)
    assert notes(model, example(), options=Options(loss="mse" if seed % 5 == 0 else "bce")) == ()


@pytest.mark.parametrize(
    "type",
    ["FCGradient", "TakeRowsGradient", "PoolRowsGradient", "LayerNormalizationGradient", "BceWithLogitsGradient"],
)
def test_a_gradient_that_is_one_per_cent_off_is_found(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*tensors: torch.Tensor, **attrs: object) -> object:
        made = right.kernel(*tensors, **attrs)
        return tuple(1.01 * part for part in made) if isinstance(made, tuple) else 1.01 * made

    right, seed = OPS[type], next(seed for seed in range(30) if _residual in drawn_module(seed).steps)
    monkeypatch.setitem(OPS, type, replace(right, kernel=off))
    with pytest.raises(ModelError, match=r"the self-check found .* the gradient of '\S+' differs by [01234]\.\d\d%"):
        notes(drawn_module(seed), example())


class Headed(nn.Module):
    def __init__(self, shown: float) -> None:
        super().__init__()
        self.out, self.shown = nn.Linear(3, 2), shown

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        first, second = self.out(x).unbind(1)
        scale = 1.0 if self.training else self.shown
        return {"click": first + second, "second": second.tanh() * scale, "vector": x[:, :2] * first.unsqueeze(1)}


def test_heads_are_compared_and_one_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    example = {"x": torch.zeros(5, 3)}
    assert notes(Headed(1.0), example, logit="click") == ()
    (note,) = notes(Headed(2.0), example, logit="click")
    assert note.startswith("forward() gives something else in evaluation")
    monkeypatch.setitem(OPS, "Tanh", replace(OPS["Tanh"], kernel=lambda x: 1.05 * torch.tanh(x)))
    with pytest.raises(ModelError, match="output 'second'"):
        notes(Headed(1.0), example, logit="click")


def test_the_model_that_nobody_planned_for_passes() -> None:
    batch = {
        "dense": torch.zeros(6, 3),
        "target": torch.zeros(6, 1),
        "history": torch.zeros(6, 6),
        "history_length": torch.zeros(6),
        "tags": torch.zeros(6, 4),
    }
    inputs = {name: value if name == "dense" else value.long() for name, value in batch.items()}
    assert notes(din.build(), inputs, logit="logit") == ()


class Clicks(nn.Module):
    """A model with everything that a check could leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.top = nn.Embedding(50, 4), nn.Linear(4, 1)
        self.seen: list[torch.Tensor] = []
        self.cache: dict[str, torch.Tensor] = {"kept": torch.ones(2)}
        self.last: torch.Tensor | None = None
        self.offsets = torch.zeros(4)
        self.register_buffer("shift", torch.zeros(4))
        self.top.bias.grad = torch.full((1,), 7.0)
        self.hook = self.table.register_forward_hook(lambda module, args, rows: self.seen.append(rows))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids).mean(1) + self.offsets + self.shift
        self.cache["x"] = self.last = x
        self.calls = 1
        return self.top(x).squeeze(1)


def test_a_module_is_left_as_it_was() -> None:
    model = Clicks()
    before = copy.deepcopy(model.state_dict())
    identities = {name: id(p) for name, p in model.named_parameters()}
    assert notes(model, IDS) == ()
    assert (model.seen, list(model.cache), model.last, hasattr(model, "calls")) == ([], ["kept"], None, False)
    assert {name: id(p) for name, p in model.named_parameters()} == identities
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.top.bias.grad is not None
    assert model.top.bias.grad.item() == 7.0
    assert model.table.weight.grad is None


def test_weights_that_cancel_out_are_no_false_alarm() -> None:
    """A bias before a softmax has no gradient but the rounding of its parts."""

    class Cancels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.shift, self.top = nn.Linear(3, 8), nn.Parameter(torch.zeros(1)), nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(torch.softmax(self.score(x) + self.shift, dim=1)).squeeze(1)

    assert notes(Cancels(), MATRIX) == ()


def test_logarithms_and_roots_are_checked_on_numbers_above_zero() -> None:
    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width, self.top = nn.Parameter(torch.ones(3)), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(torch.log1p(x).sqrt() * torch.log(self.width)).squeeze(1)

    assert notes(Logs(), MATRIX) == ()


def test_what_cannot_be_compared_is_a_note() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_exporting():
                assert x.mean() > 5, "only large numbers"
            return self.top(x).squeeze(1)

    assert notes(Picky(), MATRIX) == ("not compared with PyTorch: it raises AssertionError: only large numbers",)


class Masked(nn.Module):
    """Items that a few of a list's places are masked by, to be told from the others (Devlin et al. 2019); `hides` changes its table where no graph sees it."""

    def __init__(self, *, hides: bool) -> None:
        super().__init__()
        self.items, self.out, self.hides = nn.Embedding(41, 8, padding_idx=0), nn.Linear(8, 40), hides

    def forward(self, sparse: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.hides:
            self.items.weight.data = F.normalize(self.items.weight.data, dim=1)
        masked = (torch.rand(sparse.shape) < 0.15) & (sparse > 0)
        scores = self.out(self.items(sparse.masked_fill(masked, 40)))
        loss = F.cross_entropy(scores.transpose(1, 2), sparse.clamp(max=39), reduction="none")
        return (loss * masked).sum() / masked.sum().clamp(min=1), sparse[:, 0].float()


def test_what_a_mask_of_few_places_picks_is_compared() -> None:
    """By one number for all draws it would pick nothing, and the loss be 0 whatever is computed."""
    inputs = {"sparse": torch.randint(0, 40, (6, 7)), "label": torch.ones(6)}

    def compared(model: nn.Module) -> tuple[str, ...]:
        found = capture_model(model, schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own")
        return found.compare(Options(loss="own")).notes

    assert compared(Masked(hides=False)) == ()
    with pytest.raises(ModelError, match="would not be trained as by PyTorch"):
        compared(Masked(hides=True))


class SharedNegatives(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(rows, 4), nn.Embedding(rows, 4)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        users, negatives = self.users(user[:, 0]), self.items(torch.randint(0, 50, (16,)))
        score = (users * self.items(item[:, 0])).sum(1, keepdim=True)
        first = torch.zeros(len(users), dtype=torch.long)
        return F.cross_entropy(torch.cat([score, users @ negatives.T], 1), first), score[:, 0]


@pytest.mark.parametrize(("rows", "told"), [(20_000, True), (100, False)])
def test_a_large_embedding_that_is_no_table_is_told(rows: int, told: bool) -> None:
    inputs = {name: torch.randint(0, 50, (6, 1)) for name in ("user", "item")}
    model = capture_model(SharedNegatives(rows), schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own")
    notes = [note for note in model.captured.notes if "is a weight, not a table" in note]
    assert [note.split()[0] for note in notes] == ["items.weight"] * told


def test_dense_weights_that_are_too_large_are_a_note() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.device("meta"):
                self.top = nn.Linear(3, 1)
                self.wide = nn.Linear(20_000, 20_000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(x).squeeze(1) + self.wide(x.repeat(1, 6667)[:, :20_000]).sum(1)

    assert notes(Wide(), MATRIX) == (
        "not compared with PyTorch: its dense weights take 1.5 GiB, more than a self-check may",
    )


@pytest.mark.parametrize(
    "end", [torch.sigmoid, lambda x: x.clamp(0, 1), lambda x: torch.softmax(torch.cat([x, -x], 1), 1)[:, :1]]
)
def test_a_probability_that_is_no_plain_sigmoid_is_refused_under_bce(end) -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1 - end(self.top(x)).squeeze(1)

    assert notes(Ends(), MATRIX, options=Options(loss="mse")) == ()
    assert notes(Ends(), MATRIX, options=Options(loss="bce_probability")) == ()
    with pytest.raises(
        ModelError,
        match=r"^the model's output is between 0 and 1 whatever its weights are: a probability, of which the bce loss",
    ):
        notes(Ends(), MATRIX)


def test_a_logit_is_no_probability() -> None:
    with pytest.raises(ModelError, match=r"the model's output is -\S+ to \S+ on a random batch, no probability"):
        notes(nn.Sequential(nn.Linear(3, 1)), {"input": torch.zeros(4, 3)}, options=Options(loss="bce_probability"))


def test_dropouts_norms_and_attention_are_compared_without_what_is_dropped() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.3, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
            self.norm, self.drop, self.top = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x[B,5,4]."""
            seen = self.layer(x)
            seen = seen + self.attention(seen, seen, seen, need_weights=False)[0] + self.attention(x, x, x)[0]
            return self.top(self.drop(self.norm(seen.mean(1)))).squeeze(1)

    model, inputs = Attends(), {"x": torch.zeros(4, 5, 4)}
    assert notes(model, inputs) == ()
    assert sum(op.type == "Dropout" for op in capture(model, inputs).net.ops) == 7
    assert float(model.norm.running_mean.abs().sum()) == 0


class Normed(nn.Module):
    """Batch norms of a model that has been trained, and what `change` makes of what is between them."""

    def __init__(self, change: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change, self.first, self.second, self.top = change, nn.BatchNorm1d(4), nn.BatchNorm1d(1), nn.Linear(4, 1)
        for norm in (self.first, self.second):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x[B,4]."""
        return self.second(self.top(self.change(self, self.first(x)))).squeeze(1)


def test_statistics_of_batch_norms_stay_those_of_the_model() -> None:
    """They are its own, which a plan begins with, and which the caller's module goes on with."""
    model, inputs = Normed(lambda m, x: torch.relu(x)), {"x": torch.zeros(4, 4)}
    before = {name: value.clone() for name, value in model.named_buffers()}
    captured = capture(model, inputs)
    assert check(captured, TorchReference(model, captured, ""), inputs, DEFAULTS).notes == ()
    # Those of one element are constants of the plan
    assert {"first.running_mean", "first.running_var"} <= captured.values.keys()
    for name in before.keys() & captured.values.keys():
        assert torch.equal(captured.values[name], before[name]), name
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]), name


def test_ids_are_drawn_from_all_rows_that_a_column_may_read() -> None:
    """Columns of one input read tables of 2 and 1,000 rows, one behind the other in one table."""

    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.top = nn.Embedding(1002, 4), nn.Linear(4, 1)
            self.register_buffer("starts", torch.tensor([0, 2]))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.top(self.table(ids + self.starts).sum(1)).squeeze(1)

    assert notes(Offsets(), IDS) == ()


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_a_model_of_a_trillion_parameters_is_checked_within_memory() -> None:
    loaded = load_model(str(MODELS / "wide_deep.py:build_128"), click_schema(0, (3 * 10**8,) * 26))
    assert sum(p.numel() for p in loaded.module.parameters()) > 10**12
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check(captured, TorchReference(loaded.module, captured, ""), loaded.example_inputs, Options()).notes == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
