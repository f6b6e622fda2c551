"""ONNX file -> Net: a graph that another framework exported, op by op (docs/architecture.md).

onnx_ir reads the file, its passes inline functions, onnxscript folds constants; then each node becomes one op or a few.
Whatever no example changes (shapes, ranges, masks) is computed here, at two batch sizes, so that a shape that the model computes from
its input's becomes a multiple of the batch size B. The rule by which constants are tables, weights or constants is in
htrain.frontend.onnx_weights.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass
from onnxscript import optimizer

from htrain.errors import ModelError
from htrain.frontend import (
    onnx_bags,
    onnx_elementwise,
    onnx_gathers,
    onnx_matrix,
    onnx_recurrent,
    onnx_scattered,
    onnx_shapes,
    onnx_windows,
)
from htrain.frontend.captured import Captured, Origin, without_gradients
from htrain.frontend.onnx_batch import check_examples_apart, open_batch
from htrain.frontend.onnx_graph import GROWING, Graph, Known, label
from htrain.frontend.onnx_halves import widen
from htrain.frontend.onnx_merged import Unmerged, unmerge
from htrain.frontend.onnx_operator import Operator
from htrain.frontend.onnx_same import same_op
from htrain.frontend.onnx_user_ops import user_op
from htrain.frontend.onnx_weights import DTYPES, Stored, array_of, find_stored
from htrain.frontend.quiet import quiet
from htrain.net.net import B, Net, Shape
from htrain.net.rewriting import only_needed
from htrain.ops import OPS
from htrain.ops.user_ops import is_users

TABLE_ROWS = 1000  # a smaller matrix that is only looked up is a weight: it need not be cut, cached or sharded
_OLDEST_OPSET = 7  # before, operands broadcast and statistics train by other attributes
_HANDLERS: dict[str, Callable[[Graph, Operator], None]] = {
    **{definition.type: same_op for definition in OPS.values() if definition.onnx},
    **onnx_elementwise.HANDLERS,
    **onnx_matrix.HANDLERS,
    **onnx_shapes.HANDLERS,
    **onnx_gathers.HANDLERS,
    **onnx_bags.HANDLERS,
    **onnx_recurrent.HANDLERS,
    **onnx_scattered.HANDLERS,
    **onnx_windows.HANDLERS,
}
_LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
_CURES = {
    "InstanceNormalization": "give htrain the PyTorch module itself, which compiles with it",
}


def capture_onnx(
    path: Path, *, logit: str = "", table_rows: int = TABLE_ROWS, frozen: Collection[str] = frozenset()
) -> Captured:
    """The forward net of an ONNX file, up to the value called `logit`; "" is the file's only output.

    The batch is the first dimension of every input, symbolic or, if all agree, a fixed number; all other dimensions are
    fixed. Two-dimensional float initializers of at least
    `table_rows` rows that only `Gather` reads become tables, other ones weights or constants (htrain.frontend.onnx_weights); initializers
    in `frozen` are not trained.
    Raises ModelError naming file, op and node for what cannot be compiled.
    """
    notes: list[str] = []
    try:
        model, said = read_file(path)
        notes.extend(said)
        end_at(model.graph, value_of_logit(model.graph, logit))
        graph, net, unmerged = _translate(model, table_rows=table_rows, frozen=frozen, notes=notes, name=path.stem)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    net, frozen = without_gradients(net)
    notes += [f"no gradient reaches {name}: never trained" for name in frozen]
    notes += [stored.note for name, stored in graph.stored.items() if stored.note and name in net.parameters]
    origins = {name: _origins(stored, unmerged) for name, stored in graph.stored.items() if name in net.parameters}
    return Captured(
        net, {name: graph.values[name] for name in net.parameters if name in graph.values}, tuple(notes), origins
    )


def _origins(stored: Stored, unmerged: Unmerged) -> tuple[Origin, ...]:
    name = stored.parameter.name
    tensors = unmerged.origins.get(name, (Origin(name, transposed=False),))
    return tuple(Origin(tensor.name, tensor.transposed != stored.transposed) for tensor in tensors)


# -- the file --------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> tuple[ir.Model, tuple[str, ...]]:
    """The file's model with its functions inlined and its halves widened, and what is to be said of it. Raises ModelError where that is none, or of an opset
    that is not known.
    """
    if not path.is_file():
        raise ModelError("no such file")
    whole = path.resolve()
    try:
        onnx.checker.check_model(str(whole))
        model = ir.load(whole)
        _check_opset(model)
        model = InlinePass()(model).model
        return model, widen(model)
    except (onnx.checker.ValidationError, DecodeError, ir.serde.SerdeError, ValueError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"is not an ONNX model that can be read: {reason}") from error


def _check_opset(model: ir.Model) -> None:
    """Raises ModelError for an opset that ops are not known in: older ones mean other things by the same names, newer ones may."""
    newest = onnx.defs.onnx_opset_version()
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    if not _OLDEST_OPSET <= opset <= newest:
        raise ModelError(
            f"is of opset {opset}; htrain reads opsets {_OLDEST_OPSET} to {newest}: export it with opset_version=20, say"
        )


def value_of_logit(graph: ir.Graph, name: str) -> ir.Value:
    """The value to train. Raises ModelError listing the outputs when it is not clear."""
    outputs = [str(value.name) for value in graph.outputs]
    if not name:
        if not outputs:
            raise ModelError("has no output")
        if len(outputs) != 1:
            raise ModelError(
                f"has {len(outputs)} outputs ({', '.join(outputs)}): say which is the logit (--logit {outputs[0]})"
            )
        return graph.outputs[0]
    for value in (*graph.outputs, *(output for node in graph for output in node.outputs)):
        if value.name == name:
            return value
    raise ModelError(f"has no value '{name}'; its outputs are {', '.join(outputs)}")


def end_at(graph: ir.Graph, value: ir.Value) -> None:
    """Make `value` the only output, and drop what it does not need."""
    graph.outputs[:] = [value]
    RemoveUnusedNodesPass()(ir.Model(graph, ir_version=10))


# -- the graph -------------------------------------------------------------------------------------------------------


def _translate(
    model: ir.Model, *, table_rows: int, frozen: Collection[str], notes: list[str], name: str
) -> tuple[Graph, Net, Unmerged]:
    inputs = _needed_inputs(model.graph, notes)
    fixed_batch = open_batch(inputs)
    unmerged = unmerge(_parts(model.graph)[1], model.graph, of_torch=model.producer_name == "pytorch")
    _fold(
        model, {name for name, is_one in unmerged.trained.items() if is_one}
    )  # not before: it drops the Identities by which merged weights are told apart
    onnx_bags.hoist_lookups(model.graph)
    nodes, constants = _parts(model.graph)
    stored = find_stored(
        constants, nodes, _dynamic(nodes, inputs), table_rows=table_rows, frozen=frozen, trained=unmerged.trained
    )
    graph = Graph(name, model.opset_imports, stored=stored, fixed_batch=fixed_batch)
    for value in inputs:
        graph.declare_input(value, *_signature(value))
    for value in constants:
        if value.name not in stored:
            array = array_of(value)
            graph.known[str(value.name)] = Known((array, array))
    graph.done.update(onnx_gathers.parts_of_places(nodes) | onnx_bags.sequences(nodes))
    try:
        for node in nodes:
            _translate_node(graph, node)
        net = graph.builder.build((_output(graph, model.graph.outputs[0]),))
        if fixed_batch:
            check_examples_apart(net, fixed_batch)
    except ModelError as error:
        hint = (
            f" (the file fixes the batch size at {fixed_batch}: export it with a dynamic batch)" if fixed_batch else ""
        )
        raise ModelError(f"{error}{hint}") from error
    notes.extend((*unmerged.notes, *_quantized(graph, nodes)))
    return graph, only_needed(net), unmerged


def _quantized(graph: Graph, nodes: Collection[ir.Node]) -> list[str]:
    """A sentence for the constants that the file stores as integers, which are taken for what they stand for."""
    made = [node for node in nodes if node.op_type == "DequantizeLinear" and str(node.outputs[0].name) in graph.known]
    names = [str(node.inputs[0].name) for node in made if node.inputs[0] is not None]
    return [f"{', '.join(names)}: stored quantized (DequantizeLinear), and never trained"] if names else []


def _translate_node(graph: Graph, node: ir.Node) -> None:
    if node in graph.done or graph.evaluate(node):
        return
    if node.op_type == "If" and node.domain == "":
        _translate_branch(graph, node)
        return
    handler = (
        _HANDLERS.get(node.op_type) if node.domain in ("", "ai.onnx") else user_op if is_users(node.op_type) else None
    )
    if handler is None:
        raise _unknown(graph, node)
    operator = Operator(node)
    try:
        handler(graph, operator)
    except (
        ArithmeticError,
        AssertionError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
    ) as error:  # operands that no exporter gives
        raise graph.refusal(node, f"does not fit its operands: {_first_line(error)}") from error
    for what in operator.overlooked(graph.opset):
        raise graph.refusal(
            node, f"htrain does not know its {what}: express it by other ops, or give htrain the PyTorch module"
        )
    for value in node.outputs:
        read = value.is_graph_output() or any(use.node not in graph.done for use in value.uses())
        if read and str(value.name) not in graph.names:
            raise graph.refusal(node, f"htrain does not compute its output '{value.name}'")


def _translate_branch(graph: Graph, node: ir.Node) -> None:
    """The branch that is taken whatever the batch: exporters ask for sizes that they do not know, as before a Squeeze."""
    asked = node.inputs[0]
    known = graph.known.get(str(asked.name)) if asked is not None else None
    if known is None or not known.constant:
        raise graph.refusal(node, "goes another way by the values or the size of a batch: express it by Where")
    branch = node.attributes["then_branch" if known.arrays[0].all() else "else_branch"].as_graph()
    nodes, constants = _parts(branch)
    for value in (
        *constants,
        *(made for inner in nodes for made in inner.outputs),
    ):  # those of another branch may be called alike
        graph.known.pop(str(value.name), None)
        graph.names.pop(str(value.name), None)
    for value in constants:
        array = array_of(value)
        if array.dtype.kind == "f" and array.size > 1:
            raise graph.refusal(
                node, f"'{value.name}' may be a weight, within a branch: give htrain the PyTorch module"
            )
        graph.known[str(value.name)] = Known((array, array))
    for inner in nodes:
        _translate_node(graph, inner)
    for result, value in zip(node.outputs, branch.outputs, strict=True):
        if (held := graph.known.get(str(value.name))) is not None:
            graph.known[str(result.name)] = held
        else:
            graph.names[str(result.name)] = graph.blob_of(node, value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _unknown(graph: Graph, node: ir.Node) -> ModelError:
    if node.op_type in _LOSSES or "training" in node.domain:
        return graph.refusal(
            node, "is a loss: name the value before it, the logit (--logit NAME); htrain adds the loss"
        )
    domain = f" of {node.domain}" if node.domain else ""
    cure = _CURES.get(node.op_type, "express it by other ops, or give htrain the PyTorch module")
    return graph.refusal(node, f"htrain has no such op{domain}: {cure}")


def _output(graph: Graph, value: ir.Value) -> str:
    name = str(value.name)
    if name not in graph.names:
        raise ModelError(f"the logit '{name}' does not depend on an input")
    return graph.names[name]


def _needed_inputs(graph: ir.Graph, notes: list[str]) -> list[ir.Value]:
    """The graph's inputs that the logit depends on; old files list initializers among the inputs, too."""
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    needed = [value for value in inputs if value.uses() or value in graph.outputs]
    notes += [
        f"input '{value.name}' is not used: the logit does not depend on it" for value in inputs if value not in needed
    ]
    if not needed:
        raise ModelError("the logit depends on no input")
    return needed


