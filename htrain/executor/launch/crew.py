"""Crews on this machine: roles as threads of this process, or as processes forked from one prepared process.

The nursery imports everything once and then forks a child per role, so that a run of a dozen roles starts in seconds; when its
standard input closes, it ends its children and itself, so that a killed launcher leaves nothing behind. Where both are killed, roles notice by themselves
(htrain.executor.launch.pulse).
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

import msgspec

from htrain.errors import Error, RunError
from htrain.executor.host.memory import NO_HEAP_OF_OTHERS
from htrain.executor.launch.play import play, thread_role
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Network
from htrain.own.registry import load_own
from htrain.plan.plan import Plan, load_part
from htrain.printable import one_line
from htrain.spec.cluster import device_of

_LAST_SECONDS = 15.0  # for all to end that have been told to
_MOMENT_SECONDS = 3.0  # for roles whose nursery is gone


@dataclass(frozen=True)
class Muster:
    """What the nursery is told."""

    roles: list[str]
    settings: RunSettings
    launcher: Launcher


class ThreadCrew:
    """All roles in this process. A thread cannot die by itself: failures come as messages."""

    def __init__(
        self, roles: Sequence[str], plan: Plan, settings: RunSettings, network: Network, launcher: Launcher
    ) -> None:
        self._threads: list[threading.Thread] = [thread_role(role, plan, settings, network, launcher) for role in roles]

    def lost(self) -> str:
        return ""

    def lives(self, role: str) -> bool:
        return any(thread.name == role and thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """A thread cannot be killed: those that hang go with the process."""


def role_environment(num_threads: int) -> dict[str, str]:
    """That of a process that plays roles: what libraries read when they are loaded. `num_threads` are those of a product."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    return {**os.environ, **threads, "OPENBLAS_NUM_THREADS": "1", **NO_HEAP_OF_OTHERS}


class ProcessCrew:
    """A process per role, forked from a nursery."""

    def __init__(self, roles: Sequence[str], settings: RunSettings, launcher: Launcher, num_threads: int) -> None:
        command = [sys.executable, "-c", "from htrain.executor.launch.crew import nursery; nursery()"]
        self._nursery = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=role_environment(num_threads),
            start_new_session=True,
        )
        self.pids: dict[str, int] = {}
        self._begun = b""  # a line of the nursery's that has not come whole
        self._gone: dict[str, int] = {}
        assert self._nursery.stdin
        self._nursery.stdin.write(msgspec.json.encode(Muster(list(roles), settings, launcher), enc_hook=str) + b"\n")
        self._nursery.stdin.flush()

    def lost(self) -> str:
        self._read()
        for role, status in self._gone.items():
            if status:
                return f"{role} (process {self.pids.get(role, 0)}) {_how(status)}"
        if self._nursery.poll() is not None:
            return f"the process that starts roles (process {self._nursery.pid}) {_how(self._nursery.returncode)}"
        return ""

    def lives(self, role: str) -> bool:
        """Whether a role's process has started, and not ended as far as is known."""
        self._read()
        return role in self.pids and role not in self._gone and self._nursery.poll() is None

    def _read(self) -> None:
        """Take the lines that have come. Bytes, since a file object may hold lines that `select` knows nothing of."""
        out = self._nursery.stdout
        assert out
        while not out.closed and select.select([out], [], [], 0)[0]:
            read = os.read(out.fileno(), 1 << 16)
            if not read:
                return
            *lines, self._begun = (self._begun + read).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if "pid" in event:
                    self.pids[event["role"]] = event["pid"]
                else:
                    self._gone[event["role"]] = event["status"]

    def end(self) -> None:
        """Close the nursery's input: it gives its children a moment, then ends them. Where it is gone itself, they have the same moment here."""
        assert self._nursery.stdin
        with suppress(BrokenPipeError):
            self._nursery.stdin.close()
        deadline = time.monotonic() + (_LAST_SECONDS if self._nursery.poll() is None else _MOMENT_SECONDS)
        while time.monotonic() < deadline and self._group_lives():
            time.sleep(0.02)
        self.kill()
        assert self._nursery.stdout
        self._nursery.stdout.close()

    def kill(self) -> None:
        """End all at once."""
        if self._group_lives():
            with suppress(ProcessLookupError):
                os.killpg(self._nursery.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._nursery.wait(timeout=_LAST_SECONDS)

    def _group_lives(self) -> bool:
        """Whether any process of the run is left; the nursery, reaped as soon as it ends, leads their group."""
        self._nursery.poll()
        try:
            os.killpg(self._nursery.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def nursery() -> None:
    """Fork a child per role, report how each ends, and end them all when standard input closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the launcher to decide
        signal.signal(number, signal.SIG_IGN)
    launcher = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library, or the user's own code, prints is no line for the launcher
    muster = msgspec.json.decode(sys.stdin.readline(), type=Muster, dec_hook=lambda kind, value: kind(value))
    try:
        load_own(muster.settings.ops)
    except Error as error:  # the launcher has loaded them, too: a file that went away, or changed, since
        sys.exit(one_line(str(error)))
    children: dict[int, str] = {}
    for role in muster.roles:
        pid = os.fork()
        if pid == 0:
            _be(role, muster.settings, muster.launcher)
        children[pid] = role
        _say(launcher, {"role": role, "pid": pid})
    while children:
        if select.select([sys.stdin], [], [], 0.1)[0] and not sys.stdin.readline():
            _end(children)
            return
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _say(launcher, {"role": children.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _be(role: str, settings: RunSettings, launcher: Launcher) -> None:
    """The child: play the role, then leave without running the parent's exit handlers."""
    status = 0
    try:
        network = Network("tcp")
        play(role, load_part(settings.plan_folder, device_of(role)), settings, network, launcher)
        network.close()
    except BaseException as error:
        print(one_line(f"{role}: {type(error).__name__}: {error}"), file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _say(launcher: TextIO, event: dict[str, object]) -> None:
    try:
        print(json.dumps(event), file=launcher, flush=True)
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
