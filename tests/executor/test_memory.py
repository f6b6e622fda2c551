"""Freed memory is kept: seen in the page faults of a process of its own."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, threading
import torch
from htrain.executor.memory import keep_pages

if sys.argv[1] == "keep":
    assert keep_pages()

def step():
    values = [torch.ones(3 << 20) for _ in range(24)]  # 12 MiB each

def steps():
    for _ in range(5):
        step()  # the heap grows to what a step wants
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=steps)
thread.start()
thread.join()
"""


def faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc alone")
def test_what_a_step_has_freed_is_the_next_steps() -> None:
    assert faults("give back") > 1000
    assert faults("keep") < 100
