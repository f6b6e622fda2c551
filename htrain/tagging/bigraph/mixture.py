"""Labels of samples by a mixture of their rows: where topics are told by many weak signs, not by a rare row (docs/decisions/bigraph.md).

Hard expectation-maximization, one sample at a time. A label that n_l of n samples have, c of them with row x, speaks for a sample with x by

    log [(c n / deg(x) + 1) / (n_l + 1)]        deg(x): samples with row x

which is the log of how much likelier the row is under the label than at large, smoothed by one sample of the whole data. A sample takes the label for which its
rows speak most, among those that have not more than their share of the samples yet.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import in_chunks
from htrain.tagging.bigraph.graph import Level, Longs, counts_of

_ROUNDS = 3
_BLOCKS = 64  # of the samples that are spread
_SURE = 8.0  # how much more the rows of a sample speak for its part than for any other, where a move can hardly pay
_CROWD = 1.5  # times its even share of the samples that a label may have


class Labels(NamedTuple):
    """What the loops work on: label[s], -1 of none yet; load[l], its samples, and size_log[l] = log(load + 1).

    counts[x, l] and lifts[x, l] are of the first rows of the level, which many have; lift_of[readers, count] is the same of the others.
    """

    label: Longs
    load: Longs
    size_log: NDArray[np.float32]
    counts: NDArray[np.int32]
    lifts: NDArray[np.float32]
    lift_of: NDArray[np.float32]


def labelled(level: Level, num_labels: int, random: np.random.Generator) -> Longs:
    """label[s] of each sample, from 0 on, without gaps.

    Requires: the level is the finest. Takes two numbers for each label of a row that num_labels samples or more have.
    """
    num_counted = level.num_rows_read_by(num_labels)
    few = np.arange(num_labels)
    labels = Labels(
        label=np.full(level.num_vertices, -1),
        load=np.zeros(num_labels, np.int64),
        size_log=np.zeros(num_labels, np.float32),
        counts=np.zeros((num_counted, num_labels), np.int32),
        lifts=np.zeros((num_counted, num_labels), np.float32),
        lift_of=np.log1p(few * level.num_vertices / np.maximum(1, few)[:, None]).astype(np.float32),
    )
    most = max(1, int(_CROWD * level.num_vertices / num_labels))
    for _ in range(_ROUNDS):
        _label_all(level, labels, random.permutation(level.num_vertices), most)
    return np.unique(labels.label, return_inverse=True)[1]


@njit(nogil=True, cache=True, fastmath=True)
def _label_all(level, labels, order, most):  # type: ignore[no-untyped-def]
    """Give every sample its label anew, in `order`."""
    starts, rows = level.starts, level.rows
    label, load, size_log, lifts = labels.label, labels.load, labels.size_log, labels.lifts
    num_labels = load.size
    votes, few = np.empty(num_labels, np.float32), np.zeros(num_labels, np.int32)
    for s in order:
        _count(level, labels, s, -1)
        num_ids = starts[s + 1] - starts[s]
        for i in range(num_labels):
            votes[i] = -num_ids * size_log[i]
        for e in range(starts[s], starts[s + 1]):
            x = rows[e]
            if x < lifts.shape[0]:
                lift = lifts[x]
                for i in range(num_labels):
                    votes[i] += lift[i]
            else:
                _ask_readers(level, labels, s, x, few, votes)
        best = -1
        for i in range(num_labels):
            if load[i] < most and (best < 0 or votes[i] > votes[best]):
                best = i
        label[s] = best
        _count(level, labels, s, 1)


@njit(nogil=True, cache=True, fastmath=True)
def _ask_readers(level, labels, s, x, few, votes):  # type: ignore[no-untyped-def]
    """Add what a row of few readers says. `few` is zero before and after."""
    readers, label = level.readers, labels.label
    begin, end = level.row_starts[x], level.row_starts[x + 1]
    lift = labels.lift_of[end - begin]
    for e in range(begin, end):
        other = label[readers[e]]
        if other >= 0 and readers[e] != s:
            votes[other] += lift[few[other] + 1] - lift[few[other]]
            few[other] += 1
    for e in range(begin, end):
        if label[readers[e]] >= 0:
            few[label[readers[e]]] = 0


@njit(nogil=True, cache=True, fastmath=True)
def _count(level, labels, s, by):  # type: ignore[no-untyped-def]
    """Count a sample in, or out, under its label, if it has one."""
    starts, rows, row_starts = level.starts, level.rows, level.row_starts
    counts, lifts, num_samples, at = labels.counts, labels.lifts, labels.label.size, labels.label[s]
    if at < 0:
        return
    labels.load[at] += by
    labels.size_log[at] = np.log(np.float32(labels.load[at] + 1))
    for e in range(starts[s], starts[s + 1]):
        x = rows[e]
        if x < counts.shape[0]:
            counts[x, at] += by
            lifts[x, at] = np.log(np.float32(1 + counts[x, at] * (num_samples / (row_starts[x + 1] - row_starts[x]))))


def spread(
    level: Level, chosen: Longs, part: Longs, *, most: Longs, random: np.random.Generator
) -> tuple[Longs, NDArray[np.bool_]]:
    """part[s] of every sample, int32, and which of them are sure, from the parts of the chosen samples.

    The others follow their rows while part p has fewer than most[p]: a row that c of u known samples use speaks for part i, which has the share q_i of them, by

        log [(c_i + q_i) / (u + 1) / q_i]

    One is sure whose rows speak clearly more for its part than for others.

    Requires: the level is the finest. Only rows that many read speak, so that memory is at most one number an edge.
    """
    num_parts = len(most)
    known = np.full(level.num_vertices, -1, np.int32)
    known[chosen] = part
    load = np.bincount(part, minlength=num_parts)
    share = ((load + 1) / (len(chosen) + num_parts)).astype(np.float32)
    lifts = _lifts_of(counts_of(level, known, num_parts, level.num_rows_read_by(num_parts)), share)
    order = random.permutation(np.flatnonzero(known < 0))
    block, room = max(1, -(-len(order) // _BLOCKS)), most - load
    is_sure = np.zeros(level.num_vertices, np.bool_)
    for begin in range(0, len(order), block):
        mine = order[begin : begin + block]
        in_chunks(
            len(mine),
            partial(_follow_rows, level, Spread(lifts, known, room, is_sure), np.sort(mine)),  # as they lie in memory
            num_edges=len(level.rows) / _BLOCKS,
        )
        _find_room(known, room, is_sure, mine)
    return known, is_sure


class Spread(NamedTuple):
    """lifts[x, i]: how row x speaks for part i; known[s], -1 of none yet, the room that is left in each part, and is_sure[s]."""

    lifts: NDArray[np.float32]
    known: NDArray[np.int32]
    room: Longs
    is_sure: NDArray[np.bool_]


def _lifts_of(counts: NDArray[np.int32], share: NDArray[np.float32]) -> NDArray[np.float32]:
    """lifts[x, i], in the memory of `counts`."""
    lifts = counts.view(np.float32)
    in_chunks(len(counts), partial(_lift_all, counts, share, lifts), num_edges=counts.size)
    return lifts


@njit(nogil=True, cache=True, fastmath=True)
def _lift_all(counts, share, lifts, begin, end):  # type: ignore[no-untyped-def]
    for x in range(begin, end):
        uses = 0
        for i in range(share.size):
            uses += counts[x, i]
        for i in range(share.size):
            lifts[x, i] = np.log((counts[x, i] + share[i]) / (uses + 1) / share[i]) if uses else np.float32(0.0)


@njit(nogil=True, cache=True, fastmath=True)
def _follow_rows(level, spread, block, begin, end):  # type: ignore[no-untyped-def]
    """The part of each sample of a block, by what its rows say."""
    starts, rows = level.starts, level.rows
    lifts, known, room, is_sure = spread
    num_parts = room.size
    votes = np.empty(num_parts, np.float32)
    for j in range(begin, end):
        s = block[j]
        votes[:] = 0.0
        for e in range(starts[s], starts[s + 1]):
            if rows[e] < lifts.shape[0]:
                lift = lifts[rows[e]]
                for i in range(num_parts):
                    votes[i] += lift[i]
        best = 0
        for i in range(num_parts):
            if room[i] > 0 and (room[best] <= 0 or votes[i] > votes[best]):
                best = i
        known[s], next_best = best, np.float32(-1e30)
        for i in range(num_parts):
            if i != best:
                next_best = max(next_best, votes[i])
        is_sure[s] = votes[best] - next_best >= _SURE


@njit(nogil=True, cache=True)
def _find_room(known, room, is_sure, block):  # type: ignore[no-untyped-def]
    """Those for whose part there is no room any more go where there is most."""
    for s in block:
        if room[known[s]] <= 0:
            known[s], is_sure[s] = np.argmax(room), False
        room[known[s]] -= 1
