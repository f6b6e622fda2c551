"""StackRows with its Lookups, Dedupes and SGD as StackTables and StepTables: tables of this device, read and stepped in place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from htrain.net.net import Attr, Blob, Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting
from htrain.ops.effects import without_unread


def fuse_tables(net: Net) -> Net:
    """Stacked rows of tables that are on the same device, and stepped there by SGD: rows are read and written in place, id by id, without finding
    the distinct ones first.

    Requires: a train net whose ops have their devices.
    Ensures:  the net computes what it computed, but that an id which comes twice takes two steps.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    made: list[Blob] = []
    for found in (local for stack in pattern.ops("StackRows") if (local := _local(pattern, stack))):
        tables, dense = [look.inputs[0] for look in found.lookups], found.dense
        ids, columns, stacks = _columns(pattern, found)
        made += [Blob(op.outputs[0], (net.blob(op.inputs[0]).shape[0], len(tables)), "int64") for op in stacks]
        attrs: dict[str, Attr] = {"dense": dense, "columns": columns}
        dy = found.gradient.inputs[-1]
        changed.drop(*found.lookups, *found.dedupes, *found.steps)
        inputs = (*found.stack.inputs[:dense], *tables, ids)
        changed.put(found.stack, *stacks, replace(found.stack, type="StackTables", inputs=inputs, attrs=attrs))
        changed.put(found.gradient, *_selected(found.gradient, dy, found.gradient.outputs[:dense]))
        last = found.steps[-1]
        attrs = {**attrs, "lr": last.attrs["lr"]}
        changed.put(last, replace(last, type="StepTables", inputs=(*tables, ids, dy), attrs=attrs))
    return without_unread(changed.net(made))


def _selected(gradient: Op, dy: str, names: Sequence[str]) -> list[Op]:
    """The gradients of the features before the rows, out of that of all."""
    return [
        replace(gradient, type="Select", inputs=(dy,), outputs=(name,), attrs={"axis": 1, "index": index})
        for index, name in enumerate(names)
    ]


@dataclass(frozen=True)
class _Local:
    """Ops over tables of one device: `lookups`, `dedupes` and `steps` have one of each for a table; `dense` features come before the rows."""

    stack: Op
    gradient: Op
    lookups: Sequence[Op]
    dedupes: Sequence[Op]
    steps: Sequence[Op]
    dense: int


def _local(pattern: Pattern, stack: Op) -> _Local | None:
    """What goes with a StackRows whose rows are all looked up, with distinct ids that nobody else needs, and stepped by SGD, on its device."""
    dense = stack.attrs["dense"]
    assert isinstance(dense, int)
    tables = (len(stack.inputs) - dense) // 2
    rows, inverse = stack.inputs[dense : dense + tables], stack.inputs[dense + tables :]
    lookups = [look for name in rows if (look := pattern.maker("Lookup", name))]
    dedupes = [dedupe for name in inverse if (dedupe := pattern.maker("Dedupe", name))]
    gradients = [op for op in pattern.readers(stack.inputs[-1]) if op.type == "StackRowsGradient"]
    if len(gradients) != 1 or len(lookups) != tables or len(dedupes) != tables:
        return None
    steps = [op for name in gradients[0].outputs[dense:] for op in pattern.readers(name)]
    found = _Local(stack, gradients[0], lookups=lookups, dedupes=dedupes, steps=steps, dense=dense)
    return found if _are_plain(found) and _are_stepped(found) and _are_alone(pattern, found) else None


def _are_plain(found: _Local) -> bool:
    """Whether each table is looked up whole, by the distinct ids of its own list, none of which is a padding id."""
    whole = all(look.attrs["first_row"] == 0 for look in found.lookups)
    own = all(len(op.inputs) == 1 and op.attrs["padding_idx"] == -1 for op in found.dedupes)
    pairs = zip(found.lookups, found.dedupes, strict=True)
    return whole and own and all(look.inputs[1] == dedupe.outputs[0] for look, dedupe in pairs)


def _are_stepped(found: _Local) -> bool:
    """Whether each table takes one step of SGD, all by one rate."""
    return len(found.steps) == len(found.lookups) and all(
        (step.type, step.inputs[:2], step.attrs) == ("SparseSgd", look.inputs, found.steps[0].attrs)
        for step, look in zip(found.steps, found.lookups, strict=True)
    )


def _are_alone(pattern: Pattern, found: _Local) -> bool:
    """Whether all is on one device, no table is looked up twice, and ids, inverse indices and rows have no readers but these ops."""
    ops = (found.stack, found.gradient, *found.lookups, *found.dedupes, *found.steps)
    read = {len(pattern.readers(name)) for op in (*found.lookups, *found.dedupes) for name in op.outputs}
    tables = {op.inputs[0] for op in found.lookups}
    return len({op.node_name for op in ops}) == 1 and read == {2} and len(tables) == len(found.lookups)


def _columns(pattern: Pattern, found: _Local) -> tuple[str, tuple[int, ...], list[Op]]:
    """A matrix of ids with a column for each table: the one that they were selected from, or else one that an op makes of them."""
    ids = [dedupe.inputs[0] for dedupe in found.dedupes]
    makers = [pattern.maker("Select", name) for name in ids]
    selects = [select for select in makers if select and select.attrs["axis"] == 1]
    sources = {select.inputs[0] for select in selects}
    if len(selects) == len(ids) and len(sources) == 1 and len(pattern.net.blob(selects[0].inputs[0]).shape) == 2:
        return sources.pop(), tuple(int(str(select.attrs["index"])) for select in selects), []
    name = f"{found.stack.outputs[0]}_ids"
    stack = replace(found.stack, type="Stack", inputs=tuple(ids), outputs=(name,), attrs={"axis": 1})
    return name, tuple(range(len(ids))), [stack]
