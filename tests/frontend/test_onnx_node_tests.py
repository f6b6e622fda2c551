"""The node tests of the onnx package: what htrain makes of each file of an op that it knows is what onnx expects, or it is refused."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from htrain.errors import ModelError
from htrain.frontend.onnx_model import _HANDLERS, capture_onnx
from htrain.ops import OPS

Arrays = Mapping[str, NDArray]


@dataclass(frozen=True)
class Tried:
    """A file that ends in one value, what it is fed with, and the value that is expected."""

    model: onnx.ModelProto
    feeds: Arrays
    batch_size: int
    expected: NDArray


def with_inputs(model: onnx.ModelProto, values: Arrays, inputs: set[str], output: str) -> onnx.ModelProto:
    """The file with these inputs, the others as constants, and one output."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(made.ir_version, 8)  # before, constants are listed among the inputs, too
    kept = [value for value in made.graph.input if value.name in inputs]
    made.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in values.items() if name not in inputs)
    outputs = [value for value in made.graph.output if value.name == output]
    for held, wanted in ((made.graph.input, kept), (made.graph.output, outputs)):
        del held[:]
        held.extend(wanted)
    return made


def as_batches(model: onnx.ModelProto, values: Arrays, output: str, expected: NDArray) -> Iterator[Tried]:
    """The first dimension is the batch: of the first input and those of floats that are as long, then of all that are as long."""
    batched = [name for name, a in values.items() if a.ndim and a.dtype.kind in "fib"]
    if not batched:
        return
    size = len(values[batched[0]])
    alike = [name for name in batched if len(values[name]) == size]
    floats = {name for name in alike if values[name].dtype.kind == "f"} | {batched[0]}
    for inputs in [floats] if floats == set(alike) else [floats, set(alike)]:
        feeds = {name: values[name] for name in inputs}
        yield Tried(with_inputs(model, values, inputs, output), feeds, size, expected)


def as_weights(model: onnx.ModelProto, values: Arrays, output: str, expected: NDArray) -> Iterator[Tried]:
    """All inputs are weights or constants, whatever their dimensions mean, and what comes out is added to an input of zeros."""
    if expected.dtype != np.float32:
        return
    made = with_inputs(model, values, set(), output)
    graph = made.graph
    graph.input.append(helper.make_tensor_value_info("htrain_in", TensorProto.FLOAT, ["B", 1]))
    graph.initializer.append(numpy_helper.from_array(np.array([1, -1], np.int64), "htrain_flat_shape"))
    graph.node.append(helper.make_node("Reshape", [output, "htrain_flat_shape"], ["htrain_flat"]))
    graph.node.append(helper.make_node("Add", ["htrain_flat", "htrain_in"], ["htrain_out"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("htrain_out", TensorProto.FLOAT, ["B", expected.size]))
    rows = np.broadcast_to(expected.reshape(1, -1), (2, expected.size))
    yield Tried(made, {"htrain_in": np.zeros((2, 1), np.float32)}, 2, rows)


def run(tried: Tried, path: Path) -> torch.Tensor:
    """The captured net on the file's inputs, op by op."""
    onnx.save(tried.model, path)
    captured = capture_onnx(path)
    values = {name: torch.from_numpy(a.copy()) for name, a in tried.feeds.items()} | dict(captured.values)
    for op in captured.net.ops:
        results = OPS[op.type].run(op, [values[name] for name in op.inputs], tried.batch_size)
        values.update(zip(op.outputs, results, strict=True))
    return values[captured.net.outputs[0]]


def difference(seen: torch.Tensor, expected: NDArray, case: Any) -> str:
    """How a result is not the expected one; "" where it is."""
    if f"torch.{expected.dtype}" != str(seen.dtype) or seen.shape != expected.shape:
        return f"{seen.dtype}{list(seen.shape)} for {expected.dtype}{list(expected.shape)}"
    numbers = seen.float().numpy() if seen.dtype == torch.bfloat16 else seen.numpy()
    try:
        np.testing.assert_allclose(numbers, expected.astype(numbers.dtype), rtol=case.rtol, atol=case.atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def tries(case: Any) -> Iterator[Tried]:
    """All that can be tried of a node test: each of its outputs, in several ways."""
    inputs, outputs = ([_array(value) for value in part] for part in case.data_sets[0])
    if any(a is None for a in (*inputs, *outputs)) or len(inputs) != len(case.model.graph.input):
        return  # sequences, maps, and inputs that are left out
    values: dict[str, Any] = {value.name: a for value, a in zip(case.model.graph.input, inputs, strict=True)}
    for value, expected in zip(case.model.graph.output, outputs, strict=True):
        for way in (as_batches, as_weights):
            yield from way(case.model, values, value.name, expected)  # type: ignore[arg-type]


def _array(value: object) -> NDArray | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, np.ndarray) else None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of onnx's own expectations: the logarithm of 0
def test_files_of_onnx_are_computed_as_onnx_expects_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wrong = []
    for case in load_model_tests(kind="node"):
        if not all(node.domain in ("", "ai.onnx") and node.op_type in _HANDLERS for node in case.model.graph.node):
            counts["of an op that htrain does not have"] += 1
            continue
        passed, why = 0, ""
        for tried in tries(case):
            try:
                seen = run(tried, tmp_path / "node.onnx")
            except ModelError as error:
                why = str(error).removeprefix(f"{tmp_path / 'node.onnx'}: ")
                continue
            if differs := difference(seen, tried.expected, case):
                wrong.append(f"{case.name}: {differs}")
            passed += 1
        counts["as expected" if passed else "refused" if why else "not of tensors alone"] += 1
        if why and not passed:
            reasons[_kind(why)] += 1
    with capsys.disabled():
        print("\n", dict(counts), "wrong:", len(wrong), *(f"\n  {n} {why}" for why, n in reasons.most_common(12)))
    assert not wrong
    assert counts["as expected"] >= 600


def _kind(why: str) -> str:
    """The kind of a refusal: without names and numbers."""
    words = [word for word in why.split("(")[0].split() if not word.startswith(("'", "[")) and not word.isdigit()]
    return " ".join(words)[:100]
