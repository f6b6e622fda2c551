"""An agent: the process of `htrain role`, which plays roles on its host for a launcher elsewhere (docs/decisions/agents.md).

It joins the launcher, fetches the plan, says whether it reaches what its roles need, and has them played, try after try, by the same processes under the same
supervisor as those of a launcher on this host. A launcher that is gone it looks for again: the next agent of this process.
"""

import itertools
import os
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import NoReturn

import msgspec

from htrain.decoding import from_json
from htrain.errors import Error, PeerLost, PlanError, RunError, error_named
from htrain.executor.host.address import address_of, address_within, require_free
from htrain.executor.launch.agent_pulse import AgentPulse
from htrain.executor.launch.interrupt import Interrupt, interrupts
from htrain.executor.launch.joining import Joining, Search, Untaken
from htrain.executor.launch.pool import RoleProcesses, Supervisors
from htrain.executor.launch.reach import Task, require_reach
from htrain.executor.launch.supervisor import decode_assignment
from htrain.executor.transport.link import LAUNCHER
from htrain.executor.transport.port import Keys, Network
from htrain.executor.transport.rendezvous import (
    MOST_BYTES,
    Begin,
    BeginAgain,
    Declined,
    Fetch,
    Finish,
    FromLauncher,
    Join,
    Leave,
    Leaving,
    Over,
    Piece,
    Prepare,
    Prepared,
    Rested,
    RoleEnded,
    Unable,
    own_version,
)
from htrain.net.names import device_of
from htrain.plan.folder import HEADER, digest_of_file, is_part
from htrain.plan.plan import files_of, load_part

_TAKEN_SECONDS = 5.0  # for somebody who has the same secret to take the first word
_ANSWER_SECONDS = 10.0
_LISTEN_SECONDS = 0.5


def play_roles(roles: Sequence[str], joining: Joining, *, num_threads: int, tell: Callable[[str], None]) -> None:
    """Play these roles for a launcher until its run is over, or it is gone and none has come in its place for as long as a first one is looked for; `tell` is
    called with news.

    Raises SystemExit where a signal has asked it to leave, UsageError for an `address` that is none, RunError where the launcher cannot be found, or does not
    take this agent, what the roles cannot reach, what has ended the run, and PeerLost where the launcher is gone.
    """
    process, supervisors, search = f"agent-{token_hex(8)}", Supervisors(num_threads), Search(joining)
    try:
        for count in itertools.count():
            try:
                _join(roles, joining, f"{process}.{count}", supervisors, tell, search=search)
            except _Trained:
                return
            except _Left as left:
                tell(f"{', '.join(roles)}: has left the run")
                sys.exit(128 + left.number)
            except Untaken as untaken:
                search.failed(untaken.error)
            except _Lost as lost:
                search.lost()
                tell(f"{lost}; {', '.join(roles)}: looks for it for {joining.wait_seconds:g} s")
    finally:
        supervisors.close()


def _join(
    roles: Sequence[str],
    joining: Joining,
    name: str,
    supervisors: Supervisors,
    tell: Callable[[str], None],
    *,
    search: Search,
) -> None:
    """Be an agent of this name. Raises what ends it; that is Untaken where no launcher was reached, _Lost where the one that was is gone, or has given it
    up."""
    with ExitStack() as ends:
        try:
            own = address_of("--address", joining.address) if joining.address else ""
            if own:
                require_free("--address", own)
            there, here = search.found()
            network = Network("tcp", own or here, keys=Keys.of(joining.secret))
            ends.callback(network.close)
            network.most_bytes = MOST_BYTES
            ends.callback(shutil.rmtree, folder := _plan_folder(), ignore_errors=True)
            agent = _Agent(
                roles,
                joining,
                name,
                there,
                network,
                folder=folder,
                taken_seconds=search.within(_TAKEN_SECONDS),
                supervisors=supervisors,
                tell=tell,
            )
            ends.callback(agent.close)
            said = agent.join(search)
        except Error as error:
            raise Untaken(error) from error
        agent.run(said)


class _Trained(Exception):
    """The run has come to the end of its data."""


