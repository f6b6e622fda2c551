"""What passes between the launcher and the agents of hosts elsewhere, before and between the tries of a run (docs/decisions/agents.md).

An agent is the process of `htrain role`: it plays roles on its host for a launcher that it has found by address. All of it is encrypted with the run's
secret, which both have, and nobody else.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import msgspec

MOST_BYTES = 16 << 20  # of a message: a piece of a file has one of these, a task and an assignment far less

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


# -- from an agent ---------------------------------------------------------------------------------------------------


class Join(msgspec.Struct, tag="join", array_like=True, frozen=True):
    """An agent wants to play some roles. It is reached at `address`; `agent` is a name of its own, that no other has: that of its process, and behind a dot
    how often that has joined."""

    agent: Name
    version: str
    roles: list[Name]
    address: str
    host: str
    pid: int


class Here(msgspec.Struct, tag="here", array_like=True, frozen=True):
    """The agent lives. Where it has heard nothing for a while it asks whether it is known, and says the `address` at which it is reached; "" otherwise."""

    agent: Name
    address: str = ""


class Fetch(msgspec.Struct, tag="fetch", array_like=True, frozen=True):
    """The agent wants a piece of a file of the plan."""

    agent: Name
    name: str
    offset: Count


class Prepared(msgspec.Struct, tag="prepared", array_like=True, frozen=True):
    """The agent has the plan, and can reach what its roles need."""

    agent: Name


class Unable(msgspec.Struct, tag="unable", array_like=True, frozen=True):
    """The agent's roles cannot be played there: the name of the error's class, and its text."""

    agent: Name
    kind: str
    error: str


class RoleEnded(msgspec.Struct, tag="role ended", array_like=True, frozen=True):
    """The process of a role has ended by itself, in the try of this number; the text begins with the role's name. It was begun `again` so often. Whether
    another of that role would find what it needs there."""

    agent: Name
    number: Count
    what: str
    again: Count = 0
    can_be_followed: bool = True


class Leaving(msgspec.Struct, tag="leaving", array_like=True, frozen=True):
    """The agent is asked to leave: it does once the try is over, which the launcher is to end with a checkpoint."""

    agent: Name


class Rested(msgspec.Struct, tag="rested", array_like=True, frozen=True):
    """No process of the try of this number is left."""

    agent: Name
    number: Count


class Leave(msgspec.Struct, tag="leave", array_like=True, frozen=True):
    """The agent goes; `why`, where nobody has asked it to."""

    agent: Name
    why: str = ""


FromAgent = Join | Here | Fetch | Prepared | Unable | RoleEnded | Rested | Leaving | Leave


# -- from the launcher -----------------------------------------------------------------------------------------------


class Declined(msgspec.Struct, tag="declined", array_like=True, frozen=True):
    """The agent is not taken, or not any more; in the latter case it may come `again`, as a new one."""

    reason: str
    again: bool = False


class Present(msgspec.Struct, tag="present", array_like=True, frozen=True):
    """The launcher lives, and knows the agent."""


class Prepare(msgspec.Struct, tag="prepare", array_like=True, frozen=True):
    """What the agent's roles need, in JSON: it is to see whether it can reach that."""

    task: bytes


class Piece(msgspec.Struct, tag="piece", array_like=True, frozen=True):
    """A piece of a file of the plan; empty behind its end."""

    name: str
    offset: Count
    data: bytes


class Begin(msgspec.Struct, tag="begin", array_like=True, frozen=True):
    """Have the roles played, in the try of this number; what they are to know is in JSON."""

    number: Count
    assignment: bytes


class BeginAgain(msgspec.Struct, tag="begin again", array_like=True, frozen=True):
    """In the try of this number the process of a role has ended by itself, or is to end: have another go on with what that did, or with a `checkpoint`."""

    number: Count
    role: Name
    checkpoint: str = ""


class Finish(msgspec.Struct, tag="finish", array_like=True, frozen=True):
    """The try is over: end what is left of its processes, `at_once` or with a moment for those on their way out."""

    number: Count
    at_once: bool


class Over(msgspec.Struct, tag="over", array_like=True, frozen=True):
    """The run is over: by an error of this class and text, or, where these are empty, at the end of its data."""

    kind: str = ""
    error: str = ""


FromLauncher = Declined | Present | Prepare | Piece | Begin | BeginAgain | Finish | Over


def own_version() -> str:
    """The version of this htrain, which launcher and agents have in common; "unknown" of a copy that is not installed."""
    try:
        return version("htrain")
    except PackageNotFoundError:
        return "unknown"
