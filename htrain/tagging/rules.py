"""Rule-based tagging, in the four steps of HT 3.2.1.

1. Units that hold dense parameters go to group PSs, with their gradient, optimizer step and init.
2. Rules, in order, put units without parameters on the trainers; the first that applies is recorded.
3. What is left, together with step 1's units, falls into connected components of the forward net.
4. Components go to group PSs so that their dense weights are balanced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from htrain.net.names import GROUP_PS, Device
from htrain.net.net import Net
from htrain.net.placement import Decision
from htrain.tagging.units import Unit


@dataclass(frozen=True)
class View:
    """What a rule may look at: the forward net by unit. `feeds[u]` are the units and fixed ops that u's forward ops read from,
    as unit indices; -1 stands for an embedding lookup, -2 for the reader."""

    net: Net
    units: Sequence[Unit]
    forward: frozenset[int]
    feeds: Sequence[frozenset[int]]


Rule = tuple[str, Callable[[View, int], str]]
LOOKUP, READER = -1, -2


def _reads_data_only(view: View, unit: int) -> str:
    return "computes on the reader's data alone" if view.feeds[unit] <= {READER} else ""


def _pools_lookups(view: View, unit: int) -> str:
    return "works on embedding rows, which arrive at the trainer" if LOOKUP in view.feeds[unit] else ""


def _joins(view: View, unit: int) -> str:
    """Interactions: dot products, concatenations and sums of what several units made."""
    return f"joins {len(view.feeds[unit])} branches of the net" if len(view.feeds[unit]) > 1 else ""


TRAINER_RULES: tuple[Rule, ...] = (
    ("reader", _reads_data_only),
    ("lookup", _pools_lookups),
    ("interaction", _joins),
)


def tag_by_rules(
    net: Net, units: Sequence[Unit], num_group_ps: int, rules: Sequence[Rule] = TRAINER_RULES
) -> list[Decision]:
    """A device for every unit. Without group PSs everything is on the trainer."""
    if not num_group_ps:
        return [
            Decision(u.name, "trainer", "no group PS", "a group without group PSs runs its dense part on its trainer")
            for u in units
        ]
    view = view_of(net, units)
    decisions: dict[int, Decision] = {}
    for index, unit in enumerate(units):
        for name, applies in rules if not unit.weights else ():
            reason = applies(view, index)
            if reason and index not in decisions:
                decisions[index] = Decision(unit.name, "trainer", name, reason)
    parts = _components(view, [i for i in range(len(units)) if i not in decisions])
    for part in parts:
        if not any(units[i].weight_bytes for i in part):
            decisions.update(
                {
                    i: Decision(units[i].name, "trainer", "no parameters", "no unit with parameters is next to it")
                    for i in part
                }
            )
    heavy = [part for part in parts if any(units[i].weight_bytes for i in part)]
    decisions.update(_balance(units, _cut_heavy(units, heavy, num_group_ps), num_group_ps))
    return [decisions[i] for i in range(len(units))]


def view_of(net: Net, units: Sequence[Unit]) -> View:
    """The forward net between units: every op before the gradient's seed."""
    seed = next((i for i, op in enumerate(net.ops) if op.type == "GradientSeed"), len(net.ops))
    forward = frozenset(range(seed))
    owner = {i: u for u, unit in enumerate(units) for i in unit.ops}
    maker = {output: index for index in forward for output in net.ops[index].outputs}
    source: dict[str, int] = dict.fromkeys(net.inputs, READER)
    source.update({blob: owner.get(index, LOOKUP) for blob, index in maker.items()})
    constants = {o for index in forward for o in net.ops[index].outputs if not net.ops[index].inputs}
    feeds = []
    for u, unit in enumerate(units):
        read = {
            name
            for i in unit.ops
            if i in forward
            for name in net.ops[i].inputs
            if name in source and name not in constants
        }
        feeds.append(frozenset(source[name] for name in read) - {u})
    return View(net, units, forward, feeds)


def _components(view: View, members: Sequence[int]) -> list[list[int]]:
    """Connected components of the forward net over the units `members`, each in net order."""
    inside, part_of = set(members), {}
    neighbours: dict[int, set[int]] = {i: set() for i in members}
    for i in members:
        for j in view.feeds[i] & inside:
            neighbours[i].add(j)
            neighbours[j].add(i)
    parts: list[list[int]] = []
    for start in members:
        if start in part_of:
            continue
        part, pending = [], [start]
        part_of[start] = len(parts)
        while pending:
            i = pending.pop()
            part.append(i)
            for j in sorted(neighbours[i]):
                if j not in part_of:
                    part_of[j] = len(parts)
                    pending.append(j)
        parts.append(sorted(part))
    return parts


def _cut_heavy(units: Sequence[Unit], parts: list[list[int]], num_group_ps: int) -> list[list[int]]:
    """While a component holds more than its even share of the weights, cut it at a module with parameters, if it has several."""
    share = sum(units[i].weight_bytes for part in parts for i in part) / num_group_ps
    done: list[list[int]] = []
    pending = list(parts)
    while pending:
        part = pending.pop()
        heads = [k for k, i in enumerate(part) if units[i].weight_bytes]
        weight = sum(units[i].weight_bytes for i in part)
        if weight <= share * 1.1 or len(heads) < 2:
            done.append(part)
            continue
        cut = min(heads[1:], key=lambda k: abs(weight - 2 * sum(units[i].weight_bytes for i in part[:k])))
        pending += [part[:cut], part[cut:]]
    return sorted(done)


def _balance(units: Sequence[Unit], parts: Sequence[Sequence[int]], num_group_ps: int) -> Mapping[int, Decision]:
    """Each component to the group PS with the fewest bytes of weights so far, the heaviest first."""
    loads = [0] * num_group_ps
    decisions: dict[int, Decision] = {}
    weights = [sum(units[i].weight_bytes for i in part) for part in parts]
    for p in sorted(range(len(parts)), key=lambda p: (-weights[p], p)):
        k = min(range(num_group_ps), key=lambda k: (loads[k], k))
        loads[k] += weights[p]
        reason = (
            f"component of {len(parts[p])} units with {weights[p]:,} bytes of weights, on the group PS with the fewest"
        )
        decisions.update({i: Decision(units[i].name, str(Device(GROUP_PS, k)), "component", reason) for i in parts[p]})
    return decisions


def apply_tags(net: Net, units: Sequence[Unit], devices: Mapping[str, str], fixed: Mapping[int, str]) -> Net:
    """The net with `node_name` written on every op: `fixed` ops as they must be, the others with their unit's device."""
    tags = dict(fixed)
    tags.update({i: devices[unit.name] for unit in units for i in unit.ops})
    return net.with_ops(replace(op, node_name=tags[i]) for i, op in enumerate(net.ops))
