"""Run every sample of an op, and its gradient, in a process that may not ask what the processor is: the kernel ends it where it does.

`python without_cpuid.py` prints `cannot forbid` where the system has no such way, `asks` where kernels that nobody has called before ask, and then each op
before it is run behind `call_first`, and `done` behind the last.
"""

import ctypes
import os
import resource
import sys
from contextlib import suppress
from functools import cache

import llvmlite.binding
import torch
from op_samples import SAMPLES
from sample import Sample
from test_ops import evaluate, forward, inputs_of, shape_at, whole_net

from htrain.executor.host.first_calls import call_first

_ARCH_PRCTL, _SET_CPUID = 158, 0x1012  # of Linux on x86-64
EXAMPLES = 16


def know_for_numba() -> None:
    """Numba asks whenever it looks for a loop in its cache. That is not about kernels."""
    for name in ("get_host_cpu_name", "get_host_cpu_features"):
        setattr(llvmlite.binding, name, cache(getattr(llvmlite.binding, name)))
        getattr(llvmlite.binding, name)()


def forbid() -> bool:
    """Forbid it, for the rest of this process; whether the system does so."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SET_CPUID, 0) == 0


def run(sample: Sample) -> None:
    """The op, and its gradient where ones do as the gradient of its outputs."""
    drawn = {f"x{i}": x for i, x in enumerate(inputs_of(sample, EXAMPLES))}
    evaluate(forward(sample).build(()), drawn, EXAMPLES)
    with suppress(Exception):
        net = whole_net(sample)
        blobs = (net.blob(name) for name in net.inputs)
        ones = {b.name: torch.ones(shape_at(b.shape, EXAMPLES), dtype=getattr(torch, b.dtype)) for b in blobs}
        evaluate(net, ones | drawn, EXAMPLES)


def died(*, forbidden: bool) -> bool:
    """Whether a process dies of the first call of a kernel."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # that is no crash to look into
        if not forbidden or forbid():
            torch.full((8,), 0.5).log()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    if not died(forbidden=True):
        print("cannot forbid")
        sys.exit(0)
    if not died(forbidden=False):
        print("asks", flush=True)
    call_first()
    whole_net(next(sample for sample in SAMPLES if sample.type == "Neg"))  # imports what traces gradients
    know_for_numba()
    forbid()
    for sample in SAMPLES:
        print(sample.type, flush=True)
        run(sample)
    print("done")
