"""What the PyTorch frontend captures computes what the module computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.data import click_schema
from htrain.data.formats.graph import graph_schema
from htrain.errors import ModelError
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import Init, Net
from htrain.ops import OPS
from htrain.spec.cluster import this_machine

MODELS = Path(__file__).parents[2] / "models"
Tensors = dict[str, torch.Tensor]


def interpret(net: Net, parameters: Tensors, inputs: Tensors, batch: int) -> torch.Tensor:
    """The net's output by its ops' kernels, one after another."""
    known = {**parameters, **inputs}
    for op in net.ops:
        extra = {"batch": batch} if OPS[op.type].needs_batch else {}
        made = OPS[op.type].kernel(*(known[name] for name in op.inputs), **op.attrs, **extra)
        known.update(zip(op.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return known[net.outputs[0]]


def check(module: nn.Module, inputs: Tensors, *, logit: str = "") -> Net:
    """Capture with one batch size; compare on others."""
    net = capture(module, inputs, logit=logit).net
    parameters = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for batch in (1, 5):
        other = {
            name: value[:1].repeat_interleave(batch, 0) + torch.arange(batch).view(-1, *[1] * (value.dim() - 1))
            for name, value in inputs.items()
        }
        other = {name: value.to(inputs[name].dtype) for name, value in other.items()}
        with torch.no_grad():
            wanted = module(**other)
            wanted = wanted[logit] if logit else wanted
            torch.testing.assert_close(interpret(net, parameters, other, batch), wanted, atol=1e-6, rtol=1e-5)
    return net


@pytest.mark.parametrize("name", ["dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2"])
def test_zoo_model_is_captured_whole(name: str) -> None:
    loaded = load_model(str(MODELS / name), click_schema(13, (50,) * 26))
    module = loaded.module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.0, 0.1)
    check(module, {n: torch.ones_like(v) for n, v in loaded.example_inputs.items()})


def test_the_zoos_model_of_a_graph_is_captured_whole_with_one_table() -> None:
    loaded = load_model(str(MODELS / "graphsage.py"), graph_schema(50, (3, 2)))
    net = loaded.initialised(capture(loaded.module, loaded.example_inputs)).net
    assert net.parameters["nodes.weight"].init == Init("uniform", (-(50**-0.5), 50**-0.5))
    assert net.parameters["logit.weight"].init == Init("constant", (4.0,))
    module = loaded.module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.0, 0.1)
    inputs = {name: torch.arange(value.numel()).view_as(value) % 40 for name, value in loaded.example_inputs.items()}
    assert [p.name for p in check(module, inputs).parameters.values() if p.kind == "table"] == ["nodes.weight"]


@pytest.mark.parametrize("name", ["wide_deep.py", "deepfm.py", "dcn.py"])
def test_zoo_model_takes_ids_of_one_shared_table(name: str) -> None:
    loaded = load_model(str(MODELS / name), click_schema(0, (50,) * 10, tables=("ids",) * 10))
    captured = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    tables = [p for p in captured.net.parameters.values() if p.kind == "table"]
    assert {p.shape[0] for p in tables} == {50}
    assert tables[0].init == Init("uniform", (-(50**-0.5), 50**-0.5))


SHARED = torch.tensor([[0.5, -1.0], [1.5, 0.25], [-0.75, 2.0]])

FUNCTIONS = {
    "slices": lambda x: x[:, 1:3] + x[:, :2],
    "chunks": lambda x: x.chunk(2, dim=1)[0] * x.chunk(2, dim=1)[1],
    "unbind": lambda x: x.unbind(1)[0] - x.unbind(1)[2],
    "stack": lambda x: torch.stack([x, 2 * x], dim=1).sum(1),
    "norms": lambda x: F.normalize(x, dim=1),
    "clamps": lambda x: x.clamp(min=0.5).clamp(max=2.0) / (x.abs() + 1),
    "bits of integers": lambda x: (
        ((9 * x).long() & 5)
        + ((9 * x).long() | 16)
        + ((9 * x).int() ^ (7 * x).int())
        + ~(9 * x).long()
        + ((9 * x).long() << 3)
        + ((9 * x).int() << 30 >> 29)
        + (-(999 * x).long() >> 2)
        + ((x > 1) & (x < 2) | (x > 9))
        + ~(x > 1)
        + ((x > 1) ^ (x < 0.9))
        + x
    ),
    "clamps of integers": lambda x: (
        x.sum(1, keepdim=True)
        / (x > 1).sum(1, keepdim=True).clamp(min=1)
        * ((9 * x).long().clamp(2, 7) + (9 * x).int().clamp(max=5) + (9 * x).long().clamp(min=2.5))
        + ((9 * x).long() + 2**62).clamp(min=2**62 + 3)
        - 2.0**62
        + x.clamp(1, 2)
    ),
    "softplus": lambda x: F.softplus(x) + F.silu(x) + F.leaky_relu(x - 1),
    "einsum": lambda x: torch.einsum("bi,bj->bij", x, x).flatten(1),
    "attention": lambda x: F.scaled_dot_product_attention(x.view(-1, 2, 2), x.view(-1, 2, 2), x.view(-1, 2, 2)).flatten(
        1
    ),
    "attention with fewer keys": lambda x: F.scaled_dot_product_attention(
        x.view(-1, 4, 1, 1), x[:, :2].view(-1, 2, 1, 1), x[:, 2:].reshape(-1, 2, 1, 1), enable_gqa=True
    ).flatten(1),
    "attention over what all share": lambda x: F.scaled_dot_product_attention(
        x.view(-1, 2, 2), SHARED, 2 - SHARED
    ).flatten(1),
    "causal attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 2, 2)] * 3, is_causal=True).flatten(1),
    "sizes": lambda x: x.view(x.size(0), 2, 2).transpose(1, 2).reshape(x.size(0), -1) + torch.zeros(x.size(0), 1),
    "masks": lambda x: x.masked_fill(x > 1, -1.0) * (x < 3),
    "scalars": lambda x: (1 - x) ** 2 / 3 + 2.5,
    "triangle": lambda x: torch.tril(x.view(-1, 2, 2)).flatten(1),
    "padding": lambda x: F.pad(x, (1, 1), value=2.0),
    "activations": lambda x: (
        F.selu(x)
        + F.celu(x - 1)
        + F.hardtanh(x)
        + F.relu6(4 * x)
        + F.logsigmoid(x)
        + F.softsign(x)
        + F.threshold(x, 0.9, 0.0)
        + F.glu(x).sum(1, keepdim=True)
    ),
    "functions": lambda x: (
        torch.expm1(x)
        + torch.atan2(x, x + 1)
        + torch.tan(x / 2)
        + torch.log2(x)
        + torch.addcmul(x, x, x, value=0.5)
        + torch.lerp(x, 2 * x, 0.3)
        + x.square()
    ),
    "largest": lambda x: (
        torch.topk(x, 2, dim=1).values + x.sort(dim=1, descending=True)[0][:, :2] + x.argsort(1)[:, :2]
    ),
    "places": lambda x: x.max(1).values * x.max(1).indices + x.min(1)[1],
    "any and all": lambda x: (x > 0.7).any(1) * 1.0 + (x > 0.2).all(dim=1) + torch.any(x > 9),
    "unbiased": lambda x: (
        x.var(1) + x.std(1) + x.norm(p=1, dim=1) + torch.cumprod(x, 1)[:, 1] + torch.linalg.vector_norm(x, dim=1)
    ),
    "both moments": lambda x: (
        torch.var_mean(x, 1)[0]
        + torch.std_mean(x, 1, correction=0)[0]
        + torch.var_mean(x, (1,), keepdim=True, correction=2)[1].squeeze(1)
    ),
    "convolutions": lambda x: (
        F.conv1d(x.view(-1, 2, 2), torch.ones(3, 2, 2), padding=1).amax(2)
        + F.max_pool1d(F.avg_pool1d(x.view(-1, 1, 4), 2), 2).flatten(1)
    ),
    "images": lambda x: (
        F.max_pool2d(F.conv2d(x.view(-1, 1, 2, 2), torch.ones(3, 1, 2, 2), padding=1), 2).flatten(1)
        + F.adaptive_avg_pool1d(x.view(-1, 2, 2), 1).sum(1)
    ),
    "norms of groups": lambda x: (
        F.group_norm(x.view(-1, 2, 2), 2).flatten(1)
        + F.instance_norm(x.view(-1, 2, 2)).flatten(1)
        + F.rms_norm(x, (4,))
    ),
    "repeats for the batch": lambda x: (
        torch.arange(4.0).repeat(x.size(0), 1)
        + torch.ones(1, 4).expand(x.size(0), -1) * x
        + x.repeat_interleave(2, 1)[:, ::2]
    ),
    "assignments": lambda x: _assigned(x),
    "one of each": lambda x: x.view(-1, 2, 2)[torch.arange(x.size(0)), (x[:, 0] > 1).long()].sum(1),
    "the last of each": lambda x: x[torch.arange(x.size(0)), (x[:, 0] > 1).long() - 1],
    "some of each": lambda x: x[torch.arange(x.size(0))[:, None], x.argsort(1)[:, :2]],
    "scatters": lambda x: (
        x.scatter(1, (x > 1).long(), 0.5)
        + torch.zeros_like(x).scatter_add(1, (x > 0.8).long(), x)
        + F.one_hot((x[:, 0] > 1).long(), 4)
    ),
    "softmax of one number": lambda x: (
        x * torch.softmax(x.new_tensor(3.0) * torch.tensor(0.5), 0) + x.argmax(1, keepdim=True)
    ),
    "no dimension": lambda x: x * torch.tensor(2.0) + x.new_tensor(3.0) * torch.tensor(0.5).sigmoid(),
    "unfolded": lambda x: (
        x.unfold(1, 2, 1).sum(2)
        + torch.diagonal(x.view(-1, 2, 2), dim1=1, dim2=2).sum(1, keepdim=True)
        + x.roll(1, 1)[:, :3]
    ),
    "pools": lambda x: (
        F.adaptive_max_pool1d(x.view(-1, 2, 2), 1).squeeze(2)
        + F.adaptive_avg_pool1d(x.view(-1, 1, 4), 2).squeeze(1)
        + F.lp_pool1d(x.view(-1, 1, 4), 2.0, 2).squeeze(1)
    ),
    "in the middle": lambda x: (
        x.median(1).values * x.median(1, keepdim=True).indices + x.kthvalue(2, 1).values + x.quantile(0.3, 1)
    ),
    "reduced at places": lambda x: (
        x.scatter_reduce(1, (x > 1).long(), x, "amax")
        + torch.zeros_like(x).scatter_reduce(1, (x > 0.8).long(), x, "mean", include_self=False)
    ),
    "slopes of channels": lambda x: (
        F.prelu(x.view(-1, 2, 2) - 1, torch.tensor([0.5, -2.0])).flatten(1)
        + F.prelu(x - 1, torch.tensor([0.5, -2.0, 1.0, 0.0]))
        + F.prelu(x[:, :, None, None] - 1, torch.tensor([0.5, -2.0, 1.0, 0.0])).flatten(1)
    ),
    "one of several": lambda x: torch.isin((4 * x).long(), torch.tensor([2, 4])) * x,
    "a share of a product": lambda x: (
        torch.addmm(torch.ones(4), x, torch.ones(4, 4), beta=0.5, alpha=2)
        + torch.baddbmm(
            torch.ones(1, 2, 2), x.view(-1, 2, 2), torch.ones(2, 2).expand(x.size(0), 2, 2), alpha=3
        ).flatten(1)
    ),
    "losses of pairs": lambda x: (
        F.cosine_embedding_loss(x, x.flip(1), torch.sign(x[:, 0] - 1), margin=0.3, reduction="none")
        + F.hinge_embedding_loss(x, torch.sign(x - 1), reduction="none").sum(1)
        + F.triplet_margin_loss(x, x.flip(1), x.roll(1, 1), reduction="none")
    ),
    "reductions": lambda x: x.amax(1) + x.prod(1) + torch.logsumexp(x, 1) + x.var(1, correction=0),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 2.0
    y[:, 2:] = x[:, :2] * 3
    y[x > 1] = -1.0
    return y


MIXED = {
    "means": lambda x: x - x.mean(0),
    "softmax over candidates": lambda x: x.sum(1).softmax(0),
    "negatives of the batch": lambda x: torch.log_softmax(x @ x.t(), 1).logsumexp(1),
    "sorted": lambda x: x.sort(0)[0] + x.cumsum(0),
}


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_depend_on_each_other_are_captured_and_it_is_said(name: str) -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return MIXED[name](x)

    check(Mixed(), {"x": torch.rand(3, 4) + 0.5})
    (note,) = capture(Mixed(), {"x": torch.rand(3, 4)}).notes
    assert "examples of a batch depend on each other; a batch is what one net replica of a trainer reads" in note


class Call(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS[self.name](x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_a_matrix_is_captured(name: str) -> None:
    check(Call(name), {"x": torch.rand(3, 4) + 0.5})


class Masked(nn.Module):
    """A sequence that sees what was before, by the mask that nn.Transformer itself makes, and one that sees the first and its own."""

    def __init__(self, *, decodes: bool) -> None:
        super().__init__()
        one = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
        self.layers: nn.Module = (
            nn.TransformerDecoder(nn.TransformerDecoderLayer(**one), 2)
            if decodes
            else nn.TransformerEncoder(nn.TransformerEncoderLayer(**one), 2)
        )
        self.decodes = decodes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(3)
        other = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 1, 0]]).bool()
        if self.decodes:
            return (self.layers(x, x, tgt_mask=causal) + self.layers(x, x, tgt_mask=other)).mean((1, 2))
        return (self.layers(x, mask=causal) + self.layers(x, mask=other)).mean((1, 2))


@pytest.mark.parametrize("decodes", [False, True])
def test_masks_of_a_transformer_are_followed_without_a_hint_that_they_are_causal(decodes: bool) -> None:
    check(Masked(decodes=decodes), {"x": torch.rand(3, 3, 4)})


def test_a_shift_beyond_a_dtype_is_refused() -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + ((9 * x).int() >> 31)

    with pytest.raises(ModelError, match="a shift by other than 0 to 30 bits"):
        capture(Shifted(), {"x": torch.rand(3, 4)})


class Shared(nn.Module):
    """One table for two inputs, tied weights, and a detached branch."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(30, 4)
        self.again = nn.Embedding(30, 4)
        self.again.weight = self.items.weight
        self.layer = nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (self.layer(self.items(a)) * self.layer(self.again(b))).sum(1) + self.items(a).detach().sum(1)


