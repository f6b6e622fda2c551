"""Processes for six roles: seconds until all live, and the memory of one.

    python tools/bench/role_processes.py [--runs 5]

By multiprocessing's forkserver with the same modules loaded before, by htrain's supervisor as `htrain.run` starts it, and as `htrain run` forks it; the last
includes loading the launcher itself. Roles sleep. Memory is PSS: pages that are shared count in parts.
"""

import argparse
import statistics
import subprocess
import sys
from tempfile import NamedTemporaryFile

NUM_ROLES = 6
BEGIN = """
import os, sys, time
began = time.perf_counter()
import psutil
from htrain.executor.launch.environment import role_environment

def sleep(connection):
    connection.send_bytes(b"")
    time.sleep(60)

def told(roles):
    seconds = time.perf_counter() - began
    memory = [psutil.Process(pid).memory_full_info().pss / 2**20 for pid in roles]
    print(seconds, sum(memory) / len(memory), flush=True)
    for each in psutil.Process().children(recursive=True):
        each.kill()
    os._exit(0)
"""
FORKSERVER = """
import multiprocessing
if __name__ == "__main__":
    os.environ.update(role_environment(1))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["htrain.executor.launch.supervisor"])
    ours, theirs = context.Pipe()
    roles = [context.Process(target=sleep, args=(theirs,)) for _ in range({num_roles})]
    for role in roles:
        role.start()
    for _ in roles:
        ours.recv_bytes()
    told([role.pid for role in roles])
"""
SUPERVISOR = """
os.environ.update(role_environment(1))
import htrain.executor.launch.supervisor as module
CHANGED = '''
import time
import htrain.executor.launch.supervisor as module
module.load_part, module.play_all = (lambda *_: None), (lambda *_, **left: time.sleep(60))
'''
module.python_command = lambda imports, call: [sys.executable, "-c", CHANGED + "module." + call]
module.load_part, module.play_all = (lambda *_: None), (lambda *_, **left: time.sleep(60))
from pathlib import Path
from htrain.executor.host.process import this_process
from htrain.executor.launch.pool import RoleProcesses, Supervisors
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
{how}
names = [f"trainer:{{n}}:0" for n in range({num_roles})]
pool = RoleProcesses([[name] for name in names], RunSettings(Path(), "", Path()), Launcher("", this_process()), Supervisors(num_threads=1))
while not all(pool.lives(name) for name in names):
    time.sleep(0.001)
told(pool.pids.values())
"""
WAYS = {
    "forkserver": FORKSERVER,
    "supervisor, a new Python": SUPERVISOR.replace("{how}", "began = time.perf_counter()"),
    "supervisor, forked": SUPERVISOR.replace("{how}", "module.fork_supervisor()"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way, program in WAYS.items():
            found[way].append(measured(program.format(num_roles=NUM_ROLES)))
    for way, rows in found.items():
        seconds, memory = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{way:<26}{seconds:6.2f} s  {memory:6.1f} MiB a role (n={runs})")


def measured(program: str) -> list[float]:
    """Seconds and MiB, in a process of its own: the forkserver reads its main module from a file."""
    with NamedTemporaryFile("w", suffix=".py") as file:
        file.write(BEGIN + program)
        file.flush()
        done = subprocess.run([sys.executable, file.name], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


if __name__ == "__main__":
    main()
