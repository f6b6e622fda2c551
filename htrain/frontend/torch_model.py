"""PyTorch module -> Net: the exported program, op by op (docs/architecture.md)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from htrain.errors import ModelError
from htrain.frontend.aten_forms import Call, refuse
from htrain.frontend.aten_ops import ARGUMENT_CURES, CURES, IGNORED, handler_of
from htrain.frontend.captured import Captured, without_gradients
from htrain.frontend.draws import Drawn, draws_of, in_evaluation
from htrain.frontend.graph_outputs import (
    SCORED,
    evaluated_of,
    is_score,
    logit_of,
    name_of,
    needed_for,
    other_outputs,
    own_outputs,
    returns_loss,
)
from htrain.frontend.heads import with_heads
from htrain.frontend.indexed_tables import write_lookups
from htrain.frontend.known_values import MOST_BYTES
from htrain.frontend.module_checks import check_module
from htrain.frontend.shared_memory import TrainedMemory
from htrain.frontend.torch_export import ASSERTED, OF_LENGTHS, SUPPOSED, export, is_bag
from htrain.frontend.translation import PickedShapeError, Translation, dtype_name, static_value
from htrain.frontend.unwritten import UNWRITTEN
from htrain.net.net import Init, Net, Parameter
from htrain.net.rewriting import only_needed
from htrain.net.slices import leading_to
from htrain.ops.draw import is_draw, is_noise


def capture(
    model: nn.Module, example_inputs: Mapping[str, torch.Tensor], *, logit: str | int = "", own_loss: bool = False
) -> Captured:
    """The forward net of `model`; the batch is the first dimension of every example input, at least 2 there.

    Embedding weights that are only looked up, by ids that depend on an input, become tables; all other parameters are dense
    weights. `logit` names the output to train, by position or key, where there are several. With `own_loss` forward() returns the loss of the batch,
    by the key `loss` or as its first number without dimensions, beside what is scored: the net has both outputs. A model with values gives them in
    `values`; one on the meta device gives none, and its parameters have the init `constant(0)` until they are given another. One that draws random numbers in
    training alone is captured in evaluation, too.
    Raises ModelError naming the op and the module that cannot be compiled.
    """
    check_module(model)
    program = export(model, example_inputs)
    write_lookups(program, model)
    outputs = own_outputs(program, logit) if own_loss else (logit_of(program, logit),)
    draws = draws_of(needed_for(program, outputs))
    for_loss = bool(draws) and not draws_of(needed_for(program, outputs[-1:]))
    translated = partial(_translated, program, model, example_inputs, outputs)
    if not draws or not any(module.training for module in model.modules()) or not is_score(outputs[-1]):
        return translated(Drawn(always=True, for_loss=for_loss))
    of_means = partial(_of_means, partial(translated, Drawn(always=for_loss, for_loss=for_loss)))
    try:
        evaluated = _in_evaluation(model, example_inputs, logit, own_loss=own_loss)
        are_same = draws_of(needed_for(*evaluated)) == draws
    except ModelError as error:
        return of_means(error)
    if are_same or (for_loss and len(evaluated[1]) < len(outputs)):
        return translated(Drawn(always=True, for_loss=for_loss))
    try:
        found = translated(Drawn(for_loss=for_loss, apart=True))
        return found.with_evaluation(_evaluation(*evaluated, model, example_inputs, found))
    except ModelError as error:  # evaluation may take the mean of what is drawn
        return of_means(error)


def capture_evaluation(
    model: nn.Module, example_inputs: Mapping[str, torch.Tensor], trained: Captured, *, logit: str | int, own_loss: bool
) -> Captured:
    """What `model`, captured as `trained`, does in evaluation. Raises ModelError for what cannot be compiled, or takes parameters that are not trained."""
    evaluated = _in_evaluation(model, example_inputs, logit, own_loss=own_loss)
    return _evaluation(*evaluated, model, example_inputs, trained)


def _of_means(capture: Callable[[], Captured], why: ModelError) -> Captured:
    """What is captured without evaluation. Raises ModelError saying why it cannot be captured with it, either."""
    try:
        return capture()
    except ModelError as error:
        raise (
            error if str(error) == str(why) else ModelError(f"{error}; as for evaluation (model.eval()): {why}")
        ) from why


def _in_evaluation(
    model: nn.Module, example_inputs: Mapping[str, torch.Tensor], logit: str | int, *, own_loss: bool
) -> tuple[ExportedProgram, tuple[fx.Node, ...]]:
    """A model exported in evaluation, and its outputs: the loss, where it returns one there, and what is scored. Raises ModelError."""
    with in_evaluation(model):
        program = export(model, example_inputs)
        write_lookups(program, model)
    return program, own_outputs(program, logit) if own_loss and returns_loss(program) else (
        evaluated_of(program, logit),
    )


def _evaluation(
    program: ExportedProgram,
    outputs: tuple[fx.Node, ...],
    model: nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    trained: Captured,
) -> Captured:
    """The program of evaluation. Raises ModelError where it takes a parameter, or an input, that `trained` has not, a table as a whole, or scores nothing."""
    if not is_score(outputs[-1]):
        raise ModelError(f"what forward() returns in evaluation ({name_of(program, outputs[-1])}) is not {SCORED}")
    found = _translated(program, model, example_inputs, outputs, Drawn(always=True), held=trained.net)
    net, held = found.net, trained.net
    needed = only_needed(net)
    if alone := [name for name in needed.parameters if name not in held.parameters]:
        raise ModelError(f"forward() takes {alone[0]} in evaluation alone, where nothing trains it")
    read = {name for op in needed.ops for name in op.inputs}
    if alone := [name for name in net.inputs if name in read and name not in held.inputs]:
        raise ModelError(f"forward() takes the input '{alone[0]}' in evaluation alone")
    inputs = tuple(name for name in net.inputs if name in held.inputs)
    parameters = {name: held.parameters[name] for name in needed.parameters}
    return replace(found, net=replace(needed, inputs=inputs, parameters=parameters))


def _translated(
    program: ExportedProgram,
    model: nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    outputs: tuple[fx.Node, ...],
    drawn: Drawn,
    held: Net | None = None,
) -> Captured:
    """The net of a program: one of training, or of evaluation, by the parameters that the net of training has `held`. Raises ModelError."""
    translation = Translation(
        type(model).__name__, _batch_symbol(program, example_inputs), _bag_lengths(program, example_inputs)
    )
    translation.drawn = drawn
    values = _declare_inputs(translation, program, model, held)
    needed = needed_for(program, outputs)
    translation.tables = _tables(program, translation, needed, held)
    for node in program.graph.nodes:
        if node.op == "call_function" and node in needed:
            _translate(translation, node)
    _check_outputs(program, translation)
    net = translation.build(*map(translation.blob, outputs))
    used, frozen = without_gradients(only_needed(net))
    kept = {name: value for name, value in {**values, **translation.values}.items() if name in used.parameters}
    mixing = () if len(outputs) > 1 else _of_batches(translation)  # a loss is a mean of examples
    supposed = program.graph_module.meta.get(SUPPOSED, ())
    of_lengths = program.graph_module.meta.get(OF_LENGTHS, ())
    asserted = program.graph_module.meta.get(ASSERTED, ())
    supposing = (*_supposed(supposed), *_of_lengths(of_lengths), *_asserted(asserted))
    trains = () if held else (*_left_out(model, used), *_left_alone(frozen), *_drawn(used))
    notes, scored = (*trains, *mixing, *supposing), name_of(program, outputs[-1])
    captured = Captured(
        used, kept, notes, supposed=supposed, of_lengths=of_lengths, mixing=tuple(translation.mixing), scored=scored
    )
    grow = partial(_grown, program, translation, needed)
    return with_heads(captured, other_outputs(program, outputs), grow, held.parameters if held else ())


def _grown(program: ExportedProgram, translation: Translation, done: set[fx.Node], output: fx.Node) -> tuple[str, Net]:
    """The blob of another output, and the net with it. Raises ModelError for what cannot be compiled."""
    wanted = needed_for(program, (output,)) - done
    for node in program.graph.nodes:
        if node.op == "call_function" and node in wanted:
            _translate(translation, node)
            done.add(node)
    blob = translation.blob(output)
    return blob, translation.build(blob)


def _supposed(lines: Sequence[str]) -> list[str]:
    """A sentence for the lines that ask whether a mask picks anything."""
    return (
        [
            f"a mask is taken to pick something in every batch ({', '.join(lines)}): sums over nothing are 0, with no other way to go"
        ]
        if lines
        else []
    )


def _asserted(lines: Sequence[str]) -> list[str]:
    """A sentence for the lines that raise an error by what values are."""
    return (
        [f"forward() raises errors by what values are ({', '.join(lines)}): no net does; check the data before"]
        if lines
        else []
    )


def _of_lengths(lines: Sequence[str]) -> list[str]:
    """A sentence for the lines that take packed sequences apart, or pad them to the longest of a batch."""
    told = "packed sequences are taken apart, or padded to the longest of a batch"
    return (
        [f"{told} ({', '.join(lines)}): here they are as long as what was packed, with zeros behind their ends"]
        if lines
        else []
    )


def _drawn(net: Net) -> list[str]:
    """A sentence for random numbers that forward() draws in evaluation, too, for what is scored."""
    scored = (net.ops[place] for place in leading_to(net.ops, net.outputs[-1:]))
    if not any(is_draw(op) and not is_noise(op) for op in scored):
        return []
    return [
        "forward() draws random numbers in evaluation, too: other ones for each batch in training, and the same for each batch in evaluation"
    ]


def _of_batches(translation: Translation) -> list[str]:
    """A sentence for the ops by which examples of a batch depend on each other."""
    if not translation.mixing:
        return []
    first, *others = translation.mixing
    more = f" and {len(others)} more" if others else ""
    return [
        f"{first}{more}: examples of a batch depend on each other; a batch is what one net replica of a trainer reads (--batch-size), and eval reads others"
    ]


def _left_alone(names: Sequence[str]) -> list[str]:
    """A sentence for the parameters whose every way to the logit is cut by no_grad() or detach(): PyTorch steps none of them."""
    return [f"no gradient reaches {', '.join(names)} (torch.no_grad(), detach()): never trained"] if names else []


def _check_outputs(program: ExportedProgram, translation: Translation) -> None:
    """Raises ModelError where forward() changes what outlives it, but for running statistics. An input that it changes is its own copy of the batch."""
    parameters = translation.builder.parameters
    for spec in program.graph_signature.output_specs:
        target = str(spec.target)
        moves = spec.kind == OutputKind.BUFFER_MUTATION and target in parameters
        counts = target.rpartition(".")[2] == "num_batches_tracked"  # by a norm: what it counts has no effect
        if not (moves or counts or spec.kind in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION)):
            raise ModelError(f"forward() changes '{target}', which would stay as it is here: compute it outside")


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
    """The symbol of each bag input's length, with the mean length of its lists in the example."""
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


