"""What is computed once, and gradients of parts that are joined: equal to what they were, on random nets."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import run_net

from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops import OPS
from htrain.ops.base import OpDef
from htrain.ops.builder import NetBuilder
from htrain.transform.repeated import compute_once, join_selects

SIZE = 3
Part = tuple[int, int]  # the value that a gradient is of, and where it was selected


def net_of_sum(operands: Sequence[Part | None], *, node: str = "trainer") -> Net:
    """total[B,SIZE] = Sum of gradients of Selects of x0[B,SIZE] and x1, and of whole values where there is None."""
    builder = NetBuilder("sum")
    values = [builder.input(Blob(f"x{k}", (B, SIZE), "float32")) for k in range(2)]
    names = []
    for place, part in enumerate(operands):
        if part is None:
            names.append(builder.input(Blob(f"whole{place}", (B, SIZE), "float32")))
            continue
        dy = builder.input(Blob(f"dy{place}", (B,), "float32"))
        attrs = {"axis": 1, "index": part[1]}
        on = node if place % 2 else "trainer"
        names += builder.add("SelectGradient", (values[part[0]], dy), attrs=attrs, node_name=on)
    builder.add("Sum", names, outputs=("total",), node_name="trainer")
    return builder.build(("total",))


def value_of(net: Net, inputs: Net) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = {1: (4,), 2: (4, SIZE)}
    drawn = {n: torch.randn(shape[len(inputs.blobs[n].shape)], generator=generator) for n in inputs.inputs}
    return run_net(net, {}, drawn)["total"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.tuples(st.integers(0, 1), st.integers(0, SIZE - 1)), min_size=1, max_size=7))
def test_a_sum_of_gradients_of_selects_has_the_value_that_it_had(operands: Sequence[Part | None]) -> None:
    net = net_of_sum(operands)
    assert torch.equal(value_of(join_selects(net), net), value_of(net, net))


@pytest.mark.parametrize(
    ("operands", "ops"),
    [
        ([(0, 0), (0, 1), (0, 2)], ["SelectsGradient"]),
        ([(0, 0), (0, 0), (0, 2)], ["SelectsGradient"]),
        ([None, (0, 0), (0, 2)], ["Sum", "SelectsGradient"]),
        ([None, (0, 1), (0, 1)], ["Sum", "SelectGradient", "SelectGradient"]),
        ([(0, 0), None, (0, 2)], ["Sum", "SelectGradient", "SelectGradient"]),
        ([(0, 0), (1, 2)], ["Sum", "SelectGradient", "SelectGradient"]),
    ],
)
def test_only_neighbours_of_one_value_are_joined(operands: Sequence[Part | None], ops: list[str]) -> None:
    assert Counter(op.type for op in join_selects(net_of_sum(operands)).ops) == Counter(ops)


def test_gradients_of_other_devices_are_not_joined() -> None:
    net = net_of_sum([(0, 0), (0, 1)], node="group_ps:0")
    assert join_selects(net) == net


def repeating() -> NetBuilder:
    """Ops some of which make the same numbers: b as a, d as c, and e is no other's, for its attribute."""
    builder = NetBuilder("repeats")
    x = builder.input(Blob("x", (B, SIZE), "float32"))
    builder.parameter(Parameter("w", (SIZE,), "float32", "weight", Init("constant", (0.0,))))
    for name, source in (("a", x), ("b", x), ("c", "a"), ("d", "b")):
        builder.add("Mul", (source, source), outputs=(name,), node_name="trainer")
    for name, power in (("e", 0.1), ("f", 0.1), ("g", 0.2)):
        builder.add("LeakyRelu", ("x",), attrs={"alpha": power}, outputs=(name,), node_name="trainer")
    builder.add("Sum", ("c", "d", "e", "f", "g"), outputs=("total",), node_name="trainer")
    return builder


def test_what_is_computed_twice_is_computed_once_with_the_same_bits() -> None:
    net = repeating().build(("total",))
    once = compute_once(net)
    assert [op.outputs[0] for op in once.ops] == ["a", "c", "e", "g", "total"]
    assert once.ops[-1].inputs == ("c", "c", "e", "e", "g")
    assert torch.equal(value_of(once, net), value_of(net, net))


def test_outputs_ids_what_reads_parameters_and_what_is_on_other_devices_stay() -> None:
    builder = repeating()
    for name in ("p", "q"):
        builder.add("Mul", ("x", "w"), outputs=(name,), node_name="trainer")
        builder.add("ArgMax", ("x",), attrs={"axis": 1, "keepdims": False}, outputs=(f"i{name}",), node_name="trainer")
    builder.add("Mul", ("x", "x"), outputs=("there",), node_name="group_ps:0")
    builder.add("Mul", ("x", "x"), outputs=("result",), node_name="trainer")
    net = builder.build(("total", "result"))
    kept = {op.outputs[0] for op in compute_once(net).ops}
    assert {"p", "q", "ip", "iq", "there", "result"} <= kept
    assert "b" not in kept


def test_an_op_of_a_users_own_is_computed_as_often_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Drawn", OpDef("Drawn", torch.rand_like, elementwise=True))
    builder = NetBuilder("draws")
    builder.input(Blob("x", (B, SIZE), "float32"))
    for name in ("a", "b"):
        builder.add("Drawn", ("x",), outputs=(name,), node_name="trainer")
    builder.add("Sum", ("a", "b"), outputs=("total",), node_name="trainer")
    net = builder.build(("total",))
    assert compute_once(net) == net