class _Left(Exception):
    """Whoever watches over this agent has asked it to leave, by the signal of this `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Lost(Exception):
    """The launcher that this agent has joined is gone, or has given it up: one may be found again, be it that or another."""


class RunIsOver(Exception):
    """The cause of an error which the launcher has told of as the end of the run: to join again is of no use."""


class _Agent:
    """What an agent does, in its main thread."""

    def __init__(
        self,
        roles: Sequence[str],
        joining: Joining,
        name: str,
        there: str,
        network: Network,
        *,
        folder: Path,
        taken_seconds: float,
        supervisors: Supervisors,
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder  # for the plan
        self._roles = roles
        self._joining = joining
        self._network = network
        self._tell = tell
        self._name = name
        self._book = {LAUNCHER: f"tcp://{there}:{joining.port}"}
        self._inbox = network.inbox(self._name)
        self._outbox = network.outbox(self._book, deadline_seconds=taken_seconds)
        self._pulse: AgentPulse | None = None
        self._interrupt: Interrupt | None = None  # while it runs
        self._is_leaving = False
        self._leaves_as = ""  # of one that has lost its launcher
        self._supervisors = supervisors
        self._pool: RoleProcesses | None = None
        self._number = 0  # of the try that the pool plays
        self._has_lost = ""  # what the launcher was told of last, which is to be seen to
        self._alone: list[str] = []  # those of its roles that may be begun again alone
        self._again: Counter[str] = Counter()  # how often they were, in this try

    def run(self, first: object) -> None:
        """From the launcher's first word to the end of the run. Raises what `play_roles` does, _Trained, _Left and _Lost.

        Ctrl-C, SIGTERM and the end of the terminal ask it to leave: while a try is under way, once the run is saved.
        """
        with interrupts() as interrupt:
            self._interrupt = interrupt
            try:
                self._run(first)
            except _Lost:
                if interrupt.is_asked:
                    raise _Left(interrupt.number) from None
                raise

    def _run(self, first: object) -> None:
        said = self._look(first)
        self._tell(f"{', '.join(self._roles)}: joined {self._joining.launcher}, reached at {self._network.host}")
        self._pulse = AgentPulse(self._name, self._inbox.address, self._network, self._book)
        while True:
            if isinstance(said, Prepare):
                self._prepare(said)
            elif isinstance(said, Begin):
                self._begin(said)
            elif isinstance(said, BeginAgain):
                self._begin_again(said)
            elif isinstance(said, Finish):
                self._finish(said)
            said = self._next()

    def join(self, search: Search) -> object:
        """Ask to be taken; what the launcher says first. Raises RunError where nobody answers who has the secret."""
        where = f"{self._joining.launcher} ({self._joining.whence})"
        host = socket.gethostname()
        join = Join(self._name, own_version(), list(self._roles), self._inbox.address, host, os.getpid())
        try:
            self._outbox.send(LAUNCHER, join)
        except PeerLost as error:
            raise RunError(
                f"{where}: somebody listens there, but does not take this secret: give the launcher and all roles the same one"
            ) from error
        seconds = search.within(_ANSWER_SECONDS)
        got = self._inbox.receive(seconds)
        if got is None:
            raise RunError(
                f"{where}: the launcher has not answered within {seconds:.0f} s: it may not reach this host at {self._network.host}: "
                "say another --address"
            )
        return got[0]

    # -- listening ---------------------------------------------------------------------------------------------------

    def _next(self) -> FromLauncher | None:
        """What the launcher says next. Raises what ends the run here."""
        watched = None if self._has_lost else self._pool
        parts = [part for part in (watched, self._interrupt) if part]
        self._inbox.wait(_LISTEN_SECONDS, [each for part in parts for each in part.descriptors])
        self._heed()
        if watched and (lost := watched.lost()):
            can_be_followed = watched.can_begin_again(lost.partition(" ")[0])
            self._has_lost = lost
            role = lost.partition(" ")[0]
            self._say(RoleEnded(self._name, self._number, lost, self._again[role], can_be_followed))
        got = self._inbox.receive(0)
        if self._pulse:
            self._pulse.listened(heard=got is not None)
            if (gone := self._pulse.gone) and not got:
                raise self._gone(gone)
        return self._look(got[0]) if got else None

    def _heed(self) -> None:
        """Leave where that is asked for: now where nothing is played, else the launcher is told. Raises _Left."""
        if not self._interrupt or not self._interrupt.is_asked:
            return
        if self._pool is None:
            raise _Left(self._interrupt.number)
        if not self._is_leaving:
            self._is_leaving = True
            self._tell(f"{', '.join(self._roles)}: leaves once the run is saved; Ctrl-C again to leave at once")
            self._say(Leaving(self._name))

    def _look(self, said: object) -> FromLauncher | None:
        if isinstance(said, Declined):
            declined = f"{self._joining.launcher}: the launcher declines: {said.reason}"
            raise _Lost(declined) if said.again else RunError(declined)
        if isinstance(said, Over):
            self._leave(said)
        return said if isinstance(said, FromLauncher) else None

    def _leave(self, said: Over) -> NoReturn:
        if said.kind or said.error:
            raise error_named(said.kind, said.error) from RunIsOver()
        raise _Trained

    def _say(self, message: RoleEnded | Leaving | Rested | Prepared | Unable | Fetch) -> None:
        try:
            self._outbox.send(LAUNCHER, message)
        except PeerLost as error:
            while got := self._inbox.receive(0):  # it may have said why
                self._look(got[0])
            raise self._gone("its launcher did not take a message") from error

    def _gone(self, how: str) -> _Lost:
        self._leaves_as = how
        return _Lost(f"{self._joining.launcher}: the launcher is gone")

    # -- what the launcher wants -------------------------------------------------------------------------------------

    def _prepare(self, said: Prepare) -> None:
        """Fetch the plan, and see whether the roles reach what they need."""
        try:
            task = from_json(said.task, Task)
            for name in task.files:
                self._fetch(name)
            if digest_of_file(self._folder / HEADER) != task.header_digest:
                raise PlanError(f"{HEADER} has changed at the launcher while it was sent: start the run again")
            require_reach(task, self._roles, self._name)
            files_of(self._folder)
            for role in self._roles:
                load_part(self._folder, device_of(role))
        except (Error, msgspec.MsgspecError, OSError) as error:
            kind, text = type(error).__name__, str(error)
            with suppress(_Lost):
                self._say(Unable(self._name, kind, text))
            raise error if isinstance(error, Error) else RunError(f"{self._roles[0]}: {kind}: {text}") from error
        self._say(Prepared(self._name))

    def _fetch(self, name: str) -> None:
        if name != HEADER and not is_part(name):
            raise PlanError(f"'{name}' is not a file of a plan")
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            while data := self._piece(name, file.tell()):
                file.write(data)

    def _piece(self, name: str, offset: int) -> bytes:
        self._say(Fetch(self._name, name, offset))
        while True:
            said = self._next()
            if isinstance(said, Piece) and (said.name, said.offset) == (name, offset):
                return said.data

    def _begin(self, said: Begin) -> None:
        assignment = decode_assignment(said.assignment)
        assert assignment.place
        assert self._pulse
        self._pulse.bear(assignment.settings.liveness_seconds)
        host, apart = self._network.host, assignment.settings.trainer_network
        trainers_host = address_within("--trainer-network", apart) if apart else host
        place = replace(assignment.place, host=host, trainers_host=trainers_host, folder=str(self._folder))
        settings = replace(assignment.settings, plan_folder=self._folder)
        mine = [roles for roles in assignment.processes if roles[0] in self._roles]
        self._number, self._has_lost = said.number, ""
        self._again.clear()
        self._alone = [role for roles in mine for role in roles if role in assignment.alone]
        self._pool = RoleProcesses(mine, settings, assignment.launcher, self._supervisors, place, self._alone)

    def _begin_again(self, said: BeginAgain) -> None:
        if self._pool and said.number == self._number and said.role in self._alone:
            self._again[said.role] += 1
            self._pool.begin_again(said.role, said.checkpoint)
            if self._pool.lost() != self._has_lost:  # one that is taken along comes before the one that was lost
                self._has_lost = ""

    def _finish(self, said: Finish) -> None:
        if self._pool:
            if said.at_once:
                self._pool.abandon()
            else:
                self._pool.end()
        self._pool = None
        self._say(Rested(self._name, said.number))

    def close(self) -> None:
        """End what is played here, and go."""
        if self._pool:
            self._pool.abandon()
        if self._pulse:
            self._pulse.stop()  # first: a sign of life of one who has left would be that of a stranger
            self._outbox.offer(LAUNCHER, Leave(self._name, self._leaves_as))
        self._outbox.close()
        self._inbox.close()


def _plan_folder() -> Path:
    """A new folder for a plan that is fetched. Raises RunError where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix="htrain-plan-"))
    except OSError as error:
        raise RunError(
            f"no folder for the plan: {error.strerror}: let TMPDIR name one that can be written, such as /tmp"
        ) from error
