"""The launcher's thread that receives agents of hosts elsewhere, and stays with them as long as the run lasts: htrain.executor.roles.rendezvous carried out."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

from htrain.errors import Error, RunError
from htrain.executor.host.bell import Bell
from htrain.executor.roles.rendezvous import Hand, Instruction, Meet, Rendezvous, Say
from htrain.executor.transport.port import Network, Outbox
from htrain.executor.transport.rendezvous import Fetch, FromAgent, FromLauncher, Join, Piece, Present

T = TypeVar("T")
_TICK_SECONDS = 0.5  # between two signs of life
_MOST_SECONDS = 1.0  # of silence between two times of listening: a launcher that was stopped has not listened
_BROKEN_SECONDS = 2.0  # for which an agent takes nothing, before it is taken for gone: a connection that breaks is made anew in a tenth of a second
_MEET_SECONDS = 5.0  # for an agent to be reached that has just come
_AGAIN_SECONDS = 0.02  # between two looks whether an agent is reached that has just come
_PIECE_BYTES = 1 << 20
_LAST_SECONDS = 5.0
_LAST_WORD_SECONDS = 60.0  # for an agent to hear it that takes it, and does not read


class _Line:
    """The way to one agent, which never waits. What is said is kept, in order, until the agent is reached, and is then not lost with a connection."""

    def __init__(self, agent: str, address: str, outbox: Outbox) -> None:
        self.address = address
        self._agent = agent
        self._outbox = outbox
        self._waiting: deque[FromLauncher] = deque()
        self._is_met = self._is_full = False
        self._taken = time.monotonic()
        self._closes_at = math.inf

    def say(self, message: FromLauncher) -> None:
        """Send it, behind what waits. Raises RunError where the agent's address is none."""
        if not self.is_last:
            self._waiting.append(message)
            self.send()

    def send(self) -> None:
        """Send what waits, once the agent is reached."""
        if not self._is_met and self._outbox.is_reached(self._agent):
            self._is_met, self._taken = True, time.monotonic()
        while self._is_met and self._waiting:
            self._is_full |= not self._outbox.post(self._agent, self._waiting.popleft())

    def end(self) -> None:
        """Nothing more is to be said than what has been."""
        if not self.is_last:
            self._closes_at = time.monotonic() + _LAST_WORD_SECONDS

    @property
    def is_last(self) -> bool:
        """Whether nothing more is said."""
        return self._closes_at < math.inf

    @property
    def is_over(self) -> bool:
        """Whether the last word was heard, or need not be waited for any longer."""
        is_heard = not self._waiting and self._outbox.is_heard(self._agent)
        return self.is_last and (is_heard or time.monotonic() > self._closes_at)

    @property
    def waits(self) -> bool:
        """Whether something is to be said once the agent is reached."""
        return bool(self._waiting)

    @property
    def takes(self) -> bool:
        """Whether the agent takes what is sent, a sign of life among it, or has not been reached yet."""
        self.send()
        if not self._is_met:
            return True
        if self._is_full or not self._outbox.offer(self._agent, Present()):
            return False
        self._taken = time.monotonic()
        return True

    @property
    def is_broken(self) -> bool:
        """Whether it has taken nothing for too long."""
        takes, silence = self.takes, time.monotonic() - self._taken
        return silence > (_BROKEN_SECONDS if self._is_met else _MEET_SECONDS) and (not takes or not self._is_met)

    @property
    def was_met(self) -> bool:
        """Whether the agent has been reached at all."""
        return self._is_met

    def close(self) -> None:
        self._outbox.close()


