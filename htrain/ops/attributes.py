"""Which attributes an op takes, as its kernel declares them: keywords with a type each."""

import inspect
import types
from collections.abc import Mapping
from typing import get_origin

from htrain.net.net import Tensor
from htrain.ops.base import OpDef

KINDS = (int, float, bool, str, tuple, Tensor)  # of attributes; a tuple is of ints


def keywords_of(definition: OpDef) -> list[inspect.Parameter]:
    """The keyword parameters of a kernel that are attributes; a builtin of torch takes none."""
    kernel = definition.kernel
    if isinstance(kernel, types.BuiltinFunctionType | types.MethodDescriptorType):
        return []
    parameters = inspect.signature(kernel).parameters.values()
    return [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) and p.name != "batch"]


def declared_attributes(definition: OpDef) -> Mapping[str, type]:
    """The attributes of an op and the type of each, by its definition alone; `**attrs` are none."""
    if definition.attributes is not None:
        return definition.attributes
    return {
        p.name: get_origin(p.annotation) or p.annotation for p in keywords_of(definition) if p.kind is p.KEYWORD_ONLY
    }
