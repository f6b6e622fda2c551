"""Roles on hosts that are reached by ssh: the launcher starts an agent on each, and starts it again where it has ended by itself (docs/how-to/on-a-cluster.md).

An agent has the run's secret from its standard input. What goes wrong before any has come ends the run: a host that is not there, a command that it has not.
"""

import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from htrain.errors import Error, RunError
from htrain.executor.host.address import address_of, split_port
from htrain.executor.host.secret import STANDARD_INPUT, read_secret
from htrain.executor.launch.joined import Meeting
from htrain.plan.plan import Plan
from htrain.printable import one_line
from htrain.spec.hosts_file import Hosts, load_hosts
from htrain.spec.settings import Elsewhere

_AGAIN_SECONDS = 5.0  # between the end of an agent and the next
_LAST_SECONDS = 15.0  # for agents to end that have been told that the run is over
_LINES = 5  # of what a host says last
_NO_USE = (
    2,
    126,
    127,
    255,
)  # statuses of a command that cannot work, of a shell that has none such, and of an ssh that reaches no host
_SOON_SECONDS = 20.0  # within which such a status is of a host that was never there

Tell = Callable[[str], None]


@contextmanager
def agents(elsewhere: Elsewhere, num_threads: int, tell: Tell) -> Iterator[Meeting]:
    """Where roles join that are started on hosts, once a plan is known; they end with it. Raises ClusterError for hosts that cannot be read, RunError for a
    secret that cannot, UsageError where it is to listen at no address of this host."""
    host, port = split_port("--listen", elsewhere.listen, port=0)
    secret = read_secret(Path(elsewhere.secret)) if elsewhere.secret else token_hex(32).encode()
    started = _Started(load_hosts(Path(elsewhere.hosts)), secret, num_threads, tell)
    try:
        yield Meeting(
            address_of("--listen", host),
            port,
            secret,
            elsewhere.join_seconds,
            started.advice,
            started.start,
            started.failure,
        )
    finally:
        started.end()


class _Started:
    """The agents of one run. Each has a thread, which waits for its end."""

    def __init__(self, hosts: Hosts, secret: bytes, num_threads: int, tell: Tell) -> None:
        self._hosts, self._secret, self._num_threads, self._tell = hosts, secret, num_threads, tell
        self._roles: Mapping[str, Sequence[str]] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._failure: Error | None = None

    def start(self, plan: Plan, address: str) -> None:
        """An agent for the roles of each host, which joins the launcher at this address. Raises ClusterError for roles without a host."""
        self._roles = self._hosts.assigned(plan.processes)
        for host in self._roles:
            thread = threading.Thread(target=self._keep, args=(host, address), name=f"agent on {host}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def advice(self, address: str, roles: Sequence[str]) -> str:
        """What is said of roles that have not come."""
        of = {host: [role for role in roles if role in mine] for host, mine in self._roles.items()}
        waited = "; ".join(f"{host} is to play {', '.join(mine)}" for host, mine in of.items() if mine)
        return f"they are started by '{self._hosts.ssh}': {waited}"

    def failure(self) -> Error | None:
        """Why a host's roles will not come."""
        return self._failure

    def end(self) -> None:
        """Wait for agents that know that the run is over; end the others."""
        self._over.set()
        deadline = time.monotonic() + _LAST_SECONDS  # of all together
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for process in self._running.values():
                process.terminate()

    def _keep(self, host: str, address: str) -> None:
        """An agent on a host, and another behind it, until the run is over."""
        came = False
        while not self._over.is_set():
            began = time.monotonic()
            status, said = self._play(host, address)
            came |= status not in _NO_USE or time.monotonic() - began > _SOON_SECONDS
            what = f"'{self._hosts.ssh} {host}' has ended with status {status}{': ' if said else ''}{one_line(' / '.join(said))}"
            if not came:
                self._failure = RunError(
                    f"{host}: {what}; see that '{self._hosts.ssh} {host} true' works, and that hosts.command is htrain there"
                )
                return
            if self._over.wait(_AGAIN_SECONDS):  # which agents may hear first
                return
            self._tell(f"{host}: {what}; its roles are started again")

    def _play(self, host: str, address: str) -> tuple[int, list[str]]:
        """An agent to its end: its status, and what it said last."""
        said: deque[str] = deque(maxlen=_LINES)
        try:
            process = subprocess.Popen(
                [*shlex.split(self._hosts.ssh), host, self._command(host, address)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # a Ctrl-C is the launcher's, which tells agents
            )
        except OSError as error:
            return 127, [f"{shlex.split(self._hosts.ssh)[0]}: {error.strerror}"]
        with self._lock:
            self._running[host] = process
        with process:
            assert process.stdin
            assert process.stderr
            with suppress(OSError):  # it has gone already, and says why
                process.stdin.write(self._secret.decode())
                process.stdin.close()
            said.extend(line.rstrip() for line in process.stderr)
        with self._lock:
            del self._running[host]
        return process.returncode, list(said)

    def _command(self, host: str, address: str) -> str:
        """What the shell of a host is told."""
        own = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.quote(sys.executable)} -m htrain"
        words = ["role", *self._roles[host], "--launcher", address, "--secret", STANDARD_INPUT]
        words += ["--intra-op-threads", str(self._num_threads)]
        return f"{self._hosts.command or own} {shlex.join(words)}"
