"""Units: what a placement moves as one. A unit is a module, or several that share dense parameters (HT 3.2.1, step 1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from htrain.net.names import TRAINER, WORKERS, shard_name
from htrain.net.net import Net, Op
from htrain.net.placement import Shard
from htrain.net.slices import leading_to, readers
from htrain.ops import OPS


@dataclass(frozen=True)
class Unit:
    """Ops that one device runs: positions in the net, the modules they belong to, and the dense weights that they own."""

    name: str
    ops: tuple[int, ...]
    modules: tuple[str, ...]
    weights: tuple[str, ...]
    weight_bytes: int


def table_owners(shards: Mapping[str, Sequence[Shard]]) -> dict[str, str]:
    """The device of each table parameter (a shard of a table, or the whole)."""
    return {
        shard_name(table, k, len(parts)): part.device for table, parts in shards.items() for k, part in enumerate(parts)
    }


def fixed_tags(net: Net, owners: Mapping[str, str]) -> dict[int, str]:
    """Ops that have no choice: those that touch a table are on its owner; the rest of a lookup, the loss and its seed are on
    the trainer, where the ids, the label and the control of the step are, and so is what touches a trainer's cache, and what makes of a batch
    the ids that a cache hears of ahead.
    Collectives have a device of their own. A Constant that only such ops of one device read is there."""
    tags: dict[int, str] = {}
    asked = (name for op in net.ops if OPS[op.type].phase in ("announce", "ask") for name in op.inputs)
    told_ahead = set(leading_to(net.ops, asked))
    for index, op in enumerate(net.ops):
        owner = next((owners[name] for name in op.inputs if name in owners), "")
        place = OPS[op.type].place
        if place == "workers":
            tags[index] = WORKERS
        elif (
            owner
            or place == "reader"
            or any(net.parameters[n].kind == "cache" for n in op.inputs if n in net.parameters)
        ):
            tags[index] = owner or TRAINER
        elif index in told_ahead and not any(name in net.parameters for name in op.inputs):
            tags[index] = TRAINER
    read_by = readers(net.ops)
    for index, op in enumerate(net.ops):
        read_on = {tags.get(reader, "") for reader in read_by[op.outputs[0]]} if op.type == "Constant" else set()
        if len(read_on) == 1 and "" not in read_on:
            tags[index] = read_on.pop()
    return dict(sorted(tags.items()))


def find_units(net: Net, fixed: Mapping[int, str], together: Sequence[Sequence[str]] = ()) -> list[Unit]:
    """The units of all ops that are not `fixed`, in order of their first op; the modules of each list of `together` are one."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for index, op in enumerate(net.ops):
        if index not in fixed:
            for parameter in _dense(net, op):
                leader[find("parameter " + parameter)] = find(op.module)
    for modules in together:
        for module in modules[1:]:
            leader[find(module)] = find(modules[0])
    members: dict[str, list[int]] = {}
    for index, op in enumerate(net.ops):
        if index not in fixed:
            members.setdefault(find(op.module), []).append(index)
    return [_unit(net, ops) for ops in members.values()]


def _unit(net: Net, ops: Sequence[int]) -> Unit:
    modules = tuple(dict.fromkeys(net.ops[i].module for i in ops))
    parameters = dict.fromkeys(name for i in ops for name in _dense(net, net.ops[i]))
    weights = tuple(name for name in parameters if net.parameters[name].kind == "weight")
    return Unit(modules[0], tuple(ops), modules, weights, sum(net.parameters[name].num_bytes for name in parameters))


def _dense(net: Net, op: Op) -> list[str]:
    """The dense parameters that an op touches: weights and their optimizer's state."""
    return [name for name in op.inputs if name in net.parameters and net.parameters[name].kind != "table"]
