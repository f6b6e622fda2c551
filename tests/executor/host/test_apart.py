"""A process that writes what this one had in memory when it was begun, whatever this one's threads do."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from htrain.errors import RunError
from htrain.executor.host.apart import Apart


@pytest.fixture
def busy() -> Iterator[None]:
    """Threads that take and give back memory, and write to a stream, all the time: locks that a child would find taken."""
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            np.ones(10_000).sum()
            print(".", file=sys.stderr, end="")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    ends.set()
    for thread in threads:
        thread.join()


def test_it_has_the_memory_of_its_begin_beside_threads_that_go_on(busy: None) -> None:
    values = np.zeros(1 << 16)
    for number in range(12):
        values[:] = number
        apart = Apart(lambda: np.unique(values).tobytes())
        values[:] = -1
        assert np.frombuffer(apart.result()).tolist() == [number]
        assert apart.cpu_seconds > 0


FORKS_OF_THREADS = """
import os, sys, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor
from htrain.executor.host.apart import Apart

forking = set()

def hook(event, _):
    if event == "os.fork" and forking:
        raise RuntimeError("one beside another")

sys.addaudithook(hook)  # as libraries have it
os.register_at_fork(before=lambda: (forking.add(threading.get_ident()), time.sleep(0.005)), after_in_parent=lambda: forking.discard(threading.get_ident()))
filters = list(warnings.filters)
with ThreadPoolExecutor(6) as threads:
    said = list(threads.map(lambda n: Apart(lambda: bytes([n])).result(), range(60)))
assert said == [bytes([n]) for n in range(60)]
assert warnings.filters == filters
forking.add(0)
try:
    Apart(lambda: b"")
except OSError as error:
    print(error.strerror)
"""


def test_threads_begin_theirs_one_after_another_and_what_a_library_refuses_is_told() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS_OF_THREADS], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.returncode) == ("one beside another\n", 0), run.stderr


def test_what_it_says_may_be_long_and_what_it_raises_is_told() -> None:
    assert Apart(lambda: bytes(10_000_000)).result() == bytes(10_000_000)

    def raises() -> bytes:
        raise OSError("the disk is full")

    with pytest.raises(RunError, match=r"^the disk is full$"):
        Apart(raises).result()


def test_one_that_is_ended_leaves_nothing_behind() -> None:
    apart = Apart(lambda: time.sleep(1000) or b"")
    child = psutil.Process(apart.pid)
    threading.Timer(0.1, apart.kill).start()
    with pytest.raises(RunError, match="its process was ended"):
        apart.result()
    assert not child.is_running(), "no zombie either"
    apart.kill()  # nobody is meant


def test_signals_that_are_meant_for_its_parent_do_not_end_it() -> None:
    apart = Apart(lambda: time.sleep(0.3) or b"done")
    time.sleep(0.1)
    child = psutil.Process(apart.pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        child.send_signal(number)
    assert apart.result() == b"done"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_it_holds_no_connection_of_its_parent_open() -> None:
    ours, theirs = socket.socketpair()
    apart = Apart(lambda: time.sleep(5) or b"")
    ours.close()
    theirs.settimeout(3)
    assert theirs.recv(1) == b"", "others hear that the parent has gone"
    theirs.close()
    apart.kill()
    with pytest.raises(RunError):
        apart.result()


PARENT = """
import time
from htrain.executor.host.apart import Apart
Apart(lambda: time.sleep(1000) or b"")
print("begun", flush=True)
time.sleep(1000)
"""


def test_it_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    assert parent.stdout.readline() == "begun\n"
    (child,) = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    assert not psutil.wait_procs([child], timeout=10)[1]


def test_where_the_system_takes_ended_children_it_is_over_all_the_same() -> None:
    """Some that start commands ignore SIGCHLD, and so do these then."""
    ignores = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    script = f"{ignores}; from htrain.executor.host.apart import Apart; print(Apart(lambda: b'said').result())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("b'said'\n", "")


HIGH = """
import fcntl, os, resource, socket
ours, theirs = socket.socketpair()
high = fcntl.fcntl(ours, fcntl.F_DUPFD, 300)
ours.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import time
from htrain.executor.host.apart import Apart
apart = Apart(lambda: time.sleep(30) or b"")
os.close(high)
theirs.settimeout(10)
print(theirs.recv(1))
apart.kill()
"""


def test_it_holds_no_file_open_that_has_a_higher_number_than_the_limit_allows() -> None:
    """A limit that was set later, as by a shell's `ulimit -n`, closes nothing; and one of a billion is not counted through."""
    run = subprocess.run([sys.executable, "-c", HIGH], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("b''\n", "")
