"""StepTables(t, PairwiseDotsGradient(..)) as PairwiseDotsSgd(t, ..): rows are stepped by a gradient that is never stored."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting


def fuse_pairs(net: Net) -> Net:
    """Step the rows of tables in the op that makes the gradient of pairs of them, where nobody else reads it but for
    the features before the rows.

    Requires: a train net whose ops have their devices; tables are stepped in place where they will be.
    Ensures:  every parameter takes the step that it took.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    for gradient in pattern.ops("PairwiseDotsGradient"):
        readers = pattern.readers(gradient.outputs[0])
        steps = [op for op in readers if op.type == "StepTables"]
        selects = [op for op in readers if op.type != "StepTables"]
        if len(steps) == 1 and _can_step_at(pattern, steps[0], gradient) and _are_dense(selects, steps[0]):
            (step,) = steps
            inputs, attrs = (*step.inputs[:-1], *gradient.inputs), {**step.attrs, **gradient.attrs}
            dense = tuple(select.outputs[0] for select in selects)
            changed.drop(step, *selects)
            changed.put(gradient, replace(step, type="PairwiseDotsSgd", inputs=inputs, outputs=dense, attrs=attrs))
    return changed.net()


def _are_dense(selects: list[Op], step: Op) -> bool:
    """Whether these take the features before the rows out of the gradient, each once and in order."""
    wanted = [("Select", {"axis": 1, "index": index}) for index in range(int(str(step.attrs["dense"])))]
    return [(select.type, select.attrs) for select in selects] == wanted


def _can_step_at(pattern: Pattern, step: Op, place: Op) -> bool:
    """Whether a step of tables can be made where op `place` is: its ids are there, nobody touches a table in between, and all is on one device."""
    *tables, ids, _ = step.inputs
    at, until = pattern.place(place), pattern.place(step)
    between = pattern.net.ops[at:until]
    made = ids in pattern.net.inputs or any(ids in op.outputs for op in pattern.net.ops[:at])
    return made and place.node_name == step.node_name and not any(set(tables).intersection(op.inputs) for op in between)
