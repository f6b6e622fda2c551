"""One thread, as a role has it, for benchmarks whose kernels run in the benchmark's own process."""

import os
import sys

import torch


def take_one_thread() -> None:
    """Begin anew where numpy's BLAS has not been told so: it reads that once, when it is loaded."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    torch.set_num_threads(1)
