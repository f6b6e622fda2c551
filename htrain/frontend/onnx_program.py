"""What a file says about the PyTorch program that it was exported from: which parameter each op reads.

torch's exporter keeps the op of the exported program beside each node (`pkg.torch.onnx.fx_node`), in which parameters have names. So it can be
told what it has merged, taken apart or left out.
"""

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from htrain.errors import ModelError
from htrain.frontend.onnx_operator import Operator

_FX_NODE = "pkg.torch.onnx.fx_node"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_INPUT = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b(?: target='([^']*)')?", re.MULTILINE)
_STORED = re.compile(r"%([pbc]_\w+)")
_PARAMETER = "PARAMETER"
_EMBEDDING = re.compile(r"target=torch\.ops\.aten\.embedding\.default\]\(args = \(%(p_\w+), %\w+, (\d+)[,)]")
_WITH_BIAS = re.compile(r"aten\.(linear|addmm|conv\w+)\.(default|input)")
_CONVOLUTIONS = ("Conv", "ConvTranspose")
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_CURE = "export it with torch.onnx.export(optimize=False), or give htrain the PyTorch module"


class Program:
    """`put_back` are the biases that the file had left out, by the program's names for them; the graph reads them again. `left_out` are the module's names for
    parameters that no op of the file reads."""

    def __init__(self, graph: ir.Graph, constants: Sequence[ir.Value]) -> None:
        self._stored = {str(value.name) for value in constants}
        self.put_back: dict[str, ir.Value] = {}
        inputs = _INPUT.findall(graph.metadata_props.get(_SIGNATURE, ""))
        self._kinds = {name: kind for name, kind, _ in inputs}
        self._targets = {name: target for name, _, target in inputs}
        self._levels: dict[ir.Node, tuple[int, int]] = {}  # of each level of a recurrent op: which, of how many
        for program_op, nodes in _by_program_op(graph).items():
            levels = [node for node in nodes if node.op_type in RECURRENT]
            self._levels.update({node: (i, len(levels)) for i, node in enumerate(levels)})
            self._complete(graph, program_op, nodes, {_mangled(str(v.name)): v for v in constants})
        self.left_out = self._left_out(graph)

    def trains(self, value: ir.Value) -> bool | None:
        """Whether a constant is a parameter of the module, by what its readers read in the program; None where the file does not say.

        One of another name than the parameter's may be that, transposed say, or an epsilon beside it. What is read where the program reads buffers alone, or
        nothing that is stored, is no parameter, unless the exporter has computed with some.
        """
        found = {self._kind(value, use.node, use.idx) for use in value.uses()} if self._kinds else {""}
        return True if "parameter" in found else False if found == {"none"} else None

    def _kind(self, value: ir.Value, node: ir.Node, index: int) -> str:
        """What a constant is to one of its readers: a "parameter", "none", or "" where it may be one."""
        name, beside = self.parameter(node, index), self._parameters_of(node)
        if self._kinds.get(name) == _PARAMETER:
            return "parameter" if _mangled(str(value.name)) == name else ""
        others = all(self._kinds.get(other, _PARAMETER) != _PARAMETER for other in beside)
        return "none" if others and (beside or not self.left_out) else ""

    def add_copy(self, name: str) -> None:
        """Note that a copy of a constant, called NAME@PARAMETER, is a constant, too."""
        self._stored.add(name)

    def parameter(self, node: ir.Node, index: int) -> str:
        """The program's name for the parameter at input `index` of a node; "" where the file does not say.

        Inputs that have a parameter's own name stand for it; the others for what is left, in order.
        """
        if isinstance(node, ir.Node) and node in self._levels:
            return "_and_".join(self._of_level(node, index))
        names = self._parameters_of(node)
        inputs = [(i, str(v.name)) for i, v in enumerate(node.inputs) if v is not None and str(v.name) in self._stored]
        if not names or len(inputs) > len(names):
            return ""
        places: dict[int, str] = {}
        for i, name in inputs:
            if _mangled(name) in names:
                names.remove(_mangled(name))
                places[i] = _mangled(name)
        left = [i for i, _ in inputs if i not in places]
        found = names if len(left) == len(names) else ["_and_".join(names)] * len(left)
        return {**places, **dict(zip(left, found, strict=True))}.get(index, "")

    def _of_level(self, node: ir.Node, index: int) -> list[str]:
        """The parameters that are input `index` of one level of a recurrent op: those of both directions, biases in pairs."""
        level, num_levels = self._levels[node]
        num_directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
        per_cell = 4 if len(node.inputs) > 3 and node.inputs[3] is not None else 2
        names = _parameters_in(node.metadata_props.get(_FX_NODE, ""))[-num_levels * num_directions * per_cell :]
        cells = [names[(level * num_directions + d) * per_cell :][:per_cell] for d in range(num_directions)]
        places = {1: slice(0, 1), 2: slice(1, 2), 3: slice(2, 4)}.get(index, slice(0))
        return [name for cell in cells for name in cell[places]]

    def _left_out(self, graph: ir.Graph) -> list[str]:
        """The parameters, by the module's names, that no op of the file reads: its output does not depend on them, or the exporter has computed with them."""
        read = {name for node in graph for name in _parameters_in(node.metadata_props.get(_FX_NODE, ""))}
        read |= {_mangled(name) for name in self._stored}
        return [self._targets[name] for name, kind in self._kinds.items() if kind == _PARAMETER and name not in read]

    def _parameters_of(self, node: ir.Node) -> list[str]:
        """The parameters that the node's op reads in the program, but those that another node reads for it."""
        names = _parameters_in(node.metadata_props.get(_FX_NODE, ""))
        read = {id(value) for value in node.inputs}
        return [name for name in names if name not in self.put_back or id(self.put_back[name]) in read]

    def _complete(
        self, graph: ir.Graph, program_op: str, nodes: Sequence[ir.Node], constants: dict[str, ir.Value]
    ) -> None:
        """A bias of zeros behind a product that has one in the program: the exporter leaves it out.

        Raises ModelError for any other parameter that the op of the program reads, and no node of the file.
        """
        if any(node in self._levels for node in nodes):
            return  # its weights are in one or two tensors, of zeros, too
        wanted = [name for name in _parameters_in(program_op) if name.startswith("p_")]
        read = {str(v.name) for node in nodes for v in node.inputs if v is not None and str(v.name) in self._stored}
        if not read or len(read) >= len(wanted):
            return
        missing = next(name for name in reversed(wanted) if name not in map(_mangled, read))
        products = (
            n
            for n in nodes
            if n.op_type in ("Gemm", "MatMul", *_CONVOLUTIONS)
            and n.inputs[1] is not None
            and str(n.inputs[1].name) in self._stored
        )
        product = next(products, None)
        if product is None or len(wanted) != len(read) + 1 or not _WITH_BIAS.search(program_op):
            what = missing.removeprefix("p_")
            raise ModelError(
                f"the parameter '{what}' of the module is not in the file, as torch's exporter leaves out what starts as zeros or ones: {_CURE}"
            )
        if missing not in self.put_back:
            self.put_back[missing] = constants.get(missing) or _zeros(
                graph, missing.removeprefix("p_"), _width(product)
            )
        _add_bias(graph, product, self.put_back[missing])


