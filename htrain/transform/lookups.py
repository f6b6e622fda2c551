"""Embedding lookups as they run: every row of a table travels once per batch, whoever looks it up (docs/concepts.md)."""

from htrain.errors import ModelError
from htrain.net.net import Net, Op
from htrain.net.slices import leading_to
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder


def lower_lookups(net: Net) -> Net:
    """Replace lookups as a model says them, `Embedding` and `EmbeddingBag`, by Dedupe, Lookup and what reads the rows.

    Requires: forward ops only.
    Raises ModelError for a table that is looked up by ids that are made of its own rows.
    Ensures:  each table has one Dedupe and one Lookup, at its first use; all its uses share them, so that the gradient of
              its rows is summed over all of them and the optimizer steps once.
    """
    builder = NetBuilder.beside(net)
    uses = _uses(net)
    prepared: dict[str, tuple[str, dict[Use, str]]] = {}
    for op in _with_ids_first(net):
        if not OPS[op.type].over_rows:
            builder.copy(op)
            continue
        table = op.inputs[0]
        if table not in prepared:
            _require_ids(net, builder, table, uses[table])
            prepared[table] = _prepare(builder, table, uses[table])
        rows, inverse = prepared[table]
        _read(builder, op, rows, inverse[_use(op)])
    return builder.build(net.outputs)


Use = tuple[str, int]  # an id blob and the padding id that its reader ignores, -1 for none


def _use(op: Op) -> Use:
    padding_idx = op.attrs["padding_idx"]
    assert isinstance(padding_idx, int)
    return op.inputs[1], padding_idx


def _uses(net: Net) -> dict[str, list[Use]]:
    """How each table is read, in order, without repeats."""
    uses: dict[str, list[Use]] = {}
    for op in net.ops:
        if OPS[op.type].over_rows:
            known = uses.setdefault(op.inputs[0], [])
            known.extend(use for use in (_use(op),) if use not in known)
    return uses


def _with_ids_first(net: Net) -> list[Op]:
    """The ops, those that lead to ids before all others: then every id of a table is there at its first lookup, and the
    next batch's lookups can start before any parameter is read. Of these, what is made of rows comes last."""
    ids = (name for op in net.ops if OPS[op.type].over_rows for name in op.inputs[1:2])
    first = dict.fromkeys(leading_to(net.ops, ids))
    of_rows: dict[int, None] = {}
    made: set[str] = set()
    for place in first:
        op = net.ops[place]
        if OPS[op.type].over_rows or not made.isdisjoint(op.inputs):
            of_rows[place] = None
            made.update(op.outputs)
    plain = (place for place in first if place not in of_rows)
    return [net.ops[place] for place in (*plain, *of_rows, *(p for p in range(len(net.ops)) if p not in first))]


def _require_ids(net: Net, builder: NetBuilder, table: str, uses: list[Use]) -> None:
    """Raises ModelError where ids of a table are not there before its first row is read."""
    if all(ids in builder.blobs for ids, _ in uses):
        return
    for ids, _ in uses:
        leading = [net.ops[place] for place in leading_to(net.ops, (ids,))]
        if any(OPS[op.type].over_rows and op.inputs[0] == table for op in leading):
            raise ModelError(
                f"table '{table}' is looked up by ids that depend on its own rows, those of {leading[-1].label}: a batch asks for all rows of a table at once. "
                "Make ids of the batch alone, or have an nn.Parameter in place of the Embedding, and index it"
            )
    raise ModelError(
        f"table '{table}' is looked up by ids that depend on rows of a table which is looked up by ids that depend on its own"
    )


def _prepare(builder: NetBuilder, table: str, uses: list[Use]) -> tuple[str, dict[Use, str]]:
    """Add the table's Dedupe and Lookup; return the blob of its rows and each use's inverse indices into them."""
    ids = list(dict.fromkeys(name for name, _ in uses))
    paddings = {padding_idx for _, padding_idx in uses}
    shared = paddings.pop() if len(paddings) == 1 else -1
    names = [builder.fresh(f"{table}_ids"), *(builder.fresh(f"{table}_places{i or ''}") for i in range(len(ids)))]
    unique, *found = builder.add("Dedupe", ids, attrs={"padding_idx": shared}, module=table, outputs=names)
    inverse = dict(zip(ids, found, strict=True))
    rows = builder.add(
        "Lookup", (table, unique), attrs={"first_row": 0}, module=table, outputs=(builder.fresh(f"{table}_rows"),)
    )[0]
    return rows, {use: _masked(builder, table, inverse[use[0]], use, shared) for use in uses}


def _masked(builder: NetBuilder, table: str, inverse: str, use: Use, shared: int) -> str:
    """The inverse indices with -1 for the padding id, where Dedupe could not leave it out because another use wants it."""
    ids, padding_idx = use
    if padding_idx in (-1, shared):
        return inverse
    return builder.add("MaskPlaces", (inverse, ids), attrs={"padding_idx": padding_idx}, module=table)[0]


def _read(builder: NetBuilder, op: Op, rows: str, inverse: str) -> None:
    attrs = {name: value for name, value in op.attrs.items() if name != "padding_idx"}
    builder.add(
        OPS[op.type].over_rows, (rows, inverse, *op.inputs[2:]), attrs=attrs, module=op.module, outputs=op.outputs
    )
