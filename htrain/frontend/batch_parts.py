"""Calls whose code in torch asks how large a batch is, while a model is captured: made in a way that need not know it."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from htrain.errors import ModelError
from htrain.frontend.ghost_batches import Chunks, chunks_of

_CHUNKS = frozenset({torch.chunk, torch.Tensor.chunk})
_SPLITS = frozenset({torch.split, torch.Tensor.split})


class BatchParts(TorchFunctionMode):
    """Within, batches that were joined are cut into slices, and distances are computed in one way for any number of rows.

    Raises ModelError for torch.pdist of a batch, whose pairs are no multiple of it.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _CHUNKS or func in _SPLITS:
            found = _sizes(func, *args, **given)
            if found is not None:
                return _slices(args[0], *found)
            if (chunks := _chunks(func, *args, **given)) is not None:
                return chunks
        if func is torch.cdist and _has_batch(*args[:2]):
            given = {**given, "compute_mode": "donot_use_mm_for_euclid_dist"}  # else more than 25 rows are another op
        if func in (torch.pdist, torch.nn.functional.pdist) and _has_batch(args[0]):
            raise ModelError(
                "forward() calls torch.pdist() of a batch, whose pairs no net has a shape for: take torch.cdist(x, x), and each pair twice"
            )
        return func(*args, **given)


def _sizes(func: Any, x: Any, parts: Any = None, dim: int = 0, **given: Any) -> tuple[Sequence[Any], int] | None:
    """The sizes that a batch is cut into, and the dimension; None where that is not the batch, or they are not whole parts."""
    dim = given.get("dim", dim)
    size = x.shape[dim] if isinstance(x, torch.Tensor) and x.dim() else 0
    if not isinstance(size, torch.SymInt):
        return None
    parts = next((given[name] for name in ("chunks", "split_size_or_sections", "split_size") if name in given), parts)
    if isinstance(parts, list | tuple):
        return list(parts), dim
    count = (
        parts if func in _CHUNKS else (size.node.expr / (parts.node.expr if isinstance(parts, torch.SymInt) else parts))
    )
    each = size.node.expr / count
    if not getattr(count, "is_Integer", isinstance(count, int)) or not each.is_polynomial():
        return None
    whole = int(count)
    return ([size // whole] * whole, dim) if _divides(size, whole) else None


def _chunks(func: Any, x: Any, parts: Any = None, dim: int = 0, **given: Any) -> Chunks | None:
    """A batch in chunks of which a larger one has more, or that are larger there and of unlike sizes; None for what is cut otherwise."""
    parts = next((given[name] for name in ("chunks", "split_size_or_sections", "split_size") if name in given), parts)
    whole = isinstance(parts, int | torch.SymInt) and not isinstance(parts, bool)
    if given.get("dim", dim) or not isinstance(x, torch.Tensor) or not x.dim() or not whole:
        return None
    if not isinstance(x.shape[0], torch.SymInt):
        return None
    if func in _SPLITS and isinstance(parts, torch.SymInt) and (x.shape[0].node.expr / parts.node.expr).is_number:
        return None  # as many for any batch
    return chunks_of(x, count=parts) if func in _CHUNKS else chunks_of(x, size=parts)


def _divides(size: torch.SymInt, count: int) -> bool:
    """Whether a size is a multiple of `count` for any batch."""
    return bool((size.node.expr / count).as_coeff_Mul()[0].is_Integer)


def _slices(x: torch.Tensor, sizes: Sequence[Any], dim: int) -> tuple[torch.Tensor, ...]:
    ends = list(accumulate(sizes))
    return tuple(
        x[(slice(None),) * (dim % x.dim()) + (slice(end - size, end),)] for size, end in zip(sizes, ends, strict=True)
    )


def _has_batch(*tensors: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for x in tensors if isinstance(x, torch.Tensor) for size in x.shape)
