"""Freed memory is kept: seen in the page faults of a process of its own. Tables lie in large pages: seen in what the system says of them."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from htrain.executor.host.memory import empty, rejoin_pages
from htrain.executor.launch.environment import role_environment

# Which of a thread's empty heaps go back to the system depends on how glibc happens to lay them out: on CPython 3.13 none did. So the process
# first asks for what glibc begins with, a mapping of its own for every large value, which goes back when the value does.
SCRIPT = """
import ctypes, resource, sys, threading
import torch
from htrain.executor.host.memory import heaps_for, keep_large, keep_pages

how, mib, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
assert ctypes.CDLL(None).mallopt(-3, 128 << 10)
if how != "give back":
    assert keep_pages(heaps_for(threads, mib << 20))
if how == "keep all":
    assert keep_large(mib << 20) == (mib > 32)

def value():
    made = torch.empty(mib << 18)
    made[:: 1 << 14] = 1  # a page of each 64 KiB: what it takes of the machine is little
    return made

def step():
    values = [value() for _ in range(6)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def steps():
    for _ in range(20):  # the heap grows to what a step wants: at most a place for each value, and what small things have taken a few bytes of
        before = faults()
        for _ in range(10):
            step()
        if faults() - before < 100:
            break
    print(faults() - before)

meanwhile, done = threading.Event(), threading.Event()
other = threading.Thread(target=lambda: (torch.ones(1 << 16), meanwhile.set(), done.wait()))
if threads == 2:
    other.start()  # has the first heap, and a second thread the next, if there is one
    meanwhile.wait()
thread = threading.Thread(target=steps)
thread.start()
thread.join()
done.set()
"""


def faults(how: str, mib: int, threads: int = 1) -> int:
    command = [sys.executable, "-c", SCRIPT, how, str(mib), str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc alone")
def test_what_a_step_has_freed_is_the_next_steps() -> None:
    assert faults("give back", 12) > 1000
    assert faults("keep", 12) < 100


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc alone")
@pytest.mark.parametrize("mib", [12, 48, 80, 400])  # a thread's heap of glibc's ends at 64 MiB, and an int at 2 GiB
def test_so_is_what_exceeds_what_glibc_keeps_by_itself(mib: int) -> None:
    assert mib != 48 or faults("keep", mib) > 1000
    assert faults("keep all", mib) < 100


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc alone")
@pytest.mark.parametrize("mib", [12, 48, 80])
def test_so_it_is_in_each_of_two_threads(mib: int) -> None:
    assert faults("keep all", mib, threads=2) < 100


HEAPS = """
import ctypes, os, sys, threading
import htrain.executor.launch.supervisor
import torch
from htrain.executor.host.memory import keep_pages

keep_pages(int(sys.argv[1]))
threads = [threading.Thread(target=lambda: torch.ones(1 << 16)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
c = ctypes.CDLL(None)
c.fdopen.restype = ctypes.c_void_p
c.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
c.malloc_info(0, c.fdopen(os.dup(1), b"w"))
c.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it asks glibc")
@pytest.mark.parametrize("heaps", [1, 2])
def test_a_role_has_as_many_heaps_as_it_asks_for_whatever_threads_its_libraries_have_started(heaps: int) -> None:
    command = [sys.executable, "-c", HEAPS, str(heaps)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=role_environment(1)).stdout
    assert told.count("<heap nr=") == heaps


@pytest.mark.parametrize("shape", [(0, 4), (), (3, 5), (1 << 20,), (70_001, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_memory_is_of_the_form_that_was_asked_for(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = [empty(shape, dtype) for _ in range(3)]
    for number, memory in enumerate(made):
        assert (memory.shape, memory.dtype, memory.is_contiguous()) == (shape, dtype, True)
        memory.fill_(number)
    assert all((memory == number).all() for number, memory in enumerate(made)), "each has memory of its own"


def test_rows_begin_at_lines_of_the_cache_and_tables_at_different_ones() -> None:
    begins = [memory.data_ptr() for memory in (empty((100_000, 16), torch.float32) for _ in range(16))]
    assert not any(begin % 64 for begin in begins)
    assert len({begin % (128 << 10) for begin in begins}) == 16, (
        "else the first rows, used most, would all want the same places of a cache"
    )


PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not PAGES.exists() or "[never]" in PAGES.read_text(), reason="this system has no large pages")
def test_large_tables_lie_in_large_pages() -> None:
    script = """
import torch
from htrain.executor.host.memory import empty, rejoin_pages
table = empty((1 << 20, 16), torch.float32).fill_(1)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")) * 1024 / table.nbytes)
"""
    share = float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)
    assert share > 0.5  # all but its ends, where the machine has whole large pages left


def large_pages(tensor: torch.Tensor) -> int:
    """KiB of large pages in this process's memory where a tensor lies."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = line.split(" ")[0].split("-")
        if len(bounds) == 2 and not line.startswith("VmFlags"):
            inside = int(bounds[0], 16) <= tensor.data_ptr() < int(bounds[1], 16)
        elif inside and line.startswith("AnonHugePages"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are Linux's")
def test_pages_that_a_fork_has_broken_up_are_large_again() -> None:
    table = empty((1 << 20, 16), torch.float32)
    table.fill_(1)
    before = large_pages(table)
    if before < 32 << 10 or tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("a system without large pages, or that cannot make them again")
    until, ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ends)
        os.read(until, 1)  # the parent has written
        os._exit(0)
    table[::1024] = 2
    os.close(ends)
    os.waitpid(pid, 0)
    os.close(until)
    broken = before - (table.nbytes >> 10) + 8192  # the system may have joined other memory to the table's
    assert large_pages(table) <= broken
    rejoin_pages([table], lambda: True)
    assert large_pages(table) <= broken, "it was told that it is enough"
    rejoin_pages([torch.ones(4), table], lambda: False)
    assert large_pages(table) >= before - 4096
    assert (table[::1024] == 2).all()
    assert (table[1::1024] == 1).all()
