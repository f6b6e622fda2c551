"""Fusions: ops that run as one because their values would otherwise cross memory in between.

    fuse_relu         Relu(FC(x))                              FCRelu(x)
    fuse_fields       Concat(x, Stack(TakeRows(r, p), ..))     StackRows(x, r, .., p, ..): rows of many tables in one pass
    fuse_interaction  Concat(x, Gather(MatMul(f, f^T)))        PairwiseDots(f): only the products that are read, behind x where f = StackRows(x, ..)
    fuse_tables       StackRows, its Lookups, Dedupes, SGD     StackTables and StepTables: tables of this device, read and stepped in place
    fuse_pairs        StepTables(t, PairwiseDotsGradient(..))  PairwiseDotsSgd(t, ..): rows are stepped by a gradient that is never stored
    fuse_steps        Sgd(w, dw) of dw, .., dx = FCGradient    dx = FCInputGradient; FCSgd(w, b, x, dy): no gradient in memory
    fast_products     FC; dw, .., dx = FCGradient              FastFC; FastFCGradient: by the library that is ahead on the role's CPU

Each has an option of its own name.
"""

from collections import Counter
from dataclasses import dataclass, replace

from htrain.net.net import Attr, BatchDim, Blob, Net, Op, Tensor
from htrain.ops import OPS
from htrain.ops.base import tensor_of
from htrain.spec.options import Options


def fuse_forward(net: Net, options: Options) -> Net:
    """The fusions of a forward net that are on: gradients are made of the fused ops."""
    net = fuse_relu(net) if options.fusions.relu else net
    net = fuse_fields(net) if options.fusions.fields else net
    return fuse_interaction(net) if options.fusions.interaction else net


def fuse_placed(train: Net, options: Options) -> Net:
    """The fusions of a train net whose ops have their devices that are on."""
    train = fuse_tables(train) if options.fusions.tables else train
    train = fuse_pairs(train) if options.fusions.pairs else train
    train = fuse_steps(train) if options.fusions.steps else train
    return fast_products(train) if options.numerics.fast_products else train


def fuse_relu(net: Net) -> Net:
    """Relu in the FC before it, where nobody else reads what the FC gives."""
    once = _read_once(net)
    makers = net.producers()
    relus = {op.inputs[0]: op for op in net.ops if op.type == "Relu" and op.inputs[0] in once}
    fused = {name: relu for name, relu in relus.items() if name in makers and makers[name].type == "FC"}
    ops = []
    for op in net.ops:
        if op.outputs and op.outputs[0] in fused:
            ops.append(replace(op, type="FCRelu", outputs=fused[op.outputs[0]].outputs))
        elif not (op.type == "Relu" and op.inputs[0] in fused):
            ops.append(op)
    return net.with_ops(ops)


def fuse_fields(net: Net) -> Net:
    """Rows of several tables that are stacked, one of each for an example, and a value of the example before them where there is one."""
    once, makers = _read_once(net), net.producers()
    instead: dict[int, Op] = {}
    for op in net.ops:
        takes = _stacked(net, op, makers, once)
        if takes:
            rows, places = zip(*(take.inputs for take in takes), strict=True)
            instead[id(op)] = replace(op, type="StackRows", inputs=(*rows, *places), attrs={"dense": 0})
    for op in net.ops:
        before, stack = (
            (makers.get(name) for name in op.inputs) if op.type == "Concat" and len(op.inputs) == 2 else (None, None)
        )
        if (
            stack
            and before
            and op.attrs["axis"] == 1
            and id(stack) in instead
            and op.inputs[1] in once
            and _is_row(net, before, op.inputs[1])
        ):
            stacked = instead.pop(id(stack))
            instead[id(op)] = replace(
                stacked,
                inputs=(before.inputs[0], *stacked.inputs),
                outputs=op.outputs,
                attrs={"dense": 1},
                module=op.module,
            )
    return _without_unread(net.with_ops(instead.get(id(op), op) for op in net.ops))


def _stacked(net: Net, stack: Op, makers: dict[str, Op], once: set[str]) -> list[Op]:
    """The TakeRows of Stack(TakeRows(r[u,D], p[B]), .., axis=1), all as wide; empty for anything else."""
    if stack.type != "Stack" or stack.attrs["axis"] != 1:
        return []
    takes = [
        makers[name] for name in stack.inputs if name in once and name in makers and makers[name].type == "TakeRows"
    ]
    shapes = {net.blob(take.outputs[0]).shape for take in takes}
    alike = len(takes) == len(stack.inputs) and len(shapes) == 1 and len(shapes.pop()) == 2
    return takes if alike and all(net.blob(take.inputs[0]).dtype == "float32" for take in takes) else []


