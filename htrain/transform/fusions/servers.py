"""Lookups, and sparse optimizer steps, of the tables of a sparse PS as LookupTables and SparseStepTables, where one message brings what they take."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from htrain.net.names import SPARSE_PS, role_of
from htrain.net.net import Attr, Net, Op
from htrain.net.slices import led_from
from htrain.ops import OPS


def fuse_servers(train: Net, parts: Iterable[Net]) -> Net:
    """Lookups, and sparse optimizer steps, of several tables of a sparse PS as one op each, where they wait for the same messages.

    Requires: every op is tagged; `parts` are the nets of the devices, in which values travel as messages.
    Ensures:  every row and every step has the bits that it had; messages bring what they brought.
    """
    ops = list(train.ops)
    for part in parts:
        messages = _messages(part)
        groups: dict[Hashable, list[Op]] = {}
        for op in part.ops:
            key = _key(part, op, messages)
            if key:
                groups.setdefault(key, []).append(op)
        for group in groups.values():
            ops = _merged(ops, group) if len(group) > 1 else ops
    return train.with_ops(ops)


def _messages(part: Net) -> dict[str, frozenset[Attr]]:
    """The messages that each blob is made of."""
    found: dict[str, frozenset[Attr]] = {}
    for op in part.ops:
        own = frozenset({op.attrs["message"]}) if op.type == "Recv" else frozenset()
        found.update(dict.fromkeys(op.outputs, own.union(*(found.get(name, frozenset()) for name in op.inputs))))
    return found


def _key(part: Net, op: Op, messages: Mapping[str, frozenset[Attr]]) -> Hashable:
    """What ops that become one have in common; None for other ops, also for those of a value that no message brings."""
    if not (op.type == "Lookup" or OPS[op.type].steps_rows) or role_of(op.node_name) != SPARSE_PS:
        return None
    values = [name for name in op.inputs if name not in part.parameters]
    held = {part.parameters[name].dtype for name in op.inputs if name in part.parameters}
    # those that count their updates have counts of int64
    if held != {"float32"} or not all(messages.get(name) for name in values):
        return None
    return op.type, *sorted(_numbers(op).items()), *(messages[name] for name in values)


def _merged(ops: Sequence[Op], group: Sequence[Op]) -> list[Op]:
    """The ops with one in the place of a group's last; what read their outputs before then comes after it.

    These are `ops` themselves where that would change a value.
    """
    mine = set(map(id, group))
    places = [place for place, op in enumerate(ops) if id(op) in mine]
    between = [op for op in ops[places[0] : places[-1]] if id(op) not in mine]
    given = led_from(between, (name for op in group for name in op.outputs))
    late = [op for op in between if not given.isdisjoint(op.inputs)]
    early = [op for op in between if given.isdisjoint(op.inputs)]
    tables = {name for op in group for name in op.inputs[:1]}
    if len(tables) < len(group) or not _can_wait(group, late, early):
        return list(ops)
    fused = _lookups(group) if group[0].type == "Lookup" else _steps(group)
    return [*ops[: places[0]], *early, fused, *late, *ops[places[-1] + 1 :]]


def _can_wait(group: Sequence[Op], late: Sequence[Op], early: Sequence[Op]) -> bool:
    """Whether nobody steps meanwhile what those that wait read, nor reads what they step; and what is late has no effects."""
    read = {name for op in (*group, *late) for name in op.inputs}
    written = {name for op in group for name in OPS[op.type].written(op)}
    apart = all(not OPS[op.type].written(op) & read and not written.intersection(op.inputs) for op in early)
    return apart and not any(OPS[op.type].effects for op in late)


def _lookups(group: Sequence[Op]) -> Op:
    tables, ids = zip(*(op.inputs for op in group), strict=True)
    outputs = tuple(op.outputs[0] for op in group)
    return Op(
        "LookupTables",
        (*tables, *ids),
        outputs,
        {"first_rows": _first_rows(group)},
        node_name=group[0].node_name,
        module=group[0].module,
    )


def _steps(group: Sequence[Op]) -> Op:
    inputs = tuple(name for column in zip(*(op.inputs for op in group), strict=True) for name in column)
    first = group[0]
    attrs = {"optimizer": OPS[first.type].steps_rows, "eps": 0.0, **_numbers(first), "first_rows": _first_rows(group)}
    return Op("SparseStepTables", inputs, (), attrs, node_name=first.node_name, module=first.module)


def _numbers(op: Op) -> dict[str, Attr]:
    """What a step is made with."""
    return {name: value for name, value in op.attrs.items() if name != "first_row"}


def _first_rows(group: Sequence[Op]) -> tuple[int, ...]:
    return tuple(int(str(op.attrs["first_row"])) for op in group)
