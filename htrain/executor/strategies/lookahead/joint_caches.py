"""The look-ahead caches of one trainer, one for each table, and what trainers with the same caches do to keep them alike (cDLRM 5, 6.1).

Every trainer places the same windows, and so holds the same rows in the same slots; each updates them with its own gradients, and every so often the rows that
any of them has touched are averaged. The first alone reads and writes the store. With one trainer, nothing is exchanged.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from htrain.executor.strategies.lookahead.table_cache import TableCache, WindowOfTable, distinct
from htrain.executor.strategies.lookahead.turnover import Turnover
from htrain.executor.transport.peers import Ids, Peers, Rows
from htrain.ops.side_by_side import each_of
from htrain.sync.lookahead.averaging import Averaging
from htrain.sync.lookahead.journal import Written


def victims_are_known(peers: Peers, windows: Mapping[str, WindowOfTable]) -> bool:
    """Whether all conflict victims of a window's steps are known when it has been planned: those of other trainers are heard of when it is placed. All of
    them, which plan it alike, say the same."""
    return peers.size == 1 or not any(window.missed for window in windows.values())


class JointCaches:
    """Caches by name; touched rows are averaged when `averaging` says so (Algorithm 3's lambda), and when they leave. For the trainer's thread.

    Calls that exchange raise PeerLost.
    """

    def __init__(self, caches: Mapping[str, TableCache], peers: Peers, averaging: Averaging) -> None:
        self._caches = caches
        self._peers = peers
        self._averaging = averaging
        for cache in caches.values():
            cache.writes, cache.track = peers.is_first, peers.size > 1

    def turnover(self, windows: Mapping[str, WindowOfTable]) -> Turnover:
        """What a window changes of the slots, whose rows have been read: on their way from now on. For any thread."""
        return Turnover([cache.turning(windows[name]) for name, cache in self._caches.items()])

    def place(self, windows: Mapping[str, WindowOfTable], turnover: Turnover) -> None:
        """Put the rows of a window into the caches; what makes room for them leaves."""
        tables = [(cache, windows[name]) for name, cache in self._caches.items()]
        self._average([cache.touched_of(window) for cache, window in tables])
        self._begin_window(list(windows.values()))
        changed = [cache.put_right_since(window) for cache, window in tables]
        for (cache, window), left in zip(tables, turnover.leave(), strict=True):
            cache.leave(window, left)
        missed = [() if victims_are_known(self._peers, windows) else window.missed for _, window in tables]
        known = deque(self._peers.gather([*changed, *(ids for steps in missed for ids in steps)]))
        changed = [known.popleft()[0] for _ in tables]
        right = self._peers.share([window.rows[places] for (_, window), places in zip(tables, changed, strict=True)])
        turnover.enter()
        for (cache, window), places, rows, steps in zip(tables, changed, right, missed, strict=True):
            cache.enter(window)
            cache.put(window.fresh_slots[places], rows)
            window.victims.extend(np.unique(np.concatenate(known.popleft())) for _ in steps)

    def _begin_window(self, windows: Sequence[WindowOfTable]) -> None:
        """Tell what is to come: how many rows each step looks up, and so updates, on all trainers."""
        if not self._averaging.wants_updates:
            return
        own: Ids = np.array([window.asked for window in windows], np.int64).sum(axis=0)
        (everybody,) = self._peers.gather([own])
        self._averaging.begin_window(np.sum(everybody, axis=0).tolist())

    def prepare_step(self) -> None:
        """The slots of the next batch. For any thread, from when its victims are known."""
        caches = list(self._caches.values())
        each_of(lambda place: caches[place].prepare_step(), [cache.next_count for cache in caches])

    def begin_step(self) -> dict[str, Ids]:
        """The next batch: its conflict victims by cache, where there are any. The first trainer fetches their rows."""
        victims = {name: cache.begin_step() for name, cache in self._caches.items()}
        return {name: keys for name, keys in victims.items() if keys.size}

    def take_victims(self, rows: Mapping[str, Rows]) -> None:
        """The victims' rows[v,W], by cache.

        On the first trainer they are as they were read from the store, on others anything of the same shape.
        """
        if self._peers.is_first:
            rows = {name: self._caches[name].put_victims_right(fetched) for name, fetched in rows.items()}
        for name, shared in zip(rows, self._peers.share(list(rows.values())), strict=True):
            self._caches[name].take_victims(shared)

    def end_step(self) -> None:
        """The step has been run: its victims leave."""
        if self._peers.size > 1:
            self._put_means([cache.updated_victims for cache in self._caches.values()])
        for cache in self._caches.values():
            cache.end_step()
        if self._averaging.ended() and self._peers.size > 1:
            self._average_touched()

    def leave_copies(self) -> None:
        """All rows go to the store, averaged, and stay."""
        self._average_touched()
        self._averaging.averaged()
        for cache in self._caches.values():
            cache.leave_copies()

    def leaving(self) -> list[dict[str, Written]]:
        """What has left since the last call: to be written back in this order."""
        left = {name: deque(cache.leaving()) for name, cache in self._caches.items()}
        jobs = []
        while any(left.values()):
            jobs.append({name: written.popleft() for name, written in left.items() if written})
        return jobs

    def _average_touched(self) -> None:
        self._average([cache.touched() for cache in self._caches.values()])

    def _average(self, touched: Sequence[Ids]) -> None:
        """Average what any trainer has touched: `touched` by cache are the slots of this one."""
        if self._peers.size > 1:
            self._put_means([distinct(parts) for parts in self._peers.gather(touched)])

    def _put_means(self, slots: Sequence[Ids]) -> None:
        """The mean over all trainers at slots that all of them name."""
        if self._peers.size == 1 or not any(part.size for part in slots):
            return
        caches = list(self._caches.values())
        means = self._peers.average([cache.rows_at(part) for cache, part in zip(caches, slots, strict=True)])
        for cache, part, rows in zip(caches, slots, means, strict=True):
            cache.put(part, rows)
