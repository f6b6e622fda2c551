"""Partition data again, from the owners that its rows had: after a drift, few rows should have to move.

Samples begin at the worker that owned most of their rows, and are improved from there. A row that was owned stays where its owner's batches use it as much as
any other's; rows that are new go where they are used most.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import numpy as np

from htrain.data.numbering import Numbering
from htrain.errors import DataError
from htrain.jit import njit
from htrain.tagging.bigraph.fetches import fetches, use_probability
from htrain.tagging.bigraph.graph import Bigraph, Longs
from htrain.tagging.bigraph.homes import homes_of
from htrain.tagging.bigraph.of_data import Seen
from htrain.tagging.bigraph.partition import Partition, Request
from htrain.tagging.bigraph.refine import Parts

UNKNOWN = -1  # the owner of a row that the old partition has not seen
_SWEEPS = 24
_WORDS = 1 << 20  # of a bitmap that are looked at at once


def owners_before(seen: Seen, old: Numbering) -> Longs:
    """The owner that each row which is seen had, int32[m], or UNKNOWN, as of rows that tables have more of now. Raises DataError for a partition of other
    tables."""
    tables, before = seen.tables, old.tables
    if tables.names != before.names or any(before.rows_of(name) > tables.rows_of(name) for name in before.names):
        raise DataError(f"{old.name}: is a partition of other tables than the data has: leave --from out")
    sections, found = old.sections(), [np.zeros(0, np.int32)]
    ends = np.array([*tables.starts[1:], tables.num_rows])
    for begin in range(0, len(seen.words), _WORDS):
        bits = np.unpackbits(seen.words[begin : begin + _WORDS].view(np.uint8), bitorder="little")
        keys = np.flatnonzero(bits) + 64 * begin
        for name, held in zip(tables.names, np.split(keys, np.searchsorted(keys, ends[:-1])), strict=True):
            rows, owner = held - tables.start_of(name), np.full(len(held), UNKNOWN, np.int32)
            known = rows[: np.searchsorted(rows, before.rows_of(name))]
            section = np.searchsorted(sections, before.start_of(name) + old.renumber(name, known), side="right") - 1
            owner[: len(known)] = np.where(section % 2 == 0, section // 2 % old.num_workers, UNKNOWN)
            found.append(owner)
    return np.concatenate(found)


def repartition(graph: Bigraph, request: Request, before: Longs) -> Partition:
    """A partition of the graph from the owners that its rows had, int32[m]. The same for the same arguments, whatever the number of threads."""
    k, num_samples = request.num_workers, graph.num_samples
    most = max(-(-num_samples // k), int(request.sample_slack * num_samples / k))
    most_rows = max(-(-graph.num_rows // k), int(request.row_slack * graph.num_rows / k))
    probability = use_probability(-(-num_samples // k), request.batch_size)
    part = np.empty(num_samples, np.int32)
    _follow(graph.starts, graph.rows, before, np.full(k, most), part)
    parts = Parts(graph.level, part, probability, request.links)
    parts.refine(most=np.full(k, most), sweeps=_SWEEPS, random=np.random.default_rng(request.seed))
    homes = homes_of(graph.level, parts.part, probability, links=request.links, most=most_rows)
    if len(request.hosts) < 2:  # a row that costs as much at its old owner may be nearer to others where it is
        _stay(graph.level, parts.part, probability, before[graph.row_order], np.full(k, most_rows), homes)
    of_row = np.empty(graph.num_rows, np.int32)
    of_row[graph.row_order] = homes
    found = fetches(graph, parts.part, of_row, num_workers=k, batch_size=request.batch_size)
    return Partition(parts.part, of_row, found, "the old owners")


@njit(nogil=True, cache=True)
def _follow(starts, rows, owner, room, part):  # type: ignore[no-untyped-def]
    """Each sample to who owns most of its rows and has room; among equals, to who has most room."""
    known = np.zeros(room.size, np.int64)
    for s in range(part.size):
        known[:] = 0
        for e in range(starts[s], starts[s + 1]):
            if owner[rows[e]] >= 0:
                known[owner[rows[e]]] += 1
        best = np.argmax(room)
        for k in range(room.size):
            if room[k] > 0 and (known[k] > known[best] or (known[k] == known[best] and room[k] > room[best])):
                best = k
        room[best] -= 1
        part[s] = best


@njit(nogil=True, cache=True)
def _stay(level, part, probability, before, most, home):  # type: ignore[no-untyped-def]
    """Give rows back to their old owners where that costs nothing, and these may have more."""
    row_starts, readers, last = level.row_starts, level.readers, probability.size - 1
    room = most - np.bincount(home, minlength=most.size)
    counts = np.zeros(most.size, np.int64)
    for x in range(home.size):
        old = before[x]
        if old < 0 or old == home[x] or room[old] <= 0:
            continue
        counts[:] = 0
        for e in range(row_starts[x], row_starts[x + 1]):
            counts[part[readers[e]]] += 1
        if probability[min(counts[old], last)] >= probability[min(counts[home[x]], last)]:
            room[home[x]] += 1
            room[old] -= 1
            home[x] = old
