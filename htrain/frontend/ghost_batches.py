"""Ghost batch normalization while a model is captured: a batch cut into chunks, each normalized by itself, and joined.

As TabNet has it: `torch.cat([self.norm(chunk) for chunk in x.chunk(math.ceil(len(x) / 128))])`. A larger batch has more chunks. Whoever goes through
them gets two, which stand for all: what is made of the one must be what is made of the other. They become one op, which is told how many examples a
chunk has (`htrain.ops.batch_norm`).
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

import torch
from torch.nn import functional as F

from htrain.errors import ModelError

_KNOWN = (
    "forward() cuts a batch into chunks, of which there are more in a larger batch: htrain knows batch norms of these, one for all, joined again by "
    "torch.cat(chunks, dim=0)"
)
_SEVERAL = 2  # chunks that stand for all


@cache
def _library() -> torch.library.Library:
    """The op that stands for a batch norm of each chunk of `size` examples."""
    library = torch.library.Library("htrain", "FRAGMENT")
    library.define(
        "ghost_batch_norm(Tensor x, Tensor? scale, Tensor? bias, Tensor? mean, Tensor? variance, SymInt size, float momentum, float eps) -> Tensor"
    )
    for key in ("Meta", "CPU"):
        library.impl("ghost_batch_norm", lambda x, *_: torch.empty_like(x), key)
    return library


class Chunks:
    """A batch in chunks of `size` examples each, the last one perhaps of fewer."""

    def __init__(self, x: torch.Tensor, size: Any) -> None:
        self.x, self.size = x, size
        self.normalized: dict[tuple[Any, ...], tuple[tuple[Any, ...], torch.Tensor]] = {}

    def __iter__(self) -> Iterator["_Chunk"]:
        return iter([_Chunk(self, place, self.x) for place in range(_SEVERAL)])

    def _refuse(self, *args: Any) -> NoReturn:
        raise ModelError(_KNOWN)

    __getitem__ = __len__ = __bool__ = _refuse


class _Chunk:
    """One chunk; `whole` are all of them, as they are by now."""

    def __init__(self, chunks: Chunks, place: int, whole: torch.Tensor) -> None:
        self.chunks, self.place, self.whole = chunks, place, whole

    def dim(self) -> int:
        """The rank, for which batch norms ask."""
        return self.whole.dim()

    def _refuse(self, *args: Any, **given: Any) -> NoReturn:
        raise ModelError(_KNOWN)

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __neg__ = __pow__ = (
        _refuse
    )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is F.batch_norm:
            return _normalized(*args, **given)
        if func in (torch.cat, torch.concat, torch.concatenate):
            return _joined(*args, **given)
        raise ModelError(_KNOWN)


def _normalized(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> _Chunk:  # fmt: skip
    """A chunk after a batch norm. Without `training` each example is normalized by itself, and chunks do not matter."""
    if not isinstance(input, _Chunk):
        raise ModelError(_KNOWN)
    tensors = (input.whole, running_mean, running_var, weight, bias)
    key = (*map(id, tensors), training, momentum, eps)
    known = input.chunks.normalized
    if key not in known:
        if training:
            _library()
            made = torch.ops.htrain.ghost_batch_norm(
                input.whole,
                scale=weight,
                bias=bias,
                mean=running_mean,
                variance=running_var,
                size=input.chunks.size,
                momentum=momentum,
                eps=eps,
            )
        else:
            made = F.batch_norm(input.whole, running_mean, running_var, weight, bias, momentum=momentum, eps=eps)
        known[key] = (tensors, made)
    return _Chunk(input.chunks, input.place, known[key][1])


def _joined(tensors: Any, dim: int = 0, **given: Any) -> torch.Tensor:
    """What is made of all chunks, in their order. Raises ModelError for anything else that is joined with them."""
    parts = list(tensors)
    first = parts[0]
    if dim or given or len(parts) != _SEVERAL or not all(isinstance(part, _Chunk) for part in parts):
        raise ModelError(_KNOWN)
    if any(p.chunks is not first.chunks or p.whole is not first.whole or p.place != i for i, p in enumerate(parts)):
        raise ModelError(_KNOWN)
    return first.whole


def chunks_of(x: torch.Tensor, *, count: Any = None, size: Any = None) -> Chunks:
    """A batch cut as torch.chunk does it into `count` parts, or as torch.split does it into parts of `size`."""
    if size is None:
        count = torch.sym_max(count, 1) if isinstance(count, torch.SymInt) else count
        size = (x.shape[0] + count - 1) // count
    return Chunks(x, size)
