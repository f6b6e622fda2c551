"""Whether a process that was named still lives."""

import subprocess
import sys
import time

import msgspec
import psutil

from htrain.executor.host.process import this_process


def test_this_process_lives_and_no_other_of_its_number_does() -> None:
    own = this_process()
    assert own.lives
    assert not msgspec.structs.replace(own, began=own.began - 100).lives
    assert msgspec.structs.replace(own, host="far").lives is None
    assert msgspec.structs.replace(own, space="another start").lives is None
    assert msgspec.json.decode(msgspec.json.encode(own), type=type(own)) == own
    assert str(own).startswith(f"process {own.pid} on ")


def test_a_process_that_sleeps_or_is_stopped_lives_and_one_that_nobody_has_reaped_does_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    named = msgspec.structs.replace(this_process(), pid=child.pid, began=psutil.Process(child.pid).create_time())
    assert named.lives
    child.send_signal(19)
    assert named.lives
    child.kill()
    deadline = time.monotonic() + 10
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not named.lives
    child.wait()
    assert not named.lives


def test_a_process_that_settles_looks_no_more_through_what_it_has_loaded() -> None:
    code = (
        "import gc; gc.disable(); import htrain.executor.host.process as process; process.settle();"
        "print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 1000)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "True (700, 10, 10) True\n"


def test_names_of_htrain_are_loaded_without_collections_which_are_then_as_they_were() -> None:
    code = (
        "import gc, htrain; seen = []; gc.callbacks.append(lambda phase, info: seen.append(info['generation']));"
        "seen.clear(); htrain.Cluster; print(len(seen) <= 2, gc.isenabled()); gc.disable(); htrain.Options; print(gc.isenabled())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "True True\nFalse\n"  # one collection, told of twice, once it is over


def test_a_process_whose_parent_died_before_it_could_say_so_ends_with_it() -> None:
    code = """
import os, time
from htrain.executor.host.process import end_with_parent
reading, writing = os.pipe()
parent = os.fork()
if parent == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.001)
        os.write(writing, b"begins ")
        end_with_parent(parent=parent)
        os.write(writing, b"goes on")
    os._exit(0)
os.close(writing)
os.waitpid(parent, 0)
said = b""
while more := os.read(reading, 100):
    said += more
print(said.decode())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "begins \n"
