"""Every op of a forward net gives in ONNX Runtime what its reference does; what cannot be exported is refused by name."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from op_samples import BINARY, MATRIX, REDUCTIONS, SAMPLES, SHAPES, UNARY
from sample import Sample
from torch_samples import OF_TORCH, RECURRENT

from htrain.errors import ModelError
from htrain.exporting.lowering import RULES, lower
from htrain.exporting.onnx_file import model_of
from htrain.net.net import Attr, B, BatchDim, Blob, Net, Shape
from htrain.onnx_format.forms import FORMS
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

OF_GRADIENTS = ("SumLike", "ZerosLike", "GradientSeed", "ReshapeLike", "FCInputGradient", "ClipTogether", "DecayedRows")
OF_LOSSES = ("BceWithLogits", "Bce", "MeanSquaredError", "OwnLoss")
NOT_FORWARD = (*OF_GRADIENTS, *OF_LOSSES, "Dropout", "BatchNorm", "GhostBatchNorm")
FORWARD = [s for s in (*UNARY, *BINARY, *MATRIX, *REDUCTIONS, *SHAPES, *OF_TORCH) if s.type not in NOT_FORWARD]


def run(net: Net, values: list[torch.Tensor]) -> list[np.ndarray]:
    """The outputs of a net without parameters, by ONNX Runtime."""
    graph = lower(net, lambda table, row: row)
    last = net.ops[-1]
    outputs = {graph.value(name, last): graph.blob(name) for name in net.outputs}
    model = model_of(graph, [replace(blob, name=name) for name, blob in outputs.items()], "sample")
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    inputs = {f"x{i}": value.numpy() for i, value in enumerate(values)}
    return session.run(list(outputs), {each.name: inputs[each.name] for each in session.get_inputs()})


def net_of(sample: Sample, values: list[torch.Tensor]) -> Net:
    builder = NetBuilder("sample")
    for i, ((shape, _), value) in enumerate(zip(sample.operands, values, strict=True)):
        builder.input(Blob(f"x{i}", shape, str(value.dtype).removeprefix("torch.")))
    return builder.build(builder.add(sample.type, list(builder.inputs), attrs=sample.attrs))


def drawn(sample: Sample, batch_size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [draw(generator, shape_at(shape, batch_size)) for shape, draw in sample.operands]


def shape_at(shape: Shape, batch_size: int) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else d.at(batch_size) for d in shape)


@pytest.mark.parametrize("sample", FORWARD, ids=lambda s: f"{s.type}-{len(s.operands)}")
def test_an_op_gives_what_its_reference_does_or_is_refused_where_nothing_says_what_it_is(sample: Sample) -> None:
    if sample.type not in {*RULES, *FORMS}:
        with pytest.raises(ModelError, match=rf"^{sample.type} '\w+' of the model itself: has no form in ONNX"):
            run(net_of(sample, drawn(sample, 2)), drawn(sample, 2))
        return
    for batch_size in (2, 5):
        exact = drawn(sample, batch_size)
        wanted = sample.reference(*exact)
        values = [value.float() if value.dtype == torch.float64 else value for value in exact]
        seen = run(net_of(sample, values), values)
        for one, other in zip(seen, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-5)


def test_every_op_that_a_model_may_have_is_tried_here_or_in_whole_models() -> None:
    in_models = {"Dedupe", "DedupeSharded", "MaskPlaces", "IsRow", "ConcatRows", "TakeRows", "PoolRows", "StackRows"}
    never_run = {"Embedding", "EmbeddingBag", "SumRows", "SplitRows"}
    others = {s.type for s in SAMPLES if not OPS[s.type].effects} - {s.type for s in FORWARD}
    assert others == in_models | never_run | {*OF_GRADIENTS, *OF_LOSSES, "Dropout"}


FLOAT, INT, BOOL = torch.tensor([[1.5, -2.0]]), torch.tensor([[-7, 3]]), torch.tensor([[True, False]])
WHOLE = torch.tensor([[2, 2]])
MIXED: list[tuple[str, list[torch.Tensor], dict[str, Attr]]] = [
    ("Add", [FLOAT, INT], {}),
    ("Mul", [BOOL, FLOAT], {}),
    ("Div", [INT, WHOLE], {}),
    ("FloorDiv", [INT, WHOLE], {}),
    ("Mod", [INT, WHOLE], {}),
    ("BitwiseXor", [INT, WHOLE], {}),
    ("Greater", [INT, FLOAT], {}),
    ("NotEqual", [BOOL, INT], {}),
    ("Not", [INT], {}),
    ("Where", [BOOL, FLOAT, INT], {}),
    ("Exp", [INT], {}),
    ("Sigmoid", [INT], {}),
    ("ReduceSum", [BOOL], {"axes": (1,), "keepdims": False}),
    ("Concat", [INT, FLOAT], {"axis": 1}),
    ("Stack", [INT, FLOAT], {"axis": -1}),
    ("Clip", [FLOAT], {"min": -1, "max": float("inf")}),
    ("BroadcastTo", [FLOAT], {"shape": (3, -1, 2)}),
    ("Fill", [], {"shape": (-2, 3), "value": 0.5, "dtype": "float32"}),
    ("Split", [FLOAT], {"axis": 1, "split": (1, 1)}),
    ("Cast", [FLOAT], {"to": "bfloat16"}),
]


@pytest.mark.parametrize(("type", "values", "attrs"), MIXED, ids=[case[0] for case in MIXED])
def test_dtypes_are_promoted_as_torch_does_and_shapes_may_name_the_batch(
    type: str, values: list[torch.Tensor], attrs: dict[str, Attr]
) -> None:
    values = [*values, FLOAT]  # the last tells the batch size
    builder = NetBuilder("mixed")
    for i, value in enumerate(values):
        builder.input(Blob(f"x{i}", (B, value.shape[1]), str(value.dtype).removeprefix("torch.")))
    outputs = builder.add(type, builder.inputs[:-1], attrs=attrs)
    net = builder.build(outputs)
    wanted = OPS[type].run(net.ops[-1], values[:-1], 1)
    for one, other in zip(run(net, values), wanted, strict=True):
        np.testing.assert_allclose(one, other.float().numpy(), rtol=1e-5)


TENTHS = torch.arange(-30, 31).float().reshape(1, -1) / 10
LARGE = torch.tensor([[16777213.0, -1.7e9, 3e8, 7.0]])


@pytest.mark.parametrize("type", ["Mod", "FloorDiv", "Fmod"])
@pytest.mark.parametrize("values", [TENTHS, LARGE], ids=["of quotients that are rounded", "of many digits"])
@pytest.mark.parametrize("by", [0.1, -0.3, 7.0, 86400.0])
def test_what_a_division_leaves_is_exact(type: str, values: torch.Tensor, by: float) -> None:
    """1.0 leaves 0.0999... of a tenth in float32, as in PyTorch, and no number as large as the divisor is left of any."""
    operands = [values, torch.full_like(values, by)]
    builder = NetBuilder("left")
    for i, value in enumerate(operands):
        builder.input(Blob(f"x{i}", (B, value.shape[1]), "float32"))
    (seen,) = run(builder.build(builder.add(type, list(builder.inputs))), operands)
    wanted = {"Mod": torch.remainder, "FloorDiv": torch.floor_divide, "Fmod": torch.fmod}[type](*operands)
    np.testing.assert_array_equal(seen, wanted.numpy())


@pytest.mark.parametrize("type", ["Scatter", "ScatterAdd"])
def test_of_more_values_than_places_the_first_are_scattered(type: str) -> None:
    operands = (((B, 5), torch.randn), ((B, 2), torch.randint), ((B, 4), torch.randn))
    x, source = torch.randn(3, 5), torch.randn(3, 4)
    places = torch.tensor([[0, 3], [4, 2], [1, 0]])
    sample = Sample(type, operands, torch.add, {"dim": 1})  # type: ignore[arg-type]
    (seen,) = run(net_of(sample, [x, places, source]), [x, places, source])
    wanted = x.scatter(1, places, source) if type == "Scatter" else x.scatter_add(1, places, source)
    np.testing.assert_allclose(seen, wanted.numpy())


def test_an_lstm_with_projections_has_no_form() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(4, 6, proj_size=3, batch_first=True)
    values = [
        torch.randn(2, 5, 4),
        torch.zeros(1, 2, 3),
        torch.zeros(1, 2, 6),
        *(p.detach() for p in module.parameters()),
    ]
    builder = NetBuilder("projected")
    for i, value in enumerate(values):
        batched = {0: (B, 5, 4), 1: (1, B, 3), 2: (1, B, 6)}
        builder.input(Blob(f"x{i}", batched.get(i, tuple(value.shape)), "float32"))
    net = builder.build(builder.add("Lstm", list(builder.inputs), attrs=RECURRENT))
    with pytest.raises(ModelError, match=r"^Lstm '\w+' of the model itself: has no form in ONNX for "):
        lower(net, lambda table, row: row)


@pytest.mark.parametrize("values", [(float("nan"), float("inf"), -float("inf"), 1.5)])
@pytest.mark.parametrize("attrs", [{}, {"nan": 0.5, "posinf": 7.0, "neginf": -3.0}])
def test_what_is_no_number_becomes_one(values: tuple[float, ...], attrs: dict[str, Attr]) -> None:
    x = torch.tensor([values])
    builder = NetBuilder("numbers")
    builder.input(Blob("x0", (B, 4), "float32"))
    (seen,) = run(builder.build(builder.add("NanToNum", ["x0"], attrs=attrs)), [x])
    np.testing.assert_array_equal(seen, torch.nan_to_num(x, **attrs).numpy())  # type: ignore[arg-type]


def test_truths_are_multiplied_as_where_both_are() -> None:
    truths = [torch.tensor([[True, True, False]]), torch.tensor([[True, False, False]])]
    builder = NetBuilder("truths")
    for i in range(2):
        builder.input(Blob(f"x{i}", (B, 3), "bool"))
    (seen,) = run(builder.build(builder.add("Mul", list(builder.inputs))), truths)
    np.testing.assert_array_equal(seen, (truths[0] * truths[1]).numpy())


def test_batches_of_low_precision_fcs_are_rounded_as_they_were() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((6, 32), (16, 32), (16,)))
    for type, close in (("FCInt8", 1e-6), ("FCBfloat16", 1e-2)):
        sample = Sample(type, (((B, 32), torch.randn), ((16, 32), torch.randn), ((16,), torch.randn)), torch.add)  # type: ignore[arg-type]
        (seen,) = run(net_of(sample, [x, w, b]), [x, w, b])
        np.testing.assert_allclose(seen, OPS[type].kernel(x, w, b).numpy(), rtol=0, atol=close * 4)


def test_what_has_no_form_is_refused_by_op_and_module() -> None:
    builder = NetBuilder("odd")
    builder.input(Blob("x", (B, 3), "float32"))
    builder.add("Pad", ("x",), attrs={"pads": (-1, 0), "value": 0.0}, module="tower.crop", outputs=("y",))
    with pytest.raises(
        ModelError, match=r"^Pad 'y' of module 'tower.crop': has no form in ONNX for x: float32\[B,3\]: "
    ):
        lower(builder.build(("y",)), lambda table, row: row)


def test_distinct_rows_that_something_else_reads_are_refused() -> None:
    builder = NetBuilder("odd")
    builder.input(Blob("rows", (BatchDim(2, bound=True), 4), "float32"))
    builder.input(Blob("ids", (B,), "int64"))
    builder.add("TakeRows", ("rows", "ids"), module="table", outputs=("y",))
    with pytest.raises(ModelError, match=r"^TakeRows 'y' of module 'table': reads rows 'rows', which are no table's"):
        lower(builder.build(("y",)), lambda table, row: row)
