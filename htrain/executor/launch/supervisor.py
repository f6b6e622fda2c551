"""The supervisor: a process that has imported everything, forks a process per role, reports how each ends, and ends them all when its launcher is gone.

It stands in a session of its own, so that a terminal's Ctrl-C and its end reach the launcher alone. The launcher starts it as a new Python process;
`htrain run` forks it from itself instead, before there is any thread, and torch is then imported once for the whole run (docs/decisions/supervisor.md).
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import msgspec
import psutil

from htrain.decoding import from_json
from htrain.errors import Error
from htrain.executor.engine.loops_of_nets import loops_of
from htrain.executor.host.ahead import compile_ahead
from htrain.executor.host.left import NOTHING_LEFT, Left, left_by
from htrain.executor.host.process import end_with_parent, parent_number, python_command, settle
from htrain.executor.host.sockets import folder_of
from htrain.executor.launch.environment import role_environment
from htrain.executor.launch.play import part_of, play_all
from htrain.executor.roles.alone import gone_on_alone
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Keys, Network
from htrain.net.names import TRAINER, device_of
from htrain.own.registry import load_own
from htrain.plan.plan import load_part
from htrain.printable import one_line

_IMPORTS = "import gc; gc.disable(); from htrain.executor.launch.supervisor import main"  # until all is imported
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # for the launcher to decide
_TICK_SECONDS = 0.5  # a process that a role has forked may hold open what would tell of the role's end
_LAST_SECONDS = 3.0  # for roles that are on their way out


@dataclass(frozen=True)
class Place:
    """Where roles are played that others reach over TCP: at `host`, by trainers among themselves at `trainers_host`, with the keys of the run, if it has any.
    `folder`, if any, goes with the supervisor."""

    host: str = ""
    trainers_host: str = ""
    keys: tuple[str, str] | None = None
    folder: str = ""

    def network(self, token: bytes) -> Network:
        """That of a process there, in the try of this token."""
        keys = Keys(*(key.encode() for key in self.keys)) if self.keys else None
        return Network("tcp", self.host, self.trainers_host, keys=keys, token=token)


@dataclass(frozen=True)
class Assignment:
    """What is to be played: the roles of each process. Without a `place`, beside the launcher. Those that may be begun again `alone` have a journal."""

    processes: list[list[str]]
    settings: RunSettings
    launcher: Launcher
    place: Place | None = None
    alone: list[str] = field(default_factory=list)

    def network(self) -> Network:
        """That of one of its processes."""
        token = self.launcher.token
        return self.place.network(token) if self.place else Network.beside(self.launcher.address, token)


class Started(msgspec.Struct, frozen=True, tag=True):
    """A role has a process."""

    role: str
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A role's process has ended: with an exit status, or -N by signal N. Whether another of that role would find what it needs here."""

    role: str
    status: int
    can_be_followed: bool = True


class Rests(msgspec.Struct, frozen=True, tag=True):
    """No process of any role is left: another Assignment may come."""


class Again(msgspec.Struct, frozen=True):
    """Asks for another process of a role, which goes on where the last was, or with a `checkpoint`. One that has not ended is ended before."""

    role: str
    checkpoint: str = ""


AGAIN = b"again "  # and an Again in JSON
END, KILL = b"end", b"kill"  # ask for it: with a moment for roles that are on their way out, or without


@dataclass(frozen=True)
class Supervisor:
    """The launcher's handle: an Assignment goes by `connection`, Started and Ended come back; whoever closes it ends the roles.

    After END, or KILL, Rests comes back once they have ended, and another Assignment may go: a run that is begun again imports nothing anew.
    """

    process: psutil.Process
    connection: Connection


def encode_assignment(assignment: Assignment) -> bytes:
    """The assignment in JSON, for a pipe or for MPI; a path becomes text."""
    return msgspec.json.encode(assignment, enc_hook=str)


def decode_assignment(data: bytes) -> Assignment:
    """The reverse of `encode_assignment`. Raises msgspec.DecodeError for other data."""
    return from_json(data, Assignment, hook=lambda kind, value: kind(value))


# -- starting one ----------------------------------------------------------------------------------------------------

_forked: list[Supervisor] = []


