"""What a role, or the launcher, takes from others by its plan: all else comes from no role of it (docs/guarantees.md)."""

from collections.abc import Collection
from pathlib import Path, PurePath

from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Ready, State
from htrain.net.names import GROUP_PS, SPARSE_PS, TRAINER, role_at
from htrain.plan.plan import Plan

_LEAST_BYTES = 16 << 20  # of what no plan foresees: addresses of thousands of roles, long lists in few examples
_TIMES = 4  # what a plan foresees is reckoned with lists of mean length


def most_message_bytes(plan: Plan) -> int:
    """The longest frame of a message, and the most bytes of tensors in one: no role sends more than what the largest of them holds of rows, weights and values
    at once."""
    return _LEAST_BYTES + _TIMES * max((load.holds.total - load.holds.own for load in plan.loads.values()), default=0)


def is_for_launcher(message: Message, roles: Collection[str]) -> bool:
    """Whether a message is one that roles send to their launcher, and is of one of these `roles`, which speaks of no endpoints but its own."""
    if not isinstance(message, Hello | Ready | Beat | State | Failed) or message.source not in roles:
        return False
    return not isinstance(message, Hello) or all(role_at(endpoint) == message.source for endpoint in message.endpoints)


def is_checkpoint_of(folder: str, run_folder: Path) -> bool:
    """Whether a role may be told to save into a folder: one right in the checkpoints of its run."""
    path = PurePath(folder)
    return path.parent == run_folder / "checkpoints" and path.name not in ("", "..")


def is_name(name: str) -> bool:
    """Whether a role may be told to publish under a name, or to build on a checkpoint of it: it is no way to anywhere else."""
    return PurePath(name).name == name != ".."


def may_be_alone(name: str) -> bool:
    """Whether a role of this name may be told of as begun again while others go on: a trainer or a group PS, or a sparse PS."""
    kind, *place = name.split(":")
    return len(place) == {TRAINER: 2, GROUP_PS: 2, SPARSE_PS: 1}.get(kind) and all(
        number.isdecimal() for number in place
    )
