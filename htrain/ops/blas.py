"""Products by numpy's BLAS, where it is ahead of torch's."""

import os
from functools import cache

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_name

_MANY = 128  # rows: with fewer the gradient is made as fast by either, and torch adds it to the weight in the same pass


def numpy_is_ahead(dy: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether `product_over_rows` has something to gain for dy[B,N] and x[B,K]."""
    dtypes, devices = {dy.dtype, x.dtype}, {dy.device.type, x.device.type}
    return len(x) >= _MANY and x.dim() == 2 and dtypes == {torch.float32} and devices == {"cpu"} and torch.get_num_threads() == 1 and _fits_the_cpu()


def product_over_rows(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """dy[B,N].T @ x[B,K], the gradient of a weight[N,K]: a product whose long side is the one that is summed over.

    torch leaves it to MKL, which on AMD's Zen is behind the OpenBLAS of numpy, most where K is odd (docs/decisions/fusions.md).
    """
    dw = torch.empty(dy.shape[1], x.shape[1])
    np.dot(dy.numpy().T, x.numpy(), out=dw.numpy())
    return dw


@cache
def _fits_the_cpu() -> bool:
    """Whether numpy's BLAS has been told to take one thread, as that of roles is, and the CPU is one on which it was found to be ahead."""
    return os.environ.get("OPENBLAS_NUM_THREADS") == "1" and get_host_cpu_name().startswith("znver")
