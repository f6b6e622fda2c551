"""Ops of the user's own: `register` them in a file, call them in a model, and they go the same way as htrain's.

    # my_ops.py
    import torch
    from htrain import OpDef, register

    def kernel(x: torch.Tensor, *, slope: float) -> torch.Tensor:
        return torch.where(x > 0, x, slope * x)

    sloped = register(OpDef("Sloped", kernel, elementwise=True))        # in forward(): sloped(x, slope=0.1)

A role that runs such an op has to load the file that registers it (`htrain.own.registry`).
"""

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import torch

from htrain.errors import ModelError
from htrain.net.net import Attr, Blob
from htrain.ops import OPS
from htrain.ops.attributes import KINDS, declared_attributes, keywords_of
from htrain.ops.base import OpDef, Work, vjp_gradient
from htrain.ops.vjp import vjp_definition
from htrain.own.registry import file_of, path_of, record

TARGET = "htrain_user.call.default"  # what a call of a user's op is in a captured program
_capturing = False
_FOR_OURS = (
    "needs_batch", "steps_weights", "steps_rows", "bounds_rows", "exclusive", "phase", "transfer", "view", "indexed", "over_rows", "reads", "asked_by",
    "serves_cache", "evaluated", "in_evaluation", "aten", "onnx",
)  # fmt: skip  # traits by which htrain's own passes and strategies know their ops


@dataclass(frozen=True)
class UserOp:
    """A registered op, to be called in a model: tensors by place, attributes by name. Gives a tensor, or a tuple where the op has `many` outputs."""

    definition: OpDef

    def __call__(self, *tensors: torch.Tensor, **attributes: Attr) -> Any:
        """Raises ModelError for an op that writes to its inputs."""
        if self.definition.writes:
            raise ModelError(
                f"op {self.definition.type}: writes to its inputs: it is for the nets of a strategy, and no model can call it"
            )
        if _capturing:
            _library()
            outputs = tuple(torch.ops.htrain_user.call(list(tensors), self.definition.type, json.dumps(attributes)))
        else:
            outputs = self.definition.outputs_of(self.definition.kernel(*tensors, **attributes))
        return outputs if self.definition.many else outputs[0]


def register(definition: OpDef) -> UserOp:
    """Make an op of yours known, and its gradient op where it has the generic rule; what is returned is for models to call.

    Requires: the caller is a file that can be imported again, as roles do.
    Raises ModelError for a name that is taken, or a definition that cannot be run or written to a plan.

        # my_ops.py
        import torch

        import htrain


        def kernel(x: torch.Tensor, *, slope: float) -> torch.Tensor:
            return torch.where(x > 0, x, slope * x)


        sloped = htrain.register(htrain.OpDef("Sloped", kernel, elementwise=True))  # in forward(): sloped(x, slope=0.1)
    """
    caller = sys._getframe(1)
    path = _check(definition, caller)
    made = [definition, *([vjp_definition(definition)] if definition.gradient is vjp_gradient else [])]
    for one in made:
        if one.type in OPS and path_of(one.type) != path.resolve():
            whose = f"{path_of(one.type)} has registered it" if is_users(one.type) else "htrain has an op of this name"
            raise ModelError(f"{path}: op {one.type}: {whose}: choose another name")
    for one in made:
        OPS[one.type] = one
        record(one.type, path, caller)
    return UserOp(definition)


def _check(definition: OpDef, caller: FrameType) -> Path:
    """The file that registers an op. Raises ModelError."""
    where = caller.f_code.co_filename
    if not isinstance(definition, OpDef):
        raise ModelError(f"{where}: register() takes an htrain.OpDef, not a {type(definition).__name__}")
    name = definition.type
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii() and name[0].isupper()):
        raise ModelError(
            f"{where}: op {name!r}: want a name such as Sloped: ASCII letters, digits and _, the first one a capital"
        )
    path = file_of(caller, f"op {name}")
    for problem in _problems(definition):
        raise ModelError(f"{path}: op {name}: {problem}")
    return path