def start_supervisor(num_threads: int) -> Supervisor:
    """That which `fork_supervisor` has made, or a new Python process; `num_threads` are those of a matmul."""
    if _forked:
        return _forked.pop()
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        process = psutil.Popen(
            python_command(_IMPORTS, f"main({theirs.fileno()})"),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a role prints is no part of the launcher's document
            env=role_environment(num_threads),
            start_new_session=True,
        )
    return Supervisor(process, ours)


def fork_supervisor(document: TextIO | None = None) -> None:
    """Fork the supervisor of the run that this process is going to launch. `document` is where this process writes to standard output, if not to `sys.stdout`.

    Requires: the environment is `role_environment`'s, and was before torch was loaded.
    Ensures: nothing where a library has begun a thread, with which no process can be forked safely.
    """
    if psutil.Process().num_threads() > 1:
        return
    ours, theirs = multiprocessing.Pipe()
    document = document or sys.stdout
    document.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the launcher's handlers are not for its child
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_forked(theirs, document)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    _forked.append(Supervisor(psutil.Process(pid), ours))


def _be_forked(connection: Connection, document: TextIO) -> None:
    """The child: supervise, then leave without the launcher's own way out, and without its document."""
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if document is not sys.stderr:  # by which roles tell of what ends them, and Python of what it warns of
            document.close()
        sys.stdout = sys.stderr
        status = supervise(connection)
    except BaseException as error:
        print(one_line(f"the supervisor of roles: {type(error).__name__}: {error}"), file=sys.stderr)
    finally:
        os._exit(status)


def main(descriptor: int) -> None:
    """Be a supervisor, as a process of its own."""
    sys.exit(supervise(Connection(descriptor)))


# -- being one -------------------------------------------------------------------------------------------------------


