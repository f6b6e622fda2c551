"""Worker pools on this machine: roles as threads of this process, or as processes under a supervisor of their own."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import psutil

from htrain.decoding import from_json
from htrain.executor.launch.play import thread_role
from htrain.executor.launch.supervisor import (
    AGAIN,
    END,
    KILL,
    Again,
    Assignment,
    Ended,
    Place,
    Rests,
    Started,
    Supervisor,
    encode_assignment,
    start_supervisor,
)
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Network
from htrain.plan.plan import Plan

_LAST_SECONDS = 15.0  # for all to end that have been told to
_STATUS_SECONDS = 1.0  # between the end of what a process says, and its own


class RoleThreads:
    """All roles in this process. A thread cannot die by itself: failures come as messages."""

    def __init__(
        self, roles: Sequence[str], plan: Plan, settings: RunSettings, network: Network, launcher: Launcher
    ) -> None:
        self._threads: list[threading.Thread] = [thread_role(role, plan, settings, network, launcher) for role in roles]

    @property
    def descriptors(self) -> Sequence[int]:
        """Nothing: what goes wrong in a thread comes as a message."""
        return ()

    def lost(self) -> str:
        """Always empty: a thread does not end by itself."""
        return ""

    def leaving(self) -> str:
        """Always empty: a thread is told with all."""
        return ""

    def lives(self, role: str) -> bool:
        """Whether the role's thread has not ended."""
        return any(thread.name == role and thread.is_alive() for thread in self._threads)

    def can_begin_again(self, role: str) -> bool:
        """None can."""
        return False

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Not to be called. Raises AssertionError."""
        raise AssertionError(f"{role} is a thread")

    def end(self) -> None:
        """Wait for all threads, 15 s in all. One that hangs is left, and goes with the process."""
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """The same: a thread ends when it can."""
        self.end()

    def kill(self) -> bool:
        """A thread cannot be killed: it ends when it is told to, and those that hang go with the process."""
        return False


class Supervisors:
    """The supervisor that one pool after the other has, as long as it lives: with a matmul in `num_threads` threads."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._idle: list[Supervisor] = []

    def take(self) -> Supervisor:
        """One without roles. Whoever takes it gives it back, or ends it."""
        return self._idle.pop() if self._idle else start_supervisor(self._num_threads)

    def give_back(self, supervisor: Supervisor) -> None:
        """Requires: it has said that it rests."""
        self._idle.append(supervisor)

    def close(self) -> None:
        """End the one that nobody has."""
        for supervisor in self._idle:
            _end_idle(supervisor)
        self._idle.clear()


class RoleProcesses:
    """A process for the roles of each of `processes`, forked from a supervisor. That leads their process group, and goes back to `supervisors` with the end.
    Without a `place` they reach the launcher, and each other, as processes of its host do. Those that are `alone` can be begun again while others go on."""

    def __init__(
        self,
        processes: Sequence[Sequence[str]],
        settings: RunSettings,
        launcher: Launcher,
        supervisors: Supervisors,
        place: Place | None = None,
        alone: Sequence[str] = (),
    ) -> None:
        self._alone = frozenset(alone)
        self._supervisors = supervisors
        self._supervisor = supervisors.take()
        self._connection = self._supervisor.connection
        self._hears = True
        self._rests = self._is_over = False
        self._statuses: dict[str, int] = {}
        self._last: set[str] = set()  # roles whose processes have left nothing that another could go on with
        self.pids: dict[str, int] = {}
        with suppress(OSError):  # a supervisor that is gone: `lost` says so
            assignment = Assignment(list(map(list, processes)), settings, launcher, place, list(alone))
            self._connection.send_bytes(encode_assignment(assignment))

    @property
    def descriptors(self) -> Sequence[int]:
        """The connection to the supervisor; nothing once it has been closed by either side."""
        return (self._connection.fileno(),) if self._hears else ()

    def lost(self) -> str:
        """A role whose process ended with a status other than 0, or else the supervisor, if it has ended, and how."""
        self._read()
        for role, status in self._statuses.items():
            if status:
                return f"{role} (process {self.pids[role]}) {_how(status)}"
        ended = self._ended()
        return (
            f"the supervisor of roles (process {self._supervisor.process.pid}) {_how(ended)}"
            if ended is not None
            else ""
        )

    def can_begin_again(self, role: str) -> bool:
        """Whether it is one that may be alone, and its process has started."""
        return role in self._alone - self._last and role in self.pids and self._ended() is None

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Have the process of a role forked anew: it goes on from where the last was, which is ended if it has not, or with the parameters of a checkpoint."""
        self._statuses.pop(role, None)
        self.pids.pop(role, None)
        with suppress(OSError):  # a supervisor that is gone: `lost` says so
            self._connection.send_bytes(AGAIN + msgspec.json.encode(Again(role, checkpoint)))

    def leaving(self) -> str:
        """Always empty: whoever wants this host for something else tells the launcher."""
        return ""

    def lives(self, role: str) -> bool:
        """Whether a role's process has started, and not ended as far as is known."""
        self._read()
        return role in self.pids and role not in self._statuses and self._ended() is None

    def _read(self) -> None:
        """Take what the supervisor has said."""
        try:
            while self._hears and self._connection.poll():
                event = from_json(self._connection.recv_bytes(), Started | Ended | Rests)
                if isinstance(event, Started):
                    self.pids[event.role] = event.pid
                elif isinstance(event, Rests):
                    self._rests = True
                elif event.role in self.pids:  # else of one that is begun again, and was to end
                    self._statuses[event.role] = event.status
                    self._last |= set() if event.can_be_followed else {event.role}
        except (EOFError, OSError):
            self._hears = False
            self._ended(_STATUS_SECONDS)

    def _ended(self, seconds: float = 0.0) -> int | None:
        """How the supervisor ended; None where it has not within `seconds`."""
        try:
            return self._supervisor.process.wait(seconds)
        except psutil.TimeoutExpired:
            return None

    def end(self) -> None:
        """Have the supervisor give its roles a moment, then end them. One that does not is ended here, with all that is left. A second call changes nothing."""
        self._end(END)

    def abandon(self) -> None:
        """The same without that moment: nothing that roles could still do is of use."""
        self._end(KILL)

    def _end(self, word: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        rests = self._is_at_rest(word)
        self._hears = False
        if rests:
            self._supervisors.give_back(self._supervisor)
            return
        self._connection.close()
        self._ended(_LAST_SECONDS)
        self.kill()

    def _is_at_rest(self, word: bytes) -> bool:
        """Whether the supervisor, told to, has ended all roles, and could have others."""
        with suppress(OSError):
            self._connection.send_bytes(word)
        deadline = time.monotonic() + _LAST_SECONDS
        while self._hears and not self._rests and (left := deadline - time.monotonic()) > 0:
            with suppress(OSError, EOFError):
                self._connection.poll(left)
            self._read()
        return self._rests

    def kill(self) -> bool:
        """End all at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._supervisor.process.pid, signal.SIGKILL)
        self._ended(_LAST_SECONDS)
        return True


def _end_idle(supervisor: Supervisor) -> None:
    supervisor.connection.close()
    with suppress(psutil.TimeoutExpired):
        supervisor.process.wait(_LAST_SECONDS)


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
