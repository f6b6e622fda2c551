"""Look-ahead caches of one width in one tensor: what a step does with the rows of many tables is done with all of them at once (cDLRM 5.2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from htrain.errors import RunError
from htrain.net.net import Attr, BatchDim, Blob, Net, Op, Parameter, numel
from htrain.net.slices import readers
from htrain.ops import OPS
from htrain.ops.effects import in_order

_MOST_SLOTS = 1 << 31  # of one tensor: their numbers are int32


@dataclass(frozen=True)
class _Table:
    """A table behind a cache: the op of its slots, those that look rows up and step them by these, and those that read what was looked up, in order: a
    forward op and its gradient where it can be joined with others."""

    slots: Op
    lookup: Op
    step: Op
    reads: tuple[Op, ...]

    @property
    def cache(self) -> str:
        return self.slots.inputs[0]

    @property
    def stored(self) -> tuple[str, ...]:
        """Its slots' rows, and those of the optimizer's state."""
        return self.slots.inputs[1:-1]

    @property
    def unique(self) -> str:
        return self.slots.inputs[-1]

    @property
    def rows(self) -> str:
        return self.lookup.outputs[0]


@dataclass
class _Rewriting:
    """What takes the place of ops: `gone` by their position, and `put` before a position. New blobs and parameters by name."""

    net: Net
    place: Mapping[int, int]
    gone: set[int] = field(default_factory=set)
    put: dict[int, list[Op]] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def of(self, op: Op) -> int:
        return self.place[id(op)]

    def instead(self, ops: Sequence[Op], *made: Op, last: bool = False) -> None:
        """Put `made` where the first, or the last, of some ops was."""
        places = [self.of(op) for op in ops]
        self.gone.update(places)
        self.put.setdefault(max(places) if last else min(places), []).extend(made)

    def declare(self, name: str, shape: tuple[int | BatchDim, ...], dtype: str) -> str:
        self.blobs[name] = Blob(name, shape, dtype)
        return name


def join_tables(net: Net) -> Net:
    """Have tables whose rows are alike, and read and stepped alike, share one tensor of slots, one lookup, one gradient and one step.

    Requires: a trainer's step net, before it is brought to an accelerator.
    Ensures:  it computes the same; a table that nothing is like is joined alone. Raises RunError for a cache that is too large.
    """
    found = list(_tables(net))
    if not found:
        return net
    rewriting = _Rewriting(net, {id(op): place for place, op in enumerate(net.ops)})
    _join_dedupes(rewriting)
    _join_announces(rewriting)
    for number, group in enumerate(_groups(net, found)):
        _join(rewriting, sorted(group, key=_field), f"joint:{number}")
    ops = [
        op
        for place, old in enumerate(net.ops)
        for op in (*rewriting.put.get(place, ()), *(() if place in rewriting.gone else (old,)))
    ]
    whole = replace(net, parameters={**net.parameters, **rewriting.parameters})
    return whole.with_ops(in_order(whole, ops), rewriting.blobs.values())


# -- which tables are alike ------------------------------------------------------------------------------------------


def _tables(net: Net) -> Iterator[_Table]:
    read_by = readers(net.ops)
    for op in net.ops:
        if op.type != "LookaheadSlots":
            continue
        lookup, step = (net.ops[place] for place in read_by[op.outputs[0]])
        assert OPS[step.type].steps_rows, f"{step.label} steps no rows"
        yield _Table(op, lookup, step, tuple(net.ops[place] for place in read_by[lookup.outputs[0]]))


def _groups(net: Net, tables: Sequence[_Table]) -> Iterator[list[_Table]]:
    """Tables that are alike, together; no more than one tensor has room for. Raises RunError for one that is too large by itself."""
    groups: dict[object, list[_Table]] = {}
    for table in tables:
        widths = tuple(net.parameters[name].shape[1:] for name in table.stored)
        step = table.step.type, tuple(sorted(table.step.attrs.items()))
        groups.setdefault((widths, step, table.slots.attrs["patch"], _manner(net, table)), []).append(table)
    for group in groups.values():
        some: list[_Table] = []
        for table in group:
            if _rows(net, table) >= _MOST_SLOTS:
                count = _rows(net, table)
                raise RunError(
                    f"{table.cache}: a device's cache has fewer than {_MOST_SLOTS:,} slots, this one {count:,}: set fewer --cache-sets"
                )
            if some and sum(_rows(net, each) for each in (*some, table)) >= _MOST_SLOTS:
                yield some
                some = []
            some.append(table)
        yield some


def _rows(net: Net, table: _Table) -> int:
    return net.parameters[table.stored[0]].shape[0]


def _manner(net: Net, table: _Table) -> object:
    """How the rows of a table are read: tables of one manner can be read at once."""
    forward = _forward(table)
    if forward is None:
        return table.cache
    if forward.type == "StackRows":
        return forward.outputs
    return forward.type, tuple(sorted(forward.attrs.items()))


def _forward(table: _Table) -> Op | None:
    """What reads the looked up rows, where that and its gradient are all that do and they can be joined."""
    types = tuple(op.type for op in table.reads)
    if types in (("StackRows", "StackRowsGradient"), ("TakeRows", "TakeRowsGradient")):
        return table.reads[0]
    if types == ("PoolRows", "PoolRowsGradient") and not table.reads[0].attrs["weighted"]:
        return table.reads[0]
    return None


def _field(table: _Table) -> int:
    """The place of its rows among those that are stacked."""
    forward = _forward(table)
    return forward.inputs.index(table.rows) if forward else 0


# -- as one ----------------------------------------------------------------------------------------------------------


def _join_dedupes(rewriting: _Rewriting) -> None:
    """All ids of a batch are deduped at once, each table's by itself."""
    ops = [op for op in rewriting.net.ops if op.type == "Dedupe" and len(op.inputs) == 1]
    if len(ops) > 1:
        attrs: dict[str, Attr] = {"padding_idx": tuple(int(str(op.attrs["padding_idx"])) for op in ops)}
        outputs = (*(op.outputs[0] for op in ops), *(op.outputs[1] for op in ops))
        joint = replace(ops[0], type="DedupeTables", inputs=tuple(op.inputs[0] for op in ops), outputs=outputs, attrs=attrs)  # fmt: skip
        rewriting.instead(ops, joint)