def _declare_inputs(
    translation: Translation, program: ExportedProgram, model: nn.Module, held: Net | None
) -> dict[str, torch.Tensor]:
    """Declare inputs, parameters and buffers; return the values that the model came with. Statistics that another net has `held` are parameters."""
    values: dict[str, torch.Tensor] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    state = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    declared: dict[int, str] = {}
    memory = TrainedMemory(model)
    for node in (n for n in program.graph.nodes if n.op == "placeholder"):
        spec = specs[node.name]
        if spec.kind == InputKind.USER_INPUT:
            translation.declare_input(node)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            translation.static[node] = _constant(program, str(spec.target))
            if node.users:
                memory.require_beside(
                    translation.static[node], "a tensor that forward() reads of an attribute, or of a list,"
                )
        elif held and getattr(held.parameters.get(str(spec.target)), "kind", "") == "statistic":
            translation.parameter(node, held.parameters[str(spec.target)])
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            if node.users and not state[str(spec.target)].requires_grad:
                memory.require_beside(state[str(spec.target)], f"'{spec.target}'")
            _declare_parameter(
                translation, node, str(spec.target), tensor=state[str(spec.target)], declared=declared, values=values
            )
        elif effect := next((n for n in program.graph.nodes if "with_effects" in str(n.target)), None):
            raise ModelError(
                f"{effect.args[1]} in {translation.where(effect)} cannot be compiled: it has effects, as the checks of torch.linalg.inv, solve and cholesky "
                f"have: htrain compiles pure functions of tensors"
            )
        else:
            raise ModelError(
                f"the model takes a {spec.kind.name.lower()} (an op with effects, such as a check, or an object): "
                f"htrain compiles pure functions of tensors"
            )
    return values


