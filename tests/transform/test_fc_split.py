"""FCs in parts compute what whole ones do, start from the same values, and keep their intermediates at home (HT 4.1)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from harness import losses_of, relative_differences
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import draw_parameters, run_net
from torch.nn.functional import binary_cross_entropy_with_logits, linear

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.errors import ModelError
from htrain.executor.engine.store import allocate, fill
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.net.placement import Split
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.fc_split import layers_of, split_fcs
from htrain.transform.gradient import add_gradients
from htrain.transform.init_nets import init_net
from htrain.transform.loss import add_loss
from htrain.transform.optimizer import add_optimizers
from htrain.transform.split import split_by_node

quick = settings(max_examples=40, deadline=None, derandomize=True)
KINDS = ("vertical", "horizontal", "co-partition")
DATA = "synthetic:?rows=3200&table_rows=40&communities=4"


ACTIVATIONS = (("Sigmoid", "Tanh"), ("Tanh",), ("Relu",), ())
UNIFORM, NORMAL = Init("uniform", (-0.5, 0.5)), Init("normal", (0.0, 0.3))


def chain(sizes: tuple[int, ...], activations: tuple[str, ...], init: Init = UNIFORM) -> Net:
    """FCs a, b, c, ... in a row, each but the last with activations after it."""
    builder = NetBuilder("chain")
    x = builder.input(Blob("x", (B, sizes[0]), "float32"))
    for index, (k, n) in enumerate(pairwise(sizes)):
        module = "abcdef"[index]
        for name, shape in ((f"{module}.weight", (n, k)), (f"{module}.bias", (n,))):
            builder.parameter(Parameter(name, shape, "float32", "weight", init))
        (x,) = builder.add("FC", (x, f"{module}.weight", f"{module}.bias"), module=module)
        for position, type in enumerate(activations if index < len(sizes) - 2 else ()):
            (x,) = builder.add(type, (x,), module=f"{module}/{type.lower()}{position}")
    return builder.build((x,))


def cut(parameters: Mapping[str, torch.Tensor], net: Net) -> dict[str, torch.Tensor]:
    """The parameters of a split net, cut from those of the whole one by plain slicing."""
    found = {}
    for p in net.parameters.values():
        whole = parameters[p.whole]
        rows = whole[p.first_row : p.first_row + p.shape[0]]
        found[p.name] = rows[:, p.first_column : p.first_column + p.shape[1]] if len(p.shape) > 1 else rows
    return found


def joined(values: Mapping[str, torch.Tensor], net: Net, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `cut` took apart, put together again: a tensor per entry of `like`, NaN where no part covers it."""
    whole = {name: torch.full_like(value, torch.nan) for name, value in like.items()}
    for name, place in cut(whole, weights_of(net)).items():
        place.copy_(values[name])
    return whole


