"""FCs in low precision: near the full one forward, and the same backward (HT 5.1, Model-B)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.net.net import B, Blob, Init, Parameter
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder
from htrain.transform.gradient import add_gradients
from htrain.transform.loss import add_loss

quick = settings(max_examples=60, deadline=None, derandomize=True)
sizes = st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 60))


def draw(rows: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 7 + k * 3 + n)
    return tuple(torch.randn(shape, generator=generator) for shape in ((rows, k), (n, k), (n,)))


@quick
@given(sizes)
def test_bfloat16_fc_is_the_fc_of_rounded_operands(shape: tuple[int, int, int]) -> None:
    x, w, b = draw(*shape)
    y = OPS["FCBfloat16"].kernel(x, w, b)
    exact = x.bfloat16().double() @ w.bfloat16().double().T + b
    bound = 2**-8 * (x.double().abs() @ w.double().abs().T) + 1e-6  # the result is rounded to bfloat16 once
    assert y.dtype == torch.float32
    assert ((y - exact).abs() <= bound).all()


@quick
@given(sizes)
def test_int8_fc_is_within_the_steps_of_its_operands(shape: tuple[int, int, int]) -> None:
    x, w, b = draw(*shape)
    y = OPS["FCInt8"].kernel(x, w, b)
    dx, dw = x.abs().amax(1, keepdim=True) / 254, w.abs().amax(1, keepdim=True) / 254
    bound = dx * w.abs().sum(1) + x.abs().sum(1, keepdim=True) * dw.T + x.shape[1] * dx * dw.T
    assert ((y - (x @ w.T + b)).abs() <= bound * (1 + 1e-4) + 1e-5).all()


def test_int8_fc_of_zeros_is_its_bias() -> None:
    torch.testing.assert_close(
        OPS["FCInt8"].kernel(torch.zeros(3, 4), torch.zeros(2, 4), torch.ones(2)), torch.ones(3, 2)
    )


@pytest.mark.parametrize("type", ["FCBfloat16", "FCInt8"])
def test_backward_is_that_of_the_full_fc_over_fp32_weights(type: str) -> None:
    builder = NetBuilder("low")
    x = builder.input(Blob("x", (B, 4), "float32"))
    for name, shape in (("w", (1, 4)), ("b", (1,))):
        builder.parameter(Parameter(name, shape, "float32", "weight", Init("constant", (0.0,))))
    y = builder.add(type, (x, "w", "b"), module="fc")
    assert builder.blob(y[0]) == Blob(y[0], (B, 1), "float32")
    net, gradients = add_gradients(add_loss(builder.build(y), "mse"))
    backward = [op for op in net.ops if op.module == "fc" and op.type != type]
    assert [(op.type, op.inputs[:2]) for op in backward] == [("FCGradient", ("x", "w"))]
    assert set(gradients) == {"w", "b"}
