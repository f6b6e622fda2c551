"""The backward pass of whole nets against torch.autograd."""

from collections.abc import Callable, Mapping

import pytest
import torch
from interpreter import Values, draw_parameters, run_net
from small_dlrm import loss_by_torch, small_batch, small_dlrm

from htrain.errors import ModelError
from htrain.net.net import Attr, B, Blob, Init, Net, Parameter
from htrain.ops.builder import NO_ATTRS, NetBuilder
from htrain.transform.gradient import add_gradients
from htrain.transform.lookups import lower_lookups
from htrain.transform.loss import add_loss
from htrain.transform.modules import name_modules

ZERO = Init("constant", (0.0,))
ALL: Mapping[str, Attr] = {"axes": (), "keepdims": False}


def weight(name: str, *shape: int, trained: bool = True) -> Parameter:
    return Parameter(name, shape, "float32", "weight", ZERO, trained=trained)


def net_of(write: Callable[[NetBuilder, str], str], *parameters: Parameter) -> Net:
    """h[B,3] = x[B,3] @ w.T, then what `write` makes of it; the loss is the sum of the squares of that."""
    builder = NetBuilder("net")
    builder.input(Blob("x", (B, 3), "float32"))
    for parameter in parameters or (weight("w", 3, 3),):
        builder.parameter(parameter)
    (h,) = builder.add("FC", ("x", "w"), module="first", outputs=("h",))
    y = write(builder, h)
    (squares,) = builder.add("Mul", (y, y))
    builder.add("ReduceSum", (squares,), attrs=ALL, outputs=("loss",))
    return builder.build(("loss",))


def gradients_of(net: Net, parameters: Values, inputs: Values) -> Values:
    whole, names = add_gradients(net)
    values = run_net(whole, parameters, inputs)
    return {source: values[name] for source, name in names.items()}


def two(type: str, attrs: Mapping[str, Attr] = NO_ATTRS) -> Callable[[NetBuilder, str], str]:
    """An op that reads the same blob twice."""
    return lambda builder, h: builder.add(type, (h, h), attrs=attrs)[0]


def test_gradients_of_the_small_model_are_those_of_autograd() -> None:
    net = name_modules(add_loss(lower_lookups(small_dlrm()), "bce"))
    parameters, batch = draw_parameters(net, seed=1), small_batch(1, 16)
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss_by_torch(leaves, batch).backward()

    whole, names = add_gradients(net)
    values = run_net(whole, parameters, batch)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        if net.parameters[name].kind == "table":
            seen = torch.zeros_like(leaf).index_add(0, values[f"{name}_ids"], values[names[f"{name}_rows"]])
        else:
            seen = values[names[name]]
        torch.testing.assert_close(seen, leaf.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("write", "reference"),
    [
        (two("Mul"), lambda h: h * h),
        (two("Add"), lambda h: 2 * h),
        (two("Div"), lambda h: h / h),
        (two("Max"), lambda h: h),
        (two("Concat", {"axis": 1}), lambda h: torch.cat([h, h], 1)),
        (two("Stack", {"axis": 1}), lambda h: torch.stack([h, h], 1)),
        (two("Einsum", {"equation": "bi,bj->bij"}), lambda h: h[:, :, None] * h[:, None]),
        (two("Einsum", {"equation": "bi,bi->b"}), lambda h: h.square().sum(1)),
    ],
)  # fmt: skip
def test_a_blob_read_twice_by_one_op_gets_the_sum(write, reference) -> None:
    net = net_of(write)
    x, w = torch.randn(5, 3), torch.randn(3, 3)
    leaf = w.clone().requires_grad_()
    reference(x @ leaf.T).square().sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradients_of(net, {"w": w}, {"x": x})["w"], leaf.grad, rtol=1e-4, atol=1e-4)


def test_a_weight_of_two_layers_gets_the_sum() -> None:
    net = net_of(lambda builder, h: builder.add("FC", (h, "w"), module="second")[0])
    x, w = torch.randn(5, 3), torch.randn(3, 3)
    leaf = w.clone().requires_grad_()
    (x @ leaf.T @ leaf.T).square().sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradients_of(net, {"w": w}, {"x": x})["w"], leaf.grad, rtol=1e-4, atol=1e-4)


def test_nothing_is_differentiated_for_a_frozen_weight() -> None:
    def second(builder: NetBuilder, h: str) -> str:
        return builder.add("FC", (h, "v"), module="second")[0]

    net = net_of(second, weight("w", 3, 3, trained=False), weight("v", 3, 3))
    whole, names = add_gradients(net)
    assert set(names) == {"v"}
    (gradient,) = [op for op in whole.ops if op.type == "FCGradient"]
    assert gradient.attrs["wants_x"] is False


def test_no_gradient_passes_a_detach() -> None:
    def detached(builder: NetBuilder, h: str) -> str:
        return builder.add("FC", (builder.add("Detach", (h,))[0], "v"), module="second")[0]

    _, names = add_gradients(net_of(detached, weight("w", 3, 3), weight("v", 3, 3)))
    assert set(names) == {"v"}


def test_an_op_without_gradient_after_a_trained_weight_is_named() -> None:
    net = net_of(lambda builder, h: builder.add("ZerosLike", (h,), module="quantize", outputs=("q",))[0])
    want = "^ZerosLike 'q' of module 'quantize' has no gradient, but trained parameters come before it: detach its input or replace it$"
    with pytest.raises(ModelError, match=want):
        add_gradients(net)


def test_an_op_without_gradient_before_every_weight_is_fine() -> None:
    def rounded(builder: NetBuilder, h: str) -> str:
        return builder.add("FC", (builder.add("Round", ("x",))[0], "w"), module="second")[0]

    assert set(add_gradients(net_of(rounded))[1]) == {"w"}


def test_a_pair_of_the_same_blob_can_be_stacked_twice() -> None:
    def pairs(builder: NetBuilder, h: str) -> str:
        stacks = [builder.add("Stack", (h, h), attrs={"axis": 1})[0] for _ in range(2)]
        return builder.add("Add", stacks)[0]

    x, w = torch.randn(5, 3), torch.randn(3, 3)
    leaf = w.clone().requires_grad_()
    (4 * (x @ leaf.T)).square().sum().mul(0.5).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradients_of(net_of(pairs), {"w": w}, {"x": x})["w"], leaf.grad, rtol=1e-4, atol=1e-4)


def test_a_gradient_has_the_dtype_of_its_blob() -> None:
    def promoted(builder: NetBuilder, h: str) -> str:
        (wide,) = builder.add("Cast", ("x",), attrs={"to": "float64"})
        return builder.add("Cast", (builder.add("Mul", (h, wide))[0],), attrs={"to": "float32"})[0]

    x, w = torch.randn(5, 3), torch.randn(3, 3)
    leaf = w.clone().requires_grad_()
    (x @ leaf.T * x).square().sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradients_of(net_of(promoted), {"w": w}, {"x": x})["w"], leaf.grad, rtol=1e-4, atol=1e-4)
