"""Which pass of a net something belongs to: the key of everything that is kept or sent for it (docs/decisions/engine.md)."""

from dataclasses import dataclass

import msgspec

SYNC_REPLICA = -1
PREFETCHER, WRITER, VICTIMS = APART = (
    -2,
    -3,
    -4,
)  # whose passes are apart from steps, between look-ahead caches and the tables


STEPS_OF_AN_INCARNATION = 1 << 40


def first_step(incarnation: int) -> int:
    """The number of the first step of each replica of a trainer, which was begun again alone so many times: behind all that it can have begun before."""
    return incarnation * STEPS_OF_AN_INCARNATION


class Context(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One pass of one net replica over one batch. A background sync round has replica -1 and its number as step; lower ones are `APART`."""

    group: int
    trainer: int
    replica: int
    step: int


@dataclass(frozen=True)
class Spread:
    """Passes over the processes of a role, each of which has an endpoint of its own: all messages of a pass go to the same one.

    `trainers` of a group have `replicas` net replicas each: these take processes in turn.
    """

    trainers: int = 1
    replicas: int = 1

    def process_of(self, context: Context, processes: int) -> int:
        """The number of the process, in [0, processes)."""
        return ((context.group * self.trainers + context.trainer) * self.replicas + context.replica) % processes


def process_endpoint(endpoint: str, number: int) -> str:
    """Where a process of a role takes messages: the first at the role's own endpoint."""
    return f"{endpoint}/process{number}" if number else endpoint
