"""What a train net would compute twice, and gradients of parts that would each be as large as the whole: the same bits, by fewer ops."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting, reading
from htrain.ops import OPS, OWN


def compute_once(net: Net) -> Net:
    """Ops that make the same numbers of the same inputs on one device are one op: gradients of both operands of a square, for one.

    Requires: a train net whose ops have their devices.
    Ensures:  every value has the bits that it had. Ids, which name messages and requests, stay as they are.
    """
    instead: dict[str, str] = {}
    known: dict[tuple[str, ...], Op] = {}
    ops: list[Op] = []
    for op in (reading(op, instead) for op in net.ops):
        first = known.setdefault(_what(op), op) if _is_pure(net, op) else op
        if first is op:
            ops.append(op)
        else:
            instead.update(zip(op.outputs, first.outputs, strict=True))
    return net.with_ops(ops)


def _what(op: Op) -> tuple[str, ...]:
    """What an op computes, and where."""
    return (op.type, op.node_name, repr(sorted(op.attrs.items())), *op.inputs)


def _is_pure(net: Net, op: Op) -> bool:
    """Whether an op makes numbers of other values alone: parameters change meanwhile, and of what a user has registered nobody knows, it may draw some."""
    numbers = all(net.blob(name).dtype.startswith(("float", "bfloat")) for name in op.outputs)
    values = bool(op.inputs) and not any(name in net.parameters for name in op.inputs)
    return (
        op.type in OWN
        and values
        and numbers
        and not OPS[op.type].effects
        and not set(net.outputs).intersection(op.outputs)
    )


def join_selects(net: Net) -> Net:
    """Gradients of several Selects of a value, which are summed, are put together in one op: each of them alone is zero almost everywhere.

    Requires: a train net whose ops have their devices.
    Ensures:  every value is equal to what it was.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    for total in pattern.ops("Sum"):
        selects = [_select(pattern, name, total) for name in total.inputs]
        first = next((place for place, op in enumerate(selects) if op), len(selects))
        run = _run(selects[first:])
        distinct = len({op.attrs["index"] for op in run}) == len(run)
        if len(run) < 2 or (
            first and not distinct
        ):  # else what comes first would be added to their sum, not to the first of them
            continue
        joined = replace(
            run[-1], type="SelectsGradient", inputs=(run[0].inputs[0], *(op.inputs[1] for op in run)),
            attrs={"axis": run[0].attrs["axis"], "indices": tuple(int(str(op.attrs["index"])) for op in run)},
        )  # fmt: skip
        rest = (*total.inputs[:first], *joined.outputs, *total.inputs[first + len(run) :])
        changed.drop(*run)
        if len(rest) == 1:
            changed.put(total, replace(joined, outputs=total.outputs))
        else:
            changed.put(total, joined, replace(total, inputs=rest))
    return changed.net()


def _select(pattern: Pattern, name: str, total: Op) -> Op | None:
    """The SelectGradient that makes a blob for a sum on its device alone, once."""
    select = pattern.only_for_one("SelectGradient", name)
    fits = select and select.node_name == total.node_name and total.inputs.count(name) == 1
    return select if fits else None


def _run(selects: list[Op | None]) -> list[Op]:
    """Those at the beginning that are of one value, along one axis."""
    found: list[Op] = []
    for select in selects:
        if select is None or (found and _of(select) != _of(found[0])):
            break
        found.append(select)
    return found


def _of(select: Op) -> tuple[object, ...]:
    return select.inputs[0], select.attrs["axis"]
