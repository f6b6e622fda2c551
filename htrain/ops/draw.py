"""Random numbers of a forward pass that can be drawn again: a hash of the seed, the batch and their places, as what a dropout drops is.

    x = NormalDraw(batch_key[1])      float32 numbers of `mean` and `std`, in `shape`, where -k stands for k * B
    x = UniformDraw(batch_key[1])     float32 numbers in [low, high)

In evaluation what is `always` drawn is drawn, too, the same for every batch. What is not is noise that a module adds while it trains: there it is the mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from htrain.net.net import BatchDim, Blob, Op
from htrain.ops.base import Cost, OpDef, Signature
from htrain.ops.row_init import Rows, fill_normal, fill_uniform

_KEYS = (1 << 62) - 1


def _normal(
    *batch_key: torch.Tensor, shape: tuple[int, ...], mean: float, std: float, seed: int, always: bool, batch: int
) -> torch.Tensor:
    return _drawn(batch_key, shape, batch, lambda out, key: fill_normal(out, seed, key, mean, std))


def _uniform(
    *batch_key: torch.Tensor, shape: tuple[int, ...], low: float, high: float, seed: int, always: bool, batch: int
) -> torch.Tensor:
    return _drawn(batch_key, shape, batch, lambda out, key: fill_uniform(out, seed, key, low, high))


def _drawn(
    batch_key: tuple[torch.Tensor, ...], shape: tuple[int, ...], batch: int, fill: Callable[[Rows, int], None]
) -> torch.Tensor:
    """Without a key, what is drawn of every batch alike."""
    sizes = [-d * batch if d < 0 else d for d in shape]
    out = np.empty((1, int(np.prod(sizes))), np.float32)
    fill(out, int(batch_key[0]) & _KEYS if batch_key else 0)
    drawn = torch.from_numpy(out).view(sizes)
    return drawn.to(batch_key[0].device) if batch_key else drawn


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    shape = op.attrs["shape"]
    assert isinstance(shape, tuple)
    return [(tuple(BatchDim(-int(d)) if int(d) < 0 else int(d) for d in shape), "float32")]


def _in_evaluation(op: Op) -> Op:
    if op.attrs["always"]:
        return replace(op, inputs=())
    if op.type == "NormalDraw":
        return all_alike(op, 0.0)
    return all_alike(op, 0.5)


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A hash for a number, a logarithm, a root and a cosine: some forty operations."""
    written = outputs[0].num_bytes(batch_size)
    return Cost(40.0 * written / 4, float(written))


DEFINITIONS = (
    OpDef("NormalDraw", _normal, _infer, _cost, None, needs_batch=True, in_evaluation=_in_evaluation),
    OpDef("UniformDraw", _uniform, _infer, _cost, None, needs_batch=True, in_evaluation=_in_evaluation),
)
DRAWS = tuple(definition.type for definition in DEFINITIONS)


def is_draw(op: Op) -> bool:
    """Whether an op draws random numbers that a module asks for."""
    return op.type in DRAWS


def is_noise(op: Op) -> bool:
    """Whether an op draws random numbers that evaluation leaves out."""
    return op.type in DRAWS and not op.attrs["always"]


def all_alike(op: Op, share: float) -> Op:
    """The op that gives, in the place of what `op` draws, so many deviations above the mean, or so large a share of the range above its lowest number."""
    low, width = (op.attrs[name] for name in (("mean", "std") if op.type == "NormalDraw" else ("low", "high")))
    assert isinstance(low, float)
    assert isinstance(width, float)
    value = low + share * (width if op.type == "NormalDraw" else width - low)
    return replace(op, type="Fill", inputs=(), attrs={"shape": op.attrs["shape"], "value": value, "dtype": "float32"})
