"""What leads to a blob, who reads it, and what it leads to, against the definitions worked out path by path."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from random_nets import DEVICE, random_net

from htrain.net.net import Net, Op
from htrain.net.slices import anything, blobs_leading_to, homes, leading_to, led_from, makers, readers

SEEDS = st.integers(0, 10_000)


def depends(net: Net, name: str, on: str) -> bool:
    """Whether `name` is `on`, or made by an op with an input that depends on it."""
    makers_of = [op for op in net.ops if name in op.outputs]
    return name == on or any(depends(net, source, on) for op in makers_of for source in op.inputs)


def everything(net: Net) -> list[str]:
    return [*net.blobs, *net.parameters]


@given(SEEDS)
def test_blobs_lead_to_what_depends_on_them(seed: int) -> None:
    net = random_net(random.Random(seed))
    for name in net.outputs:
        wanted = {other for other in everything(net) if depends(net, name, other)}
        assert blobs_leading_to(net.ops, [name]) == wanted
        assert [net.ops[place] for place in leading_to(net.ops, [name])] == [
            op for op in net.ops if wanted.intersection(op.outputs)
        ]


@given(SEEDS)
def test_what_leads_to_several_blobs_leads_to_one_of_them(seed: int) -> None:
    net = random_net(random.Random(seed))
    each = [set(leading_to(net.ops, [name])) for name in net.blobs]
    assert set(leading_to(net.ops, net.blobs)) == set().union(*each)
    assert leading_to(net.ops, []) == []


@given(SEEDS)
def test_a_blob_leads_to_what_it_is_led_to_by(seed: int) -> None:
    net = random_net(random.Random(seed))
    for name in everything(net):
        assert led_from(net.ops, [name]) == {other for other in everything(net) if depends(net, other, name)}


@given(SEEDS)
def test_nothing_is_led_to_by_way_of_blobs_that_are_not_through(seed: int) -> None:
    net = random_net(random.Random(seed))
    (closed, *_) = net.outputs
    assert closed not in led_from(net.ops, ["x0"], lambda name: name != closed) - {"x0"}
    assert led_from(net.ops, ["x0"], lambda name: False) == {"x0"}
    assert led_from(net.ops, ["x0"], anything) >= led_from(net.ops, ["x0"], lambda name: name != closed)


@given(SEEDS)
def test_readers_and_makers_are_the_ops_that_name_a_blob(seed: int) -> None:
    net = random_net(random.Random(seed))
    read_by, made_by = readers(net.ops), makers(net.ops)
    assert made_by == {name: place for place, op in enumerate(net.ops) for name in op.outputs}
    for name in everything(net):
        assert read_by.get(name, []) == [place for place, op in enumerate(net.ops) if name in op.inputs]
    assert made_by.keys() <= read_by.keys()


def test_an_op_that_reads_a_blob_twice_is_one_reader() -> None:
    assert readers([Op("Mul", ("x", "x"), ("y",))]) == {"x": [0], "y": []}


@given(SEEDS)
def test_a_blob_is_at_home_where_it_is_made(seed: int) -> None:
    net = random_net(random.Random(seed))
    moved = replace(net, ops=(replace(net.ops[0], node_name="sparse_ps:1"), *net.ops[1:]))
    found = homes(moved)
    assert {found[name] for name in moved.inputs} == {"trainer"}
    assert [found[name] for name in net.ops[0].outputs] == ["sparse_ps:1"] * len(net.ops[0].outputs)
    assert {found[name] for op in net.ops[1:] for name in op.outputs} <= {DEVICE}
