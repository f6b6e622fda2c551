"""Every op through the same checks: declared shapes, values and gradients against plain PyTorch, finite costs.

The gradient ops are checked as the rules write them, in the nets of the forward ops' samples.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from op_samples import NOT_SAMPLED, SAMPLES, nothing
from sample import Sample, single

from htrain.net.net import B, BatchDim, Blob, Net, Op, Shape, Tensor
from htrain.onnx_format.forms import OPSET
from htrain.ops import OPS
from htrain.ops.base import Cost, OpDef, tensor_of
from htrain.ops.builder import NetBuilder
from htrain.ops.vjp import vjp_definition

SEED = 7
BATCHES = (2, 3)
Values = dict[str, torch.Tensor]

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.type}-{len(s.operands)}")
differentiable = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if OPS[s.type].gradient], ids=lambda s: f"{s.type}-{len(s.operands)}"
)


def shape_at(shape: Shape, batch_size: int) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else d.at(batch_size) for d in shape)


def floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


def inputs_of(sample: Sample, batch_size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return [draw(generator, shape_at(shape, batch_size)) for shape, draw in sample.operands]


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """What a reference gives."""
    return outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)


def forward(sample: Sample) -> NetBuilder:
    """A net of the sample's op: inputs x0, x1, ..."""
    builder = NetBuilder("sample")
    for i, ((shape, _), value) in enumerate(zip(sample.operands, inputs_of(sample, 2), strict=True)):
        builder.input(Blob(f"x{i}", shape, str(value.dtype).removeprefix("torch.")))
    builder.add(sample.type, list(builder.inputs), attrs=sample.attrs)
    return builder


def backward(sample: Sample, wanted: Sequence[bool], given: Sequence[int]) -> tuple[Net, Sequence[str]]:
    """The sample's op and its gradient; `given` are the outputs with a gradient, dy0, dy1, ... The gradients' names."""
    builder = forward(sample)
    op = builder.ops[-1]
    dys = [""] * len(op.outputs)
    for i in given:
        blob = builder.blob(op.outputs[i])
        dys[i] = builder.input(Blob(f"dy{i}", blob.shape, blob.dtype))
    rule = OPS[sample.type].gradient
    assert rule
    gradients = rule(builder, op, dys, wanted)
    return builder.build(()), gradients


def call(op: Op, values: Values, batch_size: int) -> tuple[torch.Tensor, ...]:
    definition = OPS[op.type]
    return definition.run(op, [values[name] for name in op.inputs], batch_size)


def evaluate(net: Net, inputs: Values, batch_size: int) -> Values:
    """Run the net on copies of `inputs`; each output must be as its blob declares."""
    values = {name: value.clone() for name, value in inputs.items()}
    for op in net.ops:
        for name, tensor in zip(op.outputs, call(op, values, batch_size), strict=True):
            assert_declared(net.blob(name), tensor, batch_size)
            values[name] = tensor
    return values


def assert_declared(blob: Blob, tensor: torch.Tensor, batch_size: int) -> None:
    assert str(tensor.dtype) == f"torch.{blob.dtype}"
    assert tensor.dim() == len(blob.shape)
    for size, dim in zip(tensor.shape, blob.shape, strict=True):
        most = dim if isinstance(dim, int) else dim.at(batch_size)
        assert size <= most if isinstance(dim, BatchDim) and dim.bound else size == most, (
            f"{blob}: {tuple(tensor.shape)}"
        )


