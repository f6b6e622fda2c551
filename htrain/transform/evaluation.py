"""Evaluation's own net, where a model does something else there than in training (`model.eval()`), of the parameters that the train net steps."""

from dataclasses import replace

from htrain.errors import ModelError
from htrain.net.blobs import BATCH_KEY
from htrain.net.names import NetName
from htrain.net.net import Net, Op, Parameter
from htrain.net.rewriting import only_needed
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

_APART = "trained"  # before the names of values that lead to a loss which evaluation does not compute


def as_evaluated(net: Net) -> Net:
    """A forward net in which nothing is dropped, and what is drawn is drawn of every batch alike."""
    inputs = tuple(name for name in net.inputs if name != BATCH_KEY.name)
    return replace(net, inputs=inputs).with_ops(OPS[op.type].in_evaluation(op) for op in net.ops)


def reading_padding(net: Net) -> Net:
    """A forward net of evaluation whose Embeddings read their padding rows, which training may step for others: these say of no gradient here."""
    return net.with_ops(
        replace(op, attrs={**op.attrs, "padding_idx": -1}) if op.type == "Embedding" else op for op in net.ops
    )


def with_loss_of(net: Net, trained: Net) -> Net:
    """A net of evaluation that has no loss, and the ops that lead to that of the trained one, its first output: that loss, then the outputs that it has."""
    loss = only_needed(as_evaluated(replace(trained, outputs=trained.outputs[:1])))
    own = {name: f"{_APART}/{name}" for op in loss.ops for name in op.outputs}
    inputs = dict.fromkeys((*loss.inputs, *net.inputs))
    builder = NetBuilder(net.name)
    builder.reserve(net.blobs)
    for name in inputs:
        builder.input(loss.blobs[name] if name in loss.inputs else net.blobs[name])
    for parameter in {**loss.parameters, **net.parameters}.values():
        builder.parameter(parameter)
    for op in loss.ops:
        reads = [own.get(name, name) for name in op.inputs]
        builder.copy(replace(op, inputs=tuple(reads), outputs=tuple(own[name] for name in op.outputs)))
    for op in net.ops:
        builder.copy(op)
    return builder.build([own.get(loss.outputs[0], loss.outputs[0]), *net.outputs])


def of_trained(net: Net, train: Net) -> Net:
    """A net of evaluation that has whole tables and weights, of the shards and parts which the train net has of them.

    Raises ModelError for a parameter that the train net has not.
    """
    builder = NetBuilder(str(NetName("evaluation")))
    builder.reserve(name for op in net.ops for name in op.outputs)
    for name in net.inputs:
        builder.input(net.blobs[name])
    parts = {name: _parts(name, train) for name in net.parameters}
    for part in {part.name: part for of in parts.values() for part in of}.values():
        builder.parameter(part)
    whole: dict[str, str] = {}
    for op in net.ops:
        if op.type == "Lookup":
            builder.copy(_of_shards(op, parts[op.inputs[0]]))
            continue
        read = [name for name in op.inputs if len(parts.get(name, ())) > 1 and name not in whole]
        whole.update({name: _joined(builder, parts[name]) for name in read})
        builder.copy(op, [whole.get(name, name) for name in op.inputs])
    return builder.build(net.outputs)


def _parts(name: str, train: Net) -> list[Parameter]:
    """What the train net has of a table or weight, in the order of its rows and columns. Raises ModelError."""
    found = [p for p in train.parameters.values() if p.whole == name and p.kind not in ("state", "cache")]
    if not found:
        raise ModelError(f"in evaluation forward() takes '{name}', which the plan does not train")
    return sorted(found, key=lambda part: (part.first_row, part.first_column))


def _of_shards(lookup: Op, shards: list[Parameter]) -> Op:
    """The lookup of rows in all shards of a table."""
    bounds = (*(shard.first_row for shard in shards), shards[-1].first_row + shards[-1].shape[0])
    inputs = (*(shard.name for shard in shards), lookup.inputs[1])
    return replace(lookup, type="LookupShards", inputs=inputs, attrs={"bounds": bounds})


def _joined(builder: NetBuilder, parts: list[Parameter]) -> str:
    """A weight whose parts are rows of it, or columns."""
    axis = 0 if any(part.first_row for part in parts) else -1
    return builder.add("Concat", [part.name for part in parts], attrs={"axis": axis}, module=parts[0].of)[0]
