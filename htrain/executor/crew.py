"""Crews on this machine: roles as threads of this process, or as processes forked from one prepared process.

The nursery imports everything once and then forks a child per role, so that a run of a dozen roles starts in seconds; when its
standard input closes, it ends its children and itself, so that a killed launcher leaves nothing behind.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from htrain.cluster import device_of
from htrain.errors import RunError
from htrain.executor.memory import NO_HEAP_OF_OTHERS
from htrain.executor.play import play, thread_role
from htrain.executor.port import Network
from htrain.executor.settings import RunSettings
from htrain.plan import Plan, load_part
from htrain.printable import one_line


@dataclass(frozen=True)
class Muster:
    """What the nursery is told."""

    roles: list[str]
    settings: RunSettings
    launcher: str


class ThreadCrew:
    """All roles in this process. A thread cannot die by itself: failures come as messages."""

    def __init__(
        self, roles: Sequence[str], plan: Plan, settings: RunSettings, network: Network, launcher: str
    ) -> None:
        self._threads: list[threading.Thread] = [thread_role(role, plan, settings, network, launcher) for role in roles]

    def lost(self) -> str:
        return ""

    def end(self) -> None:
        for thread in self._threads:
            thread.join(timeout=15)


def role_environment(num_threads: int) -> dict[str, str]:
    """That of a process that plays roles: what libraries read when they are loaded. `num_threads` are those of a product."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    return {**os.environ, **threads, "OPENBLAS_NUM_THREADS": "1", **NO_HEAP_OF_OTHERS}


class ProcessCrew:
    """A process per role, forked from a nursery."""

    def __init__(self, roles: Sequence[str], settings: RunSettings, launcher: str, num_threads: int) -> None:
        command = [sys.executable, "-c", "from htrain.executor.crew import nursery; nursery()"]
        self._nursery = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=role_environment(num_threads),
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        self.pids: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        assert self._nursery.stdin
        self._nursery.stdin.write(
            msgspec.json.encode(Muster(list(roles), settings, launcher), enc_hook=str).decode() + "\n"
        )
        self._nursery.stdin.flush()

    def lost(self) -> str:
        self._read()
        for role, status in self._gone.items():
            if status:
                how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
                return (
                    f"{role} (process {self.pids.get(role, 0)}) was {how}"
                    if status < 0
                    else f"{role} (process {self.pids.get(role, 0)}) {how}"
                )
        if self._nursery.poll() is not None:
            return f"the process that starts roles ended with status {self._nursery.returncode}"
        return ""

    def _read(self) -> None:
        out = self._nursery.stdout
        assert out
        while select.select([out], [], [], 0)[0]:
            line = out.readline()
            if not line:
                return
            event = json.loads(line)
            if "pid" in event:
                self.pids[event["role"]] = event["pid"]
            else:
                self._gone[event["role"]] = event["status"]

    def end(self) -> None:
        """Close the nursery's input: it gives its children a moment, then ends them."""
        assert self._nursery.stdin
        assert self._nursery.stdout
        try:
            self._nursery.stdin.close()
            self._nursery.wait(timeout=15)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            os.killpg(self._nursery.pid, signal.SIGKILL)
            self._nursery.wait()
        self._nursery.stdout.close()


def nursery() -> None:
    """Fork a child per role, report how each ends, and end them all when standard input closes."""
    muster = msgspec.json.decode(sys.stdin.readline(), type=Muster, dec_hook=lambda kind, value: kind(value))
    children: dict[int, str] = {}
    for role in muster.roles:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _be(role, muster.settings, muster.launcher)
        children[pid] = role
        _say({"role": role, "pid": pid})
    while children:
        if select.select([sys.stdin], [], [], 0.1)[0] and not sys.stdin.readline():
            _end(children)
            return
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _say({"role": children.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _be(role: str, settings: RunSettings, launcher: str) -> None:
    """The child: play the role, then leave without running the parent's exit handlers."""
    status = 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        network = Network("tcp")
        play(role, load_part(settings.plan_folder, device_of(role)), settings, network, launcher)
        network.close()
    except BaseException as error:
        print(one_line(f"{role}: {type(error).__name__}: {error}"), file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _say(event: dict[str, object]) -> None:
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError as error:
        raise RunError("the launcher is gone") from error


def _end(children: dict[int, str]) -> None:
    """Wait up to three seconds for children that are on their way out; end the others."""
    for _ in range(30):
        for pid in list(children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[pid]
        if not children:
            return
        select.select([], [], [], 0.1)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
