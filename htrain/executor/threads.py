"""Threads that compute."""

import torch


def begin_thread() -> None:
    """What every thread that runs kernels says first: no gradients of torch's own, and no more threads below it than the process was given.

    torch hands that number to a thread only when one of its own loops runs there; until then, products by oneDNN take all cores.
    """
    torch.set_grad_enabled(False)
    torch.set_num_threads(torch.get_num_threads())
