"""PyTorch module -> Net: the exported program, op by op (DESIGN 1, 3)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from htrain.errors import ModelError
from htrain.frontend.aten_ops import HANDLERS, IGNORED
from htrain.frontend.captured import Captured
from htrain.frontend.torch_export import export, is_bag
from htrain.frontend.translation import Translation, static_value
from htrain.net import Init, Net, Op, Parameter

_CONSTANT_BYTES = 1 << 20


def capture(model: nn.Module, example_inputs: Mapping[str, torch.Tensor], *, logit: str | int = "") -> Captured:
    """The forward net of `model`; the batch is the first dimension of every example input, at least 2 there.

    Embedding weights that are only looked up, by ids that depend on an input, become tables; all other parameters are dense
    weights. `logit` names the output to train, by position or key, where there are several. A model with values gives them in
    `values`; one on the meta device gives none, and its parameters have the init `constant(0)` until they are given another.
    Raises ModelError naming the op and the module that cannot be compiled.
    """
    program = export(model, example_inputs)
    translation = Translation(
        type(model).__name__, _batch_symbol(program, example_inputs), _bag_lengths(program, example_inputs)
    )
    values = _declare_inputs(translation, program, model)
    translation.tables = _tables(program, translation)
    for node in program.graph.nodes:
        if node.op == "call_function":
            _translate(translation, node)
    output = _logit(program, logit)
    net = translation.build(translation.blob(output))
    used = _only_needed(net)
    kept = {name: value for name, value in values.items() if name in used.parameters}
    return Captured(used, kept, tuple(_left_out(model, used)))


def _left_out(model: nn.Module, net: Net) -> list[str]:
    """A sentence for the trained parameters that the logit does not depend on: PyTorch would give them no gradient, either."""
    kept = {
        id(p) for name, p in model.named_parameters(remove_duplicate=False) if name in net.parameters
    }  # tied: one name of several
    names = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in kept]
    return [f"the logit does not depend on {', '.join(names)}: not in the plan, never trained"] if names else []


def _batch_symbol(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> Any:
    """The symbol that stands for the batch size. Raises ModelError when the model has fixed it."""
    for node, name in _user_inputs(program):
        size = node.meta["val"].shape[0]
        if not is_bag(name, inputs):
            if isinstance(size, int):
                raise ModelError(
                    f"the model fixes the batch size of input '{name}' to {size}: write its code for any batch size"
                )
            return size.node.expr
    raise ModelError("the model has no input with a batch dimension")


def _bag_lengths(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> dict[Any, int]:
    """For each bag input, its symbol and the mean length of its lists in the example."""
    lengths = {}
    for node, name in _user_inputs(program):
        if is_bag(name, inputs) and not isinstance(node.meta["val"].shape[0], int):
            count, bags = inputs[name].shape[0], inputs[f"{name}_offsets"].shape[0]
            lengths[node.meta["val"].shape[0].node.expr] = max(1, -(-count // bags))
    return lengths


def _user_inputs(program: ExportedProgram) -> list[tuple[fx.Node, str]]:
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and specs[n.name].kind == InputKind.USER_INPUT]
    return [(node, str(node.target)) for node in nodes]


def _declare_inputs(translation: Translation, program: ExportedProgram, model: nn.Module) -> dict[str, torch.Tensor]:
    """Declare inputs, parameters and buffers; return the values that the model came with."""
    values: dict[str, torch.Tensor] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    state = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    declared: dict[int, str] = {}
    for node in (n for n in program.graph.nodes if n.op == "placeholder"):
        spec = specs[node.name]
        if spec.kind == InputKind.USER_INPUT:
            translation.declare_input(node)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            translation.static[node] = program.constants[str(spec.target)]
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            _declare_parameter(translation, node, str(spec.target), state[str(spec.target)], declared, values)
        else:
            raise ModelError(
                f"the model takes a {spec.kind.name.lower()} (an op with effects, such as a check, or an object): "
                f"htrain compiles pure functions of tensors"
            )
    return values


def _declare_parameter(
    translation: Translation,
    node: fx.Node,
    name: str,
    tensor: torch.Tensor,
    declared: dict[int, str],
    values: dict[str, torch.Tensor],
) -> None:
    trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    if id(tensor) in declared:  # tied: the first name wins
        translation.names[node] = declared[id(tensor)]
        return
    if (
        not isinstance(tensor, nn.Parameter)
        and not tensor.is_meta
        and tensor.numel() * tensor.element_size() <= _CONSTANT_BYTES
    ):
        translation.static[node] = tensor
        return
    if not isinstance(tensor, nn.Parameter) and tensor.is_meta:
        raise ModelError(
            f"buffer '{name}' has no value on the meta device: create it with device='cpu', or compute it in forward()"
        )
    init = Init("constant", (0.0,)) if tensor.is_meta else Init("file")
    dtype = str(tensor.dtype).removeprefix("torch.")
    translation.parameter(node, Parameter(name, tuple(tensor.shape), dtype, "weight", init, trained=trained))
    declared[id(tensor)] = name
    if not tensor.is_meta:
        values[name] = tensor.detach()


def _tables(program: ExportedProgram, translation: Translation) -> set[str]:
    """Parameters that embeddings alone read, by ids that depend on an input."""
    dynamic = {node for node, _ in _user_inputs(program)}
    for node in program.graph.nodes:
        if node.op == "call_function" and dynamic.intersection(node.all_input_nodes):
            dynamic.add(node)
    looked_up: set[str] = set()
    otherwise: set[str] = set()
    for node in program.graph.nodes:
        for source in node.all_input_nodes:
            name = translation.names.get(source, "")
            if name not in translation.builder.parameters:
                continue
            embeds = node.op == "call_function" and str(node.target) in (
                "aten.embedding.default",
                "htrain.embedding_bag.default",
            )
            (looked_up if embeds and node.args[0] is source and node.args[1] in dynamic else otherwise).add(name)
    tables = looked_up - otherwise
    for name in tables:
        translation.make_table(name)
    return tables


def _translate(translation: Translation, node: fx.Node) -> None:
    """One exported op. What depends on no input is computed now; what no handler knows is refused by name."""
    name = str(node.target)
    if name in IGNORED or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        return
    value = static_value(translation, node)
    if value is not None:
        translation.static[node] = value
        return
    handler = HANDLERS.get(name)
    if handler is None:
        raise ModelError(
            f"{name} in module '{translation.module_of(node) or type(translation).__name__}' cannot be compiled: htrain has no such op"
        )
    handler(translation, node)


def _logit(program: ExportedProgram, logit: str | int) -> fx.Node:
    """The output node to train. Raises ModelError listing the choices when it is not clear."""
    outputs = next(n for n in program.graph.nodes if n.op == "output").args[0]
    spec = program.call_spec.out_spec
    keys = [str(k) for k in spec.context] if spec is not None and isinstance(spec.context, list) else []
    names = keys if len(keys) == len(outputs) else [str(i) for i in range(len(outputs))]
    if len(outputs) == 1 and logit == "":
        return outputs[0]
    wanted = str(logit)
    if wanted in names:
        return outputs[names.index(wanted)]
    if wanted.isdigit() and int(wanted) < len(outputs):
        return outputs[int(wanted)]
    raise ModelError(
        f"the model has {len(outputs)} outputs ({', '.join(names)}): say which is the logit (--logit {names[0]})"
    )


def _only_needed(net: Net) -> Net:
    """Without the ops and parameters that the logit does not depend on; inputs stay, they are what the reader gives."""
    producers = net.producers()
    needed: set[int] = set()
    pending = list(net.outputs)
    while pending:
        op: Op | None = producers.get(pending.pop())
        if op is not None and id(op) not in needed:
            needed.add(id(op))
            pending.extend(op.inputs)
    return net.with_ops(op for op in net.ops if id(op) in needed)
