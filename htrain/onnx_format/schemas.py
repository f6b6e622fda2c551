"""Which attributes an op takes, as its kernel declares them; the schemas of `ai.htrain` for onnx.checker (docs/decisions/net.md)."""

import functools
from collections.abc import Mapping

import onnx.reference  # noqa: F401  it wants op names unique over all domains when it is imported: before ours are there
from onnx import defs

from htrain.errors import PlanError
from htrain.net.net import Attr, Op, Tensor
from htrain.ops import OPS
from htrain.ops.attributes import declared_attributes, keywords_of

DOMAIN = "ai.htrain"
_OF_VJP: Mapping[str, type] = {"num_inputs": int, "wrt": tuple, "given": tuple}
_DTYPES = ("float", "double", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")


def attributes_of(type: str) -> Mapping[str, type]:
    """The attributes that an op takes and the type of each: int, float, bool, str, tuple (of ints) or Tensor."""
    return _attributes_of(type, OPS[type].kernel)


@functools.cache
def _attributes_of(type: str, kernel: object) -> Mapping[str, type]:
    """A user's op may be registered again with another kernel."""
    if _has_those_of_its_forward_op(type):
        return {**attributes_of(type.removesuffix("Gradient")), **_OF_VJP}
    return declared_attributes(OPS[type])


def _has_those_of_its_forward_op(type: str) -> bool:
    """Whether it is the gradient op of the generic rule."""
    return OPS[type].attributes is None and any(p.kind is p.VAR_KEYWORD for p in keywords_of(OPS[type]))


def check_attributes(op: Op, where: str) -> None:
    """Raises PlanError, beginning with `where`, for an attribute that is missing, unknown or of another type."""
    wanted = attributes_of(op.type)
    for name in sorted(set(op.attrs) - set(wanted)):
        raise PlanError(f"{where}: attribute '{name}' is not one of {op.type}'s: {', '.join(wanted) or 'it has none'}")
    for name, kind in wanted.items():
        if name not in op.attrs and name not in _optional(op.type):
            raise PlanError(f"{where}: attribute '{name}' is missing")
        if name in op.attrs and not _is(op.attrs[name], kind):
            raise PlanError(f"{where}: attribute '{name}' is {str(op.attrs[name])[:60]}, want {kind.__name__}")


def register_schemas() -> None:
    """Tell onnx.checker the ops of `ai.htrain`; how many operands each takes is our own check's matter."""
    for type in OPS:
        if not defs.has(type, DOMAIN):
            defs.register_schema(_schema(type))


_KINDS: Mapping[type, defs.OpSchema.AttrType] = {
    int: defs.OpSchema.AttrType.INT,
    bool: defs.OpSchema.AttrType.INT,
    float: defs.OpSchema.AttrType.FLOAT,
    str: defs.OpSchema.AttrType.STRING,
    tuple: defs.OpSchema.AttrType.INTS,
    Tensor: defs.OpSchema.AttrType.TENSOR,
}


def _schema(type: str) -> defs.OpSchema:
    kinds = attributes_of(type)
    attributes = [defs.OpSchema.Attribute(name, _KINDS[kind], "", required=False) for name, kind in kinds.items()]
    constraints = [("T", [f"tensor({name})" for name in _DTYPES], "any tensor")]
    operands = {"inputs": [_any_number("inputs")], "outputs": [_any_number("outputs")]}
    return defs.OpSchema(
        type, DOMAIN, 1, doc=f"htrain's {type}", type_constraints=constraints, attributes=attributes, **operands
    )


def _any_number(name: str) -> defs.OpSchema.FormalParameter:
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return defs.OpSchema.FormalParameter(name, "T", "", param_option=variadic, is_homogeneous=False, min_arity=0)


def _optional(type: str) -> frozenset[str]:
    return _optional_of(type, OPS[type].kernel)


@functools.cache
def _optional_of(type: str, kernel: object) -> frozenset[str]:
    if _has_those_of_its_forward_op(type):
        return _optional(type.removesuffix("Gradient"))
    return frozenset(p.name for p in keywords_of(OPS[type]) if p.default is not p.empty)


def _is(value: Attr, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(_is(v, int) for v in value)
    if kind is int:
        return isinstance(value, int) and abs(value) < 1 << 63
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
