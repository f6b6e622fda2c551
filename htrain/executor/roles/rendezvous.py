"""Who has come to play the roles of a plan, as the launcher sees it; decided without sockets and clocks (docs/decisions/agents.md).

An agent joins with the names of its roles, is told what these need, and says whether it can reach that. Once every role has such an agent, a try begins; when
it is over, however it went, agents end what they play, and stay for the next. Whatever is called returns what is to be done.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from htrain.errors import Error, error_named
from htrain.executor.transport.rendezvous import (
    Begin,
    BeginAgain,
    Declined,
    Fetch,
    Finish,
    FromAgent,
    FromLauncher,
    Here,
    Join,
    Leave,
    Leaving,
    Over,
    Prepare,
    Prepared,
    Present,
    Rested,
    RoleEnded,
    Unable,
)

_MOST_NEWS = 100  # that wait for somebody who looks


@dataclass
class Agent:
    """An agent that is known. It `heard` last at that time, and may have processes of the try of this `number`, 0 for none."""

    roles: tuple[str, ...]
    place: str
    heard: float
    is_prepared: bool = False
    number: int = 0
    is_leaving: bool = False

    def __str__(self) -> str:
        return f"{self.roles[0]} ({self.place})"


@dataclass(frozen=True)
class Meet:
    """Instruction: an agent is reached at this address."""

    agent: str
    address: str


@dataclass(frozen=True)
class Say:
    """Instruction: tell an agent something, behind what it was told before."""

    agent: str
    message: FromLauncher


@dataclass(frozen=True)
class Hand:
    """Instruction: send an agent the piece that it asks for."""

    agent: str
    asked: Fetch


@dataclass(frozen=True)
class Forget:
    """Instruction: nothing more is said to an agent."""

    agent: str


Instruction = Meet | Say | Hand | Forget


class Rendezvous:
    """The agents of one run. `processes` are the roles of each process, `version` is that of this htrain; an agent that is silent for `silent_seconds` is
    given up.

    `error` is what makes the run impossible; `news` is what the user may want to know.
    """

    def __init__(self, processes: Sequence[Sequence[str]], version: str, silent_seconds: float) -> None:
        self.agents: dict[str, Agent] = {}
        self.error: Error | None = None
        self._gone_what = ""
        self._ended: dict[str, str] = {}
        self._again: Counter[str] = Counter()  # how often roles were begun again in this try
        self._last: set[str] = (
            set()
        )  # those of this try whose processes have left nothing that another could go on with
        self.news: deque[str] = deque(maxlen=_MOST_NEWS)
        self._processes = [tuple(roles) for roles in processes]
        self._roles = [role for roles in processes for role in roles]
        self._version = version
        self._silent_seconds = silent_seconds
        self._task = b""
        self._number = 0  # of the last try
        self._is_running = False
        self._over: Over | None = None

    @property
    def missing(self) -> list[str]:
        """The roles with which no try can begin: nobody has come for them, or not prepared yet, or the try before is not over there."""
        able = {
            role
            for agent in self.agents.values()
            if agent.is_prepared and not agent.number and not agent.is_leaving
            for role in agent.roles
        }
        return [role for role in self._roles if role not in able]

    @property
    def lost(self) -> str:
        """Which agent or role of the try under way is gone, and how; "" while none is."""
        return next(iter(self._ended.values()), "") or self._gone_what

    @property
    def leaving(self) -> str:
        """An agent of the try under way that is to leave; "" where none is."""
        leaving = (agent for agent in self.agents.values() if agent.is_leaving and agent.number == self._number)
        return next((f"{agent} leaves" for agent in leaving), "") if self._is_running else ""

    @property
    def has_rested(self) -> bool:
        """Whether no agent has anything left of a try."""
        return not any(agent.number for agent in self.agents.values())

    # -- what agents say ---------------------------------------------------------------------------------------------

    def came(self, message: FromAgent, now: float) -> list[Instruction]:
        """An agent has said something."""
        if isinstance(message, Join):
            return self._joined(message, now)
        agent = self.agents.get(message.agent)
        if agent is None:
            return self._unknown(message)
        agent.heard = now
        if isinstance(message, Fetch):
            return [Hand(message.agent, message)]
        if isinstance(message, Prepared):
            agent.is_prepared = True
            self.news.append(f"{', '.join(agent.roles)}: {agent.place} ({self._count})")
        elif isinstance(message, Unable):
            self.error = self.error or error_named(message.kind, f"{agent}: {message.error}")
        elif isinstance(message, RoleEnded):
            role = message.what.partition(" ")[0]
            # One that was to end, as others begin again with it, may have ended by itself before its agent was told.
            if self._is_running and (message.number, message.again) == (self._number, self._again[role]):
                self._ended.setdefault(role, f"{message.what}{agent.place[agent.place.index(' on ') :]}")
                self._last |= set() if message.can_be_followed else {role}
        elif isinstance(message, Rested):
            agent.number = 0 if message.number == agent.number else agent.number
        elif isinstance(message, Leaving):
            agent.is_leaving = True
        elif isinstance(message, Leave):
            return self._gone(message.agent, "has left the run" + (f": {message.why}" if message.why else ""))
        return []

    def _unknown(self, message: FromAgent) -> list[Instruction]:
        """An agent that was declined, or given up, or has joined a launcher before this one, is told that when it asks."""
        if not isinstance(message, Here) or not message.address:
            return []
        last = self._over or Declined("it does not know this agent, or not any more", again=True)
        return [Meet(message.agent, message.address), Say(message.agent, last), Forget(message.agent)]

    @property
    def _count(self) -> str:
        return (
            f"{sum(len(a.roles) for a in self.agents.values() if a.is_prepared)} of {len(self._roles)} roles are here"
        )

    def _joined(self, message: Join, now: float) -> list[Instruction]:
        before = [name for name in self.agents if _process(name) == _process(message.agent)]
        meet = [each for name in before for each in self._gone(name, "joins again")]
        meet.append(Meet(message.agent, message.address))
        reason = self._against(message)
        if self._over or reason:
            last = self._over or Declined(reason)
            if not self._over:
                self.news.append(f"process {message.pid} on {message.host} is declined: {reason}")
            return [*meet, Say(message.agent, last), Forget(message.agent)]
        self.agents[message.agent] = Agent(tuple(message.roles), f"process {message.pid} on {message.host}", now)
        return [*meet, Say(message.agent, Prepare(self._task) if self._task else Present())]

    def _against(self, message: Join) -> str:
        """Why an agent is not to be taken, "" where nothing is against it."""
        wanted = set(message.roles)
        if message.version != self._version:
            return (
                f"it runs htrain {message.version}, the launcher {self._version}: install the same version on all hosts"
            )
        if unknown := wanted.difference(self._roles):
            return f"the plan has no role {min(unknown)}: it has {', '.join(self._roles)}"
        for agent in self.agents.values():
            if held := wanted.intersection(agent.roles):
                return f"{min(held)} is played by {agent.place} already: each role is played once"
        for roles in self._processes:
            if 0 < len(wanted.intersection(roles)) < len(roles):
                return f"{' and '.join(roles)} share a process: name them in one command"
        return "" if wanted else "it names no role"

    # -- what becomes of agents --------------------------------------------------------------------------------------

    def line_broke(self, agent: str) -> list[Instruction]:
        """Nobody is there any more where an agent was reached."""
        return self._gone(agent, "is gone: its process has ended, or its host cannot be reached")

    def passed(self, now: float) -> list[Instruction]:
        """It is that late."""
        silent = [name for name, agent in self.agents.items() if now - agent.heard > self._silent_seconds]
        said = [
            Say(name, Declined(f"it was silent for {self._silent_seconds:.0f} s, and given up", again=True))
            for name in silent
        ]
        how = f"has been silent for {self._silent_seconds:.0f} s"
        return [*said, *(each for name in silent for each in self._gone(name, how))]

    def _gone(self, name: str, how: str) -> list[Instruction]:
        agent = self.agents.pop(name, None)
        if agent is None:
            return []
        self.news.append(f"{agent} {how}")
        self._lose(agent, agent.number, f"{agent} {how}")
        return [Forget(name)]

    def _lose(self, agent: Agent, number: int, what: str) -> None:
        if self._is_running and number == self._number:
            self._gone_what = self._gone_what or what

    # -- what the launcher wants -------------------------------------------------------------------------------------

    def prepare(self, task: bytes) -> list[Instruction]:
        """That is what roles need. Agents that have been prepared, or do so, stay as they are."""
        is_first, self._task = not self._task, task
        return self._to_all(Prepare(task)) if is_first else []

    def begin(self, assignment: bytes) -> list[Instruction]:
        """Begin a try. What has been lost since `missing` was empty is `lost` of it."""
        self._number += 1
        self._is_running = True
        self._gone_what, self._ended = f"{self.missing[0]} is gone" if self.missing else "", {}
        self._again.clear()
        self._last.clear()
        able = {name: agent for name, agent in self.agents.items() if agent.is_prepared}
        for agent in able.values():
            agent.number = self._number
        return [Say(name, Begin(self._number, assignment)) for name in able]

    def can_begin_again(self, role: str) -> bool:
        """Whether an agent plays a role, and no agent is lost."""
        is_there = any(role in agent.roles for agent in self.agents.values())
        return is_there and not self._gone_what and role not in self._last

    def begin_again(self, role: str, checkpoint: str) -> list[Instruction]:
        """Have that role's agent begin it anew, with the parameters of a checkpoint where it has any. Requires: it can be, or lives."""
        self._ended.pop(role, None)
        self._again[role] += 1
        again = BeginAgain(self._number, role, checkpoint)
        return [Say(name, again) for name, agent in self.agents.items() if role in agent.roles]

    def finish(self, *, at_once: bool) -> list[Instruction]:
        """The try is over."""
        self._is_running = False
        said = Finish(self._number, at_once)
        return [Say(name, said) for name, agent in self.agents.items() if agent.number]

    def end(self, over: Over) -> list[Instruction]:
        """The run is over; who comes later is told so, too."""
        self._over = over
        return self._to_all(over)

    def _to_all(self, message: FromLauncher) -> list[Instruction]:
        return [Say(name, message) for name in self.agents]


def _process(agent: str) -> str:
    """The process that bears an agent's name: it is one agent after the other, never two."""
    return agent.partition(".")[0]
