"""Further processes of a PS: each serves a share of the passes from the same tables, under a Python lock of its own (docs/decisions/server-processes.md).

The process that plays the role forks them before it has a thread or a socket, and speaks for them: it tells them the address book, asks what they have
measured, and raises what they say. Tables lie in memory that is shared with them. The kernel ends them when it ends.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec
import psutil

from htrain.costs.roles import server_threads
from htrain.decoding import from_json
from htrain.errors import Error, PeerLost, error_named
from htrain.executor.assembly import Assembly
from htrain.executor.engine.context import process_endpoint
from htrain.executor.host.patience import Patience
from htrain.executor.host.process import end_with_parent, parent_number
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Watch
from htrain.executor.loops.server import Server
from htrain.executor.settings import RunSettings
from htrain.executor.transport.port import Network
from htrain.printable import one_line

_TICK_SECONDS = 0.2  # the threads of a process are looked at this often
_ANSWER_SECONDS = 2.0  # for what a process has measured; where it is busier, what it said last counts


class Listens(msgspec.Struct, frozen=True, tag=True):
    """A process takes messages at an address."""

    address: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """What a process has measured since it started; `memory_bytes` are those of its own, without the tables. `strangers` are messages that it dropped."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    sent_to: dict[str, int] = {}
    strangers: int = 0


class Fault(msgspec.Struct, frozen=True, tag=True):
    """A process cannot go on: the name of an error of htrain's, and its text."""

    kind: str
    error: str


class Serve(msgspec.Struct, frozen=True, tag=True):
    """To a process: serve from now on; everybody's endpoints."""

    book: dict[str, str]