def _fold(model: ir.Model, parameters: Collection[str]) -> None:
    """onnxscript's constant folding, away from `parameters` and all else that may be a weight; shapes that assumed a fixed batch are forgotten first."""
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    try:
        with quiet():
            optimizer.fold_constants_ir(model, should_fold=partial(_folds, parameters))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(f"a constant of the graph cannot be computed: {_first_line(error)}") from error
    RemoveUnusedNodesPass()(model)


def _folds(parameters: Collection[str], node: ir.Node) -> bool | None:
    """Whether a node may be computed now. None leaves that to onnxscript; False is for a node that reads one of `parameters`, or a floating constant with
    dimensions, which may be a weight, and for one whose result can be of any size.
    """
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    kept = node.op_type in GROWING or any(c.dtype.is_floating_point() and len(c.shape) > 0 for c in constants)
    kept = kept or any(value is not None and value.name in parameters for value in node.inputs)
    return False if kept else None


def _parts(graph: ir.Graph) -> tuple[dict[ir.Node, None], list[ir.Value]]:
    """The nodes that compute, in order, and the values that are constants."""
    literal = [node for node in graph if node.op_type == "Constant" and node.domain == ""]
    for node in literal:
        if node.outputs[0].const_value is None:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            if tensor is None or not isinstance(tensor, ir.TensorProtocol):
                raise ModelError(f"op Constant '{label(node)}': holds no tensor")
            node.outputs[0].const_value = tensor
    constants = [*graph.initializers.values(), *(node.outputs[0] for node in literal)]
    skipped = set(literal)
    return {node: None for node in graph if node not in skipped}, [value for value in constants if value.uses()]


def _dynamic(nodes: Collection[ir.Node], inputs: Collection[ir.Value]) -> set[ir.Value]:
    """The values that depend on an input's entries, not on its shape alone."""
    dynamic = set(inputs)
    for node in nodes:
        if node.op_type not in ("Shape", "Size") and dynamic.intersection(v for v in node.inputs if v is not None):
            dynamic.update(node.outputs)
    return dynamic


def _signature(value: ir.Value) -> tuple[Shape, str]:
    assert value.shape is not None
    if value.dtype not in DTYPES:
        raise ModelError(f"input '{value.name}' has dtype {value.dtype}, which htrain does not know")
    return (B, *(dim for dim in value.shape[1:] if isinstance(dim, int))), DTYPES[value.dtype]
