"""The outputs of an exported graph: which is the logit, which the loss, and what they are computed from."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree

from htrain.errors import ModelError

SCORED = "a number for each example, to be scored"
_OURS = ("score", "label", "logit", "loss")


def returns_loss(program: ExportedProgram) -> bool:
    """Whether forward() returns what may be its loss: by that key, or a number without dimensions."""
    names, outputs = _named_outputs(program)
    return any(name == "loss" or not node.meta["val"].shape for name, node in zip(names, outputs, strict=True))


def own_outputs(program: ExportedProgram, logit: str | int) -> tuple[fx.Node, fx.Node]:
    """The loss that forward() returns, and what is scored. Raises ModelError where one is missing, or it is not clear which."""
    names, outputs = _named_outputs(program)
    numbers = [i for i, node in enumerate(outputs) if not node.meta["val"].shape]
    place = names.index("loss") if "loss" in names else next(iter(numbers), -1)
    if place not in numbers:
        raise ModelError(
            "forward() returns no loss, a number without dimensions: with --loss own, return the mean loss of the batch and what is scored: (loss, logit)"
        )
    others = [i for i in range(len(outputs)) if i != place]
    if str(logit):
        others = [i for i in others if str(logit) in (names[i], str(i))]
    if len(others) != 1:
        choices = ", ".join(name for i, name in enumerate(names) if i != place) or "nothing"
        raise ModelError(
            f"beside its loss, the model returns {choices}: return what is scored, too, and say which it is where there are several (--logit)"
        )
    return outputs[place], outputs[others[0]]


def logit_of(program: ExportedProgram, logit: str | int) -> fx.Node:
    """The output node to train. Raises ModelError listing the choices when it is not clear."""
    names, outputs = _named_outputs(program)
    if len(outputs) == 1 and logit == "":
        return outputs[0]
    wanted = str(logit)
    if wanted in names:
        return outputs[names.index(wanted)]
    if wanted.isdigit() and int(wanted) < len(outputs):
        return outputs[int(wanted)]
    if not outputs:
        raise ModelError("forward() returns no tensor: return the logit, one number for each example")
    raise ModelError(
        f"the model has {len(outputs)} outputs ({', '.join(names)}): say which is the logit (--logit {names[0]})"
    )


def evaluated_of(program: ExportedProgram, logit: str | int) -> fx.Node:
    """What is scored in evaluation: as `logit_of`, or the one number for each example, where a name was not asked for, or is of training.

    Raises ModelError where it is not clear which that is.
    """
    names, outputs = _named_outputs(program)
    if len(outputs) == 1 or str(logit) in names or (str(logit).isdigit() and int(logit) < len(outputs)):
        return outputs[0] if len(outputs) == 1 else logit_of(program, logit)
    scores = [node for node in outputs if is_score(node)]
    if len(scores) != 1:
        choices = "of which none is" if not scores else "and it is not clear which is"
        raise ModelError(f"forward() returns {', '.join(names)} in evaluation, {choices} {SCORED}")
    return scores[0]


def is_score(output: fx.Node) -> bool:
    """Whether an output is one number for each example."""
    shape = output.meta["val"].shape
    return len(shape) > 0 and tuple(shape[1:]) in ((), (1,))


def name_of(program: ExportedProgram, output: fx.Node) -> str:
    """The key or position of an output of forward()."""
    names, outputs = _named_outputs(program)
    return names[outputs.index(output)]


def other_outputs(program: ExportedProgram, taken: Collection[fx.Node]) -> dict[str, fx.Node]:
    """The outputs of forward() that are not among those `taken`, by their names as heads."""
    names, outputs = _named_outputs(program)
    return {as_head(name): node for name, node in zip(names, outputs, strict=True) if node not in taken}


def as_head(name: str) -> str:
    """The name as a head of an output that has this key or position: that of no column or output of our own."""
    return f"output_{name}" if name.isdigit() or name in _OURS else name


def output_names(outputs: Any) -> list[str]:
    """What the leaves of that which forward() returns are called, in order: by the key or field which each has where no other has it, or by position."""
    paths = [path for path, _ in _pytree.tree_flatten_with_path(outputs)[0]]
    keys = [str(getattr(path[-1], "key", getattr(path[-1], "name", ""))) if path else "" for path in paths]
    count = Counter(keys)
    return [key if key and count[key] == 1 else str(place) for place, key in enumerate(keys)]


def _named_outputs(program: ExportedProgram) -> tuple[list[str], list[fx.Node]]:
    """The outputs of forward(), and their keys or positions."""
    changed = {s.arg.name for s in program.graph_signature.output_specs if s.kind != OutputKind.USER_OUTPUT}
    (end,) = program.graph.find_nodes(op="output")
    outputs = [n for n in end.args[0] if not (isinstance(n, fx.Node) and n.name in changed)]
    places = [*range(len(outputs))]
    spec = program.call_spec.out_spec
    is_whole = spec is not None and spec.num_leaves == len(outputs)
    names = output_names(_pytree.tree_unflatten(places, spec)) if is_whole else list(map(str, places))
    tensors = [(name, n) for name, n in zip(names, outputs, strict=True) if isinstance(n, fx.Node)]  # others are None
    return [name for name, _ in tensors], [n for _, n in tensors]


def needed_for(program: ExportedProgram, outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that these outputs and the buffers that forward() changes are computed from: no other has to be an op of htrain."""
    changed = {s.arg.name for s in program.graph_signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
    (end,) = program.graph.find_nodes(op="output")
    pending = [*outputs, *(node for node in end.all_input_nodes if node.name in changed)]
    needed: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    return needed
