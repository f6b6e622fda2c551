"""Rules: each names itself in the decision that it makes; components go to group PSs by their weights."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dlrm import small_dlrm

from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.net.placement import Decision
from htrain.ops.builder import NetBuilder
from htrain.spec.options import Options
from htrain.tagging.rules import apply_tags, tag_by_rules
from htrain.tagging.units import Unit, find_units, fixed_tags
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules
from htrain.transform.optimizer import add_optimizers

ON_SPARSE_PS = {"user.weight": "sparse_ps:0", "item.weight": "sparse_ps:1"}


def train_net(forward: Net) -> Net:
    net, gradients = add_gradients(name_modules(add_loss(lower_lookups(forward), "bce")))
    return add_optimizers(net, gradients, Options())


def tag(net: Net, num_group_ps: int) -> tuple[list[Unit], dict[str, Decision]]:
    units = find_units(net, fixed_tags(net, ON_SPARSE_PS))
    return units, {d.module: d for d in tag_by_rules(net, units, num_group_ps)}


def tower(widths: Sequence[tuple[str, int]]) -> Net:
    """FCs one after another, each with a Relu, from x[B,8] to the logit."""
    builder = NetBuilder("tower")
    y, width = builder.input(Blob("x", (B, 8), "float32")), 8
    for name, n in [*widths, ("last", 1)]:
        weight = Parameter(f"{name}.weight", (n, width), "float32", "weight", Init("constant", (0.0,)))
        (y,) = builder.add("FC", (y, builder.parameter(weight)), module=name, outputs=(f"{name}_fc",))
        (y,) = builder.add("Relu", (y,), outputs=(f"{name}_relu",))
        width = n
    return train_net(builder.build((y,)))


def devices_of(decisions: dict[str, Decision]) -> dict[str, str]:
    return {module: d.device for module, d in decisions.items()}


@pytest.mark.parametrize(
    ("module", "device", "rule", "reason"),
    [
        ("user", "trainer", "lookup", "works on embedding rows, which arrive at the trainer"),
        ("dots/features", "trainer", "interaction", "joins 3 branches of the net"),
        ("joined", "trainer", "interaction", "joins 2 branches of the net"),
        ("dots/across", "trainer", "no parameters", "no unit with parameters is next to it"),
        ("hidden", "group_ps:0", "component", "component of 2 units with 336 bytes of weights, on the group PS with the fewest"),
        ("y", "group_ps:0", "component", "component of 2 units with 336 bytes of weights, on the group PS with the fewest"),
        ("bottom", "group_ps:1", "component", "component of 2 units with 128 bytes of weights, on the group PS with the fewest"),
        ("top", "group_ps:1", "component", "component of 2 units with 32 bytes of weights, on the group PS with the fewest"),
    ],
)  # fmt: skip
def test_each_rule_is_named_with_what_it_saw(module: str, device: str, rule: str, reason: str) -> None:
    decision = tag(train_net(small_dlrm()), 2)[1][module]
    assert (decision.device, decision.rule, decision.reason) == (device, rule, reason)


def test_what_needs_the_readers_data_alone_is_on_the_trainer() -> None:
    builder = NetBuilder("scaled")
    builder.input(Blob("x", (B, 2), "float32"))
    builder.parameter(Parameter("w", (1, 2), "float32", "weight", Init("constant", (0.0,))))
    builder.add("Log1p", ("x",), outputs=("scaled",))
    builder.add("FC", ("scaled", "w"), module="fc", outputs=("y",))
    decision = tag(train_net(builder.build(("y",))), 1)[1]["scaled"]
    assert decision == Decision("scaled", "trainer", "reader", "computes on the reader's data alone")


def test_without_group_ps_everything_is_on_the_trainer() -> None:
    decisions = tag(train_net(small_dlrm()), 0)[1]
    assert {(d.device, d.rule) for d in decisions.values()} == {("trainer", "no group PS")}


def test_a_unit_with_weights_is_on_a_group_ps_whatever_it_reads() -> None:
    units, decisions = tag(train_net(small_dlrm()), 2)
    assert all(decisions[u.name].device.startswith("group_ps") for u in units if u.weights)


def test_activations_stay_with_their_layer() -> None:
    devices = devices_of(tag(tower([("a", 8), ("b", 8)]), 1)[1])
    assert set(devices.values()) == {"group_ps:0"}


def test_a_tower_is_cut_at_its_layers_so_that_group_ps_share_its_weights() -> None:
    _, decisions = tag(tower([("a", 8), ("b", 8), ("c", 8), ("d", 8)]), 4)
    assert {decisions[name].device for name in "abcd"} == {f"group_ps:{k}" for k in range(4)}
    assert all(decisions[f"{name}_relu"].device == decisions[name].device for name in "abcd")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(widths=st.lists(st.integers(1, 24), min_size=1, max_size=10), num_group_ps=st.integers(1, 5))
def test_no_group_ps_holds_much_more_than_its_share_of_the_weights(widths: list[int], num_group_ps: int) -> None:
    units, decisions = tag(tower([(f"fc{i}", n) for i, n in enumerate(widths)]), num_group_ps)
    held = dict.fromkeys((f"group_ps:{k}" for k in range(num_group_ps)), 0)
    for unit in units:
        if unit.weight_bytes:
            held[decisions[unit.name].device] += unit.weight_bytes
    heaviest = max(u.weight_bytes for u in units)
    share = sum(held.values()) / num_group_ps
    assert max(held.values()) <= 1.1 * share + max(heaviest, 0.1 * share)


def test_tags_are_written_on_every_op_once() -> None:
    net = train_net(small_dlrm())
    fixed = fixed_tags(net, ON_SPARSE_PS)
    units = find_units(net, fixed)
    tagged = apply_tags(net, units, {u.name: f"group_ps:{i}" for i, u in enumerate(units)}, fixed)
    for index, unit in enumerate(units):
        assert {tagged.ops[i].node_name for i in unit.ops} == {f"group_ps:{index}"}
    assert all(tagged.ops[i].node_name == device for i, device in fixed.items())
    assert sorted([i for u in units for i in u.ops] + list(fixed)) == list(range(len(net.ops)))
