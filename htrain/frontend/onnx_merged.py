"""Weights that an exporter has merged because they start from equal values are taken apart again, for training parts them; and copies that
it has made of one weight, as one product wants it transposed, become one again.

torch's exporters store equal initializers once, and say which parameter each op reads: one writes an Identity with the parameter's name, the
other keeps the program (htrain.frontend.onnx_program). Parameters that the module ties have one name. Where a file says nothing, biases of
equal elements belong to the products that they follow.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from htrain.errors import ModelError
from htrain.frontend.captured import Origin
from htrain.frontend.onnx_program import RECURRENT, Program
from htrain.frontend.onnx_weights import array_of, is_floating, is_weight

_WEIGHING = frozenset(
    {"Add", "Sub", "Mul", "Div", "LayerNormalization", "BatchNormalization", "RMSNormalization", "PRelu"}
)
_BIASES = {
    "Gemm": 2,
    "Conv": 2,
    "ConvTranspose": 2,
    **dict.fromkeys(RECURRENT, 3),
}  # their places, behind a matrix at 1
_COPIED = {"Gemm": (1,), "MatMul": (1,), **dict.fromkeys(RECURRENT, (1, 2, 3))}  # what exporters compute from weights
_MATRIX_BYTES = 1 << 28  # a larger one is a table, which no product reads
Use = tuple[ir.Node, int]


@dataclass(frozen=True)
class Unmerged:
    """What the weights of a graph are in the file, where that is not one tensor of the same name: several, or none that could have other
    values; and a sentence about each change. `trained` are those of which the file says whether they are parameters of a module."""

    origins: dict[str, tuple[Origin, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    trained: dict[str, bool] = field(default_factory=dict)

    def tensor_of(self, name: str) -> str:
        """The tensor of the file that a weight or another constant is."""
        return next((origin.name for origin in self.origins.get(name, ())), name)


def unmerge(constants: Sequence[ir.Value], graph: ir.Graph, *, of_torch: bool) -> Unmerged:
    """Have the graph read a weight or table of its own for each parameter of the module.

    `of_torch`: the file comes from torch's exporter. Raises ModelError for a weight of which the file does not say whether it is one, and
    for one that is not in the file.
    """
    program, unmerged, nodes = Program(graph, constants), Unmerged(), set(graph)
    for value in program.put_back.values():
        if value not in constants:
            unmerged.notes.append(
                f"the file leaves out the bias {value.name}, which starts as zeros: it is put back, and trained"
            )
    weights = [v for v in constants if is_floating(v) and _may_train(v, program, nodes)]
    stored = {str(c.name) for c in constants}
    apart = [_take_apart(value, graph, program, unmerged, stored, of_torch=of_torch) for value in weights]
    tied = _tie(list(_matrices(graph, weights)), graph, program, unmerged) if of_torch else set()
    unmerged.notes.extend(
        f"the file stores {', '.join(names)} once, as they start alike: they are {len(names)} weights"
        for names in ([name for name in group if name not in tied] for group in apart)
        if len(names) > 1
    )
    for value in {id(v): v for v in (*constants, *graph.initializers.values())}.values():
        if is_floating(value) and (says := program.trains(value)) is not None:
            unmerged.trained[str(value.name)] = says
    unmerged.origins.update(dict.fromkeys(_behind(program, unmerged), ()))
    if program.left_out:
        unmerged.notes.append(
            f"no op of the file reads {', '.join(program.left_out)} of the module: the logit does not depend on it, or torch's exporter has computed "
            "with it, and what came of that is in the file; torch.onnx.export(optimize=False) keeps it"
        )
    return unmerged


def _may_train(value: ir.Value, program: Program, nodes: Collection[ir.Node]) -> bool:
    """Whether a constant is a parameter, or may be one: the file says so, or does not say anything else."""
    says = program.trains(value)
    return is_weight(value, [(use.node, use.idx) for use in value.uses()], nodes) if says is None else says


def _behind(program: Program, unmerged: Unmerged) -> set[str]:
    """What cannot have other values than those of the file: biases of zeros that were put back, and what the file stores as one tensor with them, or with what
    is no weight.

    For other values of these, the file computes something else than the module.
    """
    names = {str(value.name) for value in program.put_back.values()}
    names |= {unmerged.tensor_of(name) for name, is_one in unmerged.trained.items() if not is_one}
    return names | {name for name, found in unmerged.origins.items() if any(origin.name in names for origin in found)}


# -- one tensor, several weights -------------------------------------------------------------------------------------


def _take_apart(
    value: ir.Value, graph: ir.Graph, program: Program, unmerged: Unmerged, stored: Collection[str], *, of_torch: bool
) -> list[str]:
    """The names of the weights that a tensor stands for."""
    groups = _groups(value, program, stored, of_torch=of_torch)
    for name, uses in list(groups.items())[1:]:
        beside = program.put_back.get(name.partition("@")[2])
        if beside is None or beside is value:
            beside = ir.Value(name=name, const_value=value.const_value, shape=value.shape, type=value.type)
            graph.register_initializer(beside)
            program.add_copy(name)
            unmerged.origins[name] = (Origin(str(value.name), transposed=False),)
        _read_instead(graph, beside, uses)
    return list(groups)


def _groups(value: ir.Value, program: Program, stored: Collection[str], *, of_torch: bool) -> dict[str, list[Use]]:
    """The uses of a constant by the weight that they mean; the name of the first is the constant's."""
    groups: dict[str, list[Use]] = {}
    unknown: list[Use] = []
    for use in value.uses():
        node, index = use.node, use.idx
        if of_torch and node.op_type == "Identity" and node.domain == "" and not node.outputs[0].is_graph_output():
            groups.setdefault(str(node.outputs[0].name), []).extend((u.node, u.idx) for u in node.outputs[0].uses())
        elif name := program.parameter(node, index):
            groups.setdefault(f"{value.name}@{name}", []).append((node, index))
        else:
            unknown.append((node, index))
    if not groups:
        return _by_product(value, unknown, stored)
    own = f"{value.name}@p_" + re.sub(r"\W", "_", str(value.name))
    first = unknown + groups.pop(own, []) if own in groups else unknown or groups.pop(next(iter(groups)))
    return {str(value.name): first, **groups}


