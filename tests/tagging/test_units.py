"""Units: what a placement moves as one."""

import random
from typing import Any

import pytest
import torch
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.frontend.captured import Captured
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.net.placement import Decision, Shard
from htrain.ops.base import constant_of
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.tagging.place import Tagger
from htrain.tagging.units import Unit, find_units, fixed_tags, table_owners
from htrain.tagging.workload import Workload
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers
from htrain.transform.shard_lookups import shard_lookups

SHARDS = {
    "user.weight": (Shard("user.weight", 0, 40, "sparse_ps:2"),),
    "item.weight": (Shard("item.weight", 0, 30, "sparse_ps:0"), Shard("item.weight", 30, 20, "sparse_ps:1")),
}


def train_net(forward: Net) -> Net:
    net, gradients = add_gradients(name_modules(add_loss(lower_lookups(forward), "bce")))
    return add_optimizers(net, gradients, Options())


@pytest.fixture(scope="module")
def net() -> Net:
    return shard_lookups(train_net(small_dlrm()), SHARDS)


def shared_layers() -> Net:
    """Two layers that share a weight, a bias of their own each, and a last layer."""
    builder = NetBuilder("shared")
    builder.input(Blob("x", (B, 4), "float32"))
    for name, shape in (("w", (4, 4)), ("b1", (4,)), ("b2", (4,)), ("v", (1, 4))):
        builder.parameter(Parameter(name, shape, "float32", "weight", Init("constant", (0.0,))))
    builder.add("FC", ("x", "w", "b1"), module="first", outputs=("h",))
    builder.add("Relu", ("h",), outputs=("r",))
    builder.add("FC", ("r", "w", "b2"), module="second", outputs=("g",))
    builder.add("FC", ("g", "v"), module="last", outputs=("logit",))
    return train_net(builder.build(("logit",)))


def types(net: Net, unit: Unit) -> list[str]:
    return [net.ops[i].type for i in unit.ops]


def test_owners_are_those_of_each_shard() -> None:
    assert table_owners(SHARDS) == {
        "user.weight": "sparse_ps:2",
        "item.weight/0": "sparse_ps:0",
        "item.weight/1": "sparse_ps:1",
    }  # fmt: skip


def test_ops_on_a_table_are_with_the_table_and_the_rest_of_a_lookup_on_the_trainer(net: Net) -> None:
    fixed = fixed_tags(net, table_owners(SHARDS))
    where = {(op.type, op.module): fixed[i] for i, op in enumerate(net.ops) if i in fixed}
    assert where["Lookup", "item.weight/0"] == where["SparseAdagrad", "item.weight/0"] == "sparse_ps:0"
    assert where["Lookup", "item.weight/1"] == where["SparseAdagrad", "item.weight/1"] == "sparse_ps:1"
    assert where["Lookup", "user.weight"] == where["SparseAdagrad", "user.weight"] == "sparse_ps:2"
    others = {type for type, _ in where} - {"Lookup", "SparseAdagrad"}
    assert others >= {"Dedupe", "DedupeSharded", "ConcatRows", "SplitRows", "BceWithLogits", "GradientSeed"}
    assert {device for (type, _), device in where.items() if type in others} == {"trainer"}


@pytest.mark.parametrize("cache", ["het", "lookahead"])
def test_what_makes_the_ids_that_a_cache_hears_of_ahead_is_on_the_trainer(cache: str) -> None:
    """Elsewhere they would come back in the step itself, when the cache has been asked already."""
    size: dict[str, Any] = {"cache_capacity": "50%"} if cache == "het" else {"cache_sets": 3}
    options = with_flags(batch_size=8, cache=cache, **size)
    for seed in range(4):
        plan = compile_net(
            Captured(picked_ids(), {}), Cluster(), options, name="picked", tagger=anywhere(seed), solver="rules"
        )
        assert {op.node_name for op in plan.nets["train"].ops if op.type in ("Select", "Mod")} == {"trainer"}


def picked_ids() -> Net:
    """The ids of a table are a column of the input, modulo the number of rows."""
    builder = NetBuilder("picked")
    builder.input(Blob("sparse", (B, 2), "int64"))
    builder.parameter(Parameter("table", (9, 4), "float32", "table", Init("constant", (0.0,))))
    builder.parameter(Parameter("v", (1, 4), "float32", "weight", Init("constant", (0.0,))))
    rows = builder.add("Constant", (), attrs={"value": constant_of(torch.tensor(9))})[0]
    column = builder.add("Select", ("sparse",), attrs={"axis": 1, "index": 1}, module="pick")[0]
    ids = builder.add("Mod", (column, rows), module="wrap")[0]
    builder.add("Embedding", ("table", ids), attrs={"padding_idx": -1}, module="table", outputs=("row",))
    builder.add("FC", ("row", "v"), module="last", outputs=("logit",))
    return builder.build(("logit",))


def anywhere(seed: int) -> Tagger:
    """A tagger that puts every unit on any device where it may be."""

    def tagger(net: Net, workload: Workload) -> list[Decision]:
        draw = random.Random(seed)
        return [
            Decision(unit.name, draw.choice(workload.devices[: workload.num_places]), "random", "drawn")
            for unit in workload.units
        ]

    return tagger


def test_a_layer_is_one_unit_with_its_gradient_and_its_steps(net: Net) -> None:
    units = {u.name: u for u in find_units(net, fixed_tags(net, table_owners(SHARDS)))}
    assert types(net, units["hidden"]) == ["FC", "FCGradient", "Adagrad", "Adagrad"]
    assert units["hidden"].weights == ("hidden.weight", "hidden.bias")
    assert units["hidden"].weight_bytes == 2 * 4 * (3 * 13 + 3)
    assert types(net, units["x"]) == ["Relu", "ReluGradient"]
    assert units["x"].weights == ()


def test_units_hold_every_op_that_is_not_fixed_once(net: Net) -> None:
    fixed = fixed_tags(net, table_owners(SHARDS))
    units = find_units(net, fixed)
    assert sorted([i for u in units for i in u.ops] + list(fixed)) == list(range(len(net.ops)))
    assert [u.ops[0] for u in units] == sorted(u.ops[0] for u in units)


def test_layers_that_share_a_weight_are_one_unit() -> None:
    net = shared_layers()
    (unit,) = [u for u in find_units(net, {}) if "w" in u.weights]
    assert unit.name == "first"
    assert set(unit.modules) >= {"first", "second"}
    assert set(unit.weights) == {"w", "b1", "b2"}
    assert {"r", "last"}.isdisjoint(unit.modules)


def test_the_sum_of_a_shared_weights_gradients_is_in_the_unit_of_the_weight() -> None:
    net = shared_layers()
    (unit,) = [u for u in find_units(net, {}) if "w" in u.weights]
    assert "Sum" in types(net, unit)