def _constant(program: ExportedProgram, name: str) -> torch.Tensor:
    value = program.constants[name]
    if value.is_meta:
        raise ModelError(
            f"the tensor '{name}' of an attribute has no value: register it as an nn.Parameter or a buffer of its module"
        )
    return value


def _declare_parameter(
    translation: Translation,
    node: fx.Node,
    name: str,
    tensor: torch.Tensor,
    declared: dict[int, str],
    values: dict[str, torch.Tensor],
) -> None:
    trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    if isinstance(tensor, nn.Parameter) and tensor.is_complex() and (trained or tensor.is_meta):
        raise ModelError(
            f"parameter '{name}' is {dtype_name(tensor.dtype)}: keep its parts, nn.Parameter(torch.view_as_real(values)), "
            f"and take torch.view_as_complex of these in forward()"
        )
    constant = (
        not isinstance(tensor, nn.Parameter) or not tensor.is_floating_point()
    )  # masks and places, which nothing trains
    if id(tensor) in declared:  # tied: the first name wins
        translation.names[node] = declared[id(tensor)]
        return
    if constant and not tensor.is_meta and tensor.numel() * tensor.element_size() <= MOST_BYTES:
        translation.static[node] = tensor
        translation.buffers[node] = name
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


def _tables(
    program: ExportedProgram, translation: Translation, needed: Collection[fx.Node], held: Net | None
) -> set[str]:
    """Parameters that embeddings alone read among the nodes that are needed, by ids that depend on an input; of those, the tables that another net has `held`.

    Raises ModelError for tables of half precision, and for one that is held and read as a whole.
    """
    dynamic = {node for node, _ in _user_inputs(program)}
    for node in program.graph.nodes:
        if node.op == "call_function" and dynamic.intersection(node.all_input_nodes):
            dynamic.add(node)
    looked_up: set[str] = set()
    otherwise: set[str] = set()
    for node in (node for node in program.graph.nodes if node in needed):
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
    if held:
        kept = {name for name, parameter in held.parameters.items() if parameter.kind == "table"}
        if whole := sorted(kept & otherwise):
            raise ModelError(
                f"forward() takes all rows of table '{whole[0]}' in evaluation, and looks them up in training"
            )
        tables &= kept
    for name in sorted(tables):
        dtype = translation.builder.parameters[name].dtype
        if dtype in ("bfloat16", "float16"):
            raise ModelError(
                f"table '{name}' is {dtype}, in which no rows are stepped here: have tables of float32, and cast what is looked up"
            )
        translation.make_table(name)
    return tables