def padding_of(node: "ir.Node | Operator") -> int:
    """The row that a lookup of the program keeps from being trained (`padding_idx`), -1 for none: ONNX's Gather has no such thing."""
    table = node.inputs[0]
    found = _EMBEDDING.search(node.metadata_props.get(_FX_NODE, ""))
    same = found is not None and table is not None and _mangled(str(table.name)) == found[1]
    return int(found[2]) if found is not None and same else -1


def _by_program_op(graph: ir.Graph) -> dict[str, list[ir.Node]]:
    ops: dict[str, list[ir.Node]] = {}
    for node in graph:
        if node.metadata_props.get(_FX_NODE):
            ops.setdefault(node.metadata_props[_FX_NODE], []).append(node)
    return ops


def _parameters_in(program_op: str) -> list[str]:
    return list(dict.fromkeys(_STORED.findall(program_op.partition("args")[2])))


def _mangled(name: str) -> str:
    """A parameter's name as the exported program writes it; a copy has it behind an @."""
    original, _, parameter = name.partition("@")
    return parameter or "p_" + re.sub(r"\W", "_", original)


def _width(product: ir.Node) -> int:
    """The columns of what a product of x[..,K] and a stored matrix gives, or the channels of a convolution."""
    weight = product.inputs[1].const_value
    if product.op_type in _CONVOLUTIONS:
        transposed = product.op_type == "ConvTranspose"
        return int(weight.shape[1]) * product.attributes.get_int("group", 1) if transposed else int(weight.shape[0])
    return int(weight.shape[0 if product.attributes.get_int("transB", 0) else 1])


def _zeros(graph: ir.Graph, name: str, width: int) -> ir.Value:
    array = ir.tensor(np.zeros(width, np.float32), name=name)
    value = ir.Value(name=name, const_value=array, shape=ir.Shape([width]), type=ir.TensorType(ir.DataType.FLOAT))
    graph.register_initializer(value)
    return value


def _add_bias(graph: ir.Graph, product: ir.Node, bias: ir.Value) -> None:
    if product.op_type in _CONVOLUTIONS:
        product.resize_inputs(3)
        product.replace_input_with(2, bias)
        return
    out = product.outputs[0]
    readers = [(use.node, use.idx) for use in out.uses()]
    add = ir.node("Add", [out, bias], name=f"{product.name}_bias")
    add.metadata_props.update(product.metadata_props)
    made = add.outputs[0]
    made.name = f"{out.name}_with_bias"
    for node, index in readers:
        node.replace_input_with(index, made)
    graph.outputs[:] = [made if value is out else value for value in graph.outputs]
    graph.insert_after(product, add)