def _join_announces(rewriting: _Rewriting) -> None:
    ops = [op for op in rewriting.net.ops if op.type == "LookaheadAnnounce"]
    inputs = (*(op.inputs[0] for op in ops), *(op.inputs[1] for op in ops))
    rewriting.instead(ops, replace(ops[0], type="JointAnnounce", inputs=inputs))


def _join(rewriting: _Rewriting, group: Sequence[_Table], name: str) -> None:
    """One tensor of slots for the tables of a group, and one op for what was one of each."""
    net, first = rewriting.net, group[0]
    stored = [_joint_slots(rewriting, group, part, f"{name}:{part}") for part in range(len(first.stored))]
    unique = tuple(table.unique for table in group)
    width = net.parameters[first.stored[0]].shape[1]
    count = BatchDim(sum(_per_example(net.blobs[ids]) for ids in unique), bound=True)
    slots = rewriting.declare(f"{name}_slots", (count,), "int32")
    rows = rewriting.declare(f"{name}_rows", (count, width), "float32")
    attrs: dict[str, Attr] = {
        "tables": len(group), "rows": tuple(_rows(net, table) for table in group), "patch": first.slots.attrs["patch"], "width": width,
        **{key: tuple(int(str(table.slots.attrs[key])) for table in group) for key in ("sets", "ways", "num_rows")},
    }  # fmt: skip
    caches = tuple(table.cache for table in group)
    joint = replace(first.slots, type="JointSlots", inputs=(*caches, *stored, *unique), outputs=(slots,), attrs=attrs)
    rewriting.instead([table.slots for table in group], joint)
    lookup = replace(first.lookup, type="JointLookup", inputs=(stored[0], slots), outputs=(rows,), attrs={})
    own = rewriting.declare(f"{name}_own", (count,), "int32")
    drop = replace(first.lookup, type="OwnSlots", inputs=(slots,), outputs=(own,), attrs={})
    rewriting.instead([table.lookup for table in group], lookup, drop)
    gradients = rewriting.declare(f"{name}_gradients", (count, width), "float32")
    if _can_be_read_together(net, group):
        _READ_TOGETHER[first.reads[0].type](rewriting, group, rows, gradients)
    else:
        parts = tuple(table.rows for table in group)
        split = replace(first.lookup, type="JointSplit", inputs=(rows, *unique), outputs=parts, attrs={})
        rewriting.instead([table.lookup for table in group], split)
        parts = tuple(table.step.inputs[-1] for table in group)
        concat = replace(first.step, type="ConcatRows", inputs=parts, outputs=(gradients,), attrs={})
        rewriting.instead([table.step for table in group], concat, last=True)
    steps = [table.step for table in group]
    rewriting.instead(steps, replace(first.step, inputs=(*stored, own, gradients)), last=True)
    flushes = [op for op in net.ops if op.type == "FlushVictims" and op.inputs[0] in caches]
    rewriting.instead(
        flushes,
        replace(flushes[0], type="JointFlush", inputs=(*caches, *stored), attrs={"tables": len(group)}),
        last=True,
    )


def _joint_slots(rewriting: _Rewriting, group: Sequence[_Table], part: int, name: str) -> str:
    parts = [rewriting.net.parameters[table.stored[part]] for table in group]
    shape = (sum(each.shape[0] for each in parts) + 1, *parts[0].shape[1:])  # and the row of padding
    rewriting.parameters[name] = replace(parts[0], name=name, shape=shape)
    return name


