"""Lookups in ONNX: Gather from whole tables, by the ids as they come.

What makes ids distinct, so that a row travels once, is left out: where htrain has the inverse indices of ids there are the ids themselves here, and where it
has distinct rows the table that they are of. A padding id is -1, as its inverse index is.
"""

from collections.abc import Callable, Mapping, Sequence

from htrain.errors import ModelError
from htrain.exporting.graph import Graph
from htrain.net.net import Op, Tensor


def _ids(graph: Graph, name: str, op: Op) -> str:
    """Ids as int64."""
    found = graph.value(name, op)
    return found if graph.blob(name).dtype == "int64" else graph.cast(found, "int64")


def _dedupe(graph: Graph, op: Op) -> None:
    bounds = op.attrs.get("bounds", (0, 0))
    assert isinstance(bounds, tuple)
    shards = len(bounds) - 1
    for unique in op.outputs[:shards]:
        graph.drop(unique)
    for ids, inverse in zip(op.inputs, op.outputs[shards:], strict=True):
        graph.alias(inverse, _masked(graph, _ids(graph, ids, op), _ids(graph, ids, op), inverse, op))


def _mask_places(graph: Graph, op: Op) -> None:
    inverse, ids = op.inputs
    (output,) = op.outputs
    graph.padded.update({output} if inverse in graph.padded else ())
    graph.alias(output, _masked(graph, graph.value(inverse, op), _ids(graph, ids, op), output, op))


def _masked(graph: Graph, numbers: str, ids: str, output: str, op: Op) -> str:
    """Numbers of rows with -1 where the id is the op's padding id."""
    padding = op.attrs["padding_idx"]
    assert isinstance(padding, int)
    if padding < 0:
        return numbers
    graph.padded.add(output)
    is_padding = graph.add("Equal", ids, graph.scalar(graph.row_number(op.module, padding), "int64"))
    return graph.add("Where", is_padding, graph.scalar(-1, "int64"), numbers)


def _is_row(graph: Graph, op: Op) -> None:
    """By the number that the model has for a row."""
    original = op.attrs["original"]
    assert isinstance(original, Tensor)
    graph.add("Equal", graph.value(op.inputs[0], op), graph.tensor(original), output=op.outputs[0])


def _lookup(graph: Graph, op: Op) -> None:
    """Of one table, whole or all of its shards."""
    _look_up(graph, op, op.inputs[0], op.inputs[-1], op.outputs[0])


def _lookup_tables(graph: Graph, op: Op) -> None:
    count = len(op.outputs)
    for table, ids, rows in zip(op.inputs[:count], op.inputs[count:], op.outputs, strict=True):
        _look_up(graph, op, table, ids, rows)


def _look_up(graph: Graph, op: Op, table: str, ids: str, rows: str) -> None:
    if not graph.is_dropped(ids):
        raise ModelError(f"{op.label}: looks up ids that nothing has made distinct: this has no form in ONNX")
    graph.tables[rows] = graph.whole(table)


def _concat_rows(graph: Graph, op: Op) -> None:
    found = {graph.table(name, op) for name in op.inputs}
    if len(found) != 1:
        raise ModelError(f"{op.label}: joins rows of {' and '.join(sorted(found))}: this has no form in ONNX")
    graph.tables[op.outputs[0]] = found.pop()


def _take_rows(graph: Graph, op: Op) -> None:
    _taken(graph, op, *op.inputs, output=op.outputs[0])


def _taken(graph: Graph, op: Op, rows: str, inverse: str, *, output: str = "") -> str:
    """The rows of ids, zeros for a padding id."""
    table, ids = graph.table(rows, op), graph.value(inverse, op)
    if inverse not in graph.padded:
        return graph.add("Gather", table, ids, attrs={"axis": 0}, output=output)
    zero = graph.scalar(0, "int64")
    found = graph.add("Gather", table, graph.add("Max", ids, zero), attrs={"axis": 0})
    counts = graph.add("Unsqueeze", graph.add("GreaterOrEqual", ids, zero), graph.ints(-1))
    return graph.add("Where", counts, found, graph.scalar(0.0, graph.blob(rows).dtype), output=output)