def test_tied_tables_are_one_parameter_and_detach_is_kept() -> None:
    ids = torch.arange(3)
    net = check(Shared(), {"a": ids, "b": ids + 4})
    assert [p.name for p in net.parameters.values() if p.kind == "table"] == ["items.weight"]
    assert "Detach" in [op.type for op in net.ops]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(4, 3, num_layers=2, batch_first=True, bidirectional=kind is nn.GRU)
        self.top = nn.Linear(6 if kind is nn.GRU else 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x[B,T,4]."""
        seen, last = self.cells(x)
        state = last[0] if isinstance(last, tuple) else last
        return self.top(seen).squeeze(2).sum(1) + state.sum((0, 2))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_is_one_op_however_long_the_sequence(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    net = check(Recurrent(kind), {"x": torch.rand(3, 1000, 4)})
    assert len(net.ops) < 20
    assert kind.__name__.capitalize() in [op.type for op in net.ops]


@pytest.mark.parametrize("batch_first", [False, True])
def test_an_lstm_whose_state_is_projected_has_two_widths(batch_first: bool) -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 6, proj_size=3, bidirectional=True, batch_first=batch_first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x[B,T,4]."""
            seen, (last, cell) = self.cells(x if batch_first else x.transpose(0, 1))
            assert (seen.shape[2], last.shape[2], cell.shape[2]) == (6, 3, 6)
            return (seen if batch_first else seen.transpose(0, 1)).sum((1, 2)) + last.sum((0, 2)) * cell.sum((0, 2))

    torch.manual_seed(0)
    check(Projected(), {"x": torch.rand(3, 7, 4)})


def test_one_tensor_that_stands_for_two_inputs_or_for_what_the_model_keeps_is_an_input_of_its_own() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 3))
            self.register_buffer("mean", torch.ones(3, 3))

        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return ((x - y) * self.scale[:1] + self.mean[:1] - 2 * z).sum(1)

    model, ones = Difference(), torch.ones(3, 3)
    given = {"x": torch.randn(5, 3), "y": torch.randn(5, 3), "z": torch.randn(5, 3)}
    wanted = model(**given)
    for z in (ones, model.mean, model.scale):
        net = capture(model, {"x": ones, "y": ones, "z": z}).net
        torch.testing.assert_close(interpret(net, dict(model.state_dict()), given, 5), wanted)


