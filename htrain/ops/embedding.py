"""Embedding lookups, as the model says them and as they run.

As the model says them: `Embedding(table, ids)` and `EmbeddingBag(table, ids[, offsets][, weights])`.

As they run (htrain.transform.lookups), so that a row travels once per batch:
    unique, inverse = Dedupe(ids)           ids[n] -> the distinct ids, and the inverse indices: where each id is among them; -1 for the padding id
    rows            = Lookup(table, unique)  where the table lives; rows[u,D]
    y               = TakeRows(rows, inverse)   or   PoolRows(rows, inverse[, offsets][, weights])
The gradient of `rows` is already summed over duplicates: (unique, rows_grad) is the sparse gradient of the table.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from htrain.net.net import Attr, BatchDim, Blob, Dim, Op, numel
from htrain.ops import accelerated, sparse_loops
from htrain.ops.base import Builder, Cost, OpDef, RowRead, Signature, runs
from htrain.ops.expectation import Counts, Expectation, all_rows, rows_like

# -- as the model says them ------------------------------------------------------------------------------------------


def _embedding(table: torch.Tensor, ids: torch.Tensor, *, padding_idx: int) -> torch.Tensor:
    return F.embedding(ids, table)


def _embedding_bag(
    table: torch.Tensor, ids: torch.Tensor, *rest: torch.Tensor, mode: str, padding_idx: int, weighted: bool
) -> torch.Tensor:
    offsets = rest[0] if ids.dim() == 1 else None
    weights = rest[-1] if weighted else None
    return F.embedding_bag(
        ids, table, offsets, mode=mode, per_sample_weights=weights, padding_idx=None if padding_idx < 0 else padding_idx
    )


def _embedding_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    table, ids = inputs
    return [((*ids.shape, table.shape[1]), table.dtype)]


def _embedding_bag_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    table, ids, *rest = inputs
    bags = rest[0].shape[0] if len(ids.shape) == 1 else ids.shape[0]
    return [((bags, table.shape[1]), table.dtype)]


# -- as they run -----------------------------------------------------------------------------------------------------


def _dedupe(*ids: torch.Tensor, padding_idx: int) -> tuple[torch.Tensor, ...]:
    """The distinct ids of all inputs in order of first appearance, and for each input the inverse indices of its ids."""
    unique, inverse = sparse_loops.dedupe(_joined(ids), padding_idx)
    return torch.from_numpy(unique), *_parted(inverse, ids)


def _dedupe_sharded(*ids: torch.Tensor, padding_idx: int, bounds: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """As Dedupe, the distinct ids grouped by the row range [bounds[k], bounds[k+1]) of each shard."""
    shards, inverse = sparse_loops.dedupe_sharded(_joined(ids), bounds, padding_idx)
    return *map(torch.from_numpy, shards), *_parted(inverse, ids)


def _joined(ids: Sequence[torch.Tensor]) -> np.ndarray:
    """The ids of all inputs, one after another: int64[n].

    It is done in NumPy: a batch has a hundred small inputs, and each of PyTorch's views costs as much as the loop over
    one.
    """
    return ids[0].numpy().reshape(-1) if len(ids) == 1 else np.concatenate([each.numpy().reshape(-1) for each in ids])


def _parted(inverse: np.ndarray, ids: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The part of inverse[n] that belongs to each input, in its shape."""
    start = 0
    for each in ids:
        yield torch.from_numpy(inverse[start : start + each.numel()].reshape(each.shape))
        start += each.numel()


def _mask_places(inverse: torch.Tensor, ids: torch.Tensor, *, padding_idx: int) -> torch.Tensor:
    return inverse.masked_fill(ids == padding_idx, -1)


def _lookup(table: torch.Tensor, ids: torch.Tensor, *, first_row: int) -> torch.Tensor:
    return torch.from_numpy(sparse_loops.gather_rows(table.numpy(), ids.numpy(), first_row))