def torch_loss(net: Net, weights: Mapping[str, torch.Tensor], x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The loss of an uncut chain, by PyTorch."""
    for op in net.ops:
        x = linear(x, *(weights[n] for n in op.inputs[1:])) if op.type == "FC" else getattr(torch, op.type.lower())(x)
    return binary_cross_entropy_with_logits(x[:, 0], label)


def examples(net: Net, seed: int) -> dict[str, torch.Tensor]:
    """Eight examples for a chain."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, net.blobs["x"].shape[1], generator=generator)
    return {"x": x, "label": torch.randint(2, (8,), generator=generator).float()}


def weights_of(train: Net) -> Net:
    """The net without the optimizer's state among its parameters."""
    return replace(train, parameters={name: p for name, p in train.parameters.items() if p.kind == "weight"})


def trained_in_parts(net: Net, splits: Mapping[str, Split], options: Options) -> tuple[Net, Mapping[str, str]]:
    """The train net of a split chain, and the gradient of each of its weights."""
    parts, gradients = add_gradients(split_fcs(add_loss(net, "bce"), splits))
    return add_optimizers(parts, gradients, options), gradients


@st.composite
def cases(draw: st.DrawFn, last: int = 0) -> tuple[Net, dict[str, Split]]:
    """A chain and splits of some of its FCs; it ends in an FC of `last` outputs, if that is not 0."""
    sizes = tuple(draw(st.lists(st.integers(2, 9), min_size=3, max_size=5))) + (last,) * bool(last)
    net = chain(sizes, draw(st.sampled_from(ACTIVATIONS)), draw(st.sampled_from([UNIFORM, NORMAL])))
    layers, splits, taken = layers_of(net), {}, set()
    for module, layer in layers.items():
        kind = draw(st.sampled_from(("", *KINDS)))
        if not kind or module in taken or (kind == "co-partition" and not layer.following):
            continue
        most = layer.inputs if kind == "horizontal" else layer.outputs
        if most < 2:
            continue
        splits[module] = Split(kind, draw(st.integers(2, most)))
        taken |= {layer.following} if kind == "co-partition" else set()
    return net, splits


@quick
@given(cases(), st.integers(0, 99))
def test_parts_compute_what_the_whole_does(case: tuple[Net, dict[str, Split]], seed: int) -> None:
    net, splits = case
    whole = draw_parameters(net, seed)
    x = {"x": torch.randn(5, net.blobs["x"].shape[1], generator=torch.Generator().manual_seed(seed))}
    parts = split_fcs(net, splits)
    expected = run_net(net, whole, x)[net.outputs[0]]
    found = run_net(parts, cut(whole, parts), x)[parts.outputs[0]]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@quick
@given(cases(last=1), st.integers(0, 99))
def test_gradients_of_parts_are_the_parts_of_pytorchs_gradient(case: tuple[Net, dict[str, Split]], seed: int) -> None:
    net, splits = case
    batch = examples(net, seed)
    whole = {name: value.requires_grad_() for name, value in draw_parameters(net, seed).items()}
    torch_loss(net, whole, **batch).backward()
    train, gradients = trained_in_parts(net, splits, with_flags(dense_optimizer="sgd"))
    values = run_net(train, {n: v.detach().clone() for n, v in cut(whole, weights_of(train)).items()}, batch)
    found = joined({weight: values[gradient] for weight, gradient in gradients.items()}, train, draw_parameters(net, 0))
    for name, value in found.items():
        torch.testing.assert_close(value, whole[name].grad, rtol=1e-4, atol=1e-6)


@settings(quick, max_examples=10)
@given(cases(last=1), st.sampled_from(["sgd", "adagrad"]), st.integers(0, 99))
def test_fifty_steps_in_parts_follow_pytorch(case: tuple[Net, dict[str, Split]], optimizer: str, seed: int) -> None:
    net, splits = case
    options = with_flags(dense_optimizer=optimizer, dense_lr=0.05)
    whole = {name: value.requires_grad_() for name, value in draw_parameters(net, seed).items()}
    train, _ = trained_in_parts(net, splits, options)
    weights = {n: v.detach().clone() for n, v in cut(whole, weights_of(train)).items()}
    store = weights | {n: torch.zeros(p.shape) for n, p in train.parameters.items() if p.kind == "state"}
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adagrad
    step = kind(whole.values(), lr=options.dense_optimizer.lr)
    for number in range(50):
        batch = examples(net, number)
        loss = torch_loss(net, whole, **batch)
        step.zero_grad()
        loss.backward()
        step.step()
        found = run_net(train, store, batch)[train.outputs[0]]
        torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=0, check_stride=False)


@quick
@given(cases())
def test_parts_of_a_parameter_start_as_those_of_the_whole_and_cover_it(case: tuple[Net, dict[str, Split]]) -> None:
    net, splits = case
    parts = split_fcs(net, splits)
    stores = {}
    for name, some in (("whole", net), ("parts", parts)):
        stores[name] = allocate(some)
        fill(stores[name], init_net("trainer", some, seed=3), Path())
    for name, value in cut(stores["whole"], parts).items():
        torch.testing.assert_close(stores["parts"][name], value, rtol=0, atol=0)
    assert sum(p.num_bytes for p in parts.parameters.values()) == sum(p.num_bytes for p in net.parameters.values())


def test_a_net_without_splits_is_the_same() -> None:
    net = chain((3, 4, 2), ("Relu",))
    assert split_fcs(net, {}) == net


def test_activations_go_with_their_part_and_the_parts_are_modules_of_their_own() -> None:
    net = split_fcs(chain((3, 5, 2), ("Relu",)), {"a": Split("vertical", 2)})
    assert [(op.type, op.module) for op in net.ops] == [
        ("FC", "a/0"), ("Relu", "a/0"), ("FC", "a/1"), ("Relu", "a/1"), ("Concat", "a/concat"), ("FC", "b"),
    ]  # fmt: skip
    assert [net.parameters[f"a.weight/{k}"].shape for k in (0, 1)] == [(2, 3), (3, 3)]


