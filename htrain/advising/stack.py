"""Stack distances of LRU (Mattson et al. 1970): one pass says what a cache of every size would hit, the miss ratio
curve.

The stack distance of a use of a row is the number of other rows that were used since its last one; LRU's cache of C
rows has the row where that is below C. Rows of a batch are used together: distances are those before the batch. While
a batch is asked for ahead, the one before it is in the cache whatever its size. Marks on a time line, of the last use
of every row, are counted by a Fenwick tree (Olken 1981). Of rows that are a sample of all, distances are as many
times larger (SHARDS: Waldspurger et al. 2015).
"""

import numpy as np

from htrain.advising.sequence import Sequence
from htrain.jit import njit
from htrain.sync.accesses import Longs

_PER_OCTAVE = 16  # bins of distances


def bin_edges(most: int) -> Longs:
    """Sizes of caches in rows, in rising order up to at least `most`: all small ones, and 16 of each octave."""
    octaves = max(0, int(np.ceil(np.log2(max(1, most) / _PER_OCTAVE))))
    fine = [_PER_OCTAVE * 2.0 ** (step / _PER_OCTAVE) for step in range(_PER_OCTAVE * octaves + 1)]
    return np.unique(np.concatenate([np.arange(1, _PER_OCTAVE), np.rint(fine)]).astype(np.int64))


def stack_hits(sequence: Sequence, edges: Longs, *, num_parts: int, counted: int, ahead: bool) -> Longs:
    """hits[p, e]: uses of rows of part p, from batch `counted` on, that LRU's cache of edges[e] rows has. The last
    edge is to be no smaller than the rows."""
    first_hit = np.zeros((num_parts, len(edges) + 1), np.int64)
    _distances(
        sequence.slots, sequence.starts, sequence.parts, edges=edges, counted=counted, ahead=ahead, first_hit=first_hit
    )
    return first_hit[:, :-1].cumsum(1)


@njit(nogil=True, cache=True)
def _distances(slots, starts, parts, edges, counted, ahead, first_hit):  # type: ignore[no-untyped-def]
    """first_hit[p, e] counts uses by the smallest size that has them; the last column those that no size has."""
    tree = np.zeros(slots.size + 1, np.int32)
    last = np.full(parts.size, -1, np.int64)  # place of a row's last use
    num_marks = 0
    for b in range(starts.size - 1):
        before = starts[b - 1] if b and ahead else starts[b]
        for i in range(starts[b], starts[b + 1]):
            if b < counted:
                break
            seen = last[slots[i]]
            if seen < 0:
                e = edges.size
            elif seen >= before:
                e = 0
            else:
                e = np.searchsorted(edges, num_marks - _marks_to(tree, seen), side="right")
            first_hit[parts[slots[i]], e] += 1
        for i in range(starts[b], starts[b + 1]):
            seen = last[slots[i]]
            if seen >= 0:
                _add(tree, seen, -1)
            else:
                num_marks += 1
            _add(tree, i, 1)
            last[slots[i]] = i


@njit(nogil=True, cache=True)
def _add(tree, place, change):  # type: ignore[no-untyped-def]
    at = place + 1
    while at < tree.size:
        tree[at] += change
        at += at & -at


@njit(nogil=True, cache=True)
def _marks_to(tree, place):  # type: ignore[no-untyped-def]
    """Marks at places up to `place`."""
    total, at = 0, place + 1
    while at > 0:
        total += tree[at]
        at -= at & -at
    return total
