"""A node of an ONNX graph as its handler sees it: nothing that it says can be forgotten.

Attributes and inputs remember whether the handler has looked at them. What the file gives, is not ONNX's default and was not looked at refuses
the node (`Operator.overlooked`), whatever a later opset may add.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from htrain.net.net import Attr, Tensor
from htrain.ops.base import constant_of

_READERS: Mapping[type, Callable[[ir.Attr], Attr]] = {
    int: lambda attribute: int(attribute.as_int()),
    bool: lambda attribute: bool(attribute.as_int()),
    float: lambda attribute: float(attribute.as_float()),
    str: lambda attribute: str(attribute.as_string()),
    tuple: lambda attribute: tuple(int(value) for value in attribute.as_ints()),
    Tensor: lambda attribute: constant_of(torch.from_numpy(attribute.as_tensor().numpy().copy())),
}


class Attributes:
    """The attributes of a node; `read` holds the names that somebody has asked for."""

    def __init__(self, given: Mapping[str, ir.Attr]) -> None:
        self._given = given
        self.read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self.read.add(name)
        return name in self._given

    def __getitem__(self, name: str) -> ir.Attr:
        self.read.add(name)
        return self._given[name]

    def get_int(self, name: str, default: int) -> int:
        """The attribute, or `default` where the file leaves it out."""
        return int(self[name].as_int()) if name in self else default

    def get_float(self, name: str, default: float) -> float:
        """The attribute, or `default` where the file leaves it out."""
        return float(self[name].as_float()) if name in self else default

    def get_string(self, name: str, default: str) -> str:
        """The attribute, or `default` where the file leaves it out."""
        return str(self[name].as_string()) if name in self else default

    def get_ints(self, name: str, default: Sequence[int]) -> Sequence[int]:
        """The attribute, or `default` where the file leaves it out."""
        return tuple(self[name].as_ints()) if name in self else default

    def of_kinds(self, kinds: Mapping[str, type]) -> dict[str, Attr]:
        """The attributes of these names that the file gives, each as a value of its type."""
        return {name: _READERS[kind](self[name]) for name, kind in kinds.items() if name in self}

    def without_effect(self, *names: str) -> None:
        """These say nothing about what is computed, such as how training would go on."""
        self.read.update(names)


class Operator:
    """A node whose `attributes` and inputs (`take`) remember what was read."""

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self.op_type, self.name, self.outputs = node.op_type, node.name, node.outputs
        self.inputs = node.inputs  # to look at; what a handler computes with, it takes
        self.metadata_props = node.metadata_props
        self.attributes = Attributes(node.attributes)
        self._taken: set[int] = set()

    def take(self, index: int) -> ir.Value | None:
        """Input `index`; None where it is left out."""
        self._taken.add(index)
        return self.inputs[index] if index < len(self.inputs) else None

    def overlooked(self, opset: int) -> Iterator[str]:
        """The attributes and inputs that the file gives and nobody has looked at, as messages name them."""
        unread = {name: given for name, given in self.node.attributes.items() if name not in self.attributes.read}
        defaults = defaults_of(self.op_type, opset) if unread else {}
        for name, attribute in unread.items():
            if name not in defaults or attribute.value != defaults[name]:
                yield f"attribute {name} = {attribute.value}"
        for index, value in enumerate(self.inputs):
            if value is not None and index not in self._taken:
                yield f"input {index} ('{value.name}')"


def defaults_of(type: str, opset: int) -> dict[str, Any]:
    """What ONNX takes for attributes of an op that are left out; none for an op that it does not have."""
    try:
        declared = onnx.defs.get_schema(type, opset, "").attributes
    except onnx.defs.SchemaError:
        return {}
    known = {name: a.default_value for name, a in declared.items()}
    given = {
        name: onnx.helper.get_attribute_value(a) for name, a in known.items() if a.type != onnx.AttributeProto.UNDEFINED
    }
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
