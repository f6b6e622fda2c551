"""A thread that computes takes no more cores than the process was given, and several may begin at once in a fork: seen in processes of their own."""

import os
import subprocess
import sys

import pytest

from htrain.executor.host.threads import share_gil

SCRIPT = """
import ctypes, os, threading
import torch
from htrain.executor.host.threads import begin_thread

libraries = {line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "iomp" in line}
openmp = ctypes.CDLL(min(libraries)) if libraries else None

def look():
    begin_thread()
    print(torch.is_grad_enabled(), openmp.omp_get_max_threads() if openmp else os.cpu_count() + 1)

torch.set_num_threads(os.cpu_count() + 1)
thread = threading.Thread(target=look)
thread.start()
thread.join()
"""

# Where nothing is made anew beforehand, 2 to 9 of 100 such processes died, with tensors or graphs of torch alone.
FORKS = """
import os, sys, threading
import torch
from htrain.executor.host.threads import begin_thread
from htrain.ops import OPS

NUM_THREADS = 12
gradient = OPS["LogSigmoidGradient"].kernel
x, dy, of = torch.ones(3), torch.ones(3), dict(num_inputs=1, wrt=(0,), given=(0,))
gradient(x, dy, **of)  # imports what torch imports with the first
sys.setswitchinterval(1e-5)

def compute(together):
    begin_thread()
    together.wait()
    gradient(x, dy, **of)

def died():
    pid = os.fork()
    if pid == 0:
        together = threading.Barrier(NUM_THREADS)
        threads = [threading.Thread(target=compute, args=(together,)) for _ in range(NUM_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    return os.waitpid(pid, 0)[1] != 0

print(sum(died() for _ in range(120)))
"""


def test_a_thread_knows_the_number_of_threads_of_its_process() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", str((os.cpu_count() or 1) + 1)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_threads_of_a_forked_process_may_compute_their_first_gradients_at_once() -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["0"]


@pytest.mark.parametrize(("replicas", "microseconds"), [(1, 5000), (2, 10), (18, 10)])
def test_only_several_replicas_ask_for_the_gil_sooner(replicas: int, microseconds: int) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        share_gil(replicas)
        assert round(sys.getswitchinterval() * 1e6) == microseconds
    finally:
        sys.setswitchinterval(before)
