"""A cache of HET that holds nothing: every row is fetched for every batch, and every update leaves with the next request.

It is what a worker has until the loops of a cache are compiled (htrain.client.warm_up), and keeps every bound of one. NumPy alone.
"""

from collections.abc import Sequence

import numpy as np

from htrain.errors import DataError
from htrain.membership.served import ServedCache
from htrain.sync.request import Clocks, Pushed, Request, Rows
from htrain.sync.territory import Ids

_NONE = np.empty(0, np.int64)


class DirectRows:
    """Rows of one cache's tables, of width D; as `htrain.sync.het.client.HetCache`, without a staleness."""

    def __init__(self, served: ServedCache) -> None:
        self.width = served.width
        self.fetched = 0
        self._served = served
        self._row_width = served.width + served.state_width
        self._num_servers = len(served.devices)
        self._pushed = _nothing(self.width)
        self._keys = _NONE  # of all rows read since the last trim, by slot
        self._clocks: Clocks = np.empty(0, np.int32)
        self._order = _NONE

    @property
    def unsent(self) -> int:
        """Rows with updates that were not pushed."""
        return int(self._pushed.keys.size)

    def announce(self, keys: Ids) -> None:
        """A batch will come; nothing is kept for it."""

    def ask(self, keys: Ids) -> tuple[Ids, list[Request]]:
        """Slots of distinct keys[u], and a request to each server for all of them. Requires: they were not asked for since the last trim."""
        parts = [self._served.held_at(server, keys) for server in range(self._num_servers)]
        self._order = np.concatenate([places for places, _ in parts])
        slots = self._keys.size + np.arange(keys.size)
        self._keys = np.concatenate([self._keys, keys])
        self.fetched += keys.size
        return slots, self._requests([rows for _, rows in parts])

    def outgoing(self) -> list[Request]:
        """A request to each server with what has been written, and nothing asked."""
        self._order = _NONE
        return self._requests([_NONE] * self._num_servers)

    flush = outgoing

    def read_arrays(self, slots: Ids, answers: Sequence[tuple[Rows, Clocks, Ids]]) -> Rows:
        """The rows[u,D] that were asked for. Raises DataError for an answer that does not fit."""
        values, clocks = (np.concatenate([answer[part] for answer in answers]) for part in (0, 1))
        if values.shape != (self._order.size, self._row_width) or clocks.size != self._order.size:
            raise DataError(
                f"servers answer with rows {list(values.shape)}, want [{self._order.size},{self._row_width}]"
            )
        rows = np.empty((slots.size, self.width), np.float32)
        if slots.size:
            own = np.empty(slots.size, np.int32)
            rows[self._order], own[self._order] = values[:, : self.width], clocks
            self._clocks = np.concatenate([self._clocks, own])
        return rows

    def write(self, slots: Ids, gradients: Rows) -> None:
        """Keep gradients[n,D] of some of the rows that were read, to be pushed."""
        before = self._pushed
        self._pushed = Pushed(
            np.concatenate([before.keys, self._keys[slots]]),
            np.concatenate([before.clocks, self._clocks[slots] + np.int32(1)]),
            np.concatenate([before.grads, gradients]),
        )

    def let_go(self, slots: Ids) -> None:
        """Nothing is written to these rows."""

    def trim(self) -> None:
        """The step is over: nothing is kept of its rows."""
        self._keys, self._clocks = _NONE, np.empty(0, np.int32)

    def handed_over(self) -> Pushed:
        """What waits to be pushed; it is somebody else's from now on."""
        pushed, self._pushed = self._pushed, _nothing(self.width)
        return pushed

    def _requests(self, fetched: Sequence[Ids]) -> list[Request]:
        pushed = self.handed_over()
        requests = []
        for server, rows in enumerate(fetched):
            places, out = self._served.held_at(server, pushed.keys)
            counts = np.array([out.size, rows.size, 0], np.int64)
            requests.append(Request(counts, np.concatenate([out, rows]), pushed.clocks[places], pushed.grads[places]))
        return requests


def _nothing(width: int) -> Pushed:
    return Pushed(_NONE, np.empty(0, np.int32), np.empty((0, width), np.float32))
