"""Tables in row ranges: one Lookup and one optimizer step per shard, each where the shard lives (HT 3.2.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from htrain.net.names import shard_name
from htrain.net.net import Net, Op, Parameter
from htrain.net.placement import Shard
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder


def shard_lookups(net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
    """Cut every table that has several shards; its Dedupe sorts ids by shard.

    Requires: lowered lookups with their optimizer steps; `shards` of each table in row order, covering it.
    Ensures:  the net computes what it computed; the parameter of shard k of table t is `t/k`.
    """
    pieces = (piece for parameter in net.parameters.values() for piece in shard_parameters(parameter, shards))
    builder = NetBuilder.beside(net, pieces)
    cut = {table for table, parts in shards.items() if len(parts) > 1}
    ids: dict[str, list[str]] = {}  # table -> its distinct ids, per shard
    for op in net.ops:
        table = _table_of(net, op)
        if table in cut:
            _rewrite(builder, op, table, shards[table], ids)
        else:
            builder.copy(op)
    return builder.build(net.outputs)


def _table_of(net: Net, op: Op) -> str:
    """The table of a Dedupe, Lookup, BoundTable or sparse optimizer step; "" for other ops."""
    if op.type == "Dedupe":
        return op.module
    parameter = net.parameters.get(op.inputs[0]) if op.inputs else None
    return parameter.name if parameter and parameter.kind == "table" else ""


def shard_parameters(parameter: Parameter, shards: Mapping[str, Sequence[Shard]]) -> list[Parameter]:
    """The pieces of a table or of its state; the parameter itself where `shards` does not cut it."""
    table = parameter.of if parameter.kind == "state" else parameter.name
    parts = shards.get(table, ())
    if len(parts) < 2:
        return [parameter]
    return [_piece(parameter, table, index, part, len(parts)) for index, part in enumerate(parts)]


def _piece(parameter: Parameter, table: str, index: int, shard: Shard, count: int) -> Parameter:
    owner = shard_name(table, index, count)
    return replace(
        parameter,
        name=owner + parameter.name.removeprefix(table),
        shape=(shard.num_rows, *parameter.shape[1:]) if parameter.shape else (),  # a count of updates is not cut
        of=owner if parameter.kind == "state" else table,
        first_row=shard.first_row,
    )


def _rewrite(builder: NetBuilder, op: Op, table: str, shards: Sequence[Shard], ids: dict[str, list[str]]) -> None:
    if op.type == "Dedupe":
        _sort_by_shard(builder, op, table, shards, ids)
    elif op.type == "Lookup":
        _look_up_shards(builder, op, table, shards, ids[table])
    elif OPS[op.type].bounds_rows:
        _bound_shards(builder, op, table, shards, ids[table])
    else:
        _step_shards(builder, op, table, shards, ids[table])


def _sort_by_shard(builder: NetBuilder, op: Op, table: str, shards: Sequence[Shard], ids: dict[str, list[str]]) -> None:
    bounds = (*(s.first_row for s in shards), shards[-1].first_row + shards[-1].num_rows)
    names = [builder.fresh(f"{op.outputs[0]}/{k}") for k in range(len(shards))]
    attrs = {**op.attrs, "bounds": bounds}
    builder.add("DedupeSharded", op.inputs, attrs=attrs, module=table, outputs=(*names, *op.outputs[1:]))
    ids[table] = names


def _look_up_shards(builder: NetBuilder, op: Op, table: str, shards: Sequence[Shard], ids: Sequence[str]) -> None:
    parts: list[str] = []
    for k, shard in enumerate(shards):
        name = shard_name(table, k, len(shards))
        outputs = (builder.fresh(f"{op.outputs[0]}/{k}"),)
        parts += builder.add(
            "Lookup", (name, ids[k]), attrs={"first_row": shard.first_row}, module=name, outputs=outputs
        )
    builder.add("ConcatRows", parts, module=table, outputs=op.outputs)


def _bound_shards(builder: NetBuilder, op: Op, table: str, shards: Sequence[Shard], ids: Sequence[str]) -> None:
    for k, shard in enumerate(shards):
        owner = shard_name(table, k, len(shards))
        builder.add(op.type, (owner, ids[k]), attrs={**op.attrs, "first_row": shard.first_row}, module=owner)


def _step_shards(builder: NetBuilder, op: Op, table: str, shards: Sequence[Shard], ids: Sequence[str]) -> None:
    *stored, _, gradient = op.inputs
    names = [builder.fresh(f"{gradient}/{k}") for k in range(len(shards))]
    parts = builder.add("SplitRows", (gradient, *ids), module=table, outputs=names)
    for k, shard in enumerate(shards):
        owner = shard_name(table, k, len(shards))
        own = [owner + name.removeprefix(table) for name in stored]
        attrs = {**op.attrs, "first_row": shard.first_row}
        builder.add(op.type, (*own, ids[k], parts[k]), attrs=attrs, module=owner)
