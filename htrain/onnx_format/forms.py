"""How an op stands on disk: as which ONNX op, with which of its attributes as constant inputs (docs/decisions/net.md).

An op is written as ONNX's only where ONNX's means exactly the same for its operands; else it stays in `ai.htrain`. One whose attributes are the same,
too, says so itself (`OpDef.onnx`).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from onnx import defs

from htrain.net.net import Attr, Blob, Op, Tensor
from htrain.onnx_format.values import DTYPE_NAMES, DTYPES
from htrain.ops import OPS
from htrain.ops.base import constant_of, dtype_of, tensor_of

OPSET = 20
_ONNX_WORDS = {"float32": "float", "float64": "double"}  # in type strings: tensor(float)

Attrs = Mapping[str, Attr]
Operands = Mapping[str, Tensor]  # constant inputs by the attribute that they hold, after the op's own inputs, in order


@dataclass(frozen=True)
class Form:
    """An ONNX op that means what an op of htrain means.

    `fits` says whether it does for these attributes and operands. `write` gives ONNX's attributes and the constant
    inputs, `read` the op's attributes back from them. `operands` are the names of the constant inputs, in order.
    """

    type: str
    operands: tuple[str, ...] = ()
    fits: Callable[[Op, Sequence[Blob], Sequence[Blob]], bool] = lambda op, inputs, outputs: True
    write: Callable[[Attrs, Sequence[Blob]], tuple[Attrs, Operands]] = lambda attrs, inputs: (attrs, {})
    read: Callable[[Attrs, Operands], Attrs] = lambda attrs, operands: attrs


def form_of(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> tuple[Form, Attrs, Operands] | None:
    """ONNX's form of `op`, its attributes and constant inputs there; None where no ONNX op means the same."""
    form = FORMS.get(op.type)
    if form is None or not form.fits(op, inputs, outputs):
        return None
    attrs, operands = form.write(op.attrs, inputs)
    given = [b.dtype for b in inputs] + [t.dtype for t in operands.values()]
    return (form, attrs, operands) if _typed(form.type, given, [b.dtype for b in outputs]) else None


def type_of(onnx_type: str, attrs: Attrs, num_operands: int) -> str:
    """The op of htrain that is on disk as `onnx_type` with so many constant inputs; "" when none is."""
    if onnx_type == "Trilu":
        return "Triu" if attrs.get("upper") == 1 else "Tril"
    if onnx_type == "Gather" and num_operands:
        return "Select"
    return _READ_AS.get(onnx_type, "")


# -- operands --------------------------------------------------------------------------------------------------------


@functools.cache
def _schema(type: str) -> tuple[defs.OpSchema, Mapping[str, frozenset[str]]]:
    schema = defs.get_schema(type, OPSET, "")
    return schema, {t.type_param_str: frozenset(t.allowed_type_strs) for t in schema.type_constraints}


