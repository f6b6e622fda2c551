"""Relu in the FC before it: which are fused, and that random nets compute the same."""

import random

import torch
from fused import types
from hypothesis import given
from hypothesis import strategies as st
from interpreter import run_net

from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.transform.fusions.relu import fuse_relu

WIDTH = 3


def layers(draw: random.Random) -> Net:
    """FCs, ReLUs and sums of what is there, some of it read by several; one or two outputs."""
    builder = NetBuilder("n")
    blobs = [builder.input(Blob("x", (B, WIDTH), "float32"))]
    builder.parameter(Parameter("w", (WIDTH, WIDTH), "float32", "weight", Init("constant", (0.0,))))
    for _ in range(draw.randrange(1, 12)):
        type = draw.choice(("FC", "FC", "Relu", "Relu", "Add"))
        last = draw.choice((blobs[-1], draw.choice(blobs)))
        inputs = {"FC": (last, "w"), "Relu": (last,), "Add": (last, draw.choice(blobs))}[type]
        blobs += builder.add(type, inputs)
    return builder.build(draw.sample(blobs[1:], min(2, len(blobs) - 1)))


def fusable(net: Net) -> int:
    """How many ReLUs read an FC that nothing else reads, counted op by op."""
    made = {op.outputs[0]: op for op in net.ops}
    read = [name for op in net.ops for name in set(op.inputs)] + list(net.outputs)
    names = [op.inputs[0] for op in net.ops if op.type == "Relu"]
    return sum(name in made and made[name].type == "FC" and read.count(name) == 1 for name in names)


@given(st.integers(0, 100_000))
def test_a_net_computes_the_same_and_every_relu_that_can_is_in_its_fc(seed: int) -> None:
    net = layers(random.Random(seed))
    fused = fuse_relu(net)
    assert types(fused)["FCRelu"] == fusable(net)
    assert len(fused.ops) == len(net.ops) - fusable(net)
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(2, WIDTH, generator=generator), torch.randn(WIDTH, WIDTH, generator=generator)
    wanted, seen = (run_net(n, {"w": w} if n.parameters else {}, {"x": x}) for n in (net, fused))
    for name in net.outputs:
        torch.testing.assert_close(seen[name], wanted[name])


def test_a_net_without_a_relu_behind_an_fc_is_itself() -> None:
    builder = NetBuilder("n")
    builder.input(Blob("x", (B, WIDTH), "float32"))
    net = builder.build(builder.add("Relu", builder.add("Add", ("x", "x"))))
    assert fuse_relu(net) == net