def _by_product(value: ir.Value, uses: Sequence[Use], stored: Collection[str]) -> dict[str, list[Use]]:
    """A bias of equal elements is one weight for each matrix of the products that it follows. Raises ModelError where it follows none."""
    if len(uses) < 2 or np.ptp(array_of(value)) != 0:
        return {str(value.name): list(uses)}
    groups: dict[str, list[Use]] = {}
    for node, index in uses:
        groups.setdefault(_matrix_of(node, index, stored), []).append((node, index))
    if len(groups.get("", ())) > 1 and any(node.op_type in _WEIGHING for node, _ in groups[""]):
        raise ModelError(
            f"'{value.name}', all of whose elements are equal, is read by {len(uses)} ops, and the file does not say whether it is one weight or "
            f"several that start alike, which exporters merge: export it with torch.onnx.export(dynamo=True), or give htrain the PyTorch module"
        )
    named = {}
    for i, found in enumerate(groups.values()):
        node, index = found[0]
        named[f"{value.name}@{node.outputs[0].name}:{index}" if i else str(value.name)] = found
    return named


def _matrix_of(node: ir.Node, index: int, stored: Collection[str]) -> str:
    """The stored matrix of the product that an op is, or that it adds a bias to; "" where there is none."""
    if _BIASES.get(node.op_type) == index:
        value = node.inputs[1]
    elif node.op_type == "Add":
        other = node.inputs[1 - index]
        product = other.producer() if other is not None else None
        value = product.inputs[1] if product is not None and product.op_type == "MatMul" else None
    else:
        return ""
    return str(value.name) if value is not None and str(value.name) in stored else ""


def _read_instead(graph: ir.Graph, value: ir.Value, uses: Sequence[Use]) -> None:
    """Have the ops of `uses` read `value`; an Identity that gave them the name is removed."""
    for node, index in uses:
        before = node.inputs[index]
        identity = before.producer() if before is not None else None
        node.replace_input_with(index, value)
        if identity is not None and identity.op_type == "Identity" and not identity.outputs[0].uses():
            graph.remove(identity, safe=True)


# -- several tensors, one weight -------------------------------------------------------------------------------------


def _matrices(graph: ir.Graph, weights: Sequence[ir.Value]) -> Iterator[ir.Value]:
    """The stored matrices that products read, without those of equal elements, and the weights of recurrent layers: copies are among them."""
    for value in {id(v): v for v in (*weights, *graph.initializers.values())}.values():
        types = {use.node.op_type for use in value.uses() if use.idx in _COPIED.get(use.node.op_type, ())}
        small = types and is_floating(value) and value.const_value.nbytes <= _MATRIX_BYTES
        if small and (types & RECURRENT or (len(value.const_value.shape) == 2 and np.ptp(array_of(value)) != 0)):
            yield value


def _tie(matrices: Sequence[ir.Value], graph: ir.Graph, program: Program, unmerged: Unmerged) -> set[str]:
    """One weight for all the matrices that stand for one parameter, as it is or transposed; the names of the others, which nothing reads any more."""
    firsts: dict[str, list[ir.Value]] = {}
    tied: set[str] = set()
    for value in matrices:
        for parameter in {_parameter_of(value, program)} - {""}:
            same = next((f for f in firsts.get(parameter, ()) if _is_same(f, value) or _is_transposed(f, value)), None)
            if same is None:
                firsts.setdefault(parameter, []).append(value)
                continue
            transposed = not _is_same(same, value)
            uses = [(use.node, use.idx) for use in value.uses()]
            for node, index in uses:
                node.replace_input_with(index, _transpose_before(graph, node, same) if transposed else same)
            known = unmerged.origins.get(str(same.name), (Origin(str(same.name), transposed=False),))
            unmerged.origins[str(same.name)] = (*known, Origin(str(value.name), transposed=transposed))
            tied.add(str(value.name))
    return tied


def _parameter_of(value: ir.Value, program: Program) -> str:
    """The parameter that all readers of a matrix mean, or the module that they are in; "" where they differ."""
    found = {program.parameter(use.node, use.idx) or _module_of(use.node) for use in value.uses()}
    return found.pop() if len(found) == 1 else ""


def _module_of(node: ir.Node) -> str:
    """The module in a traced node's name, `/shared_1/MatMul` where it is called for the second time; of a recurrent one with its level, `/gru/GRU_1`."""
    scope, _, name = str(node.name or "").rpartition("/")
    module = re.sub(r"_\d+$", "", scope)
    return f"{module}/{name}" if module and node.op_type in RECURRENT else module


def _is_same(one: ir.Value, other: ir.Value) -> bool:
    return bool(np.array_equal(array_of(one), array_of(other)))


def _is_transposed(one: ir.Value, other: ir.Value) -> bool:
    return bool(np.array_equal(array_of(one).T, array_of(other)))


def _transpose_before(graph: ir.Graph, node: ir.Node, value: ir.Value) -> ir.Value:
    transpose = ir.node("Transpose", [value], attributes={"perm": [1, 0]})
    made: ir.Value = transpose.outputs[0]
    made.name = f"{node.outputs[0].name}_weight"
    graph.insert_before(node, transpose)
    return made