class Tell(msgspec.Struct, frozen=True, tag=True):
    """To a process: say what you have measured."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """To a process: end."""


Said = Listens | Report | Fault
_encode = msgspec.json.encode


class ServerProcess:
    """The role's handle of a further process of it, which a thread listens to. `error` says what went wrong with the process, or that it is gone; `on_change`
    is called when it does."""

    def __init__(self, endpoint: str, process: BaseProcess, connection: Connection) -> None:
        self.endpoint = endpoint
        self.error: Error | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.connection = connection
        self._process = process
        self._heard = threading.Condition()
        self._saying = threading.Lock()  # several threads ask for reports, and words must not mix
        self._address = ""
        self._report = Report()

    def listen(self) -> None:
        """Hear what the process says, from now on. For one that forks no more."""
        threading.Thread(target=self._listen, name=self.endpoint, daemon=True).start()

    def address(self, seconds: float) -> str:
        """Where it takes messages. Raises PeerLost where it does not say so in time, and what went wrong with it."""
        with self._heard:
            self._heard.wait_for(lambda: self._address or self.error, seconds)
        if not self._address:
            raise self.error or PeerLost(f"{self.endpoint} did not come up within {seconds:.0f} s")
        return self._address

    def serve(self, book: dict[str, str]) -> None:
        """Have it serve from now on; `book` are the endpoints that it sends to."""
        self._say(Serve(book))

    def report(self) -> Report:
        """What it has measured; where it is too busy to say so, what it said last."""
        with self._heard:
            before = self._report
            self._say(Tell())
            self._heard.wait_for(lambda: self._report is not before or self.error, _ANSWER_SECONDS)
            return self._report

    def stop(self) -> None:
        """End it: nothing is under way any more."""
        self._say(Leave())
        self._process.join(_ANSWER_SECONDS)
        self._process.kill()
        self._process.join()

    def _say(self, word: Serve | Tell | Leave) -> None:
        with self._saying, suppress(OSError):  # it is gone, which its listener hears
            self.connection.send_bytes(_encode(word))

    def _listen(self) -> None:
        try:
            while True:
                said = from_json(self.connection.recv_bytes(), Said)
                with self._heard:
                    self._take(said)
                    self._heard.notify_all()
                if self.error:
                    self.on_change()
        except (EOFError, OSError):
            self._is_gone()

    def _take(self, said: Said) -> None:
        if isinstance(said, Listens):
            self._address = said.address
        elif isinstance(said, Report):
            self._report = said
        else:
            self.error = error_named(said.kind, said.error)

    def _is_gone(self) -> None:
        status = self._process.exitcode  # is known a moment after the connection has ended
        deadline = time.monotonic() + _ANSWER_SECONDS
        while status is None and time.monotonic() < deadline:
            wait([self._process.sentinel], deadline - time.monotonic())
            status = self._process.exitcode
        how = f"was killed by signal {-status}" if status and status < 0 else f"ended with status {status}"
        with self._heard:
            self.error = self.error or PeerLost(f"{self.endpoint} (process {self._process.pid}) {how}")
            self._heard.notify_all()
        self.on_change()


def fork_processes(parts: Assembly, settings: RunSettings, network: Network) -> list[ServerProcess]:
    """All processes of a PS but this one, which goes on to play the role.

    Requires: `parts` are in shared memory, and this process has no thread that holds a lock. Ensures: each takes passes at an endpoint of its own once it
    is told to `serve`.
    """
    fork = multiprocessing.get_context("fork")
    made: list[ServerProcess] = []
    for number in range(1, parts.plan.cluster.processes_of(parts.device)):
        endpoint = process_endpoint(parts.name, number)
        ours, theirs = fork.Pipe()
        serve = _serving(parts, endpoint, settings, network)
        process = fork.Process(target=_be_process, args=(serve, theirs, [ours, *(p.connection for p in made)]))
        process.daemon = True
        process.start()
        theirs.close()
        made.append(ServerProcess(endpoint, process, ours))
    for each in made:
        each.listen()
    return made


# -- being one -------------------------------------------------------------------------------------------------------


def _be_process(serve: Callable[[Connection], None], connection: Connection, not_ours: list[Connection]) -> None:
    """The child: serve, then leave without the role's own way out."""
    end_with_parent(parent=parent_number())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the launcher to decide
        signal.signal(number, signal.SIG_IGN)
    # Of its own connection, too, it holds one end only: else neither side would hear that the other is gone.
    for other in not_ours:
        other.close()
    status = 0
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the role is gone, or has no use for this process any more
    except BaseException as error:
        status = 1
        kind = type(error).__name__
        with suppress(OSError):
            connection.send_bytes(_encode(Fault(kind, str(error) if isinstance(error, Error) else f"{kind}: {error}")))
    sys.stderr.flush()
    os._exit(status)


def _serving(parts: Assembly, endpoint: str, settings: RunSettings, network: Network) -> Callable[[Connection], None]:
    """What a further process does: one server, until the connection ends. Raises what goes wrong with it."""
    threads = server_threads(parts.device, parts.plan.cluster, parts.plan.options, settings.workers)

    def serve(connection: Connection) -> None:
        begin_thread()
        before = _own_bytes()
        patience = Patience(settings.deadline_seconds, settings.warm_up_seconds)
        watch = Watch(patience)
        own = network.another()
        server = Server(endpoint, own, parts.server(), workers=threads, watch=watch)
        server.on_step = lambda count: patience.warm()
        connection.send_bytes(_encode(Listens(server.inbox.address)))
        while True:
            if connection.poll(_TICK_SECONDS):
                word = from_json(connection.recv_bytes(), Serve | Tell | Leave)
                if isinstance(word, Leave):
                    return
                if isinstance(word, Serve):
                    server.start(word.book)
                else:
                    connection.send_bytes(_encode(_report(server, before)))
            if server.error:
                raise server.error
            if hangs := watch.tick():
                raise PeerLost(f"{endpoint}: {one_line(hangs)}")

    return serve


def _report(server: Server, before: int) -> Report:
    own = max(0, _own_bytes() - before)
    return Report(time.process_time(), own, dict(server.sent_to), server.inbox.strangers)


def _own_bytes() -> int:
    """Memory that is no file's and no table's. What was there `before` anything was served is for the most part the role's, too; to look which part would
    mean to walk through all pages of the tables."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))
