"""FCs in bfloat16, both passes: what becomes narrow, and that a step is that of PyTorch's own bfloat16 arithmetic."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreter import run_net
from small_wide_deep import model_of
from torch.nn.functional import linear

from htrain.compiler.pipeline import compile_net
from htrain.errors import UsageError
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from htrain.transform.fusions.steps import fuse_steps
from htrain.transform.gradient import add_gradients
from htrain.transform.low_precision import choose_fc_dtypes, narrow_fcs
from htrain.transform.optimizer import add_optimizers

NARROW = with_flags(
    fc_dtype="bfloat16", fc_gradient_dtype="bfloat16", dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.5
)


def two_layers() -> Net:
    """Mean of (max(x @ v.T + a, 0) @ w.T + b)'s squared distance to the label, 16 wide and 32."""
    builder = NetBuilder("n")
    builder.input(Blob("x", (B, 16), "float32"))
    builder.input(Blob("label", (B, 16), "float32"))
    for name, shape in (("v", (32, 16)), ("a", (32,)), ("w", (16, 32)), ("b", (16,))):
        builder.parameter(Parameter(name, shape, "float32", "weight", Init("constant", (0.0,))))
    (h,) = builder.add("FCRelu", ("x", "v", "a"))
    (y,) = builder.add("FC", (h, "w", "b"))
    return builder.build(builder.add("MeanSquaredError", (y, "label")))


def drawn(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"v": (32, 16), "a": (32,), "w": (16, 32), "b": (16,), "x": (40, 16), "label": (40, 16)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_that_of_bfloat16_tensors_in_pytorch(fused: bool) -> None:
    net, gradients = add_gradients(narrow_fcs(two_layers(), NARROW), 1.0)
    net = add_optimizers(net, gradients, NARROW)
    net = fuse_steps(net) if fused else net
    assert Counter(op.type for op in net.ops)["FCSgd"] == 2 * fused
    seen, wanted = drawn(1), drawn(1)
    run_net(net, seen, {name: seen[name] for name in ("x", "label")})
    weights = {name: wanted[name].clone().requires_grad_() for name in ("v", "a", "w", "b")}
    v, a, w, b = (weight.bfloat16() for weight in weights.values())
    h = linear(wanted["x"].bfloat16(), v, a).relu()
    torch.nn.functional.mse_loss(linear(h, w, b).float(), wanted["label"]).backward()
    for name, weight in weights.items():
        assert weight.grad is not None
        torch.testing.assert_close(seen[name], wanted[name] - 0.5 * weight.grad, rtol=1e-2, atol=2e-3)


def test_a_weight_is_rounded_once_and_activations_stay_narrow() -> None:
    ops = add_gradients(narrow_fcs(two_layers(), NARROW), 1.0)[0].ops
    rounded = [op.inputs[0] for op in ops if op.type == "Cast" and op.attrs["to"] == "bfloat16"]
    assert [name for name in rounded if name in ("x", "v", "a", "w", "b")] == ["x", "v", "a", "w", "b"]
    between = next(op for op in ops if op.type == "FC").inputs[0]
    assert [op.type for op in ops if between in op.outputs] == ["FCRelu"]


@pytest.mark.parametrize("counts", [{"group_ps": 0, "sparse_ps": 0}, {"group_ps": 2, "sparse_ps": 1}])
def test_narrow_fcs_of_a_model_are_the_wide_ones(counts: dict[str, int]) -> None:
    _, captured = model_of("dlrm.py")
    net = compile_net(captured, this_machine(trainers=1, **counts), NARROW, name="m").nets["train"]
    sides = {net.blob(name).dtype for op in net.ops if op.type == "FCInputGradient" for name in op.inputs}
    assert sides == {"float32", "bfloat16"}  # that of the last layer, one wide, and the others
    first = next(op for op in net.ops if op.type == "FCRelu")
    assert net.blob(first.inputs[0]).shape[1] == 13
    assert {net.blob(name).dtype for name in first.inputs} == {"float32"}


def test_a_backward_pass_narrower_than_the_forward_pass_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--fc-gradient-dtype: bfloat16 wants --fc-dtype bfloat16"):
        with_flags(fc_dtype="float32", fc_gradient_dtype="bfloat16")


def one_layer(inputs: int, outputs: int) -> Net:
    builder = NetBuilder("n")
    builder.input(Blob("x", (B, inputs), "float32"))
    builder.parameter(Parameter("w", (outputs, inputs), "float32", "weight", Init("constant", (0.0,))))
    return builder.build(builder.add("FC", ("x", "w")))


@pytest.mark.parametrize(
    ("gain", "side", "asked", "has"),
    [
        (1.0, 512, {}, ("float32", "float32")),
        (1.49, 512, {}, ("float32", "float32")),
        (1.5, 512, {}, ("bfloat16", "bfloat16")),
        (7.0, 64, {}, ("float32", "float32")),  # 128 x 64 x 64 multiply-adds: as little as starting and converting
        (7.0, 64, {"batch_size": 2048}, ("bfloat16", "bfloat16")),
        (7.0, 512, {"fc_dtype": "float32"}, ("float32", "float32")),
        (7.0, 512, {"fc_gradient_dtype": "float32"}, ("bfloat16", "float32")),
        (7.0, 512, {"fc_dtype": "int8"}, ("int8", "float32")),
        (1.0, 512, {"fc_dtype": "bfloat16"}, ("bfloat16", "float32")),
        (1.0, 512, {"fc_gradient_dtype": "bfloat16"}, ("bfloat16", "bfloat16")),
    ],
)
def test_fcs_compute_in_bfloat16_where_that_pays_and_nobody_says_otherwise(
    gain: float, side: int, asked: dict[str, Any], has: tuple[str, str]
) -> None:
    cluster = Cluster(core_flops=10**9, core_bf16_flops=round(gain * 10**9))
    options = choose_fc_dtypes(one_layer(side, side), cluster, with_flags(**{"batch_size": 128, **asked}))
    assert (options.numerics.fc_dtype, options.numerics.fc_gradient_dtype) == has
    assert choose_fc_dtypes(one_layer(side, side), cluster, options) == options


def test_a_plan_for_cores_that_multiply_bfloat16_sooner_is_in_it_and_says_so() -> None:
    _, captured = model_of("dlrm.py")
    fast = replace(this_machine(trainers=1), core_bf16_flops=2 * this_machine().core_flops)
    plan = compile_net(captured, fast, Options(batch_size=1 << 14), name="m")
    assert (plan.options.numerics.fc_dtype, plan.options.numerics.fc_gradient_dtype) == ("bfloat16", "bfloat16")
    assert any("bfloat16: cores multiply it at 2.0 x the rate" in note for note in plan.notes)
    assert any(op.type == "Cast" for op in plan.nets["train"].ops)
    plain = compile_net(captured, fast, with_flags(batch_size=1 << 14, fc_dtype="float32"), name="m")
    assert not any("bfloat16" in note for note in plain.notes)
    assert not any(op.type == "Cast" for op in plain.nets["train"].ops)
