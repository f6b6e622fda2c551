"""Compression of what travels between devices (HT 4.2): 8-bit integers for activations, sparsified gradients with error feedback.

bfloat16 needs no op of its own: it is a Cast there and back.
"""

import math
from collections.abc import Sequence

import torch

from htrain.errors import DataError
from htrain.net.net import BatchDim, Blob, Dim, Op, numel
from htrain.ops import compress_loops as loops
from htrain.ops.base import Cost, OpDef, Signature
from htrain.ops.codec import kept_elements


def _quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8 bits an element: q uint8[B,...], and ranges float32[B,2], the least value and the step of each example."""
    rows = x.reshape(
        x.shape[0], math.prod(x.shape[1:])
    ).contiguous()  # also of no examples: a shard may be asked for no row
    q, ranges = torch.empty(rows.shape, dtype=torch.uint8), torch.empty((rows.shape[0], 2))
    loops.quantize_rows(rows.numpy(), q.numpy(), ranges.numpy())
    return q.view(x.shape), ranges


def _quantize_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    (x,) = inputs
    return [(x.shape, "uint8"), ((x.shape[0], 2), "float32")]


def _dequantize(q: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """x float32[B,...] of QuantizeRows' outputs. Raises DataError where they do not fit each other."""
    if ranges.shape != (q.shape[0], 2):
        raise DataError(
            f"a quantized blob {list(q.shape)} came with ranges {list(ranges.shape)}: want [{q.shape[0]}, 2]"
        )
    x = torch.empty(q.shape)
    rows = (q.shape[0], -1) if q.numel() else (0, 1)
    loops.dequantize_rows(q.reshape(rows).numpy(), ranges.contiguous().numpy(), x.view(rows).numpy())
    return x


def _dequantize_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, "float32")]


def _top_k(dy: torch.Tensor, *, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest elements of a gradient dy[B,...]: values float32[k], and their places int32[k] in the flat tensor."""
    return _largest(dy.reshape(-1).contiguous(), share)


def _top_k_with_feedback(
    dy: torch.Tensor, residual: torch.Tensor, *, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """TopK of dy[B,...] plus what earlier steps did not send, which residual[batch,...] holds: nothing is lost, it comes later.

    Plans up to version 15 have it on gradients of activations, where what is left of example i of one batch is added to example i of the next. No pass
    makes it any more.
    """
    flat, left = dy.reshape(-1).contiguous(), residual.view(-1)[: dy.numel()]
    if left.numel() != flat.numel():
        raise DataError(f"a gradient of {flat.numel()} elements does not fit a residual of {residual.numel()}")
    total = torch.empty_like(flat)
    loops.add_and_clear(flat.numpy(), left.numpy(), total.numpy())
    values, places = _largest(total, share)
    loops.give_back(total.numpy(), places.numpy(), left.numpy())
    return values, places


def _largest(flat: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    count = kept_elements(flat.numel(), share)
    values, places = torch.empty(count), torch.empty(count, dtype=torch.int32)
    loops.largest(flat.numpy(), values.numpy(), places.numpy())
    return values, places


def _top_k_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    share = op.attrs["share"]
    assert isinstance(share, float)
    per_example, fixed = numel(inputs[0].shape, 1), not any(isinstance(d, BatchDim) for d in inputs[0].shape)
    kept: Dim = kept_elements(per_example, share)
    kept = kept if fixed else BatchDim(kept_elements(per_example, share), bound=True)
    return [((kept,), "float32"), ((kept,), "int32")]


def _spread(values: torch.Tensor, places: torch.Tensor, *, shape: tuple[int, ...], batch: int) -> torch.Tensor:
    """The tensor [batch, *shape] that TopK's values came from, with 0 elsewhere. Raises DataError for a place outside it."""
    x = torch.zeros((batch, *shape))
    if values.numel() != places.numel() or not loops.spread(
        values.contiguous().numpy(), places.numpy(), x.view(-1).numpy()
    ):
        raise DataError(f"a sparsified gradient has places outside [{batch}, {', '.join(map(str, shape))}]")
    return x


def _spread_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    shape = op.attrs["shape"]
    assert isinstance(shape, tuple)
    return [((BatchDim(), *shape), "float32")]


def _spread_whole(values: torch.Tensor, places: torch.Tensor, *, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor [*shape] that TopK's values came from, with 0 elsewhere. Raises DataError for a place outside it."""
    x = torch.zeros(shape)
    if values.numel() != places.numel() or not loops.spread(
        values.contiguous().numpy(), places.numpy(), x.view(-1).numpy()
    ):
        raise DataError(f"a sparsified tensor has places outside [{', '.join(map(str, shape))}]")
    return x


def _spread_whole_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    shape = op.attrs["shape"]
    assert isinstance(shape, tuple)
    return [(shape, "float32")]


def _converted(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The fp32 bytes that are converted: what the calibrated rate counts."""
    largest = max((*inputs[:1], *outputs[:1]), key=lambda blob: blob.num_bytes(batch_size) * (blob.dtype == "float32"))
    elements = numel(largest.shape, batch_size)
    return Cost(float(elements), 4.0 * elements)


def _selected(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Three passes over the gradient, and two over the residual where there is one."""
    elements = numel(inputs[0].shape, batch_size)
    return Cost(float(elements), 4.0 * elements * (3 + 2 * (len(inputs) - 1)))


DEFINITIONS = (
    OpDef(
        "QuantizeRows", _quantize, _quantize_infer, _converted, gradient=None, many=True, work="quantize", on_host=True
    ),
    OpDef("DequantizeRows", _dequantize, _dequantize_infer, _converted, gradient=None, work="quantize", on_host=True),
    OpDef("TopK", _top_k, _top_k_infer, _selected, gradient=None, many=True, work="quantize", on_host=True),
    OpDef(
        "TopKWithFeedback",
        _top_k_with_feedback,
        _top_k_infer,
        _selected,
        gradient=None,
        many=True,
        effects=True,
        writes=(1,),
        work="quantize",
        on_host=True,
    ),
    OpDef("SpreadTopK", _spread, _spread_infer, gradient=None, needs_batch=True, on_host=True),
    OpDef("SpreadWhole", _spread_whole, _spread_whole_infer, gradient=None, on_host=True),
)
