"""A thread that computes takes no more cores than the process was given: seen in a process of its own."""

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


def test_a_thread_knows_the_number_of_threads_of_its_process() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", str((os.cpu_count() or 1) + 1)]


@pytest.mark.parametrize(("replicas", "microseconds"), [(1, 5000), (2, 10), (18, 10)])
def test_only_several_replicas_ask_for_the_gil_sooner(replicas: int, microseconds: int) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        share_gil(replicas)
        assert round(sys.getswitchinterval() * 1e6) == microseconds
    finally:
        sys.setswitchinterval(before)
