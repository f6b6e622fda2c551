"""Constants beside their readers: the same numbers, and one module and device for all who read one."""

import torch
from interpreter import draw_parameters, run_net

from htrain.net.net import B, Blob, Net, Tensor
from htrain.ops.builder import NetBuilder
from htrain.transform.constants import copy_constants

HALVES = Tensor("float32", (3,), torch.full((3,), 0.5).numpy().tobytes())


def three_readers() -> Net:
    """x + c in two modules, and c * c in one of them and in a third."""
    builder = NetBuilder("n")
    x = builder.input(Blob("x", (B, 3), "float32"))
    (c,) = builder.add("Constant", (), attrs={"value": HALVES}, module="constant", outputs=("c",))
    (a,) = builder.add("Add", (x, c), module="a")
    (b,) = builder.add("Mul", (a, c), module="b")
    (d,) = builder.add("Mul", (c, c), module="b")
    (e,) = builder.add("Sub", (c, c), module="e")
    (f,) = builder.add("Add", (b, d), module="f")
    (y,) = builder.add("Add", (f, e), module="f")
    return builder.build((y,))


def test_every_module_has_its_own_and_the_net_computes_the_same() -> None:
    net = three_readers()
    copied = copy_constants(net, {})
    inputs = {"x": torch.randn(4, 3)}
    parameters = draw_parameters(net, seed=0)
    (y,) = net.outputs
    assert torch.equal(run_net(copied, parameters, inputs)[y], run_net(net, parameters, inputs)[y])
    constants = [op for op in copied.ops if op.type == "Constant"]
    assert sorted(op.module for op in constants) == ["a", "b", "e"]
    for op in constants:
        readers = {other.module for other in copied.ops if op.outputs[0] in other.inputs}
        assert readers == {op.module}


def test_readers_with_a_device_of_their_own_have_a_constant_of_their_own() -> None:
    net = three_readers()
    copied = copy_constants(net, {2: "trainer"})  # b's first op
    assert sorted(op.module for op in copied.ops if op.type == "Constant") == ["a", "b", "b", "e"]


def test_a_net_without_constants_is_left_alone_and_one_that_gives_out_a_constant_keeps_it() -> None:
    builder = NetBuilder("n")
    x = builder.input(Blob("x", (B, 3), "float32"))
    (y,) = builder.add("Relu", (x,), module="r")
    net = builder.build((y,))
    assert copy_constants(net, {}) is net
    builder = NetBuilder("n")
    (c,) = builder.add("Constant", (), attrs={"value": HALVES}, module="constant", outputs=("c",))
    assert copy_constants(builder.build((c,)), {}).outputs == ("c",)