def _translate(translation: Translation, node: fx.Node) -> None:
    """Write one exported op. A node that depends on no input is computed now.

    Raises ModelError naming an op that no handler knows.
    """
    name = str(node.target)
    if name in IGNORED or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        return
    if _is_random(node) and not handler_of(name):
        raise refuse(
            translation,
            Call(node),
            CURES.get(name, "it draws random numbers, and a net computes the same from the same"),
        )
    value = None if _is_random(node) or name in UNWRITTEN else static_value(translation, node)
    if value is not None:
        translation.static[node] = value
        return
    call, handler = Call(node), handler_of(name, of_complex=_is_complex(node))
    if handler is None:
        of_complex = " of complex numbers" if _of_complex(node) else ""
        raise refuse(translation, call, CURES.get(name, f"htrain has no such op{of_complex}"))
    try:
        handler(translation, call)
    except PickedShapeError as error:
        raise refuse(translation, call, str(error)) from error
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        StopIteration,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise refuse(translation, call, f"it does not fit its operands ({reason})") from error
    for argument, value in call.unread().items():
        cure = ARGUMENT_CURES.get(argument, "express it by other ops")
        raise refuse(translation, call, f"htrain does not follow its argument {argument}={value}: {cure}")
    _check_result(translation, node)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _check_result(translation: Translation, node: fx.Node) -> None:
    """Raises ModelError where the net would compute a tensor of another shape or dtype than torch."""
    name, value = translation.names.get(node, ""), node.meta["val"]
    if not isinstance(value, torch.Tensor) or name not in translation.builder.blobs:
        return
    blob, dtype, shape = translation.builder.blobs[name], value.dtype, translation.shape(node)
    if node in translation.complex:
        dtype, shape = value.real.dtype, (*shape, 2)
    if blob.dtype != dtype_name(dtype) or blob.shape != shape:
        sizes = ",".join(map(str, shape))
        raise refuse(translation, Call(node), f"it would give {blob}, want {dtype_name(dtype)}[{sizes}]")


def _of_complex(node: fx.Node) -> bool:
    """Whether a node takes or gives complex numbers."""
    return any(
        isinstance(each.meta.get("val"), torch.Tensor) and _is_complex(each) for each in (node, *node.all_input_nodes)
    )


def _is_complex(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.is_complex()
