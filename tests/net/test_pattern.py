"""What a pattern says of an op's surroundings, against a look at every op of the net."""

import random

from hypothesis import given
from hypothesis import strategies as st
from random_nets import random_net

from htrain.net.net import B, Blob, Net, Op
from htrain.net.pattern import Pattern

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
def test_makers_and_readers_are_those_of_the_net(seed: int) -> None:
    net = random_net(random.Random(seed))
    pattern = Pattern(net)
    for name in (*net.blobs, *net.parameters):
        readers = [op for op in net.ops if name in op.inputs]
        makers = [op for op in net.ops if name in op.outputs]
        alone = len(readers) == 1 and name not in net.outputs
        assert pattern.readers(name) == readers
        assert pattern.is_for_one(name) == alone
        for type in ("Mul", "Recv", "Send", "Split"):
            made = next((op for op in makers if op.type == type), None)
            assert pattern.maker(type, name) == made
            assert pattern.only_for_one(type, name) == (made if alone else None)
            assert pattern.only_reader(type, name) == (readers[0] if alone and readers[0].type == type else None)


@given(SEEDS)
def test_ops_are_found_by_type_in_order_where_they_stand(seed: int) -> None:
    net = random_net(random.Random(seed))
    pattern = Pattern(net)
    for type in {op.type for op in net.ops}:
        found = pattern.ops(type)
        assert found == [op for op in net.ops if op.type == type]
        assert [net.ops[pattern.place(op)] for op in found] == found
        assert sorted(map(pattern.place, found)) == list(map(pattern.place, found))


def chained(*outputs: str) -> Pattern:
    blobs = {name: Blob(name, (B,), "float32") for name in "abcd"}
    ops = (Op("Exp", ("a",), ("b",)), Op("Mul", ("a", "b"), ("c",)), Op("Log", ("c",), ("d",)))
    return Pattern(Net("n", ops, ("a",), outputs, blobs, {}))


def test_a_chain_is_followed_by_the_last_inputs() -> None:
    pattern = chained("e")
    log, mul, exp = (pattern.ops(type)[0] for type in ("Log", "Mul", "Exp"))
    assert pattern.chain("c", "Mul", "Exp") == [mul, exp]
    assert pattern.chain("c", "Mul") == [mul]
    assert pattern.chain("c", "Exp") == []
    assert pattern.chain("c", "Mul", "Exp", "Relu") == []
    assert pattern.chain("d", "Log", "Mul", "Exp") == []  # nobody reads d
    assert log.inputs == mul.outputs


def test_a_chain_ends_at_an_output_of_the_net() -> None:
    assert chained("b").chain("c", "Mul", "Exp") == []