def _typed(type: str, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether ONNX's op takes operands of these dtypes and gives these: torch promotes where ONNX does not."""
    schema, allowed = _schema(type)
    if not (schema.min_input <= len(inputs) <= schema.max_input and 1 <= len(outputs) <= schema.max_output):
        return False
    bound: dict[str, str] = {}
    for formals, dtypes in ((schema.inputs, inputs), (schema.outputs, outputs)):
        for i, dtype in enumerate(dtypes):
            variable, text = formals[min(i, len(formals) - 1)].type_str, f"tensor({_ONNX_WORDS.get(dtype, dtype)})"
            if text not in allowed.get(variable, {variable}) or bound.setdefault(variable, text) != text:
                return False
    return True


def _ints(values: Sequence[int]) -> Tensor:
    return constant_of(torch.tensor(list(values), dtype=torch.int64))


def _scalar(value: float, dtype: str) -> Tensor:
    return constant_of(torch.tensor(value, dtype=dtype_of(dtype)))


def _list(value: Tensor) -> tuple[int, ...]:
    return tuple(int(v) for v in tensor_of(value).flatten().tolist())


def _number(value: Tensor) -> int | float:
    return tensor_of(value).item()


def _listed(name: str, type: str, fits: Callable[[tuple[int, ...]], bool]) -> Form:
    """A form whose attribute `name`, a list of ints, is an input."""

    def write(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
        rest = {key: value for key, value in attrs.items() if key != name}
        return rest, {name: _ints(attrs[name])}  # type: ignore[arg-type]

    def read(attrs: Attrs, operands: Operands) -> Attrs:
        return {**attrs, name: _list(operands[name])}

    def fits_op(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
        return fits(op.attrs[name])  # type: ignore[arg-type]

    return Form(type, (name,), fits_op, write, read)


def _write_reduce(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
    axes = attrs["axes"]
    return {"keepdims": attrs["keepdims"]}, {"axes": _ints(axes)} if axes else {}  # type: ignore[arg-type]


def _read_reduce(attrs: Attrs, operands: Operands) -> Attrs:
    return {**attrs, "axes": _list(operands["axes"]) if operands else ()}


_SLICE = (("start", "starts"), ("end", "ends"), ("axis", "axes"), ("step", "steps"))


def _write_slice(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
    return {}, {plural: _ints([attrs[name]]) for name, plural in _SLICE}  # type: ignore[list-item]


def _read_slice(attrs: Attrs, operands: Operands) -> Attrs:
    return {**attrs, **{name: _list(operands[plural])[0] for name, plural in _SLICE}}


def _is_floating(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    return len(inputs) == 1 and "float" in inputs[0].dtype


def _write_clip(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
    return {}, {name: _scalar(attrs[name], inputs[0].dtype) for name in ("min", "max")}  # type: ignore[arg-type]


def _read_clip(attrs: Attrs, operands: Operands) -> Attrs:
    return {**attrs, **{name: _number(operands[name]) for name in ("min", "max")}}


def _pads_fit(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    pads = op.attrs["pads"]
    assert isinstance(pads, tuple)
    paired = len(pads) % 2 == 0 and len(pads) <= 2 * len(inputs[0].shape)
    return _is_floating(op, inputs, outputs) and min(pads, default=0) >= 0 and paired


def _write_pad(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
    """torch: (before, after) pairs from the last dimension on; ONNX: all befores, then all afters, from the first."""
    pads, rank = attrs["pads"], len(inputs[0].shape)
    assert isinstance(pads, tuple)
    pairs = [*zip(pads[::2], pads[1::2], strict=True)] + [(0, 0)] * (rank - len(pads) // 2)
    befores, afters = [p[0] for p in reversed(pairs)], [p[1] for p in reversed(pairs)]
    return {}, {"pads": _ints(befores + afters), "value": _scalar(attrs["value"], inputs[0].dtype)}  # type: ignore[arg-type]


def _read_pad(attrs: Attrs, operands: Operands) -> Attrs:
    flat = _list(operands["pads"])
    rank = len(flat) // 2
    pads = tuple(p for i in reversed(range(rank)) for p in (flat[i], flat[rank + i]))
    return {**attrs, "pads": pads, "value": _number(operands["value"])}


def _triangle(upper: int) -> Form:
    return Form(
        "Trilu",
        ("k",),
        write=lambda attrs, inputs: ({"upper": upper}, {"k": _scalar(attrs["diagonal"], "int64")}),  # type: ignore[arg-type]
        read=lambda attrs, operands: {"diagonal": _list(operands["k"])[0]},
    )


def _fill_fits(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    shape, value, dtype = op.attrs["shape"], op.attrs["value"], str(op.attrs["dtype"])
    assert isinstance(shape, tuple)
    assert isinstance(value, int | float)
    exact = "float" in dtype or (dtype in ("int64", "int32") and abs(value) < 1 << 31 and value == int(value))
    return dtype in DTYPES and exact and min(shape, default=0) >= 0


def _write_fill(attrs: Attrs, inputs: Sequence[Blob]) -> tuple[Attrs, Operands]:
    value = tensor_of(_scalar(attrs["value"], str(attrs["dtype"]))).reshape(1)  # type: ignore[arg-type]
    return {"value": constant_of(value)}, {"shape": _ints(attrs["shape"])}  # type: ignore[arg-type]


def _read_fill(attrs: Attrs, operands: Operands) -> Attrs:
    value = attrs["value"]
    assert isinstance(value, Tensor)
    return {"shape": _list(operands["shape"]), "value": float(_number(value)), "dtype": value.dtype}


def _prelu_fits(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    return inputs[0].shape == outputs[0].shape


def _einsum_fits(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    return str(op.attrs["equation"]).islower()


def _mod_fits(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> bool:
    return "float" not in inputs[0].dtype


def _fixed(type: str, attrs: Attrs, fits: Callable[[Op, Sequence[Blob], Sequence[Blob]], bool]) -> Form:
    """A form without attributes in htrain, and with these in ONNX."""
    return Form(type, fits=fits, write=lambda own, inputs: (attrs, {}), read=lambda given, operands: {})


_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp")

FORMS: Mapping[str, Form] = {
    **{definition.type: Form(definition.type) for definition in OPS.values() if definition.onnx},
    **{type: Form(type, ("axes",), write=_write_reduce, read=_read_reduce) for type in _REDUCTIONS},
    "FC": _fixed("Gemm", {"transB": 1}, lambda op, inputs, outputs: len(inputs[0].shape) == 2),
    "HardSigmoid": _fixed("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, lambda op, inputs, outputs: True),
    "Cast": Form(
        "Cast",
        fits=lambda op, inputs, outputs: op.attrs["to"] in DTYPES,
        write=lambda attrs, inputs: ({"to": DTYPES[str(attrs["to"])]}, {}),
        read=lambda attrs, operands: {"to": DTYPE_NAMES[attrs["to"]]},  # type: ignore[index]
    ),
    "Einsum": Form("Einsum", fits=_einsum_fits),
    "Mod": Form("Mod", fits=_mod_fits),
    "PRelu": Form("PRelu", fits=_prelu_fits),
    # 0 is a dimension in torch, a copy of one in ONNX; -k for k * B is htrain's own
    "Reshape": _listed("shape", "Reshape", lambda shape: 0 not in shape),
    "BroadcastTo": _listed("shape", "Expand", lambda shape: min(shape, default=1) > 0),
    "Split": _listed("split", "Split", lambda split: min(split, default=0) >= 0),
    "Slice": Form("Slice", tuple(plural for _, plural in _SLICE), write=_write_slice, read=_read_slice),
    "Select": Form(
        "Gather",
        ("index",),
        write=lambda attrs, inputs: ({"axis": attrs["axis"]}, {"index": _scalar(attrs["index"], "int64")}),  # type: ignore[arg-type]
        read=lambda attrs, operands: {**attrs, "index": _list(operands["index"])[0]},
    ),
    "Clip": Form("Clip", ("min", "max"), _is_floating, _write_clip, _read_clip),
    "Pad": Form("Pad", ("pads", "value"), _pads_fit, _write_pad, _read_pad),
    "Tril": _triangle(0),
    "Triu": _triangle(1),
    "CumSum": Form(
        "CumSum",
        ("axis",),
        write=lambda attrs, inputs: ({}, {"axis": _scalar(attrs["axis"], "int64")}),  # type: ignore[arg-type]
        read=lambda attrs, operands: {"axis": _list(operands["axis"])[0]},
    ),
    "Fill": Form("ConstantOfShape", ("shape",), _fill_fits, _write_fill, _read_fill),
}
_READ_AS = {form.type: type for type, form in FORMS.items() if type not in ("Tril", "Triu", "Select")}