@quick
@given(cases(last=1), st.data())
def test_no_placement_sends_what_lies_within_a_co_partition_forward_or_backward(
    case: tuple[Net, dict[str, Split]], data: st.DataObject
) -> None:
    net, drawn = case
    first = layers_of(net)["a"]
    splits = {module: split for module, split in drawn.items() if module not in ("a", "b")}
    splits["a"] = Split("co-partition", data.draw(st.integers(2, first.outputs)))
    train, _ = trained_in_parts(net, splits, Options())
    modules = sorted({op.module for op in train.ops})
    homes = {module: data.draw(st.sampled_from(["trainer", "group_ps:0", "group_ps:1"]), module) for module in modules}
    tagged = train.with_ops(replace(op, node_name=homes[op.module]) for op in train.ops)
    sent = {op.inputs[0] for part in split_by_node(tagged).values() for op in part.ops if op.type == "Send"}
    within = tuple(f"{op.outputs[0]}/" for op in (first.fc, *first.activations))
    assert any(name.startswith(within) for name in train.blobs)
    assert [name for name in sent if name.startswith(within)] == []


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (
            {"z": Split("vertical", 2)},
            "'z' cannot be split: it is not an FC with weights of its own; those are a, b, c",
        ),
        ({"a": Split("vertical", 9)}, "'a' cannot be split into 9 parts: it has 2 to 4"),
        ({"a": Split("horizontal", 4)}, "'a' cannot be split into 4 parts: it has 2 to 3"),
        ({"a": Split("vertical", 1)}, "'a' cannot be split into 1 parts"),
        ({"c": Split("co-partition", 2)}, "'c' has no FC that alone follows it"),
        ({"a": Split("co-partition", 2), "b": Split("vertical", 2)}, "'b' is split on its own and with 'a'"),
    ],
)
def test_split_that_cannot_be_is_named(splits: dict[str, Split], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        split_fcs(chain((3, 4, 5, 2), ("Relu",)), splits)


def test_an_fc_whose_weight_somebody_else_reads_is_left_whole() -> None:
    net = chain((4, 4, 4), ())
    shared = net.with_ops(replace(op, inputs=(op.inputs[0], "a.weight", op.inputs[2])) for op in net.ops)
    assert list(layers_of(shared)) == []


def test_ops_that_mix_features_end_a_co_partition() -> None:
    builder = NetBuilder("mixed")
    builder.input(Blob("x", (B, 4), "float32"))
    for name in ("a", "b"):
        builder.parameter(Parameter(f"{name}.weight", (4, 4), "float32", "weight", Init("constant", (0.0,))))
    (y,) = builder.add("FC", ("x", "a.weight"), module="a")
    (y,) = builder.add("LayerNormalization", (y,), attrs={"axis": -1, "epsilon": 1e-5}, module="norm")
    (y,) = builder.add("FC", (y, "b.weight"), module="b")
    assert layers_of(builder.build((y,)))["a"].following == ""


def test_what_somebody_else_reads_too_stays_whole() -> None:
    builder = NetBuilder("skip")
    builder.input(Blob("x", (B, 4), "float32"))
    for name in ("a", "b"):
        builder.parameter(Parameter(f"{name}.weight", (4, 4), "float32", "weight", UNIFORM))
    (y,) = builder.add("FC", ("x", "a.weight"), module="a")
    (h,) = builder.add("Relu", (y,), module="relu")
    (z,) = builder.add("FC", (h, "b.weight"), module="b")
    (z,) = builder.add("Add", (z, h), module="skip")
    net = builder.build((z,))
    with pytest.raises(ModelError, match="'a' has no FC that alone follows it"):
        split_fcs(net, {"a": Split("co-partition", 2)})
    (gated,) = builder.add("Mul", (z, y), module="gate")
    parts = split_fcs(builder.build((gated,)), {"a": Split("vertical", 2)})
    assert [op.inputs for op in parts.ops if op.type == "Relu"] == [(y,)]


def test_what_the_net_gives_out_stays_whole() -> None:
    net = chain((3, 4, 2), ("Relu",))
    before = net.ops[0].outputs[0]
    parts = split_fcs(replace(net, outputs=(before, *net.outputs)), {"a": Split("vertical", 2)})
    assert parts.producers()[before].type == "Concat"


@pytest.fixture(scope="module")
def dlrm() -> tuple[Captured, Captured]:
    """The zoo's DLRM with inits, and with values."""
    torch.manual_seed(0)
    path = str(Path(__file__).parents[2] / "models" / "dlrm.py")
    loaded = load_model(path, click_schema(13, (40,) * 26))
    drawn = loaded.initialised(capture(loaded.module, loaded.example_inputs))
    model = loaded.module.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.05)
    return drawn, capture(model, loaded.example_inputs)


@pytest.mark.parametrize("valued", [False, True], ids=["drawn", "values"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("fast", [False, True], ids=["torch's products", "fast ones"])
def test_split_training_follows_the_curve_of_whole_training(
    fast: bool, valued: bool, optimizer: str, dlrm: tuple[Captured, Captured], tmp_path: Path
) -> None:
    options = with_flags(
        batch_size=64,
        dense_optimizer=optimizer,
        sparse_optimizer="sgd",
        dense_lr=0.003,
        sparse_lr=0.05,
        fast_products=fast,
    )
    fcs = list(layers_of(dlrm[0].net))
    splits = {fcs[0]: Split("vertical", 3), fcs[1]: Split("co-partition", 2), fcs[-2]: Split("horizontal", 2)}
    curves = {}
    for name, cuts in (("whole", {}), ("split", splits)):
        plan = compile_net(
            dlrm[valued], Cluster(group_ps=3, sparse_ps=2), options, name="dlrm", solver="rules", fc_splits=cuts
        )
        curves[name] = losses_of(plan, tmp_path / name, DATA)
    differences = relative_differences(curves["split"], curves["whole"])
    assert max(differences[:20]) < 1e-6  # rounding alone
    adams = (
        fast and optimizer == "adam"
    )  # a gradient that is nearly zero makes a whole step; libraries round otherwise for parts of an FC
    assert max(differences) < (1e-3 if adams else 1e-4)
