"""Each ONNX op, captured: what the net computes is what onnx's reference evaluator computes, at two batch sizes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.onnx_model import capture_onnx
from htrain.ops import OPS

Arrays = Mapping[str, NDArray]
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> NDArray:
    return RANDOM.normal(size=shape).astype(np.float32)


def ints(*values: int) -> NDArray:
    return np.array(values, np.int64)


def model_of(signature: str, body: str, initializers: Arrays, *, opset: int = 20) -> onnx.ModelProto:
    graph = parser.parse_graph(f"g {signature} {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(captured: Captured, feeds: Arrays, batch_size: int) -> NDArray:
    """The captured net, op by op."""
    values = {name: torch.from_numpy(array) for name, array in feeds.items()} | dict(captured.values)
    for op in captured.net.ops:
        definition = OPS[op.type]
        batch = {"batch": batch_size} if definition.needs_batch else {}
        results = definition.kernel(*(values[name] for name in op.inputs), **op.attrs, **batch)
        values.update(zip(op.outputs, results if isinstance(results, tuple) else (results,), strict=True))
        for name in op.outputs:
            blob = captured.net.blobs[name]
            assert str(values[name].dtype) == f"torch.{blob.dtype}", op
            assert tuple(values[name].shape) == tuple(
                d if isinstance(d, int) else d.at(batch_size) for d in blob.shape
            ), op
    return values[captured.net.outputs[0]].numpy()


def feeds_for(model: onnx.ModelProto, batch_size: int) -> dict[str, NDArray]:
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [batch_size, *(d.dim_value for d in kind.shape.dim[1:])]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        numbers = (
            RANDOM.normal(size=shape)
            if dtype == np.float32
            else RANDOM.integers(0, 2 if dtype == np.bool_ else 4, shape)
        )
        feeds[value.name] = numbers.astype(dtype)
    return feeds


def agree(model: onnx.ModelProto, path: Path, **options: int) -> Captured:
    """Capture `model` and compare; the captured net and values."""
    onnx.save(model, path)
    captured = capture_onnx(path, **options)
    for batch_size in (3, 8):
        feeds = feeds_for(model, batch_size)
        (expected,) = ReferenceEvaluator(model).run(None, feeds)
        used = {name: feeds[name] for name in captured.net.inputs}
        np.testing.assert_allclose(run(captured, used, batch_size), expected, rtol=1e-5, atol=1e-5)
    return captured


X = "(float[B,4] x) => (float y)"
CUBE = "(float[B,3,4] x) => (float y)"
TWO = "(float[B,4] x, float[B,4] z) => (float y)"
IDS = "(int64[B,3] i) => (int64 y)"
CASES: list[tuple[str, str, Arrays]] = [
    *((X, f"y = {op}(x)", {}) for op in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Relu", "Round")),
    *((X, f"y = {op}(x)", {}) for op in ("Sign", "Sin", "Softplus", "Softsign", "Tanh", "Elu", "LeakyRelu", "HardSigmoid", "Gelu")),
    *((TWO, f"y = {op}(x, z)", {}) for op in ("Add", "Div", "Mul", "Sub", "Max", "Min", "Sum", "Mean")),
    *((X, f"y = {op} <keepdims = 0> (x, a)", {"a": ints(1)}) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")),
    *((X, f"y = {op} (x, a)", {"a": ints(-1)}) for op in ("ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")),
    *((X, f"y = {op}(x)", {}) for op in ("Asinh", "Atan", "Celu", "Cosh", "Selu", "Sinh", "Tan")),
    *((X, f"t = Tanh(x) y = {op}(t)", {}) for op in ("Acos", "Asin", "Atanh")),
    (X, "e = Exp(x) t = Add(e, one) y = Acosh(t)", {"one": np.float32(1)}),
    *((X, f"a = Greater(x, o) b = Less(x, m) p = Where(a, i, x) q = Where(b, j, p) n = IsInf{signs}(q) y = Where(n, o, x)",
       {"o": np.float32(0.3), "m": np.float32(-0.3), "i": np.float32(np.inf), "j": np.float32(-np.inf)})
      for signs in ("", " <detect_negative = 0>", " <detect_positive = 0>")),
    (X, "y, i = TopK <axis = 1> (x, k)", {"k": ints(2)}),
    (X, "v, i = TopK <largest = 0> (x, k) y = GatherElements <axis = 1> (x, i)", {"k": ints(3)}),
    (X, "s = Mul(x, x) y = ReduceLogSum <keepdims = 0> (s, a)", {"a": ints(1)}),
    (X, "y = ReduceSum <noop_with_empty_axes = 1> (x)", {}),
    (CUBE, "y = ReduceMean <keepdims = 0> (x, a)", {"a": ints(1, 2)}),
    (X, "p = Abs(x) y = Sqrt(p)", {}),
    (X, "p = Exp(x) y = Log(p)", {}),
    (X, "p = Exp(x) y = Reciprocal(p)", {}),
    (X, "y = Pow(x, e)", {"e": np.array(2, np.int64)}),
    (X, "y = Max(x, a, b)", {"a": floats(4), "b": np.float32(0.1)}),
    (X, "y = Clip(x, low, high)", {"low": np.float32(-0.5), "high": np.float32(0.5)}),
    (X, "y = Clip(x, , high)", {"high": np.float32(0.5)}),
    (IDS, "y = Clip(i, low)", {"low": np.array(2)}),
    (IDS, "y = Clip(i, low, high)", {"low": np.array(2), "high": np.array(2**63 - 1)}),
    (IDS, "y = Clip(i, low, high)", {"low": np.array(-(2**63)), "high": np.array(3)}),
    (X, "y = LeakyRelu <alpha = 0.3> (x)", {}),
    (X, "y = HardSigmoid <alpha = 0.3, beta = 0.4> (x)", {}),
    (X, 'y = Gelu <approximate = "tanh"> (x)', {}),
    (X, "y = PRelu(x, s)", {"s": floats(4)}),
    (IDS, "n = Sub(i, two) y = Div(n, two)", {"two": np.array(2)}),
    (IDS, "n = Sub(i, three) y = Mod(n, two)", {"two": np.array(2), "three": np.array(3)}),
    (IDS, "n = Sub(i, three) y = Mod <fmod = 1> (n, two)", {"two": np.array(2), "three": np.array(3)}),
    ("(float[B,4] x, bool[B,4] m) => (float y)", "n = Not(m) y = Where(n, low, x)", {"low": np.float32(-1e9)}),
    ("(float[B,4] x, float[B,4] z) => (bool y)", "a = Greater(x, z) b = LessOrEqual(x, z) c = Equal(x, z) d = Or(a, b) y = Xor(d, c)", {}),
    (X, "b = Cast <to = 9> (x) y = Cast <to = 1> (b)", {}),
    (CUBE, "y = Softmax(x)", {}),
    (CUBE, "y = LogSoftmax <axis = 1> (x)", {}),
    ("(float[B,4] x) => (int64 y)", "y = ArgMin <axis = 1, keepdims = 0> (x)", {}),
    (X, "y = CumSum(x, a)", {"a": np.array(1)}),
    (CUBE, "y = LayerNormalization <epsilon = 0.01> (x, s, b)", {"s": floats(4), "b": floats(4)}),
    (CUBE, "y = LayerNormalization(x, s)", {"s": floats(1)}),
    (X, "y = BatchNormalization(x, s, b, m, v)", {"s": floats(4), "b": floats(4), "m": floats(4), "v": floats(4) ** 2}),
    (CUBE, "y = BatchNormalization(x, s, b, m, v)", {"s": floats(3), "b": floats(3), "m": floats(3), "v": floats(3) ** 2}),
    (X, "y = Dropout(x)", {}),
    (X, 'y = Einsum <equation = "bi, ji -> bj"> (x, w)', {"w": floats(5, 4)}),
    (X, 'y = Einsum <equation = "...i, ij -> ...j"> (x, w)', {"w": floats(4, 5)}),
    (CUBE, "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(x, t)", {}),
    (CUBE, "y = MatMul(x, w)", {"w": floats(4, 5)}),
    (CUBE, "p = MatMul(x, w) y = Add(b, p)", {"w": floats(4, 5), "b": floats(5)}),
    (CUBE, "y = MatMul(w, x)", {"w": floats(5, 3)}),
    (X, "p = MatMul(x, w) y = Add(p, b)", {"w": floats(4, 5), "b": floats(1, 5)}),
    (X, "a = MatMul(x, w) y = MatMul(a, w)", {"w": floats(4, 4)}),
    (X, "a = MatMul(x, w) t = Transpose(w) y = MatMul(a, t)", {"w": floats(4, 3)}),
    ("(float[B,4] x, bool[B,4] m) => (float y)", "c = CastLike(m, x) y = Mul(x, c)", {}),
    # shapes
    (CUBE, "y = Reshape(x, s)", {"s": ints(0, -1)}),
    (CUBE, "y = Reshape(x, s)", {"s": ints(-1, 2, 6)}),
    (CUBE, "s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, a) c = Concat <axis = 0> (u, rest) y = Reshape(x, c)",
     {"zero": np.array(0), "a": ints(0), "rest": ints(12)}),
    (CUBE, "s = Shape(x) n = Gather(s, z) m = Mul(n, three) c = Concat <axis = 0> (m, four) y = Reshape(x, c)",
     {"z": ints(0), "three": ints(3), "four": ints(4)}),
    (CUBE, "y = Flatten(x)", {}),
    (CUBE, "y = Flatten <axis = -1> (x)", {}),
    (CUBE, "u = Unsqueeze(x, a) t = Tanh(u) y = Squeeze(t, a)", {"a": ints(1, -1)}),
    (CUBE, "y = Transpose(x)", {}),
    (X, "u = Unsqueeze(x, a) y = Expand(u, s)", {"a": ints(1), "s": ints(1, 3, 1)}),
    ("(float[B,4] x) => (float y)", "s = Shape <end = 1> (x) c = Concat <axis = 0> (s, four) r = Expand(w, c) y = Add(x, r)",
     {"four": ints(4), "w": floats(1, 4)}),
    (X, "y = Tile(x, r)", {"r": ints(1, 3)}),
    ("(float[B,4] x) => (float y)", "n = Shape <end = 1> (x) r = Concat <axis = 0> (n, one) t = Tile(w, r) y = Mul(x, t)",
     {"one": ints(1), "w": floats(1, 4)}),
    (TWO, "y = Concat <axis = -1> (x, z, x)", {}),
    (X, "a, b = Split <axis = 1, num_outputs = 2> (x) y = Mul(a, b)", {}),
    (X, "a, b, c = Split <axis = 1> (x, s) y = Concat <axis = 1> (c, a)", {"s": ints(1, 2, 1)}),
    (CUBE, "y = Slice(x, s, e, a)", {"s": ints(1, -3), "e": ints(2**62, -1), "a": ints(1, 2)}),
    (X, "y = Slice(x, s, e, a, t)", {"s": ints(0), "e": ints(9), "a": ints(1), "t": ints(2)}),
    (X, "y = Slice(x, s, e, a, t)", {"s": ints(-1), "e": ints(-(2**62)), "a": ints(1), "t": ints(-1)}),
    (X, "n = Shape <end = 1> (x) y = Slice(x, s, n, a)", {"s": ints(0), "a": ints(0)}),
    (X, "y = Gather <axis = 1> (x, i)", {"i": ints(-1, 0, 2)}),
    (X, "y = Gather <axis = 1> (x, i)", {"i": np.array(-2)}),
    ("(float[B,4] x, int64[B,2] i) => (float y)", "y = GatherElements <axis = 1> (x, i)", {}),
    ("(float[B,4] x, int32[B,2] i) => (float y)", "t = Gather(w, i) y = ReduceSum(t, a)", {"w": floats(4, 6), "a": ints(1)}),
    (CUBE, "t = Transpose <perm = [1, 2, 0]> (x) g = GatherND(t, i) y = Transpose(g)", {"i": ints(0, 1, 2, -1).reshape(2, 2)}),
    ("(int64[B,2] i) => (float y)", "u = Unsqueeze(i, a) y = GatherND(w, u)", {"w": floats(4, 6), "a": ints(-1)}),
    ("(int64[B,2] i) => (float y)", "y = GatherND(w, i)", {"w": floats(4, 5, 3)}),
    ("(int64[B,2] i) => (float y)", "m = Sub(i, four) y = GatherND(w, m)", {"w": floats(4, 5, 3), "four": np.array(4)}),
    ("(int32[B,2] i) => (float y)", "a, b = Split <axis = 1, num_outputs = 2> (i) u = Unsqueeze(a, z) v = Unsqueeze(b, z) "
     "c = Concat <axis = -1> (v, u) y = GatherND(w, c)",
     {"w": floats(4, 5, 3), "z": ints(-1)}),
    *(("(float[B,4,3] x, int64[B] i) => (float y)",
       f"n = Shape <end = 1> (x) s = Squeeze(n) r = Range(zero, s, one) m = Sub(i, {back}) u = Unsqueeze(r, a) v = Unsqueeze(m, a) "
       "c = Concat <axis = -1> (u, v) y = GatherND(x, c)", {"zero": np.array(0), "one": np.array(1), "a": ints(-1), "four": np.array(4)})
      for back in ("zero", "four")),
    ("(float[B,4,3] x, int64[B,1] i) => (float y)", "y = GatherND <batch_dims = 1> (x, i)", {}),
    ("(float[B,4,4] x, int64[B,3,2] i) => (float y)", "y = GatherND <batch_dims = 1> (x, i)", {}),
    *(("(float[B,6] x, float[B,2] z) => (float y)",
       f"k, i = TopK <axis = 1> (x, two) m = Sub(i, {back}) y = ScatterElements <axis = -1{how}> (x, m, z)",
       {"two": ints(2), "zero": np.array(0), "six": np.array(6)})
      for back, how in (("zero", ""), ("six", ""), ("six", ', reduction = "add"'), ("zero", ', reduction = "max"'))),
    *(("(float[B,6] x, int32[B,4] i, float[B,4] z) => (float y)", f'y = ScatterElements <axis = 1, reduction = "{how}"> (x, i, z)', {})
      for how in ("add", "mul", "min")),
    ("(float[B,6] x) => (float y)", "k = ArgMax <axis = 1> (x) f = Cast <to = 1> (k) y = ScatterElements <axis = 1> (x, k, f)", {}),
    *(("(float[B,6] x, float[B,2] z) => (float y)",
       f"t = Transpose(x) u = Transpose(z) s = ScatterND{how}(t, i, u) y = Transpose(s)", {"i": ints(4, -5).reshape(2, 1)})
      for how in ("", ' <reduction = "add"> ', ' <reduction = "mul"> ')),
    (CUBE, "t = Transpose <perm = [1, 2, 0]> (x) g = GatherND(t, j) s = ScatterND(t, i, g) y = Transpose <perm = [2, 0, 1]> (s)",
     {"i": ints(0, 1, 2, -1).reshape(2, 2), "j": ints(1, 1, 0, 0).reshape(2, 2)}),
    *(("(float[B,6,2] x, float[B,2,2] z) => (float y)",
       "n = Shape <end = 1> (x) s = Squeeze(n) r = Range(zero, s, one) u = Unsqueeze(r, a) "
       f"h = Concat <axis = 0> (n, two, o) q = Expand(u, h) c = Expand(i, h) p = Concat <axis = -1> (q, c) y = ScatterND{how}(x, p, z)",
       {"zero": np.array(0), "one": np.array(1), "a": ints(1, 2), "two": ints(2), "o": ints(1), "i": ints(4, -6).reshape(2, 1)})
      for how in ("", ' <reduction = "add"> ')),
    (X, "w = DequantizeLinear <axis = 1> (q, s, z) y = MatMul(x, w)",
     {"q": np.arange(12).reshape(4, 3).astype(np.int8), "s": np.abs(floats(3)), "z": np.arange(3).astype(np.int8)}),
    (CUBE, "y = Pad(x, p, v)", {"p": ints(0, 1, 2, 0, 0, 1), "v": np.float32(7)}),
    (CUBE, "y = Pad(x, p, , a)", {"p": ints(1, 2), "a": ints(-1)}),
    (CUBE, "y = Trilu <upper = 0> (x, k)", {"k": np.array(-1)}),
    (IDS, "y = OneHot(i, d, v)", {"d": np.array(5), "v": ints(0, 3)}),
    (IDS, "k = Sub(i, c) y = OneHot(k, d, v)", {"c": np.array(3), "d": np.array(5), "v": ints(0, 3)}),
    ("(float[B,4] x) => (float y)", "n = Shape <end = 1> (x) c = Concat <axis = 0> (n, one) f = ConstantOfShape(c) y = Concat <axis = 1> (x, f)",
     {"one": ints(1)}),
    (IDS, "r = Range(a, b, c) y = Add(i, r)", {"a": np.array(0), "b": np.array(6), "c": np.array(2)}),
    (X, "n = Size(s) f = Cast <to = 1> (n) y = Div(x, f)", {"s": ints(1, 2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "body", "initializers"), CASES, ids=[body.split("(")[0] for _, body, _ in CASES])
def test_op_computes_what_onnx_says(signature: str, body: str, initializers: Arrays, tmp_path: Path) -> None:
    agree(model_of(signature, body, initializers), tmp_path / "m.onnx")


SCATTERED: list[tuple[str, str, Arrays, str]] = [
    ("(float[B,6] x, int64[B,6] i) => (float y)", "y = ScatterElements(x, i, x)", {}, "op ScatterElements 'y': scatters along the batch"),
    ("(float[B,6] x, int64[B,2] i) => (float y)", "y = ScatterElements <axis = 1> (x, i, x)", {}, "another number of values than of places"),
    ("(float[B,6] x, int64[B,6] i) => (float y)", "y = ScatterElements <axis = 1> (w, i, x)", {"w": floats(3, 6)}, "'w'. holds numbers that may be a weight's"),
    ("(float[B,6] x, int64[B,1] i) => (float y)", "y = ScatterND(x, i, x)", {}, "to places that examples or the batch change: give htrain"),
    ("(float[B,6] x) => (float y)", "y = ScatterND(x, i, u)", {"i": ints(0).reshape(1, 1), "u": np.zeros((1, 6), np.float32)}, "scatters along the batch"),
    ("(float[B,2] x) => (float y)", "t = Transpose(x) y = ScatterND(t, i, t)", {"i": ints(1, -1).reshape(2, 1)}, "writes to one place twice"),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "body", "initializers", "why"), SCATTERED)
def test_what_is_scattered_elsewhere_is_refused(
    signature: str, body: str, initializers: Arrays, why: str, tmp_path: Path
) -> None:
    onnx.save(model_of(signature, body, initializers), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=why):
        capture_onnx(tmp_path / "m.onnx")


def test_what_is_stored_quantized_is_told_to_stay(tmp_path: Path) -> None:
    body = "v = DequantizeLinear(q, s) h = MatMul(x, v) y = MatMul(h, w)"
    arrays = {"q": np.arange(16).reshape(4, 4).astype(np.int8), "s": np.float32(0.1), "w": floats(4, 2)}
    captured = agree(model_of(X, body, arrays), tmp_path / "m.onnx")
    assert "q: stored quantized (DequantizeLinear), and never trained" in captured.notes
    assert [name for name, p in captured.net.parameters.items() if p.trained] == ["w"]


@pytest.mark.parametrize("transposed_a", [0, 1])
@pytest.mark.parametrize("transposed_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
@pytest.mark.parametrize("bias", [(), (5,), (1, 5), (1,)])
def test_gemm_in_every_form(
    transposed_a: int, transposed_b: int, alpha: float, beta: float, bias: tuple, tmp_path: Path
) -> None:
    attrs = f"<transA = {transposed_a}, transB = {transposed_b}, alpha = {alpha}, beta = {beta}>"
    before, x = ("t = Transpose(x)", "t") if transposed_a else ("", "x")
    operands = f"{x}, w, b" if bias else f"{x}, w"
    initializers = {"w": floats(5, 4) if transposed_b else floats(4, 5)} | ({"b": floats(*bias)} if bias else {})
    captured = agree(model_of(X, f"{before} y = Gemm {attrs} ({operands})", initializers), tmp_path / "m.onnx")
    types = [op.type for op in captured.net.ops]
    assert types.count("FC") == 1
    assert captured.net.parameters["w"].shape == (5, 4)
    assert ("Add" in types) == (bias in ((1, 5), (1,)) or (bias == (5,) and (alpha, beta) != (1.0, 1.0)))


@pytest.mark.parametrize(
    ("signature", "body", "initializers"),
    [
        ("(float[B,2,3,4] q, float[B,2,3,4] k) => (float y)", "y = Attention(q, k, q, f)", {"f": floats(3, 3)}),
        ("(float[B,2,3,4] q, float[B,2,3,4] k) => (float y)", "y = Attention <scale = 0.3> (q, k, q)", {}),
        (CUBE, "y = RMSNormalization(x, s)", {"s": floats(4)}),
        (X, "y = Swish <alpha = 0.7> (x)", {}),
    ],
    ids=["Attention", "Attention without a mask", "RMSNormalization", "Swish"],
)
def test_ops_of_newer_opsets(signature: str, body: str, initializers: Arrays, tmp_path: Path) -> None:
    agree(model_of(signature, body, initializers, opset=24), tmp_path / "m.onnx")


def test_old_opsets_give_axes_as_attributes(tmp_path: Path) -> None:
    body = "u = Unsqueeze <axes = [1]> (x) s = ReduceSum <axes = [1], keepdims = 0> (u) c = Clip(s, low) y = Softmax(c)"
    agree(model_of(X, body, {"low": np.float32(-1)}, opset=11), tmp_path / "m.onnx")


def test_a_softmax_over_several_dimensions_of_an_old_opset_is_refused(tmp_path: Path) -> None:
    onnx.save(model_of(CUBE, "y = Softmax(x)", {}, opset=11), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"op Softmax 'y': is over several dimensions, as before opset 13"):
        capture_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("type", "attrs"), [("Elu", {"alpha": 1.0}), ("LeakyRelu", {"alpha": 0.01}), ("Gelu", {"approximate": "none"})]
)
def test_an_attribute_that_is_left_out_is_the_number_that_onnx_says_and_not_the_float32_beside_it(
    type: str, attrs: Mapping[str, object], tmp_path: Path
) -> None:
    captured = agree(model_of(X, f"y = {type}(x)", {}), tmp_path / "m.onnx")
    assert [dict(op.attrs) for op in captured.net.ops] == [attrs]


def test_a_weight_that_is_called_as_ops_are_by_htrain_keeps_its_name(tmp_path: Path) -> None:
    """It is first read behind ops that have made names of their own."""
    body = "a = Slice(x, s, e, one) b = Slice(x, e, f, one) c = Concat <axis = 1> (b, a) d = Mul(c, slice_1) y = Add(d, concat)"
    graph = parser.parse_graph(f"g (float[B,4] x) => (float y) {{ {body} }}")
    held = {"s": ints(0), "e": ints(2), "f": ints(4), "one": ints(1), "slice_1": floats(4), "concat": floats(4)}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    captured = agree(model, tmp_path / "m.onnx")
    assert set(captured.net.parameters) == {"slice_1", "concat"}


def test_the_largest_of_a_batch_and_other_numbers_than_the_papers_are_refused(tmp_path: Path) -> None:
    for body, said in (
        ("y, i = TopK <axis = 0> (x, k)", "takes the largest of a batch"),
        ("y = Selu <alpha = 2.0> (x)", "has other numbers than the paper's, 2 and 1.051"),
    ):
        graph = parser.parse_graph(f"g {X} {{ {body} }}")
        graph.initializer.append(numpy_helper.from_array(ints(2), "k"))
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
        with pytest.raises(ModelError, match=said):
            capture_onnx(path)
