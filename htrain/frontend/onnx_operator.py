"""A node of an ONNX graph as its handler sees it: nothing that it says can be forgotten.

Attributes and inputs remember whether the handler has looked at them. What the file gives, is not ONNX's default and was not looked at refuses
the node (`Operator.overlooked`), whatever a later opset may add.
"""

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir


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
        return int(self[name].as_int()) if name in self else default

    def get_float(self, name: str, default: float) -> float:
        return float(self[name].as_float()) if name in self else default

    def get_string(self, name: str, default: str) -> str:
        return str(self[name].as_string()) if name in self else default

    def get_ints(self, name: str, default: Sequence[int]) -> Sequence[int]:
        return tuple(self[name].as_ints()) if name in self else default

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
        for name, attribute in self.node.attributes.items():
            if name not in self.attributes.read and not _is_default(self.node, name, attribute, opset):
                yield f"attribute {name} = {attribute.value}"
        for index, value in enumerate(self.inputs):
            if value is not None and index not in self._taken:
                yield f"input {index} ('{value.name}')"


def _is_default(node: ir.Node, name: str, attribute: ir.Attr, opset: int) -> bool:
    """Whether an attribute says what ONNX takes where it is left out."""
    try:
        known = onnx.defs.get_schema(node.op_type, opset, "").attributes[name].default_value
    except (onnx.defs.SchemaError, KeyError):
        return False
    if known.type == onnx.AttributeProto.UNDEFINED:
        return False
    default = onnx.helper.get_attribute_value(known)
    return bool(attribute.value == (default.decode() if isinstance(default, bytes) else default))