def supervise(connection: Connection) -> int:
    """Start the roles of each Assignment that comes, and see them end; an exit status. None is left when this returns."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    folders: set[Path | None] = set()
    try:
        while True:
            said = _heard(connection)
            if said.startswith(AGAIN):  # none is left that it could be beside
                continue
            if said in (END, KILL):  # all have ended by themselves
                _say(connection, Rests())
                continue
            assignment = decode_assignment(said)
            folders.add(folder_of(assignment.launcher.address))
            if assignment.place and assignment.place.folder:
                folders.add(Path(assignment.place.folder))
            load_own(assignment.settings.ops)
            if _play(assignment, connection):
                _say(connection, Rests())
    except EOFError:  # the launcher is done, or has found nothing to run
        return 0
    except Error as error:  # the launcher has loaded them, too: a file that went away, or changed, since
        print(one_line(str(error)), file=sys.stderr)
        return 1
    finally:
        for folder in filter(None, folders):  # of a launcher that was killed
            shutil.rmtree(folder, ignore_errors=True)


def _play(assignment: Assignment, connection: Connection) -> bytes:
    """Have roles played until all have ended, or the launcher asks for that; what it has said, b"" for nothing. Raises EOFError where it has closed its end."""
    settle()
    playing = _Playing(assignment, connection)
    said = b""
    try:
        for roles in assignment.processes:
            playing.begin(roles)
        playing.compile_ahead()
        while (said := playing.watch()).startswith(AGAIN):
            playing.begin_again(from_json(said.removeprefix(AGAIN), Again))
        return said
    finally:
        playing.end(0.0 if said == KILL else _LAST_SECONDS)


class _Playing:
    """The processes of an assignment."""

    def __init__(self, assignment: Assignment, connection: Connection) -> None:
        self._processes: dict[BaseProcess, list[str]] = {}
        self._living: list[BaseProcess] = []  # as the launcher has been told
        self._assignment = assignment
        self._connection = connection
        self._left = {role: left_by(role) for role in assignment.alone}
        self._ahead: BaseProcess | None = None
        self._incarnations: Counter[str] = Counter()

    def begin(self, roles: list[str]) -> None:
        """Fork the process of some roles."""
        self._fork(roles, self._assignment)

    def compile_ahead(self) -> None:
        """What roles will call is compiled beside them, while they begin. Where the plan is none, they say so."""
        with suppress(Error):
            self._ahead = compile_ahead(_loops_of(self._assignment))

    def begin_again(self, again: Again) -> None:
        """Fork the process of a role anew, which goes on where its last has written that it was, or with a checkpoint."""
        role = again.role
        self._end_last(role)
        self._incarnations[role] += 1
        journal = self._left[role].journal
        word = journal.read() if journal else b""
        settings = gone_on_alone(self._assignment.settings, role, self._incarnations[role], word, again.checkpoint)
        self._fork([role], replace(self._assignment, settings=settings))

    def _end_last(self, role: str) -> None:
        """End the process of a role, if it lives. Nobody is told."""
        for process in [process for process in self._living if self._processes[process] == [role]]:
            process.kill()
            process.join(_LAST_SECONDS)  # one that waits for a disk never comes back to itself
            self._living.remove(process)
            self._let_go(process)

    def _let_go(self, process: BaseProcess) -> None:
        """Keep nothing of a process that has ended: each has two open files here, and roles are begun again as often as they must."""
        if process.exitcode is not None:
            del self._processes[process]
            process.close()

    def _fork(self, roles: list[str], assignment: Assignment) -> None:
        arguments = roles, assignment, self._connection, self._left.get(roles[0], NOTHING_LEFT)
        process = multiprocessing.get_context("fork").Process(target=_be_roles, args=arguments, name=roles[0])
        process.start()
        self._processes[process] = roles
        self._living.append(process)
        for role in roles:
            _say(self._connection, Started(role, process.pid or 0))

    def watch(self) -> bytes:
        """Until all have ended, of which none may be begun again, or the launcher has something to say, which is returned. Raises EOFError where it has closed
        its end."""
        while self._goes_on and self._connection not in wait([self._connection, *self._sentinels], _TICK_SECONDS):
            if self._ahead and self._ahead.exitcode is not None:
                self._ahead.close()
                self._ahead = None
            for process in [process for process in self._living if process.exitcode is not None]:
                self._living.remove(process)
                for role in self._processes[process]:
                    _say(
                        self._connection,
                        Ended(role, process.exitcode or 0, self._left.get(role, NOTHING_LEFT).is_whole),
                    )
                self._let_go(process)
        return _heard(self._connection) if self._goes_on else b""

    @property
    def _goes_on(self) -> bool:
        return bool(self._living or self._left)

    @property
    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._living]

    def end(self, seconds: float) -> None:
        """Wait so long for those that are on their way out; end the others."""
        if self._ahead:
            _end([self._ahead], 0.0)
        _end([process for process in self._processes if process.pid], seconds)
        for left in self._left.values():
            left.close()


def _loops_of(assignment: Assignment) -> Iterable[Any]:
    """Those that roles of an assignment run; of trainers before others, whose loops take longest."""
    devices = sorted({device_of(role) for roles in assignment.processes for role in roles}, key=lambda d: d != TRAINER)
    settings = assignment.settings
    return loops_of(
        net for device in devices for net in load_part(settings.plan_folder, device, settings.plan_header).nets.values()
    )


def _heard(connection: Connection) -> bytes:
    """What the launcher says next. Raises EOFError where it is gone; one that has not read all that it was told is a reset to the system."""
    try:
        return connection.recv_bytes()
    except ConnectionResetError as error:
        raise EOFError from error


def _say(connection: Connection, event: Started | Ended | Rests) -> None:
    with suppress(OSError):  # the launcher is gone, which `watch` sees
        connection.send_bytes(msgspec.json.encode(event))


def _end(roles: Sequence[BaseProcess], seconds: float) -> None:
    """Wait so long for those that are on their way out; end the others."""
    deadline = time.monotonic() + seconds
    for role in roles:
        role.join(max(0.0, deadline - time.monotonic()))
    for role in roles:
        role.kill()
        role.join()


def _be_roles(roles: Sequence[str], assignment: Assignment, connection: Connection, left: Left) -> None:
    """A process of roles: play them, then leave without the supervisor's own way out."""
    end_with_parent(parent=parent_number())
    connection.close()
    status = 0
    try:
        network = assignment.network()
        play_all(
            roles, partial(part_of, assignment.settings), assignment.settings, network, assignment.launcher, left=left
        )  # fmt: skip
        network.close()
    except BaseException as error:
        print(one_line(f"{roles[0]}: {type(error).__name__}: {error}"), file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)
