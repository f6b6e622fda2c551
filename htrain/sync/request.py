"""What a trainer asks the server of some rows in a step: one request for all of its tables (HET 4.2, HET-GMP 6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.sync.territory import Ids, Territory

Clocks = NDArray[np.int32]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Request:
    """`counts`[3]: rows pushed, fetched, checked; `keys`[sum of these], in that order, are rows of the server; `clocks`[pushed + checked];
    `gradients`[pushed,D], what each pushed row has accumulated. Pushes come first: a row may be pushed and fetched at once."""

    counts: Ids
    keys: NDArray[np.int32] | Ids
    clocks: Clocks
    gradients: Rows

    def rows_among(self, num_rows: int, width: int) -> Ids:
        """Its rows, of a server that has so many, of a width. Raises DataError for a request that does not hold together, and for a row that is not there."""
        counts = self.counts
        if counts.shape != (3,) or counts.min(initial=0) < 0:
            raise DataError(f"a request of a cache has the counts {counts.tolist()}, want three counts")
        pushed, fetched, checked = (int(n) for n in counts)
        wanted = (pushed + fetched + checked,), (pushed + checked,), (pushed, width)
        seen = self.keys.shape, self.clocks.shape, self.gradients.shape
        if seen != wanted:
            raise DataError(f"a request of a cache brings keys, clocks and gradients {seen}, want {wanted}")
        rows = self.keys.astype(np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < num_rows:
            bad = rows[(rows < 0) | (rows >= num_rows)][0]
            raise DataError(f"a cache asks for row {bad}, this server holds {num_rows}")
        return rows


@dataclass(frozen=True)
class Pushed:
    """Updates on their way out: keys[n], clocks[n], grads[n,D]."""

    keys: Ids
    clocks: Clocks
    grads: Rows


class Asked(NamedTuple):
    """A request, and which of all rows that are fetched, and checked, it asks for, by their places among them."""

    request: Request
    fetched: Ids
    checked: Ids


def requests_of(
    territory: Territory, width: int, pushed: list[Pushed], *, fetch: Ids, check: Ids, clocks: Clocks
) -> Iterator[Asked]:
    """A request to each server: what is pushed, then the keys to `fetch`, then those to `check`, by their `clocks`."""
    push_keys = np.concatenate([np.empty(0, np.int64), *(p.keys for p in pushed)])
    push_clocks = np.concatenate([np.empty(0, np.int32), *(p.clocks for p in pushed)])
    grads = np.concatenate([np.empty((0, width), np.float32), *(p.grads for p in pushed)])
    parts = [territory.split(keys) for keys in (push_keys, fetch, check)]
    for server in range(territory.num_servers):
        (out, out_rows), (fetched, fetch_rows), (checked, check_rows) = (_part(split, server) for split in parts)
        request = Request(
            np.array([out.size, fetched.size, checked.size], np.int64),
            territory.as_rows(np.concatenate([out_rows, fetch_rows, check_rows])),
            np.concatenate([push_clocks[out], clocks[checked]]),
            grads[out] if territory.num_servers > 1 else grads,
        )
        yield Asked(request, fetched, checked)


def _part(split: tuple[Ids, Ids, Ids], server: int) -> tuple[Ids, Ids]:
    order, rows, starts = split
    return order[starts[server] : starts[server + 1]], rows[starts[server] : starts[server + 1]]
