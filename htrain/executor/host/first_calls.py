"""What PyTorch's kernels ask the processor when they are first called, asked once, by the process that forks those of roles.

Each vector function (exp, log, tanh, ...) looks for itself what the processor is, and so does MKL. Every role asked again, amid its first steps and in several
threads at once; on a virtual machine, whose hypervisor answers, a trainer has been seen to die there of signal 11. A fork knows what its parent knows.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from htrain.ops import blas

_OF_ONE: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.sigmoid,
    torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh, torch.tanh, torch.atanh,
    torch.erf, torch.erfc, torch.erfinv, torch.lgamma, F.logsigmoid, F.softplus, F.gelu, F.mish, F.silu,
)  # fmt: skip
_OF_TWO: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.pow, torch.atan2, torch.hypot, torch.fmod, torch.logaddexp, torch.mm, F.binary_cross_entropy_with_logits,
)  # fmt: skip


def call_first() -> None:
    """Call each of them once, in a few milliseconds. No thread begins: a process may fork afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a softmax of 8 rows would begin others
    try:
        blas.is_ahead(torch.ones(1, 1), torch.ones(1, 1))  # loads it, where there is one
        for dtype in (torch.float32, torch.float64):
            _call(torch.full((8, 8), 0.5, dtype=dtype))
    finally:
        torch.set_num_threads(threads)


def _call(x: torch.Tensor) -> None:
    for function in _OF_ONE:
        function(x)
    for other in _OF_TWO:
        other(x, x)
    F.gelu(x, approximate="tanh")
    torch.softmax(x, 1)
    torch.softmax(x, 0)
    torch.log_softmax(x, 1)
    torch.logsumexp(x, 0)
    torch.bmm(x[None], x[None])
    F.embedding_bag(torch.zeros(1, 2, dtype=torch.int64), x)
    F.conv1d(x[None], x[:, :, None])
