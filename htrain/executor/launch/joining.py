"""Where an agent finds its launcher, and which roles it may ask for."""

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from htrain.errors import Error, PeerLost, RunError, UsageError
from htrain.executor.host.address import route_to
from htrain.net.names import Role

_TRY_SECONDS = 0.2  # between two looks for a launcher
_LEAST_SECONDS = 1.0  # for an answer, however little time is left


@dataclass(frozen=True)
class Joining:
    """Where an agent looks for its launcher, for how long, and with what secret, which is called `whence`; `address` is its own, an interface or a name that
    stands for it, "" for that by which the launcher is reached."""

    host: str
    port: int
    secret: bytes
    whence: str
    address: str = ""
    wait_seconds: float = 60.0

    @property
    def launcher(self) -> str:
        """As users name it."""
        return f"{self.host}:{self.port}"


def require_roles(roles: Sequence[str]) -> None:
    """Raises UsageError for what is no role, and for one that is named twice."""
    for role in roles:
        try:
            Role.parse(role)
        except Error as error:
            raise UsageError(str(error)) from error
        if roles.count(role) > 1:
            raise UsageError(f"{role} is named twice")


class Untaken(Exception):
    """No launcher was reached, or none has answered, because of this `error`."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


class Search:
    """How an agent looks for its launcher: for a first one as long as nobody listens there; for one that it has lost until it is taken, for `wait_seconds` in
    all, whatever stands at that address meanwhile, and whatever its own host lacks."""

    def __init__(self, joining: Joining) -> None:
        self._joining = joining
        self._until: float | None = None  # once a launcher was lost

    def lost(self) -> None:
        """The launcher that had taken the agent is gone."""
        self._until = time.monotonic() + self._joining.wait_seconds

    def within(self, seconds: float) -> float:
        """How long an answer may take that is waited for so long where there is time."""
        left = math.inf if self._until is None else self._until - time.monotonic()
        return min(seconds, max(left, _LEAST_SECONDS))

    def failed(self, error: Error) -> None:
        """The agent was not taken: try again after a pause. Raises the error where no launcher was lost, PeerLost where there is no more time."""
        if self._until is None:
            raise error
        if time.monotonic() >= self._until:
            raise PeerLost(f"{self._joining.launcher}: the launcher is gone, and no other has come: {error}") from error
        time.sleep(_TRY_SECONDS)

    def found(self) -> tuple[str, str]:
        """The launcher's address, and this host's own on the way there; waits for it. Raises RunError where there is none in time."""
        return _found(self._joining, self._until or time.monotonic() + self._joining.wait_seconds)


def _found(joining: Joining, end: float) -> tuple[str, str]:
    while True:
        try:
            return route_to(joining.host, joining.port)
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                why = getattr(error, "strerror", None) or error
                raise RunError(
                    f"{joining.launcher}: no launcher within {joining.wait_seconds:.0f} s ({why}{_meaning(joining.host)}): start it with "
                    f"htrain run PLAN --listen {joining.launcher}, or wait longer with --wait-seconds"
                ) from error
            time.sleep(_TRY_SECONDS)


def _meaning(host: str) -> str:
    """What a name stands for here, in words."""
    try:
        found = socket.gethostbyname(host)
    except (OSError, UnicodeError):
        return ""
    return f"; {host} stands for {found} here" if found != host else ""