def _pool_rows(graph: Graph, op: Op) -> None:
    """The sum or mean of the rows of each bag."""
    rows, inverse, *rest = op.inputs
    found = _taken(graph, op, rows, inverse)
    if op.attrs["weighted"]:
        weights = graph.add("Unsqueeze", graph.value(rest[-1], op), graph.ints(-1))
        found = graph.add("Mul", found, weights)
    of_bags = _of_lists if len(graph.blob(inverse).shape) == 1 else _of_columns
    is_mean, (output,) = op.attrs["mode"] == "mean", op.outputs
    total = of_bags(graph, op, found, graph.blob(rows).shape[1:], "" if is_mean else output)
    if is_mean:
        dtype = graph.blob(rows).dtype
        here = graph.add("GreaterOrEqual", graph.value(inverse, op), graph.scalar(0, "int64"))
        ones = graph.add("Unsqueeze", graph.cast(here, dtype), graph.ints(-1))
        counts = graph.add("Max", of_bags(graph, op, ones, (1,), ""), graph.scalar(1.0, dtype))
        graph.add("Div", total, counts, output=output)


def _of_columns(graph: Graph, op: Op, values: str, width: Sequence[object], output: str) -> str:
    """y[B,D] of values[B,L,D]: bags as long as each other."""
    return graph.add("ReduceSum", values, graph.ints(1), attrs={"keepdims": 0}, output=output)


def _of_lists(graph: Graph, op: Op, values: str, width: Sequence[object], output: str) -> str:
    """y[B,D] of values[n,D]: bag b begins at offsets[b]. Each value is added to its bag, the last that has begun."""
    (columns,) = width
    assert isinstance(columns, int)
    offsets = graph.value(op.inputs[2], op)
    begins = graph.add("Unsqueeze", offsets, graph.ints(-1))
    count, bags = graph.add("Shape", graph.value(op.inputs[1], op)), graph.add("Shape", offsets)
    places = graph.add("Add", count, graph.ints(1))  # an empty bag may begin behind the last value
    begun = _scattered(graph, places, begins, graph.add("Expand", graph.scalar(1, "int64"), bags), "int64")
    so_far = graph.add("CumSum", begun, graph.scalar(0, "int64"))
    bag = graph.add("Sub", graph.add("Slice", so_far, graph.ints(0), count), graph.scalar(1, "int64"))
    shape = graph.add("Concat", bags, graph.ints(columns), attrs={"axis": 0})
    where = graph.add("Unsqueeze", bag, graph.ints(-1))
    return _scattered(graph, shape, where, values, graph.blob(op.inputs[0]).dtype, output=output)


def _scattered(graph: Graph, shape: str, places: str, values: str, dtype: str, *, output: str = "") -> str:
    """Zeros of a shape, with values added at places."""
    zeros = graph.cast(graph.add("ConstantOfShape", shape), dtype)
    return graph.add("ScatterND", zeros, places, values, attrs={"reduction": "add"}, output=output)


def _stack_rows(graph: Graph, op: Op) -> None:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    count = (len(op.inputs) - dense) // 2
    rows, inverse = op.inputs[dense : dense + count], op.inputs[dense + count :]
    taken = [_taken(graph, op, *each) for each in zip(rows, inverse, strict=True)]
    _stack(graph, op, [*(graph.value(name, op) for name in op.inputs[:dense]), *taken])


def _stack_tables(graph: Graph, op: Op) -> None:
    dense, columns = op.attrs["dense"], op.attrs["columns"]
    assert isinstance(dense, int)
    assert isinstance(columns, tuple)
    ids = _ids(graph, op.inputs[-1], op)
    found = []
    for table, column in zip(op.inputs[dense:-1], columns, strict=True):
        own = graph.add("Gather", ids, graph.scalar(column, "int64"), attrs={"axis": 1})
        found.append(graph.add("Gather", graph.read_whole(table), own, attrs={"axis": 0}))
    _stack(graph, op, [*(graph.value(name, op) for name in op.inputs[:dense]), *found])


def _take_tables(graph: Graph, op: Op) -> None:
    of = op.attrs["tables"]
    assert isinstance(of, tuple)
    for table, ids, output in zip(of, op.inputs[-len(of) :], op.outputs, strict=True):
        whole = graph.read_whole(op.inputs[table])
        graph.add("Gather", whole, _ids(graph, ids, op), attrs={"axis": 0}, output=output)


def _stack(graph: Graph, op: Op, values: Sequence[str]) -> None:
    """y[B,F,D] of F values[B,D]."""
    apart = [graph.add("Unsqueeze", value, graph.ints(1)) for value in values]
    graph.add("Concat", *apart, attrs={"axis": 1}, output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "Dedupe": _dedupe,
    "DedupeSharded": _dedupe,
    "MaskPlaces": _mask_places,
    "IsRow": _is_row,
    "Lookup": _lookup,
    "LookupShards": _lookup,
    "LookupTables": _lookup_tables,
    "ConcatRows": _concat_rows,
    "TakeRows": _take_rows,
    "PoolRows": _pool_rows,
    "StackRows": _stack_rows,
    "StackTables": _stack_tables,
    "TakeTables": _take_tables,
}
