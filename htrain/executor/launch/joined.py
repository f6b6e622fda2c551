"""Worker pools whose roles come from elsewhere: agents that somebody starts on each host, with `htrain role`, join the launcher (docs/decisions/agents.md)."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from htrain.errors import Error, Interrupted, RunError
from htrain.executor.host.address import address_of, require_free, split_port
from htrain.executor.host.secret import read_secret
from htrain.executor.launch.coordinator import Outside, WorkerPool
from htrain.executor.launch.reach import Probes, task_of
from htrain.executor.launch.reception import Reception
from htrain.executor.launch.supervisor import Assignment, Place, encode_assignment
from htrain.executor.record.identity import Identity
from htrain.executor.roles.alone import can_be_alone
from htrain.executor.roles.rendezvous import Rendezvous
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Keys, Network
from htrain.executor.transport.rendezvous import MOST_BYTES, Over, own_version
from htrain.plan.plan import Plan, files_of
from htrain.printable import as_word
from htrain.spec.settings import Elsewhere

_LAST_SECONDS = 15.0  # for roles to end that have been told to
_GOODBYE_SECONDS = 3.0  # for agents to hear how the run has ended, and go
_SIGN_SECONDS = 0.5


@dataclass(frozen=True)
class Meeting:
    """Where agents join: at `port` of `host`, or at any that is free where that is 0, with a secret, within `join_seconds`. Once it is open at an address,
    `on_open` may start them; `advice` says what a user does about roles for which none has come, and `failure` why none will."""

    host: str
    port: int
    secret: bytes
    join_seconds: float
    advice: Callable[[str, Sequence[str]], str]
    on_open: Callable[[Plan, str], None] = lambda plan, address: None
    failure: Callable[[], Error | None] = lambda: None


def meeting_of(elsewhere: Elsewhere) -> Meeting:
    """For agents that users start themselves. Raises RunError where there is no secret, UsageError where it is to listen at no address of this host."""
    host, port = split_port("--listen", elsewhere.listen, port=0)
    file = Path(elsewhere.secret)

    def advice(address: str, roles: Sequence[str]) -> str:
        which = roles[0] if len(roles) == 1 else "ROLE"
        named = f"; ROLE is one of {', '.join(roles)}, or several of them" if len(roles) > 1 else ""
        return f"start htrain role {which} --launcher {address} --secret {as_word(file)} on its host{named}"

    return Meeting(address_of("--listen", host), port, read_secret(file), elsewhere.join_seconds, advice)


class JoinedPools:
    """The roles of each try, played by agents that stay from one to the next."""

    def __init__(self, meeting: Meeting, settings: RunSettings) -> None:
        self._meeting = meeting
        self._settings = settings
        self._reception: Reception | None = None
        self._header_digest = ""
        self._files: dict[str, Path] = {}
        self._probes: Probes | None = None

    def require(self, plan: Plan) -> None:
        """Begin to listen for those who play its roles. Raises RunError where nothing can listen, PlanError."""
        require_free("--listen", self._meeting.host, self._meeting.port)
        self._header_digest, self._files = files_of(self._settings.plan_folder)
        rendezvous = Rendezvous(plan.processes, own_version(), self._settings.liveness_seconds)
        network = Network("tcp", self._meeting.host, keys=Keys.of(self._meeting.secret))
        network.most_bytes = MOST_BYTES
        self._reception = Reception(rendezvous, network, self._meeting.port, self._files)
        self._meeting.on_open(plan, self._reception.address)

    def network(self) -> Network:
        """A new one, with keys of its own: what roles of another try say is not heard."""
        return Network("tcp", self._meeting.host, keys=Keys.new() if self._settings.encrypts else None)

    def gather(self, settings: RunSettings, identity: Identity, outside: Outside) -> None:
        """Wait until there is an agent for every role, which can reach what that needs. Raises what one cannot; RunError, which names those that have not come;
        Interrupted."""
        reception = self._open
        if self._probes is None:
            self._probes = Probes.of(settings)
            self._probes.put()
            outside.tell(self._advice(reception.ask(lambda r: r.missing)))
        task = self._task(settings, identity, self._probes)
        reception.have(lambda rendezvous: rendezvous.prepare(task))
        deadline = time.monotonic() + self._meeting.join_seconds
        while missing := self._missing(outside):
            if outside.interrupt.is_asked:
                raise Interrupted(f"stopped while {_listed(missing)} had not come")
            if time.monotonic() > deadline:
                advice = f"; go on with --resume {as_word(settings.run_folder)}" if settings.restore else ""
                raise RunError(
                    f"{_listed(missing)} did not come within {self._meeting.join_seconds:.0f} s (--join-seconds): {self._advice(missing)}{advice}"
                )
            wait([reception.bell.descriptor, *outside.interrupt.descriptors], _SIGN_SECONDS)
            outside.keep_folder()

    def _missing(self, outside: Outside) -> list[str]:
        """The roles that are waited for. Raises what makes it futile."""
        reception = self._open
        reception.bell.mute()
        while news := reception.ask(lambda r: r.news.popleft() if r.news else ""):
            outside.tell(news)
        if error := reception.ask(lambda r: r.error) or self._meeting.failure():
            raise error
        return reception.ask(lambda r: r.missing)

    def _task(self, settings: RunSettings, identity: Identity, probes: Probes) -> bytes:
        task = task_of(settings, identity.data, probes, files=tuple(self._files), header_digest=self._header_digest)
        return msgspec.json.encode(task)

    def _advice(self, roles: Sequence[str]) -> str:
        return self._meeting.advice(self._open.address, roles)

    def pool(self, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> WorkerPool:
        """All agents that have been gathered."""
        keys = (network.keys.public.decode(), network.keys.secret.decode()) if network.keys else None
        alone = list(can_be_alone(plan, settings))
        assignment = Assignment(list(map(list, plan.processes)), settings, launcher, Place(keys=keys), alone)
        return JoinedPool(self._open, encode_assignment(assignment), alone)

    @property
    def _open(self) -> Reception:
        assert self._reception
        return self._reception

    def close(self) -> None:
        """Nothing: agents are told how the run has ended, by `end`."""

    def end(self, error: BaseException | None) -> None:
        """Tell agents that the run is over, by an error or at the end of its data."""
        if self._probes:
            self._probes.remove()
        if self._reception:
            over = _over(error)
            self._reception.have(lambda rendezvous: rendezvous.end(over))
            self._reception.wait_until(lambda rendezvous: not rendezvous.agents, _GOODBYE_SECONDS)
            self._reception.close()


class JoinedPool:
    """What agents play in one try, from `assignment`. Roles that are `alone` can be begun again by the agent that has played them."""

    def __init__(self, reception: Reception, assignment: bytes, alone: Collection[str]) -> None:
        self._reception = reception
        self._alone = alone
        self._is_over = False
        reception.have(lambda rendezvous: rendezvous.begin(assignment))

    @property
    def descriptors(self) -> list[int]:
        """The bell of the reception."""
        return [self._reception.bell.descriptor]

    def lost(self) -> str:
        """A role whose process has ended by itself, or whose agent is gone."""
        self._reception.bell.mute()
        return self._reception.ask(lambda rendezvous: rendezvous.lost)

    def can_begin_again(self, role: str) -> bool:
        """Whether it is one that may be alone, and no agent has gone."""
        return role in self._alone and self._reception.ask(lambda rendezvous: rendezvous.can_begin_again(role))

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Have its agent begin it anew."""
        self._reception.have(lambda rendezvous: rendezvous.begin_again(role, checkpoint))

    def leaving(self) -> str:
        """An agent that is to leave."""
        return self._reception.ask(lambda rendezvous: rendezvous.leaving)

    def lives(self, role: str) -> bool:
        """Always False: that an agent lives says nothing of what it plays."""
        return False

    def end(self) -> None:
        """Have agents give their roles a moment, then end them, 15 s in all. A second call changes nothing."""
        self._finish(at_once=False)
        self._reception.wait_until(lambda rendezvous: rendezvous.has_rested, _LAST_SECONDS)

    def abandon(self) -> None:
        """Have agents end their roles at once; the next try waits for that."""
        self._finish(at_once=True)

    def kill(self) -> bool:
        """The same."""
        self._finish(at_once=True)
        return True

    def _finish(self, *, at_once: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._reception.have(lambda rendezvous: rendezvous.finish(at_once=at_once))


def _listed(roles: list[str]) -> str:
    return f"{', '.join(roles[:-1])} and {roles[-1]}" if len(roles) > 1 else roles[0]


def _over(error: BaseException | None) -> Over:
    if error is None:
        return Over()
    if isinstance(error, Error):
        return Over(type(error).__name__, f"the run has ended: {error}")
    if isinstance(error, KeyboardInterrupt):
        return Over(Interrupted.__name__, "the run was interrupted")
    return Over(RunError.__name__, f"the run has ended: {type(error).__name__}: {error}")