def _problems(definition: OpDef) -> Iterator[str]:
    if not callable(definition.kernel):
        yield f"the kernel is a {type(definition.kernel).__name__}, want a function of tensors"
        return
    try:
        declared, keywords = declared_attributes(definition), keywords_of(definition)
    except (ValueError, TypeError) as error:
        yield f"the kernel's arguments cannot be read ({error}): give a Python function, or attributes="
        return
    if definition.attributes is None and any(p.kind is p.VAR_KEYWORD for p in keywords):
        yield "the kernel takes any keywords: name its attributes, each with its type"
    for attribute, kind in declared.items():
        if kind not in KINDS:
            yield f"attribute '{attribute}' is of type {getattr(kind, '__name__', kind)}, want one of {', '.join(k.__name__ for k in KINDS)}"
    defaults = {field.name: field.default for field in fields(OpDef)}
    for trait in (name for name in _FOR_OURS if getattr(definition, name) != defaults[name]):
        yield f"{trait} is for htrain's own ops, by which passes and strategies know them: leave it out"
    if definition.place not in ("module", "reader"):
        yield f"place is '{definition.place}', want module or reader"
    if definition.work not in get_args(Work):
        yield f"work is '{definition.work}', want one of {', '.join(get_args(Work))}"


def require_elementwise(op: str, inputs: Sequence[Blob], attributes: Mapping[str, Attr]) -> None:
    """Raises ModelError for an op that says it is elementwise, and makes of a part of its input something else than that part of its output.

    An FC before it may be cut in parts, which the self-check does not see. Only ops of one floating input, for which FCs are cut, are tried.
    """
    definition = OPS[op]
    if not definition.elementwise or len(inputs) != 1 or inputs[0].dtype != "float32" or not inputs[0].shape:
        return
    shape = [d if isinstance(d, int) else d.at(3) for d in inputs[0].shape]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    half = (shape[-1] + 1) // 2
    try:
        (whole,), (part,) = (
            definition.outputs_of(definition.kernel(value, **attributes)) for value in (x, x[..., :half].contiguous())
        )
        same = whole.shape == x.shape and torch.allclose(whole[..., :half], part, equal_nan=True)
    except (RuntimeError, ValueError, IndexError, TypeError):
        same = False
    if not same:
        raise ModelError(
            f"op {op}: is registered with elementwise=True, and its kernel makes of a part of its input something else: leave that out"
        )


def is_users(type: str) -> bool:
    """Whether an op of this type is a user's."""
    return path_of(type) is not None


# -- capture ---------------------------------------------------------------------------------------------------------


@contextmanager
def whole_user_ops() -> Iterator[None]:
    """Within, a call of a user's op in a model is captured as one op."""
    global _capturing
    _capturing = True
    try:
        yield
    finally:
        _capturing = False


def attributes_from(text: str) -> dict[str, Attr]:
    """The attributes of a captured call, of the JSON that it carries; lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}


@functools.cache
def _library() -> torch.library.Library:
    """The op that stands for all users' ops while a model is captured."""
    library = torch.library.Library("htrain_user", "DEF")
    library.define("call(Tensor[] inputs, str type, str attributes) -> Tensor[]")
    library.impl("call", _run, "Meta")
    library.impl("call", _run, "CPU")
    torch.library.register_autograd(
        "htrain_user::call", _no_backward, lib=library
    )  # outputs of trained values are seen to be so
    return library


def _run(inputs: Sequence[torch.Tensor], type: str, attributes: str) -> list[torch.Tensor]:
    """Raises ModelError for a kernel that does not keep to its definition."""
    definition = OPS[type]
    result = definition.kernel(*inputs, **attributes_from(attributes))
    given = result if isinstance(result, tuple) else (result,)
    if isinstance(result, tuple) != definition.many or not given or not all(isinstance(y, torch.Tensor) for y in given):
        wanted = (
            "many=True: want a tuple of tensors, also of one"
            if definition.many
            else "want one tensor, or many=True and a tuple of them"
        )
        raise ModelError(
            f"op {type}: its kernel gave {'a tuple of ' if isinstance(result, tuple) else ''}{_kinds(given)}; {wanted}"
        )
    return [y.clone() if any(y is x for x in inputs) else y for y in given]


def _kinds(values: Sequence[object]) -> str:
    return (
        ", ".join("tensor" if isinstance(value, torch.Tensor) else type(value).__name__ for value in values)
        or "nothing"
    )


def _no_backward(context: Any, *gradients: torch.Tensor) -> Any:
    raise AssertionError("a captured program is not differentiated")
