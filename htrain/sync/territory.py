"""Which server holds a row that several tables' rows are numbered by: keys, cut into ranges."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.jit import njit

Ids = NDArray[np.int64]


class Territory:
    """Which server holds a key, and as which of its rows. Keys number the rows of all cached tables, one table after another."""

    def __init__(
        self, first_keys: Sequence[int], servers: Sequence[int], first_rows: Sequence[int], num_keys: int
    ) -> None:
        """Shard i holds the keys from first_keys[i] to the next shard's, as rows from first_rows[i] on of server servers[i]."""
        self.bounds = np.array([*first_keys, num_keys], np.int64)
        self.servers = np.array(servers, np.int64)
        self.first_rows = np.array(first_rows, np.int64)
        self.num_servers = int(self.servers.max()) + 1
        most = max(int((self.bounds[1:] - self.bounds[:-1] + self.first_rows).max()), 1)
        self._short = most < 2**31

    def as_rows(self, rows: Ids) -> NDArray[np.int32] | Ids:
        """rows[n], numbers of a server's rows, as they travel: in 32 bits where all of its rows fit."""
        return rows.astype(np.int32) if self._short else rows

    def split(self, keys: Ids) -> tuple[Ids, Ids, Ids]:
        """Order, rows and starts: keys[order] are sorted by server, `rows` says as which of its rows, server k's are starts[k]:starts[k+1].

        Raises DataError for a key that no shard holds.
        """
        order, rows = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
        starts = np.zeros(self.num_servers + 1, np.int64)
        bad = _split(
            keys, self.bounds, servers=self.servers, first_rows=self.first_rows, order=order, rows=rows, starts=starts
        )
        if bad >= 0:
            raise DataError(
                f"row {keys[bad]} is asked for, the cached tables have {self.bounds[-1]}: is an id too large?"
            )
        return order, rows, starts


@njit(nogil=True, cache=True)
def _split(keys, bounds, servers, first_rows, order, rows, starts):  # type: ignore[no-untyped-def]
    shard = np.empty(keys.size, np.int32)
    near = 0
    for i in range(keys.size):
        key = keys[i]
        if key < bounds[0] or key >= bounds[-1]:
            return i
        if not bounds[near] <= key < bounds[near + 1]:
            near = np.searchsorted(bounds, key, side="right") - 1
        shard[i] = near
        starts[servers[near] + 1] += 1
    for k in range(starts.size - 1):
        starts[k + 1] += starts[k]
    cursor = starts[:-1].copy()
    for i in range(keys.size):
        server = servers[shard[i]]
        order[cursor[server]] = i
        rows[cursor[server]] = keys[i] - bounds[shard[i]] + first_rows[shard[i]]
        cursor[server] += 1
    return -1