class Reception:
    """Receives agents at a port of `network`, whose keys are those of the run's secret, and hands them the `files` of the plan, by name. `bell` rings for who
    waits for news."""

    def __init__(self, rendezvous: Rendezvous, network: Network, port: int, files: Mapping[str, Path]) -> None:
        """Raises RunError where nothing can listen there."""
        self._rendezvous = rendezvous
        self._network = network
        self._files = files
        self._inbox = network.inbox("launcher's reception", port=port)
        self.address = self._inbox.address.removeprefix("tcp://")
        self.bell = Bell()
        self._wake = Bell()
        self._lock = threading.Lock()
        self._to_do: deque[Instruction] = deque()
        self._lines: dict[str, _Line] = {}
        self._error: BaseException | None = None
        self._now, self._listened = 0.0, time.monotonic()  # the seconds in which it has listened, and when it did last
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="launcher/reception", daemon=True)
        self._thread.start()

    def ask(self, what: Callable[[Rendezvous], T]) -> T:
        """What the rendezvous says. For any thread. Raises what has ended this one."""
        if self._error:
            raise RunError(f"the launcher's reception: {type(self._error).__name__}: {self._error}") from self._error
        with self._lock:
            return what(self._rendezvous)

    def have(self, what: Callable[[Rendezvous], list[Instruction]]) -> None:
        """Have carried out what the rendezvous says."""
        with self._lock:
            self._to_do.extend(what(self._rendezvous))
        self._wake.ring()

    def wait_until(self, what: Callable[[Rendezvous], bool], seconds: float) -> None:
        """Until the rendezvous is so, or that long. Requires: nobody else waits for the bell."""
        deadline = time.monotonic() + seconds
        with suppress(Error):  # who asks next is told of a thread that has ended
            while not self.ask(what) and (left := deadline - time.monotonic()) > 0:
                wait([self.bell.descriptor], min(left, _TICK_SECONDS))
                self.bell.mute()

    def close(self) -> None:
        """End the thread, once all that is to be said has been sent, or cannot be."""
        self._stopping = True
        self._wake.ring()
        self._thread.join(_LAST_SECONDS)
        self._network.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._receive()
        except BaseException as error:  # whoever asks is told
            self._error = error
        for line in self._lines.values():
            line.close()
        self._inbox.close()
        self.bell.ring()

    def _receive(self) -> None:
        ticked = time.monotonic()
        while not self._stopping:
            waits = any(line.waits for line in self._lines.values())
            self._inbox.wait(_AGAIN_SECONDS if waits else _TICK_SECONDS, (self._wake.descriptor,))
            self._wake.mute()
            self._count_time()
            while got := self._heard():
                if isinstance(got, Join):  # one that was killed this moment, and is begun again, finds its roles free
                    self._drop([name for name, line in self._lines.items() if not line.takes])
                self._decide(partial(Rendezvous.came, message=got, now=self._now))
            if (now := time.monotonic()) - ticked >= _TICK_SECONDS:
                ticked = now
                self._look()
            self._carry_out()
            self._send()
        self._carry_out()
        self._send()

    def _send(self) -> None:
        """Send what waits, and close what nothing more is said by."""
        for name, line in list(self._lines.items()):
            line.send()
            if line.is_over:
                self._lines.pop(name).close()

    def _heard(self) -> FromAgent | None:
        """The next word of an agent. What is none is told, and dropped: it comes from somebody who has the secret, and another version."""
        while True:
            try:
                got = self._inbox.receive(0)
            except RunError as error:
                self._tell(str(error))
                continue
            if got is None:
                return None
            if isinstance(got[0], FromAgent):
                return got[0]

    def _decide(self, what: Callable[[Rendezvous], list[Instruction]]) -> None:
        with self._lock:
            self._to_do.extend(what(self._rendezvous))
        self._carry_out()
        self.bell.ring()

    def _tell(self, text: str) -> None:
        with self._lock:
            self._rendezvous.news.append(text)

    def _count_time(self) -> None:
        """Agents are silent while it listens: a run that is frozen as a whole goes on where it was."""
        now = time.monotonic()
        self._now += min(now - self._listened, _MOST_SECONDS)
        self._listened = now

    def _look(self) -> None:
        """Which agents are gone?"""
        self._drop([name for name, line in self._lines.items() if line.is_broken])
        self._decide(partial(Rendezvous.passed, now=self._now))

    def _drop(self, agents: Iterable[str]) -> None:
        """Nobody is there any more, or ever was."""
        for name in agents:
            line = self._lines.pop(name)
            line.close()
            if not line.was_met and not line.is_last:
                where = line.address.removeprefix("tcp://")
                self._tell(
                    f"an agent says that it is at {where}, where nobody is reached: let htrain role say another --address"
                )
            self._decide(partial(Rendezvous.line_broke, agent=name))

    def _carry_out(self) -> None:
        while True:
            with self._lock:
                if not self._to_do:
                    return
                said = self._to_do.popleft()
            if isinstance(said, Meet):
                self._meet(said)
            elif isinstance(said, Say):
                self._say(said.agent, said.message)
            elif isinstance(said, Hand):
                self._say(said.agent, self._piece(said.asked))
            elif line := self._lines.get(said.agent):
                line.end()

    def _meet(self, said: Meet) -> None:
        if said.agent in self._lines:  # it asks again, and is being told
            return
        outbox = self._network.outbox({said.agent: said.address})
        self._lines[said.agent] = _Line(said.agent, said.address, outbox)

    def _say(self, agent: str, message: FromLauncher) -> None:
        line = self._lines.get(agent)
        try:
            if line:
                line.say(message)
        except RunError:  # its address is none
            self._drop([agent])

    def _piece(self, asked: Fetch) -> Piece:
        """What a file has from there on; nothing of a file that the plan does not have."""
        path = self._files.get(asked.name)
        try:
            if path:
                with path.open("rb") as file:
                    file.seek(asked.offset)
                    return Piece(asked.name, asked.offset, file.read(_PIECE_BYTES))
        except OSError:  # the agent finds that the file is not whole
            pass
        return Piece(asked.name, asked.offset, b"")
