"""Why an op is where it is: who decided it, what binds it there, and what moving it would cost (`htrain explain`)."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import numpy as np

from htrain.errors import PlacementError
from htrain.net.net import COMPRESS, Net
from htrain.net.placement import Encoding
from htrain.net.rewriting import as_made
from htrain.net.slices import readers
from htrain.plan.plan import Plan
from htrain.sizes import memory_text
from htrain.tagging.constraints import kept_together, pinned
from htrain.tagging.encodings import encodable, encoded
from htrain.tagging.units import Unit, find_units, fixed_tags, table_owners
from htrain.tagging.workload import DIMENSIONS, MEMORY, Ints, Workload, workload_of


def explain(plan: Plan, name: str) -> str:
    """The placement of the module, op output, parameter or table called `name`, in words. Raises PlacementError when there is none.

    Moving is scored by the cost model with all else as it is, values encoded as they are in the plan.
    """
    train = plan.train
    net = as_made(train)
    owners = table_owners(plan.tables)
    fixed = fixed_tags(net, owners)
    units = find_units(net, fixed, kept_together(net, fixed, plan.cluster))
    index = _position(net, name)
    if index in fixed:
        return "\n".join(_fixed(plan, net, index, fixed[index])) + "\n"
    workload = _workload(plan, net, units, fixed, _encodings(train))
    places = np.array([workload.devices.index(net.ops[unit.ops[0]].node_name) for unit in units], np.int64)
    u = next(u for u, unit in enumerate(units) if index in unit.ops)
    return "\n".join(_unit(plan, net, workload, places, u)) + "\n"


def _position(net: Net, name: str) -> int:
    """The position of the first op that `name` is about; for a parameter, of the first op that reads it."""
    if name in net.parameters:
        return readers(net.ops)[name][0]
    for names_of in (lambda op: (op.module,), lambda op: op.outputs, lambda op: op.inputs):
        for index, op in enumerate(net.ops):
            if name in names_of(op):
                return index
    known = list(dict.fromkeys((*(op.module for op in net.ops), *net.parameters)))
    close = get_close_matches(name, known, 3) or known[:3]
    raise PlacementError(f"the plan has no module, value or parameter '{name}'; near it are {', '.join(close)}")


def _encodings(train: Net) -> dict[str, Encoding]:
    """The encoding of each value that travels encoded."""
    made = {op.inputs[0]: op.outputs[0] for op in train.ops if op.module == COMPRESS}
    return {source: part.rpartition("/")[2] for source, part in made.items() if part.startswith(source + "/")}  # type: ignore[misc]


def _workload(
    plan: Plan, net: Net, units: list[Unit], fixed: Mapping[int, str], encodings: Mapping[str, Encoding]
) -> Workload:
    workload = pinned(workload_of(net, units, fixed, plan.cluster, plan.options), plan.cluster)
    forms = encodable(net, workload, encodings, plan.cluster, plan.options)
    return encoded(workload, forms, forms.possible)


def _fixed(plan: Plan, net: Net, index: int, device: str) -> Iterator[str]:
    op = net.ops[index]
    yield f"{op.label} is on {device}"
    table = next((n for n in op.inputs if n in net.parameters and net.parameters[n].kind == "table"), "")
    if table:
        parameter = net.parameters[table]
        yield f"it touches table '{table}' ({parameter.shape[0]:,} rows, {memory_text(parameter.num_bytes)}), which is there: rows never move"
        yield "to have the table elsewhere, pin it in the cluster file or cut it with --split-table, and compile again"
    else:
        yield "it has no choice: lookups, the loss and its gradient are on the trainer, where the ids, the label and the control of the step are"


def _unit(plan: Plan, net: Net, workload: Workload, places: Ints, u: int) -> Iterator[str]:
    unit = workload.units[u]
    home = workload.devices[places[u]]
    now = workload.seconds(places)
    decision = next((d for d in plan.decisions if d.module == unit.name), None)
    members = f", placed together with {', '.join(unit.modules[1:])}" if len(unit.modules) > 1 else ""
    yield f"module '{unit.name}' is on {home}{members}"
    if decision:
        yield f"by rule '{decision.rule}': {decision.reason}"
    yield f"{len(unit.ops)} ops, {unit.weight_bytes:,} bytes of weights with their state, {workload.unit_cpu[u] * 1e6:.2f} us of CPU an example"
    yield from (f"  {line}" for line in _values(workload, places, u))
    yield f"the bottleneck of a group is {_bottleneck(workload, places)}: {1 / now:,.0f} EPS" if now else ""
    yield ""
    yield f"{'on':<14}{'EPS of a group':>15}{'change':>9}  bottleneck then"
    for d in range(workload.num_places):
        yield _move(workload, places, u, d, now)


def _values(workload: Workload, places: Ints, u: int) -> Iterator[str]:
    """What the unit exchanges with other devices, the largest first."""
    read = workload.read[workload.reader_of == u].tolist()
    made = np.flatnonzero(workload.maker == u).tolist()
    lines = []
    for v in read:
        home = int(places[workload.maker[v]]) if workload.maker[v] >= 0 else int(workload.made_on[v])
        lines.append((v, f"reads '{workload.values[v]}' from {workload.devices[home]}", home != places[u]))
    for v in made:
        units, devices = places[workload.reader_of[workload.read == v]], np.flatnonzero(workload.read_on[v])
        away = sorted({*units.tolist(), *devices.tolist()} - {int(places[u])})
        lines.append((v, f"'{workload.values[v]}' goes to {', '.join(workload.devices[d] for d in away)}", bool(away)))
    for v, text, travels in sorted(lines, key=lambda line: -workload.value_bytes[line[0]]):
        if travels:
            yield f"{text}: {workload.value_bytes[v]:,.0f} bytes an example"


def _bottleneck(workload: Workload, places: Ints) -> str:
    loads = workload.loads(places)
    used = loads[: workload.num_places, :MEMORY] / workload.capacity[: workload.num_places, :MEMORY]
    if workload.host_cores and loads[:, 0].sum() / workload.host_cores >= used.max():
        return f"the {workload.host_cores * 1:g} cores that all roles of the group share"
    d, k = np.unravel_index(int(used.argmax()), used.shape)
    return f"the {DIMENSIONS[k]} of {workload.devices[d]}"


def _move(workload: Workload, places: Ints, u: int, d: int, now: float) -> str:
    device = workload.devices[d]
    if not workload.allowed[u, d]:
        why = workload.pinned.get(workload.units[u].name, "it holds weights, of which a group has one copy")
        return f"{device:<14}{'':>15}{'':>9}  may not: {why}"
    moved = places.copy()
    moved[u] = d
    seconds = workload.seconds(moved)
    memory = workload.utilization(moved)[d, MEMORY]
    change = "here" if d == places[u] else f"{now / seconds - 1:+.1%}"
    full = f"; does not fit: {memory:.0%} of its memory" if memory > 1 else ""
    return f"{device:<14}{1 / seconds:>15,.0f}{change:>9}  {_bottleneck(workload, moved)}{full}"
