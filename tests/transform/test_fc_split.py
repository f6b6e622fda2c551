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

from htrain.cluster import Cluster
from htrain.compiler import compile_net
from htrain.data import click_schema
from htrain.errors import ModelError
from htrain.executor.store import allocate, fill
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.options import Options
from htrain.placement import Split
from htrain.transform.fc_split import layers_of, split_fcs
from htrain.transform.init_nets import init_net
from htrain.transform.split import split_by_node

quick = settings(max_examples=40, deadline=None, derandomize=True)
KINDS = ("vertical", "horizontal", "co-partition")
DATA = "synthetic:?rows=640&table_rows=40&communities=4"


def chain(sizes: tuple[int, ...], activations: tuple[str, ...]) -> Net:
    """FCs a, b, c, ... in a row, each but the last with activations after it."""
    builder = NetBuilder("chain")
    x = builder.input(Blob("x", (B, sizes[0]), "float32"))
    for index, (k, n) in enumerate(pairwise(sizes)):
        module = "abcdef"[index]
        for name, shape in ((f"{module}.weight", (n, k)), (f"{module}.bias", (n,))):
            builder.parameter(Parameter(name, shape, "float32", "weight", Init("uniform", (-0.5, 0.5))))
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


@st.composite
def cases(draw: st.DrawFn) -> tuple[Net, dict[str, Split]]:
    sizes = tuple(draw(st.lists(st.integers(2, 9), min_size=2, max_size=5)))
    net = chain(sizes, tuple(draw(st.lists(st.sampled_from(["Relu", "Sigmoid", "Tanh"]), max_size=2))))
    layers, splits, taken = layers_of(net), {}, set()
    for module, layer in layers.items():
        kind = draw(st.sampled_from(("", *KINDS)))
        if not kind or module in taken or (kind == "co-partition" and not layer.following):
            continue
        most = layer.inputs if kind == "horizontal" else layer.outputs
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


def test_the_intermediate_of_a_co_partition_never_leaves_its_part() -> None:
    net = split_fcs(chain((3, 6, 2), ("Relu",)), {"a": Split("co-partition", 3)})
    homes = {"a/0": "group_ps:0", "a/1": "group_ps:1", "a/2": "group_ps:0"}
    tagged = net.with_ops(replace(op, node_name=homes.get(op.module, "trainer")) for op in net.ops)
    sent = {op.inputs[0] for part in split_by_node(tagged).values() for op in part.ops if op.type == "Send"}
    partial = {op.outputs[0] for op in net.ops if op.type == "FC" and op.inputs[0] != "x"}
    assert sent == {"x", *partial}


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
def test_split_training_follows_the_curve_of_whole_training(
    valued: bool, optimizer: str, dlrm: tuple[Captured, Captured], tmp_path: Path
) -> None:
    options = Options(batch_size=64, dense_optimizer=optimizer, sparse_optimizer="sgd", dense_lr=0.003, sparse_lr=0.05)
    fcs = list(layers_of(dlrm[0].net))
    splits = {fcs[0]: Split("vertical", 3), fcs[1]: Split("co-partition", 2), fcs[-2]: Split("horizontal", 2)}
    curves = {}
    for name, cuts in (("whole", {}), ("split", splits)):
        plan = compile_net(
            dlrm[valued], Cluster(group_ps=3, sparse_ps=2), options, name="dlrm", solver="rules", fc_splits=cuts
        )
        curves[name] = losses_of(plan, tmp_path / name, DATA)
    assert max(relative_differences(curves["split"], curves["whole"])) < 1e-4
