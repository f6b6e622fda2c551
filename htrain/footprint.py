"""What a role's process takes beyond what its plan gives it: constants, measured (`python tools/bench/role_memory.py`)."""

# A process with its imports, threads and sockets, before it holds anything: 287 to 289 MiB of a dense PS, 310 of a group PS, 313 to 346 of a
# trainer, whose reader of data is the rest. Of these some 200 MiB are libraries, of which a host has one copy for all roles.
ROLE_BYTES = 320 << 20

HET_SLOT_BYTES = 120  # of HET's client for a row beside its values: clocks, keys, lists of the policy, and the index at its fullest
HET_SPARE_SLOTS = 1024  # rows that it has room for beyond its capacity
HET_ANNOUNCED = 8  # times the bytes of a batch that has been announced to it: the batch, its distinct ids, where each stands, the index of them
LOOKAHEAD_PIN_BYTES = 4  # of a look-ahead cache for each slot, beside the row's key
LOOKAHEAD_ANNOUNCED = 3  # times the bytes of a batch of a window: the batch, its distinct ids, those of the window