def _is_row(net: Net, reshape: Op, stacked: str) -> bool:
    """Whether an op makes x[B,1,D] of x[B,D], for stacked[B,F,D]."""
    if reshape.type != "Reshape":
        return False
    x, row, others = net.blob(reshape.inputs[0]), net.blob(reshape.outputs[0]), net.blob(stacked)
    batch, _, width = others.shape
    return (x.shape, row.shape, x.dtype) == ((batch, width), (batch, 1, width), "float32")


def fuse_interaction(net: Net) -> Net:
    """Products of all pairs of features, of which some are gathered, as those alone."""
    once, makers = _read_once(net), net.producers()
    ops = []
    for op in net.ops:
        features = _paired(net, op, makers, once) if op.type == "Gather" and op.attrs["axis"] == 1 else ""
        ops.append(
            replace(op, type="PairwiseDots", inputs=(features, op.inputs[1]), attrs={"kept": 0}) if features else op
        )
    return _with_kept(_without_unread(net.with_ops(ops)))


def _with_kept(net: Net) -> Net:
    """Products that are put behind the first of their features, by the op that makes them."""
    once, makers = _read_once(net), net.producers()
    instead: dict[int, Op | None] = {}
    for op in net.ops:
        dots = (
            makers.get(op.inputs[-1]) if op.type == "Concat" and len(op.inputs) == 2 and op.attrs["axis"] == 1 else None
        )
        if dots and dots.type == "PairwiseDots" and dots.attrs == {"kept": 0} and op.inputs[1] in once:
            stack = makers.get(dots.inputs[0])
            if stack and stack.type == "StackRows" and stack.attrs["dense"] and stack.inputs[0] == op.inputs[0]:
                instead[id(dots)], instead[id(op)] = None, replace(dots, outputs=op.outputs, attrs={"kept": 1})
    return net.with_ops(op for op in (instead.get(id(op), op) for op in net.ops) if op)


def _paired(net: Net, gather: Op, makers: dict[str, Op], once: set[str]) -> str:
    """The features f[B,n,D] of Gather(Reshape(MatMul(f, Transpose(f)), [B,n*n]), constant[P]); empty for anything else."""
    chain = []
    name = gather.inputs[0]
    for type in ("Reshape", "MatMul", "Transpose"):
        op = makers.get(name)
        if op is None or op.type != type or name not in once:
            return ""
        chain.append(op)
        name = op.inputs[-1]
    _, product, transpose = chain
    features = net.blob(name)
    positions = makers.get(gather.inputs[1])
    if product.inputs[0] != name or tuple(transpose.attrs["perm"]) != (0, 2, 1) or features.dtype != "float32":  # type: ignore[arg-type]
        return ""
    if len(features.shape) != 3 or not _is_flat(net.blob(gather.inputs[0]), features):
        return ""
    if positions is None or positions.type != "Constant" or len(net.blob(gather.inputs[1]).shape) != 1:
        return ""
    value = positions.attrs["value"]
    assert isinstance(value, Tensor)
    count = features.shape[1]
    inside = (
        bool(((found := tensor_of(value)) >= 0).all())
        and isinstance(count, int)
        and bool((found < count * count).all())
    )
    return name if inside else ""


def _is_flat(flat: Blob, features: Blob) -> bool:
    """Whether flat is [B,n*n] of features[B,n,D]."""
    rows, count, _ = features.shape
    return isinstance(rows, BatchDim) and isinstance(count, int) and flat.shape == (rows, count * count)


