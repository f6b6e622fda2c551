"""Nets whose names do not hold together are refused, by the first op that is wrong."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_nets import random_net

from htrain.errors import ModelError
from htrain.net.check import check
from htrain.net.net import B, Blob, Init, Net, Op, Parameter

BLOBS = {name: Blob(name, (B,), "float32") for name in ("x", "y", "z")}
WEIGHT = Parameter("w", (3,), "float32", "weight", Init("constant", (0.0,)))
RELU, TANH = Op("Relu", ("x",), ("y",), module="m"), Op("Tanh", ("y",), ("z",), module="n")
NET = Net("n", (RELU, TANH), ("x",), ("z",), BLOBS, {"w": WEIGHT})


@given(st.integers(0, 10_000))
def test_a_net_in_order_is_itself(seed: int) -> None:
    net = random_net(random.Random(seed))
    assert check(net) is net


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (replace(NET, inputs=("x", "v")), "net 'n': input 'v' is not declared"),
        (replace(NET, ops=(TANH, RELU)), "net 'n': Tanh 'z' of module 'n' reads 'y' before anything writes it"),
        (replace(NET, ops=(RELU, TANH, RELU)), "net 'n': Relu 'y' of module 'm' writes 'y', which is already written"),
        (
            replace(NET, ops=(replace(RELU, outputs=("y", "y")), TANH)),
            "net 'n': Relu 'y' of module 'm' writes 'y', which is already written",
        ),
        (
            replace(NET, ops=(replace(RELU, outputs=("w",)),)),
            "net 'n': Relu 'w' of module 'm' writes 'w', which is already written",
        ),
        (
            replace(NET, ops=(RELU, replace(TANH, outputs=("v",)))),
            "net 'n': Tanh 'v' of module 'n' writes 'v', which is not declared",
        ),
        (replace(NET, outputs=("v",)), "net 'n': nothing writes its output 'v'"),
    ],
)
def test_the_first_name_that_is_wrong_is_told(wrong: Net, message: str) -> None:
    with pytest.raises(ModelError) as error:
        check(wrong)
    assert str(error.value) == message