def assert_close(seen: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = 1e-7 if seen.dtype == wanted.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(seen, wanted.to(seen.dtype), rtol=tolerance, atol=tolerance)


def test_every_op_is_sampled_or_says_why_not() -> None:
    nets = [whole_net(sample) for sample in SAMPLES]
    assert set(OPS) - {op.type for net in nets for op in net.ops} == set(NOT_SAMPLED)


def whole_net(sample: Sample) -> Net:
    """The op with the gradient of everything that it can have one for."""
    values = inputs_of(sample, 2)
    outputs = forward(sample).ops[-1].outputs
    if not OPS[sample.type].gradient:
        return forward(sample).build(())
    wanted = [floating(v) and i not in sample.held for i, v in enumerate(values)]
    return backward(sample, wanted, range(len(outputs)))[0]


@every_sample
def test_op_computes_what_torch_does_in_the_shapes_it_declares(sample: Sample) -> None:
    builder = forward(sample)
    net, outputs = builder.build(()), builder.ops[-1].outputs
    for batch_size in BATCHES:
        inputs = inputs_of(sample, batch_size)
        expected = as_tuple(sample.reference(*(x.clone() for x in inputs)))
        values = evaluate(net, dict(zip(net.inputs, inputs, strict=True)), batch_size)
        for name, tensor in zip(outputs, expected, strict=True):
            assert values[name].dtype == tensor.dtype or floating(tensor)
            assert_close(values[name], tensor)


@pytest.mark.parametrize("name", [(d.type, name) for d in OPS.values() for name in d.aten], ids="-".join)
def test_an_op_computes_what_the_op_of_pytorch_does_that_it_says_it_stands_for(name: tuple[str, str]) -> None:
    type, aten = name
    assert [d.type for d in OPS.values() if aten in d.aten] == [type]
    taken = 0
    for sample in (s for s in SAMPLES if s.type == type):
        inputs = inputs_of(sample, 3)
        try:
            wanted = getattr(torch.ops.aten, aten)(*inputs, **sample.attrs)
        except RuntimeError:  # mm and bmm are one op each of the ranks that MatMul takes
            continue
        taken += 1
        assert_close(OPS[type].kernel(*inputs, **sample.attrs), wanted)
    assert taken


# of LayerNormalization without a scale, ONNX has none
OF_ONNX = [s for s in SAMPLES if OPS[s.type].onnx and len(s.operands) >= defs.get_schema(s.type, OPSET, "").min_input]


@pytest.mark.parametrize("sample", OF_ONNX, ids=lambda s: f"{s.type}-{len(s.operands)}")
def test_an_op_computes_what_the_op_of_onnx_does_whose_name_it_has(sample: Sample) -> None:
    inputs = inputs_of(sample, 3)
    names = [f"x{i}" for i in range(len(inputs))]
    attributes = {
        name: numpy_helper.from_array(tensor_of(value).numpy()) if isinstance(value, Tensor) else value
        for name, value in sample.attrs.items()
    }
    node = helper.make_node(sample.type, names, ["y"], **attributes)
    unknown = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in (*names, "y")]
    model = helper.make_model(
        helper.make_graph([node], "net", unknown[:-1], unknown[-1:]), opset_imports=[helper.make_opsetid("", OPSET)]
    )
    (wanted,) = ReferenceEvaluator(model).run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    assert_close(OPS[sample.type].kernel(*inputs, **sample.attrs), torch.from_numpy(np.array(wanted)))


def test_every_op_that_says_it_is_onnxs_is_compared_with_it() -> None:
    assert {s.type for s in OF_ONNX} == {d.type for d in OPS.values() if d.onnx}


REDUCED = [
    (type, {"axes": axes, "keepdims": keepdims})
    for type in ("ReduceSum", "ReduceMean")
    for axes in ((), (1,), (-1,), (0, 2), (2, 1))
    for keepdims in (False, True)
]
CONVOLVED = [
    ("Convolution", {"stride": (stride,), "padding": (1,), "dilation": (1,), "transposed": False, "output_padding": (0,), "groups": groups})
    for stride in (1, 2)
    for groups in (1, 2)
]  # fmt: skip


OF_FORMULAS = [("Sqrt", [(7, 4)]), *(("Div", [(7, 4), by]) for by in ((7, 4), (7, 1), (4,), ()))]