def _lookup_shards(*shards_and_ids: torch.Tensor, bounds: tuple[int, ...]) -> torch.Tensor:
    """Rows of a table whose shards are all here; shard k holds the rows from bounds[k] to bounds[k+1]."""
    *shards, ids = shards_and_ids
    (*parts,), inverse = sparse_loops.dedupe_sharded(ids.numpy(), bounds, -1)
    found = [sparse_loops.gather_rows(s.numpy(), part, f) for s, part, f in zip(shards, parts, bounds, strict=False)]
    return torch.cat([torch.from_numpy(rows) for rows in found])[torch.from_numpy(inverse)]


def _take_rows(rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    taken = sparse_loops.take_rows(rows.numpy(), inverse.reshape(-1).numpy())
    return torch.from_numpy(taken).reshape(*inverse.shape, rows.shape[1])


def _take_rows_gradient(rows: torch.Tensor, inverse: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    flat = dy.reshape(-1, rows.shape[1]).contiguous()
    return torch.from_numpy(sparse_loops.take_rows_gradient(flat.numpy(), inverse.reshape(-1).numpy(), rows.shape[0]))


def _bags(
    inverse: torch.Tensor, rest: Sequence[torch.Tensor], weighted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Flat inverse indices, bag starts and per-sample weights (empty when there are none)."""
    if inverse.dim() == 1:
        offsets = rest[0]
    else:
        offsets = (
            torch.arange(0, inverse.numel(), inverse.shape[1])
            if inverse.shape[1]
            else torch.zeros(inverse.shape[0], dtype=torch.int64)
        )
    weights = rest[-1].reshape(-1) if weighted else torch.empty(0)
    return inverse.reshape(-1), offsets, weights


def _pool_rows(
    rows: torch.Tensor, inverse: torch.Tensor, *rest: torch.Tensor, mode: str, weighted: bool
) -> torch.Tensor:
    """y[B,D]: the sum or mean of each bag's rows; a padding id, of which the inverse index is -1, counts for nothing."""
    flat, offsets, weights = _bags(inverse, rest, weighted)
    return torch.from_numpy(
        sparse_loops.pool_rows(rows.numpy(), flat.numpy(), offsets.numpy(), weights.numpy(), mode == "mean")
    )


def _pool_rows_gradient(
    rows: torch.Tensor, inverse: torch.Tensor, *rest: torch.Tensor, mode: str, weighted: bool, wants_weights: bool
) -> tuple[torch.Tensor, ...]:
    *bags, dy = rest
    flat, offsets, weights = _bags(inverse, bags, weighted)
    arguments = (dy.contiguous().numpy(), flat.numpy(), offsets.numpy(), weights.numpy())
    drows = torch.from_numpy(sparse_loops.pool_rows_gradient(*arguments, mode == "mean", rows.shape[0]))
    if not wants_weights:
        return (drows,)
    dweights = sparse_loops.pool_weights_gradient(rows.numpy(), *arguments[:3])
    return drows, torch.from_numpy(dweights).reshape(bags[-1].shape)


def _sum_rows(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct ids, and the sum of the rows of each."""
    unique, inverse = sparse_loops.dedupe(ids.numpy(), -1)
    return torch.from_numpy(unique), torch.from_numpy(
        sparse_loops.take_rows_gradient(rows.numpy(), inverse, unique.size)
    )


def _sum_rows_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(blob.shape, blob.dtype) for blob in inputs]


def _concat_rows(*rows: torch.Tensor) -> torch.Tensor:
    """The rows of a table's shards, one shard after another."""
    return torch.cat(rows)


def _split_rows(rows: torch.Tensor, *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rows.split([i.numel() for i in ids])


def _num_ids(inputs: Sequence[Blob]) -> BatchDim:
    """The upper bound on the distinct ids of some id blobs, per example."""
    return BatchDim(max(1, sum(_per_example(b) for b in inputs)), bound=True)


def _per_example(ids: Blob) -> int:
    constant, batch = 1, 0
    for dim in ids.shape:
        if isinstance(dim, BatchDim):
            batch = dim.per_example
        else:
            constant *= dim
    return constant * batch


def _dedupe_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    bounds = op.attrs.get("bounds", (0, 0))
    assert isinstance(bounds, tuple)
    unique: Signature = ((_num_ids(inputs),), "int64")
    return [*[unique] * (len(bounds) - 1), *((b.shape, "int64") for b in inputs)]


def _lookup_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    table, ids = inputs
    return [((ids.shape[0], table.shape[1]), table.dtype)]


def _lookup_shards_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    table, ids = inputs[0], inputs[-1]
    return [((ids.shape[0], table.shape[1]), table.dtype)]


def _take_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    rows, inverse, *_ = inputs
    return [((*inverse.shape, rows.shape[1]), rows.dtype)]


def _pool_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    rows, inverse, *rest = inputs
    bags: Dim = rest[0].shape[0] if len(inverse.shape) == 1 else inverse.shape[0]
    return [((bags, rows.shape[1]), rows.dtype)]


def _rows_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    weights = [(inputs[-2].shape, inputs[-2].dtype)] if op.attrs.get("wants_weights") else []
    return [(inputs[0].shape, inputs[0].dtype), *weights]


def _concat_rows_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [
        (inputs[0].shape, inputs[0].dtype)
    ]  # no shard's ids exceed the bound on all of them, and neither does their union


def _split_rows_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    rows, *ids = inputs
    return [((i.shape[0], rows.shape[1]), rows.dtype) for i in ids]


def _gather_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The rows that the batch touches, read and written; never the whole table."""
    rows = sum(b.num_bytes(batch_size) for b in outputs)
    ids = sum(b.num_bytes(batch_size) for b in inputs if b.dtype == "int64")
    return Cost(0.0, 2.0 * rows + ids)


def _dedupe_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Ids read and written; the index of a batch is small, so that finding an id in it takes a fraction of what a large cache's takes."""
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(0.0, float(moved), 0.2 * numel(inputs[0].shape, batch_size))


def _pool_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """One add per element of every id's row."""
    ids = sum(b.num_bytes(batch_size) for b in inputs if b.dtype == "int64")
    width = inputs[0].shape[1]
    assert isinstance(width, int)
    touched = _per_example(inputs[1]) * batch_size * width
    return Cost(float(touched), 8.0 * touched + ids)


def _take_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return [*builder.add("TakeRowsGradient", (*op.inputs, dys[0]), module=op.module, outputs=names), ""]


def _pool_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    wants_weights = bool(op.attrs["weighted"]) and wanted[-1]
    attrs: dict[str, Attr] = {**op.attrs, "wants_weights": wants_weights}
    names = [builder.gradient_name(op.inputs[0])] + [builder.gradient_name(op.inputs[-1])] * wants_weights
    grads = builder.add("PoolRowsGradient", (*op.inputs, dys[0]), attrs=attrs, module=op.module, outputs=names)
    return [grads[0], *[""] * (len(op.inputs) - 2), grads[1] if wants_weights else ""]


# -- how many rows there will be -------------------------------------------------------------------------------------


def _expected_ids(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """How many distinct ids each shard of a table is asked for. Of n ids of a table of N rows these are N (1 - (1 - 1/N)^n), if every row is as likely
    as any other; real ids are skewed, so that there may be fewer."""
    rows = _rows_asked_for(op, expectation)
    table = sum(rows.values())
    if not table:
        return {}
    ids = numel(expectation.net.blobs[next(iter(rows))].shape[:1], expectation.batch_size)
    alike = table * -math.expm1(ids * math.log1p(-1 / table)) if table > 1 else 1.0
    found = min(alike, ids * expectation.distinct)
    return {name: expectation.rates.ids(name, found * count / table) for name, count in rows.items()}


def _rows_asked_for(op: Op, expectation: Expectation) -> dict[str, int]:
    """The rows of the shard that is asked by each of the outputs; of the whole table where a cache is asked."""
    parameters = expectation.net.parameters
    rows = {name: parameters[expectation.tables[name]].shape[0] for name in op.outputs if name in expectation.tables}
    cached = [p.shape[0] for p in parameters.values() if p.kind == "table" and p.whole == op.module]
    return rows or ({op.outputs[0]: sum(cached)} if cached else {})


def _expected_parts(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """SplitRows: the rows of each shard's ids."""
    return rows_like(op.outputs, op.inputs[1:], counts)


def _reads(op: Op) -> Sequence[RowRead]:
    table, ids = op.inputs
    return [(table, ids, op.outputs[0])]


def _ids(op: Op) -> Sequence[str]:
    return op.inputs[1:]


DEFINITIONS = (
    OpDef(
        "Embedding",
        _embedding,
        _embedding_infer,
        _gather_cost,
        gradient=None,
        work="gather",
        indexed=True,
        over_rows="TakeRows",
    ),
    OpDef(
        "EmbeddingBag",
        _embedding_bag,
        _embedding_bag_infer,
        _gather_cost,
        gradient=None,
        work="gather",
        indexed=True,
        over_rows="PoolRows",
    ),
    OpDef(
        "Dedupe",
        _dedupe,
        _dedupe_infer,
        _dedupe_cost,
        loops=runs(*sparse_loops.DEDUPE_LOOPS),
        gradient=None,
        many=True,
        on_host=True,
        place="reader",
        work="gather",
        expected=_expected_ids,
    ),
    OpDef(
        "DedupeSharded",
        _dedupe_sharded,
        _dedupe_infer,
        _dedupe_cost,
        gradient=None,
        many=True,
        on_host=True,
        place="reader",
        work="gather",
        expected=_expected_ids,
    ),
    OpDef("MaskPlaces", _mask_places, gradient=None, place="reader"),
    OpDef(
        "Lookup",
        _lookup,
        _lookup_infer,
        _gather_cost,
        gradient=None,
        on_host=True,
        accelerated=accelerated.lookup,
        effects=True,
        work="gather",
        reads=_reads,
        asked_by=_ids,
    ),
    OpDef(
        "LookupShards",
        _lookup_shards,
        _lookup_shards_infer,
        _gather_cost,
        None,
        on_host=True,
        effects=True,
        work="gather",
    ),
    OpDef(
        "TakeRows",
        _take_rows,
        _take_infer,
        _gather_cost,
        gradient=_take_rule,
        on_host=True,
        accelerated=accelerated.take_rows,
        work="gather",
    ),
    OpDef(
        "TakeRowsGradient",
        _take_rows_gradient,
        _rows_infer,
        _pool_cost,
        gradient=None,
        on_host=True,
        accelerated=accelerated.take_rows_gradient,
        work="scatter",
    ),
    OpDef(
        "PoolRows",
        _pool_rows,
        _pool_infer,
        _pool_cost,
        gradient=_pool_rule,
        on_host=True,
        accelerated=accelerated.pool_rows,
        work="gather",
    ),
    OpDef(
        "PoolRowsGradient",
        _pool_rows_gradient,
        _rows_infer,
        _pool_cost,
        gradient=None,
        many=True,
        on_host=True,
        accelerated=accelerated.pool_rows_gradient,
        work="scatter",
    ),
    OpDef("SumRows", _sum_rows, _sum_rows_infer, gradient=None, many=True, on_host=True, work="scatter"),
    OpDef("ConcatRows", _concat_rows, _concat_rows_infer, gradient=None, place="reader", expected=all_rows),
    OpDef(
        "SplitRows", _split_rows, _split_rows_infer, gradient=None, many=True, place="reader", expected=_expected_parts
    ),
)