def fuse_steps(net: Net) -> Net:
    """SGD steps of an FC's weight and bias in the product that makes their gradient, where nobody else reads that and all is on one device.

    They come right behind the gradient of the FC's input, where that is the last to read the weight: it and dy are still in the caches.
    """
    once = _read_once(net)
    casts = {
        op.inputs[0]: op for op in net.ops if op.type == "Cast" and op.inputs[0] in once
    }  # of gradients in bfloat16
    steps = {op.inputs[1]: op for op in net.ops if op.type == "Sgd" and op.inputs[1] in once}
    instead: dict[int, Op | None] = {}
    behind: dict[int, Op] = {}
    last_read = {name: place for place, op in enumerate(net.ops) if op.type != "Sgd" for name in op.inputs}
    for place, op in enumerate(net.ops):
        names = op.outputs[: 1 + bool(op.attrs["bias"])] if op.type == "FCGradient" else ()
        cast = [casts[name] for name in names if name in casts]
        steppers = [steps.get(casts[name].outputs[0] if name in casts else name) for name in names]
        mine = [step for step in steppers if step]
        if (
            mine
            and len(mine) == len(names)
            and all((s.node_name, s.attrs) == (op.node_name, mine[0].attrs) for s in mine)
        ):
            x, w, dy = op.inputs
            instead[id(op)] = (
                replace(op, type="FCInputGradient", inputs=(w, dy), outputs=op.outputs[-1:], attrs={})
                if op.attrs["wants_x"]
                else None
            )
            instead.update(dict.fromkeys(map(id, (*mine, *cast))))
            read_later = any(last_read.get(s.inputs[0], 0) > place for s in mine)
            behind[id(mine[-1] if read_later else op)] = replace(
                mine[0], type="FCSgd", inputs=(*(s.inputs[0] for s in mine), x, dy)
            )
    return net.with_ops(made for op in net.ops for made in (instead.get(id(op), op), behind.get(id(op))) if made)


def fast_products(net: Net) -> Net:
    """FCs without ReLU, and gradients that are kept, such as Adagrad's and Adam's, or sent, by the libraries that fused ops call."""
    fast = {"FC": "FastFC", "FCGradient": "FastFCGradient"}
    return net.with_ops(replace(op, type=fast.get(op.type, op.type)) for op in net.ops)


def fuse_tables(net: Net) -> Net:
    """Stacked rows of tables that are on the same device, and stepped there by SGD: rows are read and written in place, id by id, without finding
    the distinct ones first."""
    stacks = [_local(net, op) for op in net.ops if op.type == "StackRows"]
    instead: dict[int, tuple[Op, ...]] = {}
    made: list[Blob] = []
    for found in (local for local in stacks if local):
        tables = [look.inputs[0] for look in found.lookups]
        dense = len(found.stack.inputs) - 2 * len(tables)
        ids, columns, gathered = _columns(net, found, made)
        attrs: dict[str, Attr] = {"dense": dense, "columns": columns}
        dy = found.gradient.inputs[-1]
        instead.update(dict.fromkeys(map(id, (*found.lookups, *found.dedupes, *found.steps)), ()))
        read = replace(found.stack, type="StackTables", inputs=(*found.stack.inputs[:dense], *tables, ids), attrs=attrs)
        instead[id(found.stack)] = (*gathered, read)
        instead[id(found.gradient)] = tuple(
            replace(found.gradient, type="Select", inputs=(dy,), outputs=(name,), attrs={"axis": 1, "index": k})
            for k, name in enumerate(found.gradient.outputs[:dense])
        )
        last = found.steps[-1]
        instead[id(last)] = (
            replace(last, type="StepTables", inputs=(*tables, ids, dy), attrs={**attrs, "lr": last.attrs["lr"]}),
        )
    return _without_unread(net.with_ops((new for op in net.ops for new in instead.get(id(op), (op,))), made))


def _columns(net: Net, found: "_Local", made: list[Blob]) -> tuple[str, tuple[int, ...], tuple[Op, ...]]:
    """A matrix of ids with a column for each table: the one that they were selected from, or else one that an op makes of them."""
    makers, ids = net.producers(), [dedupe.inputs[0] for dedupe in found.dedupes]
    selects = [
        makers[name]
        for name in ids
        if name in makers and makers[name].type == "Select" and makers[name].attrs["axis"] == 1
    ]
    sources = {select.inputs[0] for select in selects}
    if len(selects) == len(ids) and len(sources) == 1 and len(net.blob(selects[0].inputs[0]).shape) == 2:
        return sources.pop(), tuple(int(str(select.attrs["index"])) for select in selects), ()
    name = f"{found.stack.outputs[0]}_ids"
    made.append(Blob(name, (net.blob(ids[0]).shape[0], len(ids)), "int64"))
    stack = replace(found.stack, type="Stack", inputs=tuple(ids), outputs=(name,), attrs={"axis": 1})
    return name, tuple(range(len(ids))), (stack,)


@dataclass(frozen=True)
class _Local:
    """Ops over tables of one device: `lookups`, `dedupes` and `steps` have one of each for a table."""

    stack: Op
    gradient: Op
    lookups: list[Op]
    dedupes: list[Op]
    steps: list[Op]