def test_several_outputs_want_a_choice() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"p": x.sigmoid(), "logit": x}

    with pytest.raises(ModelError, match=r"the model has 2 outputs \(p, logit\): say which is the logit"):
        capture(Two(), {"x": torch.rand(4, 1)})
    check(Two(), {"x": torch.rand(4, 1)}, logit="p")


class Returns(nn.Module):
    """One embedding and what is returned of its score."""

    def __init__(self, returned: Callable[[torch.Tensor], Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.e, self.returned = nn.Embedding(9, 2, dtype=dtype), returned

    def forward(self, ids: torch.Tensor) -> Any:
        return self.returned(self.e(ids).sum(1))


@pytest.mark.parametrize(
    "returned",
    [lambda y: (y, None), lambda y: (None, y), lambda y: {"aux": None, "logit": y}, lambda y: [None, (y, None)]],
    ids=["behind", "before", "dict", "nested"],
)
def test_outputs_that_are_none_are_no_outputs(returned: Callable[[torch.Tensor], Any]) -> None:
    plan = htrain.compile(Returns(returned), example_inputs={"ids": torch.tensor([1, 2, 3])}, cluster=this_machine())
    assert not any("not compared" in note for note in plan.notes)


def test_a_forward_without_a_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match=r"forward\(\) returns no tensor: return the logit"):
        capture(Returns(lambda y: None), {"ids": torch.tensor([1, 2, 3])})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_table_of_short_numbers_is_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=rf"table 'e\.weight' is {str(dtype)[6:]}, in which no rows are stepped here"):
        capture(Returns(lambda y: y.float(), dtype), {"ids": torch.tensor([1, 2, 3])})


