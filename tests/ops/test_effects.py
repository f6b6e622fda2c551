"""What nobody reads is left out, what has effects never is."""

import random

from hypothesis import given
from hypothesis import strategies as st
from random_nets import random_net

from htrain.net.net import Net
from htrain.ops.effects import has_effects, without_unread


def one_by_one(net: Net) -> Net:
    """The net after an op without effects that nobody reads is taken away, again and again."""
    for place, op in enumerate(net.ops):
        read = {name for other in net.ops for name in other.inputs} | set(net.outputs)
        if not has_effects(op) and read.isdisjoint(op.outputs):
            return one_by_one(net.with_ops((*net.ops[:place], *net.ops[place + 1 :])))
    return net


@given(st.integers(0, 10_000))
def test_what_is_left_is_what_is_left_when_unread_ops_go_one_by_one(seed: int) -> None:
    net = random_net(random.Random(seed))
    assert without_unread(net) == one_by_one(net.with_ops(net.ops))
