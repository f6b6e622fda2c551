"""A thread that computes takes no more cores than the process was given, and several may begin at once in a fork: seen in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

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
FORKS = Path(__file__).parents[3] / "tools" / "forked_gradients.py"


def test_a_thread_knows_the_number_of_threads_of_its_process() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", str((os.cpu_count() or 1) + 1)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_threads_of_a_forked_process_may_compute_their_first_gradients_at_once() -> None:
    words = [sys.executable, "-W", "ignore", str(FORKS), "--forks", "120"]
    run = subprocess.run(words, check=True, capture_output=True, text=True)
    assert (
        run.stdout
        == "of 120 processes with 12 threads each, that make torch's engine one at a time, 0 were killed, and in 0 torch failed\n"
    )


@pytest.mark.parametrize(("replicas", "microseconds"), [(1, 5000), (2, 10), (18, 10)])
def test_only_several_replicas_ask_for_the_gil_sooner(replicas: int, microseconds: int) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        share_gil(replicas)
        assert round(sys.getswitchinterval() * 1e6) == microseconds
    finally:
        sys.setswitchinterval(before)
