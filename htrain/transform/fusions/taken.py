"""Dedupe, Lookup, TakeRows and SGD of tables as TakeTables and StepTakenTables: tables of this device, read and stepped in place."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from htrain.net.net import Attr, Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting
from htrain.net.slices import led_from
from htrain.ops.effects import in_order, without_unread


def fuse_taken(net: Net) -> Net:
    """Rows that are taken out of tables of the same device, and stepped there by SGD, are read and written in place, all tables in one op, id by id,
    without finding the distinct ones first.

    Requires: a train net whose ops have their devices; stacked rows have their own ops.
    Ensures:  the net computes what it computed, but that an id which comes twice takes two steps.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    groups: dict[Hashable, list[_Table]] = {}
    for found in (table for look in pattern.ops("Lookup") if (table := _table(pattern, look))):
        groups.setdefault((found.lookup.node_name, found.step.attrs["lr"]), []).append(found)
    for tables in groups.values():
        reads = [read for table in tables for read in table.reads]
        made = led_from(net.ops, (read.rows for read in reads))
        if made.isdisjoint(read.ids for read in reads):
            _put(changed, tables)
    rewritten = changed.net()
    return without_unread(rewritten.with_ops(in_order(rewritten, rewritten.ops)))


@dataclass(frozen=True)
class _Read:
    """A list of ids of a table, the rows that are taken by it, and their gradient."""

    ids: str
    rows: str
    gradient: str


@dataclass(frozen=True)
class _Table:
    """A table's ops: `others` are what nobody needs once rows are read in place."""

    lookup: Op
    step: Op
    others: Sequence[Op]
    reads: Sequence[_Read]


def _table(pattern: Pattern, lookup: Op) -> _Table | None:
    """What goes with a Lookup of a whole table on its device, whose rows are only taken by lists of ids, and stepped by SGD; None for another."""
    (table, unique), (rows,) = lookup.inputs, lookup.outputs
    dedupe = pattern.maker("Dedupe", unique)
    takes, gradients = _of_type(pattern, rows, "TakeRows"), _of_type(pattern, rows, "TakeRowsGradient")
    steps = [op for op in pattern.readers(table) if op is not lookup]
    if dedupe is None or len(steps) != 1 or not takes or len(takes) != len(gradients):
        return None
    (step,), sums = steps, _sum_of(pattern, gradients)
    ops = (lookup, dedupe, step, *takes, *gradients, *sums)
    whole = lookup.attrs["first_row"] == 0 and pattern.net.blob(rows).dtype == "float32"
    plain = whole and dedupe.attrs["padding_idx"] == -1 and step.type == "SparseSgd"
    if not plain or step.inputs[1:] != (unique, (sums or gradients)[-1].outputs[0]):
        return None
    if len({op.node_name for op in ops}) > 1 or not _are_alone(pattern, dedupe, lookup, ops):
        return None
    ids = dict(zip(dedupe.outputs[1:], dedupe.inputs, strict=True))
    dys: dict[str, list[str]] = {}
    for gradient in gradients:
        dys.setdefault(gradient.inputs[1], []).append(gradient.inputs[2])
    if any(pattern.net.blob(name).dtype != "int64" for name in ids.values()):
        return None
    reads = [_Read(ids[take.inputs[1]], take.outputs[0], dys[take.inputs[1]].pop(0)) for take in takes]
    return _Table(lookup, step, (dedupe, *takes, *gradients, *sums), reads)


def _of_type(pattern: Pattern, name: str, type: str) -> list[Op]:
    return [op for op in pattern.readers(name) if op.type == type]


def _sum_of(pattern: Pattern, gradients: Sequence[Op]) -> list[Op]:
    """The Sum of the gradients of rows, where there are several."""
    if len(gradients) < 2:
        return []
    total = pattern.only_reader("Sum", gradients[0].outputs[0])
    return [total] if total and set(total.inputs) == {op.outputs[0] for op in gradients} else []


def _are_alone(pattern: Pattern, dedupe: Op, lookup: Op, ops: Sequence[Op]) -> bool:
    """Whether only these ops read what they make, but for the rows that are taken, and each list is taken as often as it has a gradient."""
    mine = set(map(id, ops))
    given = [name for op in ops if op.type != "TakeRows" for name in op.outputs]
    if any(name in pattern.net.outputs or any(id(r) not in mine for r in pattern.readers(name)) for name in given):
        return False
    counts = [
        [op.type for op in pattern.readers(inverse) if op.inputs[:2] == (lookup.outputs[0], inverse)]
        for inverse in dedupe.outputs[1:]
    ]
    return all(each.count("TakeRows") == each.count("TakeRowsGradient") for each in counts)


def _put(changed: Rewriting, tables: Sequence[_Table]) -> None:
    """One op that takes the rows, in the place of the first lookup, and one that steps them, in that of the last step."""
    first, last = tables[0].lookup, tables[-1].step
    reads = [(place, read) for place, table in enumerate(tables) for read in table.reads]
    held = tuple(table.lookup.inputs[0] for table in tables)
    ids, rows, dys = (tuple(getattr(r, name) for _, r in reads) for name in ("ids", "rows", "gradient"))
    of: dict[str, Attr] = {"tables": tuple(place for place, _ in reads)}
    for table in tables:
        changed.drop(table.lookup, table.step, *table.others)
    where = {"node_name": first.node_name}
    changed.put(first, Op("TakeTables", (*held, *ids), rows, of, module=first.module, **where))
    step_attrs: dict[str, Attr] = {**of, "lr": last.attrs["lr"]}
    changed.put(last, Op("StepTakenTables", (*held, *ids, *dys), (), step_attrs, module=last.module, **where))