def _local(net: Net, stack: Op) -> _Local | None:
    """What goes with a StackRows whose rows are all looked up, with distinct ids that nobody else needs, and stepped by SGD, on its device."""
    makers, readers = net.producers(), _readers(net)
    dense = stack.attrs["dense"]
    assert isinstance(dense, int)
    tables = (len(stack.inputs) - dense) // 2
    rows, places = stack.inputs[dense : dense + tables], stack.inputs[dense + tables :]
    gradients = [op for op in readers[stack.inputs[-1]] if op.type == "StackRowsGradient"]
    lookups = [makers[name] for name in rows if name in makers and makers[name].type == "Lookup"]
    dedupes = [makers[name] for name in places if name in makers and makers[name].type == "Dedupe"]
    if len(gradients) != 1 or len(lookups) != tables or len(dedupes) != tables:
        return None
    (gradient,) = gradients
    steps = [op for name in gradient.outputs[dense:] for op in readers[name]]
    read = [len(readers[name]) for op in (*lookups, *dedupes) for name in op.outputs]
    plain = all(op.attrs["padding_idx"] == -1 and len(op.inputs) == 1 for op in dedupes) and all(
        op.attrs["first_row"] == 0 for op in lookups
    )
    asked = all(look.inputs[1] == dedupe.outputs[0] for look, dedupe in zip(lookups, dedupes, strict=True))
    sgd = len(steps) == tables and all(
        (op.type, op.inputs[:2], op.attrs) == ("SparseSgd", look.inputs, steps[0].attrs)
        for op, look in zip(steps, lookups, strict=True)
    )
    together = len({op.node_name for op in (stack, gradient, *lookups, *dedupes, *steps)}) == 1
    alone = set(read) == {2} and len({op.inputs[0] for op in lookups}) == tables
    return _Local(stack, gradient, lookups, dedupes, steps) if plain and asked and sgd and together and alone else None


def fuse_pairs(net: Net) -> Net:
    """Steps of tables' rows in the gradient of pairs of them, where nobody else reads that but for the features before the rows."""
    readers, instead = _readers(net), dict[int, Op | None]()
    for at, op in enumerate(net.ops):
        steps = (
            [step for step in readers[op.outputs[0]] if step.type == "StepTables"]
            if op.type == "PairwiseDotsGradient"
            else []
        )
        if len(steps) == 1 and _steps_at(net, steps[0], at):
            selects = [select for select in readers[op.outputs[0]] if select is not steps[0]]
            dense = tuple(select.outputs[0] for select in selects)
            if [(s.type, s.attrs) for s in selects] == [
                ("Select", {"axis": 1, "index": k}) for k in range(int(str(steps[0].attrs["dense"])))
            ]:
                instead.update(dict.fromkeys(map(id, (*selects, steps[0]))))
                attrs, inputs = {**steps[0].attrs, **op.attrs}, (*steps[0].inputs[:-1], *op.inputs)
                instead[id(op)] = replace(steps[0], type="PairwiseDotsSgd", inputs=inputs, outputs=dense, attrs=attrs)
    return net.with_ops(op for op in (instead.get(id(op), op) for op in net.ops) if op)


def _steps_at(net: Net, step: Op, at: int) -> bool:
    """Whether a step of tables can be made where op `at` is: its ids are there, nobody touches a table in between, and all is on one device."""
    *tables, ids, _ = step.inputs
    before, after = net.ops[:at], net.ops[at:]
    made = ids in net.inputs or any(ids in op.outputs for op in before)
    alone = not any(set(tables).intersection(op.inputs) for op in after[: after.index(step)])
    return made and alone and net.ops[at].node_name == step.node_name


def _readers(net: Net) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {name: [] for op in net.ops for name in op.outputs}
    for op in net.ops:
        for name in dict.fromkeys(op.inputs):
            found.setdefault(name, []).append(op)
    return found


def _read_once(net: Net) -> set[str]:
    """Blobs with one reader, which are no outputs."""
    readers = Counter(name for op in net.ops for name in dict.fromkeys(op.inputs))
    return {name for name, count in readers.items() if count == 1 and name not in net.outputs}


def _without_unread(net: Net) -> Net:
    """The net without the ops whose outputs nobody reads any more."""
    read = set(net.outputs)
    kept: list[Op] = []
    for op in reversed(net.ops):
        if OPS[op.type].effects or read.intersection(op.outputs):
            kept.append(op)
            read.update(op.inputs)
    return net.with_ops(reversed(kept))
