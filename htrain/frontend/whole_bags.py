"""Embedding bags as one op while a model is captured, of which torch's own export makes a loop, and embeddings with a bound."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps

import torch
from torch.nn import functional as F

from htrain.errors import ModelError


@cache
def _library() -> torch.library.Library:
    """The op that stands for F.embedding_bag while a model is captured; torch's own exports to a loop."""
    library = torch.library.Library("htrain", "DEF")
    library.define(
        "embedding_bag(Tensor weight, Tensor ids, Tensor? offsets, Tensor? weights, str mode, int padding_idx, bool closed) -> Tensor"
    )

    def shape(
        weight: torch.Tensor,
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        mode: str,
        padding_idx: int,
        closed: bool,
    ) -> torch.Tensor:
        bags = ids.shape[0] if offsets is None else offsets.shape[0] - closed
        return weight.new_empty(bags, weight.shape[1])

    library.define("bounded_rows(Tensor rows, float max_norm) -> Tensor")
    for key in ("Meta", "CPU"):
        library.impl("bounded_rows", lambda rows, max_norm: torch.empty_like(rows), key)
    library.impl("embedding_bag", shape, "Meta")
    library.impl("embedding_bag", shape, "CPU")
    return library


def _check_bag(mode: str, *, by_offsets: bool, scale_grad_by_freq: bool) -> None:
    if scale_grad_by_freq:
        raise ModelError("an EmbeddingBag with scale_grad_by_freq cannot be compiled: build it without")
    if mode == "max" and by_offsets:
        raise ModelError(
            "an EmbeddingBag with mode='max' over lists by offsets cannot be compiled: give it ids[B,W], filled up with its padding_idx"
        )


def _bounded_bag(weight: torch.Tensor, ids: torch.Tensor, mode: str, max_norm: float, norm_type: float) -> torch.Tensor:
    """The sum, mean or maximum of the bounded rows of ids[B,W]."""
    rows = F.embedding(ids, weight, max_norm=max_norm, norm_type=norm_type)
    return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.max(1).values


def _largest_of_bag(weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
    """The maximum of the rows of ids[B,W] but for those of padding; zeros where there is no other."""
    rows = F.embedding(ids, weight, padding_idx)
    if padding_idx is None:
        return rows.max(1).values
    empty = (ids == padding_idx % weight.shape[0])[:, :, None]
    largest = rows.masked_fill(empty, -torch.inf).max(1).values
    return largest.masked_fill(empty.all(1), 0.0)


@contextmanager
def whole_bags() -> Iterator[None]:
    """Within, F.embedding_bag is captured as one op, and the bounds of F.embedding as one behind it."""
    original, original_rows = F.embedding_bag, F.embedding
    _library()

    @wraps(original_rows)
    def bounded(
        input: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        rows = original_rows(input, weight, padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
        if max_norm is None:
            return rows
        if norm_type != 2:
            raise ModelError(
                f"an embedding with max_norm and norm_type={norm_type:g} cannot be compiled: htrain knows norm_type=2"
            )
        return torch.ops.htrain.bounded_rows(rows, max_norm)

    @wraps(original)
    def whole(
        input: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        _check_bag(mode, by_offsets=offsets is not None, scale_grad_by_freq=scale_grad_by_freq)
        if max_norm is not None:
            if offsets is not None or per_sample_weights is not None or padding_idx is not None:
                raise ModelError(
                    "an EmbeddingBag with max_norm and offsets, weights or padding_idx cannot be compiled: look rows up by an Embedding with max_norm"
                )
            return _bounded_bag(weight, input, mode, max_norm, norm_type)
        if mode == "max":
            return _largest_of_bag(weight, input, padding_idx)
        if (
            include_last_offset and offsets is not None
        ):  # one bag fewer than starts, which torch.export takes for another batch size
            raise ModelError(
                "an EmbeddingBag with include_last_offset=True cannot be compiled: a bag input has where each list starts, and no end: build it without"
            )
        padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
        return torch.ops.htrain.embedding_bag(
            weight, input, offsets, per_sample_weights, mode, padding, include_last_offset
        )

    F.embedding_bag, F.embedding = whole, bounded
    try:
        yield
    finally:
        F.embedding_bag, F.embedding = original, original_rows