def test_a_score_of_float64_is_refused_with_the_cure() -> None:
    with pytest.raises(ModelError, match=r"must be float32\[B\] .*: return it as float32, by \.float\(\)"):
        htrain.compile(Returns(lambda y: y.double()), example_inputs={"ids": torch.tensor([1, 2, 3])})


def test_parameters_that_the_logit_does_not_depend_on_are_named_in_a_note() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.click, self.like = nn.Linear(3, 1), nn.Linear(3, 1)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"click": self.click(x).squeeze(1), "like": self.like(x).squeeze(1)}

    captured = capture(TwoHeads(), {"x": torch.zeros(4, 3)}, logit="click")
    untrained, left_out = captured.notes
    assert untrained == "the logit does not depend on like.weight, like.bias: not in the plan, never trained"
    assert left_out.startswith("output 'like' is left out by eval, predict and export: ")


def test_what_the_logit_does_not_need_may_be_anything() -> None:
    """An auxiliary loss over what a mask of the batch picks, beside the logit, and a table that it alone reads whole."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.top = nn.Embedding(9, 4), nn.Linear(4, 1)

        def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
            rows = self.table(ids)
            auxiliary = rows[ids > 3].square().mean() + self.table.weight.sum() + torch.rand(())
            return {"logit": self.top(rows).squeeze(1), "auxiliary": auxiliary}

    captured = capture(Beside(), {"ids": torch.arange(4)}, logit="logit")
    assert [op.type for op in captured.net.ops] == ["Embedding", "FC", "Reshape"]
    assert captured.net.parameters["table.weight"].kind == "table"
