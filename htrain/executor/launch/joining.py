"""Where an agent finds its launcher, and which roles it may ask for."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from htrain.errors import Error, RunError, UsageError
from htrain.executor.host.address import route_to
from htrain.net.names import Role

_TRY_SECONDS = 0.2  # between two looks for a launcher


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


def found(joining: Joining) -> tuple[str, str]:
    """The launcher's address, and this host's own on the way there; waits for it. Raises RunError where there is none in time."""
    end = time.monotonic() + joining.wait_seconds
    while True:
        try:
            return route_to(joining.host, joining.port)
        except (OSError, UnicodeError) as error:
            if time.monotonic() > end:
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
