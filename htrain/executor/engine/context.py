"""Which pass of a net something belongs to: the key of everything that is kept or sent for it (docs/decisions/engine.md)."""

import msgspec

SYNC_REPLICA = -1
PREFETCHER, WRITER, VICTIMS = APART = (
    -2,
    -3,
    -4,
)  # whose passes are apart from steps, between look-ahead caches and the tables


class Context(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One pass of one net replica over one batch. A background sync round has replica -1 and its number as step; lower ones are `APART`."""

    group: int
    trainer: int
    replica: int
    step: int