def _per_example(blob: Blob) -> int:
    """Numbers of a blob for each example of the batch; of one that knows no batch, all."""
    return numel(blob.shape, 1)


# -- what reads their rows -------------------------------------------------------------------------------------------


def _can_be_read_together(net: Net, group: Sequence[_Table]) -> bool:
    """Whether one op can take the place of those that read the tables' rows, and one gradient that of theirs, which are for their steps alone."""
    forward = _forward(group[0])
    if forward is None:
        return False
    if forward.type == "StackRows" and len(forward.inputs) != int(str(forward.attrs["dense"])) + 2 * len(group):
        return False
    read_by = readers(net.ops)
    return all([net.ops[place] for place in read_by[_gradient(table)]] == [table.step] for table in group)


def _gradient(table: _Table) -> str:
    """The gradient of its rows."""
    backward = table.reads[1]
    if backward.type != "StackRowsGradient":
        return backward.outputs[0]
    return backward.outputs[backward.inputs.index(table.rows)]


def _index(rewriting: _Rewriting, rows: str, name: str, ids: Sequence[str], dtype: str = "int32") -> str:
    """A number for each of some ids."""
    blobs = [rewriting.net.blobs[each] for each in ids]
    return rewriting.declare(f"{rows}_{name}", (BatchDim(sum(map(_per_example, blobs))),), dtype)


def _stack(rewriting: _Rewriting, group: Sequence[_Table], rows: str, gradients: str) -> None:
    forward, backward = group[0].reads
    dense, tables = int(str(forward.attrs["dense"])), len(group)
    values, inverse = forward.inputs[:dense], forward.inputs[dense + tables :]
    fields = dense + tables
    index = rewriting.declare(f"{rows}_index", (BatchDim(fields),), "int32")
    attrs: dict[str, Attr] = {"fields": fields}
    unique = tuple(table.unique for table in group)
    rewriting.instead(
        [forward],
        replace(forward, type="StackIndex", inputs=(*inverse, *unique), outputs=(index,), attrs={"dense": dense}),
        replace(forward, type="StackJoint", inputs=(*values, rows, index), attrs=attrs),
    )
    inputs, outputs = (*values, rows, index, backward.inputs[-1]), (*backward.outputs[:dense], gradients)
    rewriting.instead([backward], replace(backward, type="StackJointGradient", inputs=inputs, outputs=outputs, attrs=attrs))  # fmt: skip


def _take(rewriting: _Rewriting, group: Sequence[_Table], rows: str, gradients: str) -> None:
    forward, backward = ([table.reads[place] for table in group] for place in (0, 1))
    inverse, unique = tuple(op.inputs[1] for op in forward), tuple(table.unique for table in group)
    index, taken = _index(rewriting, rows, "index", inverse), tuple(op.outputs[0] for op in forward)
    rewriting.instead(
        forward,
        replace(forward[0], type="TakeIndex", inputs=(*inverse, *unique), outputs=(index,)),
        replace(forward[0], type="TakeJoint", inputs=(rows, index, *inverse), outputs=taken),
    )
    dys = tuple(op.inputs[2] for op in backward)
    joint = replace(backward[0], type="TakeJointGradient", inputs=(rows, index, *dys), outputs=(gradients,))
    rewriting.instead(backward, joint, last=True)


def _pool(rewriting: _Rewriting, group: Sequence[_Table], rows: str, gradients: str) -> None:
    forward, backward = ([table.reads[place] for table in group] for place in (0, 1))
    inverse, unique = tuple(op.inputs[1] for op in forward), tuple(table.unique for table in group)
    is_listed = tuple(len(op.inputs) > 2 for op in forward)
    listed = tuple(op.inputs[2] for op in forward if len(op.inputs) > 2)
    bags, pooled = tuple(op.inputs[-1] for op in forward), tuple(op.outputs[0] for op in forward)
    mean: dict[str, Attr] = {"mean": forward[0].attrs["mode"] == "mean"}
    index, bag = (_index(rewriting, rows, name, inverse) for name in ("index", "bag"))
    offsets, share = _index(rewriting, rows, "offsets", pooled), _index(rewriting, rows, "share", inverse, "float32")
    made = replace(
        forward[0], type="PoolIndex", inputs=(*inverse, *unique, *listed), outputs=(index, offsets, bag, share),
        attrs={**mean, "listed": is_listed},
    )  # fmt: skip
    joint = replace(forward[0], type="PoolJoint", inputs=(rows, index, offsets, *bags), outputs=pooled, attrs=mean)
    rewriting.instead(forward, made, joint)
    dys = tuple(op.inputs[-1] for op in backward)
    rewriting.instead(
        backward,
        replace(backward[0], type="PoolJointGradient", inputs=(rows, index, bag, share, *dys), outputs=(gradients,), attrs={}),
        last=True,
    )  # fmt: skip


_READ_TOGETHER = {"StackRows": _stack, "TakeRows": _take, "PoolRows": _pool}