@pytest.mark.parametrize(
    ("type", "shapes", "attrs"),
    [
        *((type, [(7, 4, 3)], attrs) for type, attrs in REDUCED),
        *((type, [(7, 4, 3), (6, 4 // attrs["groups"], 3), (6,)], attrs) for type, attrs in CONVOLVED),
        *((type, shapes, {}) for type, shapes in OF_FORMULAS),
    ],
)
def test_a_gradient_that_computes_no_forward_pass_has_the_bits_of_autograd(
    type: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(SEED)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    inputs[0] = inputs[0].abs() if type == "Sqrt" else inputs[0]
    generic = vjp_definition(OPS[type])
    dy = torch.randn(OPS[type].kernel(*inputs, **attrs).shape, generator=generator)
    places = range(len(inputs))
    for wrt in [tuple(places), *combinations(places, 1)]:
        given = {**attrs, "num_inputs": len(inputs), "wrt": wrt, "given": (0,)}
        wanted = generic.kernel(*inputs, dy, **given)
        seen = OPS[f"{type}Gradient"].kernel(*inputs, dy, **given)
        assert all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True))
        assert len(seen) == len(wrt)


def cases(values: Sequence[torch.Tensor], sample: Sample) -> list[tuple[int, ...]]:
    """Which inputs need a gradient: all that can have one, and each alone."""
    able = tuple(i for i, v in enumerate(values) if floating(v) and i not in sample.held)
    return [able, *combinations(able, 1)] if len(able) > 1 else [able]


@differentiable
def test_gradient_is_that_of_autograd_in_the_shapes_it_declares(sample: Sample) -> None:
    for batch_size in BATCHES:
        values = inputs_of(sample, batch_size)
        outputs = as_tuple(sample.reference(*values))
        given = [i for i, y in enumerate(outputs) if floating(y)]
        for wanted in cases(values, sample):
            for chosen in [given, *combinations(given, 1)] if given else []:
                compare_gradients(sample, batch_size, wanted, tuple(chosen))


def compare_gradients(sample: Sample, batch_size: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    inputs = inputs_of(sample, batch_size)
    leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
    outputs = as_tuple(sample.reference(*leaves))
    net, names = backward(sample, [i in wanted for i in range(len(inputs))], given)
    generator = torch.Generator().manual_seed(SEED + 1)
    dys = {f"dy{i}": torch.randn(outputs[i].shape, generator=generator).to(outputs[i].dtype) for i in given}
    declared = {f"dy{i}": getattr(torch, net.blob(f"dy{i}").dtype) for i in given}
    values = evaluate(
        net,
        {f"x{i}": x for i, x in enumerate(inputs)} | {name: dy.to(declared[name]) for name, dy in dys.items()},
        batch_size,
    )
    reaching = [(outputs[i], dys[f"dy{i}"]) for i in given if outputs[i].requires_grad]
    expected = torch.autograd.grad(
        [y for y, _ in reaching], [leaves[i] for i in wanted], [dy for _, dy in reaching], allow_unused=True
    ) if reaching else (None,) * len(wanted)  # fmt: skip
    assert len(names) == len(inputs)
    for i, gradient in zip(wanted, expected, strict=True):
        if names[i] or gradient is not None:
            assert values[names[i]].dtype == inputs[i].dtype
            assert_close(values[names[i]], torch.zeros_like(inputs[i]) if gradient is None else gradient)


@every_sample
def test_costs_are_finite_and_grow_with_the_batch(sample: Sample) -> None:
    net = whole_net(sample)
    for op in net.ops:
        small, large = (cost_of(net, op, batch_size) for batch_size in (64, 128))
        for cost in (small, large):
            assert 0 <= cost.flops < math.inf
            assert 0 <= cost.bytes < math.inf
        assert small.flops <= large.flops <= 2 * small.flops
        assert small.bytes <= large.bytes <= 2 * small.bytes


def cost_of(net: Net, op: Op, batch_size: int) -> Cost:
    blobs = [[net.blob(name) for name in names] for names in (op.inputs, op.outputs)]
    return OPS[op.type].cost(op, blobs[0], blobs[1], batch_size)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wants_x", [True, False])
def test_cost_of_fc_and_its_gradient_is_the_count_by_hand(bias: bool, wants_x: bool) -> None:
    batch, k, n = 7, 3, 5
    operands = ((B, k), (n, k), (n,))[: 2 + bias]
    sample = Sample("FC", tuple((shape, single) for shape in operands), nothing)
    net, _ = backward(sample, [wants_x, True, bias][: 2 + bias], (0,))
    x, w, b, y = batch * k, n * k, n * bias, batch * n
    assert cost_of(net, net.ops[0], batch) == Cost(2 * batch * k * n + bias * batch * n, 4 * (x + w + b + y))
    products = 2 * batch * k * n * (1 + wants_x)  # dw = dy.T @ x; dx = dy @ w
    moved = (x + y + w + b) + (w + x) * wants_x  # reads x and dy, writes dw and db; for dx reads w and writes dx
    assert cost_of(net, net.ops[1], batch) == Cost(products + bias * batch * n, 4 * moved)


def test_fill_makes_a_batch_of_constants() -> None:
    builder = NetBuilder("fill")
    builder.add("Fill", (), attrs={"shape": (-2, 3), "value": 0.5, "dtype": "float64"}, outputs=("y",))
    assert builder.blob("y") == Blob("y", (BatchDim(2), 3), "float64")
    assert torch.equal(evaluate(builder.build(()), {}, 4)["y"], torch.full((8, 3), 0.5, dtype=torch.float64))


def test_a_weight_that_another_thread_steps_between_the_two_halves_of_a_vjp_is_hogwild_and_no_error() -> None:
    weight, stepped = torch.ones(4), []

    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        weight.add_(1.0)  # as an optimizer step of another context would
        stepped.append(True)
        return y

    definition = vjp_definition(OpDef("Scale", kernel))
    (dx,) = definition.kernel(torch.ones(2, 4), weight, torch.ones(2, 4), num_inputs=2, wrt=(0,), given=(0,))
    assert stepped
    assert dx.shape == (2, 4)
