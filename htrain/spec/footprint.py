"""What a role's process takes beyond what its plan gives it: constants, measured (`python tools/bench/role_memory.py`)."""

# A process with its imports, threads and sockets, before it holds anything: 287 to 289 MiB of a dense PS, 310 of a group PS, 313 to 346 of a
# trainer, whose reader of data is the rest. Of these some 200 MiB are libraries, of which a host has one copy for all roles.
ROLE_BYTES = 320 << 20
FURTHER_BYTES = 48 << 20  # a process that a role has forked besides: most of what it has, it shares


def role_bytes(processes: int) -> int:
    """Bytes of a role that is so many processes, without what it holds."""
    return ROLE_BYTES + (processes - 1) * FURTHER_BYTES


MOST_COPIED_BYTES = 64 << 20  # of parameters without marks, for a checkpoint: some hundredths of a second of standstill
LEAST_MARKED_BYTES = 64 << 10  # of a table whose rows have marks


def mark_bytes(num_rows: int, num_bytes: int, processes: int) -> int:
    """What the marks of a table take, by which a checkpoint knows the rows that have changed (docs/decisions/checkpoints.md): a byte a row, in memory wherever
    the table lies. PSs of several processes have none."""
    return num_rows if num_bytes >= LEAST_MARKED_BYTES and processes == 1 else 0
